//! Routes of servers: list, show, declare, remove, start and stop.
//!
//! Invariant: all servers have the same routes. Where a server is declared determines which table or file a route
//! changes, and which role it needs. Only administrators may change commands and images.

mod confinement;
mod entry;
mod put;
pub(super) mod recording;
mod target;
mod told;

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use api::{Event, Events, Import, Imported, Removed, Server, Servers};
use axum::{
    Extension, Json,
    body::Bytes,
    extract::{State, rejection::BytesRejection},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use config::Sources;
use engine::Command;
use futures_util::{StreamExt as _, stream};
use model::ProjectId;
use serde::Deserialize;
use serde_json::{Value, json};
use store::{RegistrationRow, ServerRow};

pub(super) use self::{
    confinement::confinement,
    entry::{save as save_entry, show as show_entry},
    put::{Entry, file, register, save, unfit},
    target::{Source, Target},
    told::promise,
};
pub use self::{put::imported, told::configured};
use super::{
    AppState, Problem, Rest,
    access::{Who, Within, permit},
    input::{Asked, Conditions, Page, etag, object},
};
use auth::{Principal, Role};
use backend::{
    entries::Owner,
    hosting,
    loop_detection::LoopDetection,
    projects::{REGISTERED_BY, entry as entry_of_row},
    server_files,
};

/// Maximum time that a request waits for a newly registered server.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum number of servers whose resource usage is read at the same time.
pub(super) const MAX_USAGE_READS: usize = 32;

/// Query parameters of the list.
#[derive(Debug, Deserialize)]
pub(super) struct Listing {
    limit: Option<u32>,
    after: Option<String>,
}

/// Query parameters of a removal.
#[derive(Debug, Deserialize)]
pub(super) struct Removing {
    #[serde(default)]
    volumes: bool,
}

/// Returns the entry of a project's server as it was sent.
fn given(row: &ServerRow) -> Value {
    let mut config = row.config.clone();
    if let Some(members) = config.as_object_mut() {
        members.remove(REGISTERED_BY);
    }
    config
}

/// Returns the entry of a project's server for editing, with the other columns of its row. `config` is the row's entry,
/// decrypted.
fn whole(row: &ServerRow, config: Value) -> Value {
    let mut whole = entry_of_row(&ServerRow {
        config,
        ..row.clone()
    });
    if let Some(members) = whole.as_object_mut() {
        if !row.description.is_empty() {
            members.insert("description".to_owned(), row.description.as_str().into());
        }
        if !row.enabled {
            members.insert("enabled".to_owned(), false.into());
        }
    }
    whole
}

/// Returns the tag of the parts that a caller can change.
fn tag_of_row(row: &ServerRow) -> String {
    etag(&json!([given(row), row.description, row.enabled]))
}

fn tag_of_registration(row: &RegistrationRow) -> String {
    etag(&hosting::given(row))
}

impl Target {
    /// Returns the tag of the declaration. `None` for the configuration file.
    fn tag(&self) -> Option<String> {
        match &self.home {
            Source::File => None,
            Source::Project(row) => Some(tag_of_row(row)),
            Source::Registered(row) => Some(tag_of_registration(row)),
        }
    }
}

pub(super) async fn list(
    State(rest): State<AppState>,
    Extension(who): Who,
    Within(project): Within,
    Asked(Listing { limit, after }): Asked<Listing>,
) -> Result<Json<Servers>, Problem> {
    let page = Page::of(limit.unwrap_or(store::MAX_PAGE), after)?;
    if let Some(project) = &project {
        rest.projects.known(project).await?;
    }
    let targets = rest.all(project.as_ref()).await?;
    let targets = targets.into_iter().map(|target| (target.place(), target));
    let targets = page.cut(targets.collect(), |(place, _)| place);
    let next = page.next(&targets, |(place, _)| place.clone());
    let products = rest.products(targets.iter().map(|(_, target)| target));
    let products = Arc::new(products.await?);
    // Reading the usage of a server blocks a thread for kernel files, or sends a request to a daemon.
    let told = targets.into_iter().map(|(_, target)| {
        let (rest, who, products) = (rest.clone(), who.clone(), products.clone());
        async move { rest.told_with(&who, &target, &products).await }
    });
    let servers = stream::iter(told).buffered(MAX_USAGE_READS).collect().await;
    Ok(Json(Servers { servers, next }))
}

pub(super) async fn show(
    State(rest): State<AppState>,
    Extension(who): Who,
    target: Target,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let tag = target.tag();
    if let Some(tag) = &tag
        && Conditions::of(&headers).is_known(tag)
    {
        return Ok((StatusCode::NOT_MODIFIED, [(header::ETAG, tag.clone())]).into_response());
    }
    rest.taken_in(&target).await?;
    let server = rest.with_product(&who, &target).await?;
    Ok(answered(StatusCode::OK, tag, server))
}

/// Returns a server with the tag of its declaration. Not cached, because the state changes all the time.
fn answered(status: StatusCode, tag: Option<String>, server: Server) -> Response {
    let mut response = (status, Json(server)).into_response();
    let headers = response.headers_mut();
    let no_store = header::HeaderValue::from_static("no-store");
    headers.insert(header::CACHE_CONTROL, no_store);
    if let Some(tag) = tag.and_then(|tag| tag.parse().ok()) {
        headers.insert(header::ETAG, tag);
    }
    response
}

impl Rest {
    /// Returns the entry of a project's server for editing, with its secrets.
    pub(super) async fn whole(&self, row: &ServerRow) -> Result<Value, Problem> {
        let owner = Owner::Server(&row.project_id, &row.name);
        let opened = self.projects.opened(owner, &row.config).await?;
        let config = opened.map_err(|why| Problem::new(500, why))?;
        Ok(whole(row, config))
    }

    /// Returns a server with the name of its product.
    async fn with_product(&self, who: &Principal, target: &Target) -> Result<Server, Problem> {
        let products = self.products([target].into_iter()).await?;
        let mut server = self.to_api(who, target).await;
        server.product = target.product().and_then(|id| products.get(id).cloned());
        Ok(server)
    }

    /// Returns a server for lists and events, with the name of its product from `products`. Omits the visible files,
    /// which are many.
    pub(super) async fn told_with(
        &self,
        who: &Principal,
        target: &Target,
        products: &HashMap<String, String>,
    ) -> Server {
        let mut server = self.to_api(who, target).await;
        server.product = target.product().and_then(|id| products.get(id).cloned());
        server.files = Vec::new();
        server
    }

    /// Returns the product names of these servers, by product id. Reads each project once.
    pub(super) async fn products(
        &self,
        targets: impl Iterator<Item = &Target>,
    ) -> Result<HashMap<String, String>, Problem> {
        let brought = targets.filter(|target| target.product().is_some());
        let owners: BTreeSet<&ProjectId> = brought
            .filter_map(|target| target.key.owner.as_ref())
            .collect();
        let mut names = HashMap::new();
        for owner in owners {
            let products = self.projects.store().product_list(owner).await?;
            names.extend(
                products
                    .into_iter()
                    .map(|product| (product.id, product.name)),
            );
        }
        Ok(names)
    }
}

pub(super) async fn remove(
    State(rest): State<AppState>,
    Extension(who): Who,
    target: Target,
    Asked(Removing { volumes }): Asked<Removing>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let conditions = Conditions::of(&headers);
    let nothing = StatusCode::NO_CONTENT.into_response();
    match target.home {
        Source::File => {
            conditions.may_replace(true)?;
            let change = move |sources: &Sources, _: &LoopDetection| {
                server_files::remove(sources, &target.key.name)
            };
            let (from, notices) = rest.edit(change).await?;
            let file = file(from);
            Ok(Json(Removed { file, notices }).into_response())
        }
        Source::Project(row) => {
            let _one_at_a_time = rest.turn().await?;
            let store = rest.projects.store();
            let (project, name) = (&row.project_id, &row.name);
            let now = store.server_get(project, name).await?;
            conditions.permit(Some(&tag_of_row(&now)))?;
            store.server_delete(project, name).await?;
            rest.projects.reload(project).await?;
            Ok(nothing)
        }
        Source::Registered(row) => {
            permit(&who, Role::Admin, target.key.owner.as_ref())?;
            conditions.permit(Some(&tag_of_registration(&row)))?;
            rest.hosting.delete(&row.id, volumes).await?;
            Ok(nothing)
        }
    }
}

pub(super) async fn switch(
    State(rest): State<AppState>,
    Extension(who): Who,
    mut target: Target,
    enabled: bool,
) -> Result<Json<Server>, Problem> {
    let mut changed = None;
    target.home = match target.home {
        Source::File => {
            let name = target.key.name.clone();
            let change = move |sources: &Sources, myself: &LoopDetection| {
                server_files::set_enabled(sources, myself, &name, enabled)
            };
            changed = Some(rest.edit(change).await?);
            Source::File
        }
        Source::Project(row) => {
            let store = rest.projects.store();
            let (project, name) = (&row.project_id, &row.name);
            let row = store.server_set_enabled(project, name, enabled).await?;
            rest.projects.reload(&row.project_id).await?;
            Source::Project(row)
        }
        Source::Registered(row) => {
            Source::Registered(rest.hosting.set_enabled(&row.id, enabled).await?)
        }
    };
    let mut server = rest.with_product(&who, &target).await?;
    if let Some((from, notices)) = changed {
        (server.file, server.notices) = (Some(file(from)), notices);
    }
    Ok(Json(server))
}

pub(super) async fn order(
    State(rest): State<AppState>,
    Extension(who): Who,
    target: Target,
    order: Command,
) -> Result<Json<Server>, Problem> {
    let server = rest.enabled(&target).await?;
    let followed = rest.front.order(&who, &server, order).await;
    followed.map_err(|why| Problem::new(503, why))?;
    Ok(Json(rest.with_product(&who, &target).await?))
}

pub(super) async fn events(
    State(rest): State<AppState>,
    target: Target,
    page: Page,
) -> Result<Json<Events>, Problem> {
    let store = rest.projects.store();
    let rows = store
        .event_list(None, Some(&target.events()), page.asked())
        .await?;
    let next = page.next(&rows, |row| row.id.clone());
    let events = rows.into_iter().map(|row| Event {
        id: row.id,
        kind: row.kind,
        detail: row.detail,
        at: row.at,
    });
    Ok(Json(Events {
        events: events.collect(),
        next,
    }))
}

pub(super) async fn import(
    State(rest): State<AppState>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Imported>, Problem> {
    let Import { from, text } = object(body)?;
    let from = if from.is_empty() {
        "the text".to_owned()
    } else {
        from
    };
    let change = move |sources: &Sources, myself: &LoopDetection| {
        server_files::import(sources, myself, from.as_ref(), &text)
    };
    let (report, warnings) = rest.edit(change).await?;
    Ok(Json(Imported {
        warnings,
        ..imported(report)
    }))
}
