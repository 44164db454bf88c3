//! Tools: what there is over all servers, switching single ones, and agreeing to definitions that changed.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use axum::{
    Json,
    body::Bytes,
    extract::{Path, Query, State, rejection::BytesRejection},
    http::StatusCode,
};
use engine::{KeptBack, Scope, catalog::ListKind, server::Server, view::View};
use mcp::json::Object;
use model::{NativeName, ProjectId, ServerKey, ServerName, ToolRef};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    Problem, Rest, Saved, Shared,
    access::Project,
    answer::shown,
    approvals::difference,
    input,
    servers::{disabled, server_name, whole},
};
use crate::{config::Sources, itself::Itself, registry};

/// Longest description that is told, in characters.
const DESCRIPTION_CHARS: usize = 1_000;
/// Longest name that clients see, in characters.
const EXPOSED_CHARS: usize = 64;

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Tools {
    pub(crate) tools: Vec<Tool>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Tool {
    /// As clients see it; none if they do not.
    pub(crate) name: Option<String>,
    /// The project whose own server it is of; none: of the configuration file.
    #[serde(default)]
    pub(crate) project: Option<String>,
    pub(crate) server: String,
    /// As the server calls it.
    pub(crate) native: String,
    /// As clients see it.
    pub(crate) description: String,
    pub(crate) enabled: bool,
    /// What the project set.
    #[serde(default)]
    pub(crate) setting: Option<Setting>,
    /// Its definition changed, and nobody agreed to that yet.
    #[serde(default)]
    pub(crate) quarantine: Option<Quarantine>,
    /// Why it is not offered: its definition changed, or cannot be remembered. None if it is.
    #[serde(default, rename = "keptBack")]
    pub(crate) kept_back: Option<String>,
}

/// What is answered when tools are asked for: a table of them, or what a model is told of those that clients see.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Offered {
    Listed(Tools),
    Declared(Declarations),
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Declarations {
    /// In the form that was asked for.
    #[schema(value_type = Vec<Value>)]
    pub(crate) declarations: Vec<agent::raw::Fields>,
}

/// Whose form of declaration.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Form {
    Adk,
    Anthropic,
    OpenAi,
}

impl From<Form> for agent::Format {
    fn from(form: Form) -> Self {
        match form {
            Form::Adk => Self::Adk,
            Form::Anthropic => Self::Anthropic,
            Form::OpenAi => Self::OpenAi,
        }
    }
}

/// What a project wants of a tool; what is missing is as the server says.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Setting {
    pub(crate) enabled: Option<bool>,
    /// The name that clients see.
    #[schema(pattern = "^[A-Za-z0-9_-]{1,64}$")]
    pub(crate) name: Option<String>,
    #[schema(max_length = 4000)]
    pub(crate) description: Option<String>,
}

/// A definition that waits for somebody's agreement.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Quarantine {
    /// Of the new definition: what is agreed to.
    pub(crate) digest: String,
    /// From the definition that was agreed to, to the new one; none if the database does not have them now.
    pub(crate) diff: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Asked {
    project: Option<ProjectId>,
    server: Option<ServerName>,
    format: Option<Form>,
}

#[derive(Deserialize)]
pub(super) struct OfServer {
    server: Option<ServerName>,
    format: Option<Form>,
}

/// Where a tool is in a path.
#[derive(Deserialize)]
pub(super) struct Named {
    pub(super) server: String,
    pub(super) tool: String,
}

