//! The part of the gateway that a caller addresses: everything, a project, or one server.

use model::{CallerValues, ProjectId, ServerName, ToolMode};

/// The part of the gateway that a caller addresses.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Scope {
    /// `None`: all servers.
    pub project: Option<ProjectId>,
    /// Only this server, with its native names.
    pub server: Option<ServerName>,
    /// Includes everything the server has, ignoring disabled tools, kept-back tools and renames. Used between gateways
    /// of an installation: the calling gateway applies those rules and records the calls.
    pub is_bare: bool,
    /// The tools in its lists, in a view of several servers. `None`: as configured.
    pub tools: Option<ToolMode>,
    /// The caller's values of the headers that servers of the scope ask for. Callers with different values see
    /// different servers.
    pub values: CallerValues,
}

impl Scope {
    /// The scope for callers whose requests have none of the headers that decide what a caller sees.
    #[must_use]
    pub fn without_values(&self) -> Self {
        Self {
            tools: None,
            values: CallerValues::default(),
            ..self.clone()
        }
    }

    /// The error message for a scope that does not exist.
    #[must_use]
    pub fn missing(&self) -> String {
        match (&self.project, &self.server) {
            (Some(project), Some(server)) => {
                format!("project `{project}` has no enabled server `{server}`")
            }
            (None, Some(server)) => format!("there is no enabled server `{server}`"),
            (Some(project), None) => format!("there is no project `{project}`"),
            (None, None) => "there are no servers".to_owned(),
        }
    }
}
