//! Tools: what there is over all servers, switching single ones, and agreeing to definitions that changed.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use api::{Quarantine, Set, Setting, Tool, Tools};
use axum::{
    Json,
    body::Bytes,
    extract::{
        Path, Query, State,
        rejection::{BytesRejection, QueryRejection},
    },
    http::StatusCode,
};
use config::Sources;
use engine::{KeptBack, Scope, catalog::ListKind, server::Server, view::View};
use mcp::json::Object;
use model::{NativeName, ProjectId, ServerKey, ServerName, ToolRef};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    AppState, Problem, Rest,
    access::{Who, Within, permit},
    answer::shown,
    approvals::difference,
    input,
    servers::{Home, Target, file},
};
use crate::{auth::Role, itself::Itself, registry};

/// Longest description that is told, in characters.
const DESCRIPTION_CHARS: usize = 1_000;
/// Longest name that clients see, in characters.
const EXPOSED_CHARS: usize = 64;

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

#[derive(Debug, Deserialize)]
pub(super) struct Asked {
    server: Option<ServerName>,
    format: Option<Form>,
}

/// Where a tool is in a path.
#[derive(Deserialize)]
pub(super) struct Named {
    id: String,
    tool: String,
}

pub(super) async fn list(
    State(rest): State<AppState>,
    Within(project): Within,
    query: Result<Query<Asked>, QueryRejection>,
) -> Result<Json<Offered>, Problem> {
    let Asked { server, format } = input::query(query)?;
    if let (None, Some(server)) = (&project, &server) {
        rest.of_no_project(server)?;
    }
    rest.offered(project, server, format).await
}

pub(super) async fn list_of_server(
    State(rest): State<AppState>,
    target: Target,
) -> Result<Json<Tools>, Problem> {
    let server = rest.enabled(&target).await?;
    let view = rest.seen_by(target.key.owner).await?;
    let tools = rest.table(&view, |found| found.key() == server.key());
    Ok(Json(Tools { tools: tools.await }))
}

impl Rest {
    async fn offered(
        &self,
        project: Option<ProjectId>,
        server: Option<ServerName>,
        format: Option<Form>,
    ) -> Result<Json<Offered>, Problem> {
        let view = self.seen_by(project).await?;
        let wanted = |name: &str| server.as_ref().is_none_or(|only| only.as_str() == name);
        let mut servers = view.servers.iter();
        if let (Some(server), false) = (&server, servers.any(|it| wanted(it.name().as_str()))) {
            let why = format!("there is no server `{server}` here");
            return Err(Problem::new(404, why));
        }
        let Some(format) = format else {
            let tools = self.table(&view, |server| wanted(server.name().as_str()));
            let tools = tools.await;
            return Ok(Json(Offered::Listed(Tools { tools })));
        };
        let functions = crate::agents::offered(&view);
        let mut functions = functions.map_err(|error| Problem::new(500, error.to_string()))?;
        functions.retain(|function| wanted(function.origin.server()));
        let declared = functions.iter().map(|tool| tool.declaration(format.into()));
        let declarations = declared.collect();
        Ok(Json(Offered::Declared(Declarations { declarations })))
    }

    /// What a project sees, or all there is. As for clients, the first look waits for servers that are only just being
    /// started.
    async fn seen_by(&self, project: Option<ProjectId>) -> Result<Arc<View>, Problem> {
        let scope = Scope {
            project,
            ..Scope::default()
        };
        self.projects.admit(&scope).await?;
        let no_project = || {
            let project = scope.project.as_ref().map_or("", ProjectId::as_str);
            Problem::no_project(project)
        };
        self.gateway.settled(&scope).await.ok_or_else(no_project)
    }

    /// The tools of some servers of a view.
    async fn table(&self, view: &View, wanted: impl Fn(&Server) -> bool) -> Vec<Tool> {
        let mut exposed: HashMap<&ServerKey, HashMap<&str, &str>> = HashMap::new();
        let routes: Vec<_> = view
            .names(ListKind::Tools)
            .filter_map(|(name, ..)| Some((name, view.tool(name).ok()?)))
            .collect();
        for (name, route) in &routes {
            let of_server = exposed.entry(route.server.key()).or_default();
            of_server.insert(&route.native, name);
        }
        let mut tools = Vec::new();
        for server in view.servers.iter().filter(|server| wanted(server)) {
            let exposed = exposed.get(server.key());
            self.tools_of(view, server, exposed, &mut tools).await;
        }
        tools
    }

