//! Routes of tools: the tools of all servers, and settings of single tools.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use api::{
    FieldScores, FoundBy, FoundTool, FoundTools, ListTokens, Quarantine, Set, Setting, Tool, Tools,
};
use axum::{
    Json,
    body::Bytes,
    extract::{Path, State, rejection::BytesRejection},
    http::StatusCode,
};
use catalog::{Item, KeptBack, ListKind};
use config::{Sources, nearest};
use discovery::Tier;
use engine::{Found, Scope, server::Server, view::View};
use mcp::{Era, json::Object};
use model::{NativeName, ProjectId, ServerKey, ServerName, ToolRef};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    AppState, Problem, Rest,
    access::{Who, Within, permit},
    answer::shown,
    approvals::difference,
    input::{self, Asked},
    servers::{Source, Target, file},
};
use auth::Role;
use backend::{loop_detection::LoopDetection, server_files};

/// Maximum length of a description in a response, in characters.
const MAX_DESCRIPTION_CHARS: usize = 1_000;
/// Maximum length of an exposed name, in characters.
const MAX_EXPOSED_NAME_CHARS: usize = 64;

/// The response for a list of tools: a table, or the tools that clients see, as declarations for a model.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Offered {
    Listed(Tools),
    Declared(Declarations),
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Declarations {
    /// Declarations in the requested format.
    #[schema(value_type = Vec<Value>)]
    pub(crate) declarations: Vec<agent::raw::Fields>,
}

/// The format of the declarations.
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
pub(super) struct QueryParams {
    server: Option<ServerName>,
    format: Option<Form>,
    wait: Option<bool>,
}

/// The path parameters of a tool.
#[derive(Deserialize)]
pub(super) struct Named {
    id: String,
    tool: String,
}

pub(super) async fn list(
    State(rest): State<AppState>,
    Within(project): Within,
    Asked(query): Asked<QueryParams>,
) -> Result<Json<Offered>, Problem> {
    if let (None, Some(server)) = (&project, &query.server) {
        rest.of_no_project(server)?;
    }
    rest.offered(project, query).await
}

pub(super) async fn list_of_server(
    State(rest): State<AppState>,
    target: Target,
) -> Result<Json<Tools>, Problem> {
    let server = rest.enabled(&target).await?;
    let view = rest.seen_by(target.key.owner, true).await?;
    let tools = rest.table(&view, |found| found.key() == server.key());
    Ok(Json(Tools { tools: tools.await }))
}

/// The query parameters of a search.
#[derive(Debug, Deserialize)]
pub(super) struct SearchParams {
    query: Option<String>,
    server: Option<ServerName>,
    limit: Option<usize>,
}

const USUAL_FOUND: usize = 10;
const MAX_FOUND: usize = 1_000;

pub(super) async fn search(
    State(rest): State<AppState>,
    Within(project): Within,
    Asked(asked): Asked<SearchParams>,
) -> Result<Json<FoundTools>, Problem> {
    let limit = asked.limit.unwrap_or(USUAL_FOUND);
    if !(1..=MAX_FOUND).contains(&limit) {
        let what = format!("`limit` must be from 1 to {MAX_FOUND}");
        return Err(Problem::new(400, what));
    }
    let view = rest.seen_by(project, true).await?;
    let query = asked.query.as_deref().unwrap_or_default();
    let hints = rest.gateway.hints(&view, query).await;
    // The first search of a view indexes its tools.
    let searching = tokio::task::spawn_blocking(move || {
        let server = asked.server.as_ref().map(ServerName::as_str);
        let query = asked.query.as_deref().unwrap_or_default();
        let found = view.find(query, server, limit, &hints);
        let tools = found.iter().map(|tool| found_tool(&view, tool)).collect();
        let tokens = view.list_tokens();
        FoundTools {
            tools,
            tokens: ListTokens {
                all: tokens.whole,
                search: tokens.search,
                is_search: view.is_search(),
            },
        }
    });
    let failed = |_| Problem::new(500, "the search failed".to_owned());
    Ok(Json(searching.await.map_err(failed)?))
}

