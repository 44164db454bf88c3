//! Which part of everything a caller addresses.

use model::{ProjectId, ServerName};

/// Which part of everything a caller addresses.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Scope {
    /// `None`: all servers.
    pub project: Option<ProjectId>,
    /// One server alone, as it is.
    pub server: Option<ServerName>,
    /// With all that it has, whatever is switched off, kept back or changed: for another gateway of the installation, which sees
    /// to that, and records calls.
    pub is_bare: bool,
}

impl Scope {
    /// What to say to whoever addresses a scope that there is not.
    #[must_use]
    pub fn missing(&self) -> String {
        match (&self.project, &self.server) {
            (_, Some(server)) => format!("no server `{server}` is enabled here"),
            (Some(project), None) => format!("there is no project `{project}`"),
            (None, None) => "there is nothing here".to_owned(),
        }
    }
}