    async fn tools_of(
        &self,
        view: &View,
        server: &Server,
        exposed: Option<&HashMap<&str, &str>>,
        tools: &mut Vec<Tool>,
    ) {
        let fleet = self.gateway.fleet();
        let project = view.scope.project.as_ref();
        let settings = project.and_then(|id| fleet.projects.get(id));
        let (off, pins) = (server.disabled_tools(), server.pins());
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
            let name = exposed.and_then(|exposed| exposed.get(&*item.native));
            let own = setting.and_then(|setting| setting.description.clone());
            let theirs = || Object::of(&item.raw).and_then(|tool| tool.string("description"));
            let mut description = match own {
                Some(own) => own,
                None => theirs().unwrap_or_default().into_owned(),
            };
            if let Some((end, _)) = description.char_indices().nth(DESCRIPTION_CHARS) {
                description.truncate(end);
            }
            let enabled = setting.and_then(|setting| setting.enabled);
            let pending = pins.get(&tool.tool).and_then(|pin| pin.pending.clone());
            tools.push(Tool {
                name: name.map(|name| (*name).to_owned()),
                project: server.spec.owner.as_ref().map(ToString::to_string),
                server: server.name().to_string(),
                native: item.native.to_string(),
                description,
                kept_back: kept_back.get(&tool.tool).map(|why| match why {
                    KeptBack::Changed => "its definition changed".to_owned(),
                    KeptBack::Unkept(why) => format!("its definition cannot be remembered: {why}"),
                }),
                enabled: name.is_some() || enabled.unwrap_or_else(|| !off.contains(&tool.tool)),
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
            ..Scope::default()
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

/// What is wanted of a tool: in a project, or for all who see a server that is nobody's.
pub(super) async fn set(
    State(rest): State<AppState>,
    who: Who,
    Within(project): Within,
    Path(Named { id, tool }): Path<Named>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Set>, Problem> {
    let setting: Setting = input::object(body)?;
    if let Some(exposed) = &setting.name {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        if exposed.is_empty() || exposed.len() > EXPOSED_CHARS || !exposed.bytes().all(fits) {
            let why = "must be 1 to 64 letters A-Z and a-z, digits, `_` and `-`";
            return Err(Problem::field(400, "/name", why));
        }
    }
    if let Some(description) = &setting.description {
        input::description("/description", description)?;
    }
    let tool = NativeName::new(tool);
    match rest.tools_place(project, &id).await? {
        Place::Project(project, name) => {
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
            Ok(Json(Set {
                setting,
                file: None,
                notices: Vec::new(),
            }))
        }
        Place::All(target) => {
            permit(&who, Role::Admin, None)?;
            for (key, given) in [
                ("/name", setting.name.is_some()),
                ("/description", setting.description.is_some()),
            ] {
                if given {
                    let why = "can only be set for a project: name one with `?project=`";
                    return Err(Problem::field(422, key, why));
                }
            }
            let enabled = setting.enabled.unwrap_or(true);
            let (file, notices) = rest.switch_tool(&target, &tool, enabled).await?;
            Ok(Json(Set {
                setting,
                file,
                notices,
            }))
        }
    }
}

pub(super) async fn unset(
    State(rest): State<AppState>,
    who: Who,
    Within(project): Within,
    Path(Named { id, tool }): Path<Named>,
) -> Result<StatusCode, Problem> {
    match rest.tools_place(project, &id).await? {
        Place::Project(project, name) => {
            let store = rest.projects.store();
            store.tool_setting_delete(&project, &name, &tool).await?;
            rest.projects.reload(&project).await?;
        }
        Place::All(target) => {
            permit(&who, Role::Admin, None)?;
            rest.switch_tool(&target, &NativeName::new(tool), true)
                .await?;
        }
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Whose setting of a tool it is.
enum Place {
    /// A project's, of a server that it sees.
    Project(ProjectId, ServerName),
    /// That of the server itself, which is nobody's.
    All(Box<Target>),
}

impl Rest {
    async fn tools_place(&self, project: Option<ProjectId>, id: &str) -> Result<Place, Problem> {
        let target = match self.find(project.as_ref(), id).await {
            Ok(target) => target,
            // One that the project is lent.
            Err(problem) => match (project, ServerName::parse(id)) {
                (Some(project), Ok(name)) if problem.status == 404 => {
                    return Ok(Place::Project(project, name));
                }
                _ => return Err(problem),
            },
        };
        Ok(match &target.key.owner {
            Some(owner) => Place::Project(owner.clone(), target.key.name.clone()),
            None => Place::All(target.into()),
        })
    }

    /// Switches a tool of a server for all who see it; the file that was changed, and what else is wrong with it.
    async fn switch_tool(
        &self,
        target: &Target,
        tool: &NativeName,
        enabled: bool,
    ) -> Result<(Option<String>, Vec<String>), Problem> {
        // A slip of the pen would otherwise look as if it had worked.
        if let Some(server) = target.live(&self.gateway.fleet()) {
            known(&server, tool)?;
        }
        match &target.home {
            Home::Registered(row) => {
                self.hosting
                    .set_tool_enabled(&row.id, tool, enabled)
                    .await?;
                Ok((None, Vec::new()))
            }
            Home::File | Home::Project(_) => {
                let (name, which) = (target.key.name.clone(), tool.clone());
                let wanted = name.clone();
                let change = move |sources: &Sources, myself: &Itself| {
                    registry::set_tool_enabled(sources, myself, &wanted, &which, enabled)
                };
                let (from, notices) = self.edit(change).await?;
                // Where the file is not in force for another reason, this still is.
                self.gateway.set_tool_enabled(&name, tool, enabled);
                Ok((Some(file(from)), notices))
            }
        }
    }
}