fn found_tool(view: &View, tool: &Found<'_>) -> FoundTool {
    let (hit, server) = (&tool.hit, tool.server());
    FoundTool {
        name: tool.name().to_owned(),
        project: server.spec.owner.as_ref().map(ToString::to_string),
        server: server.name().to_string(),
        native: tool.native().to_owned(),
        signature: view.signature(tool),
        why: match hit.tier {
            Tier::Exposed | Tier::Native => FoundBy::Name,
            Tier::Spelling => FoundBy::Spelling,
            Tier::Prefix => FoundBy::Prefix,
            Tier::Typo => FoundBy::Typo,
            Tier::Relevance => FoundBy::Relevance,
        },
        score: hit.score,
        scores: FieldScores {
            name: hit.fields.name,
            description: hit.fields.description,
            parameters: hit.fields.parameters,
            parameter_text: hit.fields.parameter_text,
            server: hit.fields.server,
            past: hit.fields.past,
        },
    }
}

impl Rest {
    async fn offered(
        &self,
        project: Option<ProjectId>,
        query: QueryParams,
    ) -> Result<Json<Offered>, Problem> {
        let QueryParams {
            server,
            format,
            wait,
        } = query;
        let is_of_project = project.is_some();
        let view = self.seen_by(project, wait.unwrap_or(true)).await?;
        let wanted = |name: &str| server.as_ref().is_none_or(|only| only.as_str() == name);
        let mut servers = view.servers.iter();
        if let (Some(server), false) = (&server, servers.any(|it| wanted(it.name().as_str()))) {
            let why = match is_of_project {
                true => format!("there is no server `{server}`, or the project does not see it"),
                // The caller has checked that it exists.
                false => format!(
                    "server `{server}` offers no tools: it is not enabled, or its entry is invalid; `toolwharf get {server}` \
                     shows its state"
                ),
            };
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

    /// Returns the view of a project, or the view of all servers. With `wait`, as for clients, the first request waits
    /// for servers that are starting.
    async fn seen_by(&self, project: Option<ProjectId>, wait: bool) -> Result<Arc<View>, Problem> {
        let scope = Scope {
            project,
            ..Scope::default()
        };
        self.projects.admit(&scope).await?;
        let no_project = || {
            let project = scope.project.as_ref().map_or("", ProjectId::as_str);
            Problem::no_project(project)
        };
        let view = match wait {
            true => self.gateway.settled(&scope).await,
            false => self.gateway.known(&scope),
        };
        view.ok_or_else(no_project)
    }

    /// Returns the tools of those servers in the view for which `wanted` is true.
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
        let (choice, pins) = (server.tool_choice(), server.pins());
        let differences = self.differences(server).await;
        let kept_back: HashMap<NativeName, KeptBack> =
            fleet.kept_back(server).into_iter().collect();
        let mut seen = BTreeSet::new();
        // A tool that this view leaves out is not listed: it is reported among the problems of its server.
        let shown = |item: &&Item| view.is_single() || item.fit(Era::Legacy).is_some();
        let catalog = server.catalog();
        for item in catalog.list(ListKind::Tools).iter().filter(shown) {
            // If a server lists a name twice, the first tool counts.
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
            if let Some((end, _)) = description.char_indices().nth(MAX_DESCRIPTION_CHARS) {
                description.truncate(end);
            }
            let enabled = setting.and_then(|setting| setting.enabled);
            let pending = pins.get(&tool.tool).and_then(|pin| pin.pending.clone());
            tools.push(Tool {
                name: name.map_or(&*item.native, |name| name).to_owned(),
                offered: name.is_some(),
                project: server.spec.owner.as_ref().map(ToString::to_string),
                server: server.name().to_string(),
                native: item.native.to_string(),
                description,
                kept_back: kept_back.get(&tool.tool).map(|why| match why {
                    KeptBack::Changed => "its definition changed".to_owned(),
                    KeptBack::Unkept(why) => {
                        format!("the tool's definition cannot be stored: {why}")
                    }
                }),
                enabled: name.is_some()
                    || enabled.unwrap_or_else(|| choice.offers(tool.tool.as_str())),
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

    /// Returns the diffs of unapproved definitions, by tool. Empty if the database is not available.
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
                tracing::warn!(server = %server.key(), "cannot load the changed tool definitions: {error}");
                HashMap::new()
            }
        }
    }

    /// Returns a server that no project owns, from the configuration file or a registration.
    pub(super) fn of_no_project(&self, name: &ServerName) -> Result<Arc<Server>, Problem> {
        let key = ServerKey {
            owner: None,
            name: name.clone(),
        };
        let found = self.gateway.fleet().get(&key).cloned();
        found.ok_or_else(|| Problem::new(404, format!("there is no server `{name}`")))
    }

    /// Returns the server that a project's tool setting applies to: the project's own, or one that it can see.
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
        let missing = || format!("project `{project}` sees no server `{name}`");
        lent.ok_or_else(|| Problem::new(404, missing()))
    }
}

/// Checks that a server has the tool. If the server has not listed any tools yet, every name is accepted.
fn known(server: &Server, tool: &NativeName) -> Result<(), Problem> {
    let catalog = server.catalog();
    let listed = catalog.list(ListKind::Tools).iter();
    let listed: Vec<&str> = listed.map(|item| &*item.native).collect();
    let choice = server.tool_choice();
    let is_named = choice.disabled.contains(tool)
        || choice
            .enabled
            .as_ref()
            .is_some_and(|enabled| enabled.contains(tool));
    if catalog.info.is_some() && !is_named && !listed.contains(&tool.as_str()) {
        let (server, shown) = (server.name(), shown(tool.as_str()));
        let hint = match nearest(tool.as_str(), &listed) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("`toolwharf tools ls --server {server}` lists its tools"),
        };
        return Err(Problem::new(
            404,
            format!("server `{server}` has no tool `{shown}`; {hint}"),
        ));
    }
    Ok(())
}

