//! The servers of projects: their entries as in `mcp.json`, kept as they were given.

use std::time::Duration;

use axum::{
    Extension, Json,
    body::Bytes,
    extract::{Path, State, rejection::BytesRejection},
    http::{HeaderMap, StatusCode},
    response::Response,
};
use engine::{Order, Scope};
use model::{Origin, ProjectId, ServerKey, ServerName};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use store::{NewServer, ServerRow, Time, TransportKind};
use utoipa::ToSchema;

use super::{
    Detail, Problem, Rest, Shared,
    access::{Project, Who},
    input::{self, Conditions, Page, etag, server_name},
    projects::{saved, tagged},
    schemas,
};
use crate::{
    auth::{Principal, Role},
    config::{Wrong, check_project},
    projects::{BY_PROJECT, REGISTERED_BY, entry},
};

/// How long an order is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct OwnedServers {
    pub(crate) servers: Vec<OwnedServer>,
    /// Give it as `after` for the next page; none on the last.
    pub(crate) next: Option<String>,
}

/// A server of a project, and how it is.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OwnedServer {
    #[serde(flatten)]
    pub(crate) server: Detail,
    pub(crate) description: String,
    /// The product that brought it.
    pub(crate) product: Option<String>,
    /// `project`: by a key of the project, so that its URL may only lead to the public internet.
    pub(crate) registered_by: Option<String>,
    /// The entry as it was given, `${VAR}` unfilled; only for those who may change it.
    #[schema(schema_with = schemas::entry_answer)]
    pub(crate) config: Option<Value>,
    #[schema(value_type = String, format = DateTime)]
    pub(crate) created_at: Time,
    #[schema(value_type = String, format = DateTime)]
    pub(crate) updated_at: Time,
}

/// Where a server is in a path.
#[derive(Deserialize)]
pub(super) struct Named {
    name: String,
}

/// An entry that was read: what is kept of it.
pub(super) struct Entry {
    pub(super) server: NewServer,
}

impl Entry {
    /// # Errors
    /// Everything that is wrong with it.
    pub(super) fn read(
        project: &ProjectId,
        name: &ServerName,
        value: Value,
    ) -> Result<Self, Vec<Wrong>> {
        let wrong = |pointer: &str, detail: &str| Wrong {
            pointer: pointer.to_owned(),
            detail: detail.to_owned(),
        };
        let Value::Object(members) = value else {
            return Err(vec![wrong("", "a server's entry is an object")]);
        };
        let mut members = input::entry(members).map_err(|wrong| vec![wrong])?;
        let mut errors = Vec::new();
        if members
            .remove("name")
            .is_some_and(|own| own != name.as_str())
        {
            let what = format!("is not `{name}`, which the server is called here");
            errors.push(wrong("/name", &what));
        }
        if members.contains_key(REGISTERED_BY) {
            let pointer = format!("/{REGISTERED_BY}");
            errors.push(wrong(&pointer, "is said by the gateway, not by the caller"));
        }
        let description = match members.remove("description") {
            None => String::new(),
            Some(Value::String(text)) => match input::description("/description", &text) {
                Ok(()) => text,
                Err(problem) => {
                    errors.extend(problem.errors);
                    String::new()
                }
            },
            Some(_) => {
                errors.push(wrong("/description", "is a text"));
                String::new()
            }
        };
        let value = Value::Object(members);
        // Which secrets there are does not matter here: one that lacks some is kept, and says so.
        let spec = check_project(project, name, &value, &Default::default());
        let spec = spec.map_err(|problems| {
            errors.extend(problems.iter().map(|problem| wrong("", problem)));
        });
        let (Ok(spec), true) = (spec, errors.is_empty()) else {
            return Err(errors);
        };
        let Value::Object(mut members) = value else {
            return Err(errors);
        };
        members.remove("enabled");
        members.remove("disabled");
        let transport = match &spec.origin {
            Origin::Launch(_) => TransportKind::Stdio,
            Origin::Remote(remote) if remote.sse => TransportKind::Sse,
            Origin::Remote(_) => TransportKind::Http,
        };
        Ok(Self {
            server: NewServer {
                name: name.clone(),
                description,
                transport,
                config: Value::Object(members),
                enabled: spec.enabled,
            },
        })
    }
}