pub(super) async fn list(
    State(rest): State<Shared>,
    query: Result<Query<Asked>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<Offered>, Problem> {
    let asked = input::query(query)?;
    if asked.project.is_none()
        && let Some(server) = &asked.server
    {
        rest.of_no_project(server)?;
    }
    rest.tools(asked.project, asked.server, asked.format).await
}

pub(super) async fn list_of(
    State(rest): State<Shared>,
    Project(project): Project,
    query: Result<Query<OfServer>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<Offered>, Problem> {
    let asked = input::query(query)?;
    rest.tools(Some(project), asked.server, asked.format).await
}

impl Rest {
    async fn tools(
        &self,
        project: Option<ProjectId>,
        server: Option<ServerName>,
        format: Option<Form>,
    ) -> Result<Json<Offered>, Problem> {
        let scope = Scope {
            project,
            server: None,
        };
        self.projects.admit(&scope).await?;
        // As for clients: the first list of all waits for servers that are only just being started.
        let Some(view) = self.gateway.settled(&scope).await else {
            let project = scope.project.as_ref().map_or("", ProjectId::as_str);
            return Err(Problem::no_project(project));
        };
        let wanted = |found: &&Arc<Server>| server.as_ref().is_none_or(|only| only == found.name());
        let servers: Vec<&Arc<Server>> = view.servers.iter().filter(wanted).collect();
        if let Some(server) = server.as_ref().filter(|_| servers.is_empty()) {
            return Err(Problem::new(
                404,
                format!("there is no server `{server}` here"),
            ));
        }
        if let Some(format) = format {
            let functions = crate::agents::offered(&view);
            let mut functions = functions.map_err(|error| Problem::new(500, error.to_string()))?;
            functions.retain(|function| {
                server
                    .as_ref()
                    .is_none_or(|only| only.as_str() == function.origin.server())
            });
            let declared = functions.iter().map(|tool| tool.declaration(format.into()));
            let declarations = declared.collect();
            return Ok(Json(Offered::Declared(Declarations { declarations })));
        }
        let mut exposed: HashMap<(&ServerKey, &str), &str> = HashMap::new();
        let routes: Vec<_> = view
            .names(ListKind::Tools)
            .filter_map(|(name, ..)| Some((name, view.tool(name).ok()?)))
            .collect();
        for (name, route) in &routes {
            exposed.insert((route.server.key(), &route.native), name);
        }
        let mut tools = Vec::new();
        for server in servers {
            self.tools_of(&view, server, &exposed, &mut tools).await;
        }
        Ok(Json(Offered::Listed(Tools { tools })))
    }

    async fn tools_of(
        &self,
        view: &View,
        server: &Server,
        exposed: &HashMap<(&ServerKey, &str), &str>,
        tools: &mut Vec<Tool>,
    ) {
        let fleet = self.gateway.fleet();
        let project = view.scope.project.as_ref();
        let settings = project.and_then(|id| fleet.projects.get(id));
        let off: BTreeSet<String> = disabled(server);
        let differences = self.differences(server).await;
        let kept_back: HashMap<NativeName, KeptBack> =
            fleet.kept_back(server).into_iter().collect();
        let mut seen = BTreeSet::new();
        for item in server.catalog().list(ListKind::Tools).iter() {
            // A server that lists a name twice offers it once.
            if !seen.insert(item.native.clone()) {
                continue;
            }
            let tool = ToolRef {
                server: server.name().clone(),
                tool: NativeName::new(item.native.clone()),
            };
            let setting = settings.and_then(|project| project.tools.get(&tool));
            let name = exposed.get(&(server.key(), &*item.native));
            let own = setting.and_then(|setting| setting.description.clone());
            let theirs = || Object::of(&item.raw).and_then(|tool| tool.string("description"));
            let description = match own {
                Some(own) => own,
                None => theirs().unwrap_or_default().into_owned(),
            };
            let enabled = setting.and_then(|setting| setting.enabled);
            let pending = server
                .pins()
                .get(&tool.tool)
                .and_then(|pin| pin.pending.clone());
            tools.push(Tool {
                name: name.map(|name| (*name).to_owned()),
                project: server.spec.owner.as_ref().map(ToString::to_string),
                server: server.name().to_string(),
                native: item.native.to_string(),
                description: description.chars().take(DESCRIPTION_CHARS).collect(),
                kept_back: kept_back.get(&tool.tool).map(|why| match why {
                    KeptBack::Changed => "its definition changed".to_owned(),
                    KeptBack::Unkept(why) => format!("its definition cannot be remembered: {why}"),
                }),
                enabled: name.is_some() || enabled.unwrap_or_else(|| !off.contains(&*item.native)),
                setting: setting.map(|setting| Setting {
                    enabled: setting.enabled,
                    name: setting.alias.as_ref().map(ToString::to_string),
                    description: setting.description.clone(),
                }),
                quarantine: pending.map(|digest| Quarantine {
                    diff: differences.get(&*item.native).cloned(),
                    digest: digest.to_string(),
                }),
            });
        }
    }

    /// What changed in the definitions that nobody agreed to yet, by tool. Without the database: nothing.
    async fn differences(&self, server: &Server) -> HashMap<String, String> {
        if !server.pins().values().any(|pin| pin.pending.is_some()) {
            return HashMap::new();
        }
        let store = self.projects.store();
        let rows = store
            .pin_list(server.spec.owner.as_ref(), server.name())
            .await;
        match rows {
            Ok(rows) => {
                let changed = rows.into_iter().filter_map(|pin| {
                    let diff = difference(&pin.definition, &pin.pending_definition?);
                    Some((pin.tool, diff))
                });
                changed.collect()
            }
            Err(error) => {
                tracing::warn!(server = %server.key(), "what changed cannot be shown: {error}");
                HashMap::new()
            }
        }
    }

    /// A server that is no project's: of the configuration file, or hosted.
    pub(super) fn of_no_project(&self, name: &ServerName) -> Result<Arc<Server>, Problem> {
        let key = ServerKey {
            owner: None,
            name: name.clone(),
        };
        let found = self.gateway.fleet().get(&key).cloned();
        found.ok_or_else(|| Problem::new(404, format!("there is no server `{name}`")))
    }

    /// The server that a project's tool setting is about: its own, or one that it is lent.
    pub(super) async fn seen(
        &self,
        project: &ProjectId,
        name: &ServerName,
    ) -> Result<Arc<Server>, Problem> {
        let scope = Scope {
            project: Some(project.clone()),
            server: None,
        };
        self.projects.admit(&scope).await?;
        let fleet = self.gateway.fleet();
        let key = ServerKey {
            owner: Some(project.clone()),
            name: name.clone(),
        };
        if let Some(own) = fleet.get(&key) {
            return Ok(own.clone());
        }
        let view = self.gateway.view(&scope);
        let lent = view.as_ref().and_then(|view| {
            let found = view.servers.iter().find(|server| server.name() == name);
            found.cloned()
        });
        lent.ok_or_else(|| Problem::new(404, format!("there is no server `{name}` here")))
    }
}

/// A tool that a server has, or may have: one that has offered nothing yet may have any.
fn known(server: &Server, tool: &NativeName) -> Result<(), Problem> {
    let catalog = server.catalog();
    let mut listed = catalog
        .list(ListKind::Tools)
        .iter()
        .map(|item| &*item.native);
    let is_off = server.disabled_tools().contains(tool);
    if catalog.info.is_some() && !is_off && !listed.any(|listed| listed == tool.as_str()) {
        return Err(Problem::new(
            404,
            format!(
                "server `{}` has no tool `{}`; `toolwharf tools ls` shows what it has",
                server.name(),
                shown(tool.as_str())
            ),
        ));
    }
    Ok(())
}

pub(super) async fn set(
    State(rest): State<Shared>,
    Project(project): Project,
    Path(Named { server, tool }): Path<Named>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Setting>, Problem> {
    let name = input::server_name(&server)?;
    let setting: Setting = input::object(body)?;
    if let Some(exposed) = &setting.name {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        if exposed.is_empty() || exposed.len() > EXPOSED_CHARS || !exposed.bytes().all(fits) {
            let why = "consists of 1 to 64 letters A-Z and a-z, digits, `_` and `-`";
            return Err(Problem::field(400, "/name", why));
        }
    }
    if let Some(description) = &setting.description {
        input::description("/description", description)?;
    }
    let tool = NativeName::new(tool);
    known(&*rest.seen(&project, &name).await?, &tool)?;
    let wanted = store::ToolSetting {
        enabled: setting.enabled,
        alias: setting.name.clone(),
        description: setting.description.clone(),
    };
    let store = rest.projects.store();
    store
        .tool_setting_put(&project, &name, tool.as_str(), &wanted)
        .await?;
    rest.projects.reload(&project).await?;
    Ok(Json(setting))
}

pub(super) async fn unset(
    State(rest): State<Shared>,
    Project(project): Project,
    Path(Named { server, tool }): Path<Named>,
) -> Result<StatusCode, Problem> {
    let name = input::server_name(&server)?;
    let store = rest.projects.store();
    store.tool_setting_delete(&project, &name, &tool).await?;
    rest.projects.reload(&project).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn enable(
    rest: State<Shared>,
    path: Path<(String, String)>,
) -> Result<Json<Saved>, Problem> {
    switch(rest, path, true).await
}

pub(super) async fn disable(
    rest: State<Shared>,
    path: Path<(String, String)>,
) -> Result<Json<Saved>, Problem> {
    switch(rest, path, false).await
}

async fn switch(
    State(rest): State<Shared>,
    Path((name, tool)): Path<(String, String)>,
    enabled: bool,
) -> Result<Json<Saved>, Problem> {
    let name = server_name(&name)?;
    let tool = NativeName::new(tool);
    // A slip of the pen would otherwise look as if it had worked.
    if let Ok(server) = rest.server(name.as_str()) {
        known(&server, &tool)?;
    }
    let (wanted, which) = (name.clone(), tool.clone());
    let change = move |sources: &Sources, myself: &Itself| {
        registry::set_tool_enabled(sources, myself, &wanted, &which, enabled)
    };
    let (file, warnings) = rest.edit(change).await?;
    // Where the file is not in force for another reason, this still is.
    rest.gateway.set_tool_enabled(&name, &tool, enabled);
    Ok(Json(Saved {
        file: whole(file),
        created: false,
        warnings,
        server: None,
    }))
}