/// Changes the settings of a tool in a project or, for a server that no project owns, for all callers.
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
        if exposed.is_empty()
            || exposed.len() > MAX_EXPOSED_NAME_CHARS
            || !exposed.bytes().all(fits)
        {
            let why = "must consist of 1 to 64 letters A-Z and a-z, digits, `_` and `-`";
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

/// The owner of a tool setting.
enum Place {
    /// A project. The setting applies to a server that the project sees.
    Project(ProjectId, ServerName),
    /// The server itself, which no project owns.
    All(Box<Target>),
}

impl Rest {
    async fn tools_place(&self, project: Option<ProjectId>, id: &str) -> Result<Place, Problem> {
        let target = match self.find(project.as_ref(), id).await {
            Ok(target) => target,
            // The project may see the server without owning it.
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

    /// Enables or disables a tool for all callers. Returns the changed file and any other errors in it.
    async fn switch_tool(
        &self,
        target: &Target,
        tool: &NativeName,
        enabled: bool,
    ) -> Result<(Option<String>, Vec<String>), Problem> {
        // Without this check, a misspelt name would appear to work.
        if let Some(server) = target.live(&self.gateway.fleet()) {
            known(&server, tool)?;
        }
        match &target.home {
            Source::Registered(row) => {
                self.hosting
                    .set_tool_enabled(&row.id, tool, enabled)
                    .await?;
                Ok((None, Vec::new()))
            }
            Source::File | Source::Project(_) => {
                let (name, which) = (target.key.name.clone(), tool.clone());
                let wanted = name.clone();
                let change = move |sources: &Sources, myself: &LoopDetection| {
                    server_files::set_tool_enabled(sources, myself, &wanted, &which, enabled)
                };
                let (from, notices) = self.edit(change).await?;
                // The switch takes effect now, even if another error in the file prevents a reload.
                self.gateway.set_tool_enabled(&name, tool, enabled);
                Ok((Some(file(from)), notices))
            }
        }
    }
}