/// Everything that is wrong with a body, as one problem.
pub(super) fn unfit(what: &str, errors: Vec<Wrong>) -> Problem {
    let first = errors.first().map_or("", |wrong| wrong.detail.as_str());
    let more = match errors.len() {
        0 | 1 => String::new(),
        count => format!(" (and {} more)", count - 1),
    };
    let place = match errors.first() {
        Some(wrong) if !wrong.pointer.is_empty() => format!("`{}`: ", wrong.pointer),
        _ => String::new(),
    };
    let mut problem = Problem::new(422, format!("{what}: {place}{first}{more}"));
    problem.errors = errors;
    problem
}

impl Rest {
    /// Makes sure that the gateway has the project, if it is enabled.
    pub(super) async fn taken_in(&self, project: &ProjectId) -> Result<(), Problem> {
        let scope = Scope {
            project: Some(project.clone()),
            server: None,
        };
        Ok(self.projects.admit(&scope).await?)
    }

    fn owned(&self, who: &Principal, row: ServerRow, product: Option<String>) -> OwnedServer {
        let key = ServerKey {
            owner: Some(row.project_id.clone()),
            name: row.name.clone(),
        };
        let fleet = self.gateway.fleet();
        let server = match fleet.get(&key) {
            Some(server) => Detail::of(server, &fleet),
            None => Detail::of_row(&row),
        };
        let may_change = who.may(Role::Manage, Some(&row.project_id));
        OwnedServer {
            server,
            registered_by: row.config[REGISTERED_BY].as_str().map(str::to_owned),
            config: may_change.then(|| given(&row)),
            description: row.description,
            product,
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }

    /// The row with the name of its product.
    async fn with_product(&self, who: &Principal, row: ServerRow) -> Result<OwnedServer, Problem> {
        let product = match &row.product_id {
            Some(id) => {
                let products = self.projects.store().product_list(&row.project_id).await?;
                let product = products.into_iter().find(|product| product.id == *id);
                product.map(|product| product.name)
            }
            None => None,
        };
        Ok(self.owned(who, row, product))
    }
}

/// The entry as it was given.
fn given(row: &ServerRow) -> Value {
    let mut config = row.config.clone();
    if let Some(members) = config.as_object_mut() {
        members.remove(REGISTERED_BY);
    }
    config
}

/// The tag of what a caller may put.
fn tag(row: &ServerRow) -> String {
    etag(&json!([given(row), row.description, row.enabled]))
}

impl Detail {
    /// A server that the gateway does not have.
    fn of_row(row: &ServerRow) -> Self {
        let spec = check_project(&row.project_id, &row.name, &entry(row), &Default::default());
        match spec {
            Ok(mut spec) => {
                spec.enabled = row.enabled;
                Self::configured(&spec)
            }
            Err(problems) => {
                let mut detail = Self::default();
                detail.row.name = row.name.to_string();
                detail.row.transport = row.transport.as_str().to_owned();
                detail.row.enabled = row.enabled;
                detail.row.state = "unusable".to_owned();
                detail.row.reason = Some(problems.join("; "));
                detail
            }
        }
    }
}

pub(super) async fn list(
    State(rest): State<Shared>,
    Extension(who): Who,
    Project(project): Project,
    page: Page,
) -> Result<Json<OwnedServers>, Problem> {
    rest.taken_in(&project).await?;
    let store = rest.projects.store();
    let rows = page.cut(store.server_list(&project).await?, |row| row.name.as_str());
    let products = store.product_list(&project).await?;
    let next = page.next(&rows, |row| row.name.to_string());
    let servers = rows.into_iter().map(|row| {
        let of = |id: &String| products.iter().find(|product| product.id == *id);
        let product = row.product_id.as_ref().and_then(of);
        let product = product.map(|product| product.name.clone());
        rest.owned(&who, row, product)
    });
    Ok(Json(OwnedServers {
        servers: servers.collect(),
        next,
    }))
}

pub(super) async fn show(
    State(rest): State<Shared>,
    Extension(who): Who,
    Project(project): Project,
    Path(Named { name }): Path<Named>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let name = server_name(&name)?;
    rest.taken_in(&project).await?;
    let row = rest.projects.store().server_get(&project, &name).await?;
    let tag = tag(&row);
    let server = rest.with_product(&who, row).await?;
    Ok(tagged(&headers, tag, &server))
}

pub(super) async fn save(
    State(rest): State<Shared>,
    Extension(who): Who,
    Project(project): Project,
    Path(Named { name }): Path<Named>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let name = server_name(&name)?;
    let body: Value = input::json(body)?;
    let entry = Entry::read(&project, &name, body);
    let mut server = entry
        .map_err(|errors| unfit(&format!("server `{name}` is not usable so"), errors))?
        .server;
    if !who.may(Role::Admin, Some(&project)) {
        if server.transport == TransportKind::Stdio {
            let why = "a server that is a command needs an administrator's key; a project's key registers servers \
                       with a `url`";
            return Err(Problem::forbidden(why));
        }
        members(&mut server.config).insert(REGISTERED_BY.to_owned(), BY_PROJECT.into());
    }
    let store = rest.projects.store();
    let _one_at_a_time = rest.turn().await?;
    let before = match store.server_get(&project, &name).await {
        Ok(row) => Some(tag(&row)),
        Err(store::Error::NotFound { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    Conditions::of(&headers).permit(before.as_deref())?;
    let put = store.server_put(&project, &server).await?;
    rest.projects.reload(&project).await?;
    let (created, tag) = (put.created, tag(&put.row));
    let server = rest.with_product(&who, put.row).await?;
    Ok(saved(created, tag, &server))
}

fn members(config: &mut Value) -> &mut Map<String, Value> {
    if !config.is_object() {
        *config = json!({});
    }
    config.as_object_mut().expect("it is an object now")
}

pub(super) async fn remove(
    State(rest): State<Shared>,
    Project(project): Project,
    Path(Named { name }): Path<Named>,
    headers: HeaderMap,
) -> Result<StatusCode, Problem> {
    let name = server_name(&name)?;
    let store = rest.projects.store();
    let _one_at_a_time = rest.turn().await?;
    let tag = tag(&store.server_get(&project, &name).await?);
    Conditions::of(&headers).permit(Some(&tag))?;
    store.server_delete(&project, &name).await?;
    rest.projects.reload(&project).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn enable(
    rest: State<Shared>,
    who: Who,
    project: Project,
    name: Path<Named>,
) -> Result<Json<OwnedServer>, Problem> {
    switch(rest, who, project, name, true).await
}

pub(super) async fn disable(
    rest: State<Shared>,
    who: Who,
    project: Project,
    name: Path<Named>,
) -> Result<Json<OwnedServer>, Problem> {
    switch(rest, who, project, name, false).await
}

async fn switch(
    State(rest): State<Shared>,
    Extension(who): Who,
    Project(project): Project,
    Path(Named { name }): Path<Named>,
    enabled: bool,
) -> Result<Json<OwnedServer>, Problem> {
    let name = server_name(&name)?;
    let store = rest.projects.store();
    let row = store.server_set_enabled(&project, &name, enabled).await?;
    rest.projects.reload(&project).await?;
    Ok(Json(rest.with_product(&who, row).await?))
}

/// Starts it anew; one that is not running is only tried again.
pub(super) async fn restart(
    State(rest): State<Shared>,
    Extension(who): Who,
    Project(project): Project,
    Path(Named { name }): Path<Named>,
) -> Result<Json<OwnedServer>, Problem> {
    let name = server_name(&name)?;
    rest.taken_in(&project).await?;
    let row = rest.projects.store().server_get(&project, &name).await?;
    let key = ServerKey {
        owner: Some(project),
        name,
    };
    let server = rest.gateway.fleet().get(&key).cloned();
    let server = server.filter(|server| row.enabled && server.spec.enabled);
    let Some(server) = server else {
        let why = format!(
            "server `{}` is not enabled, or its project is not",
            key.name
        );
        return Err(Problem::new(409, why));
    };
    // It goes on by itself.
    let _ = tokio::time::timeout(PATIENCE, server.obey(Order::Restart)).await;
    Ok(Json(rest.with_product(&who, row).await?))
}
