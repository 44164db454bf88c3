//! Routes of products. A product is installed, updated and removed as a whole.

use api::{InstalledProduct, Product, Products, WholeProduct};
use axum::{
    Extension, Json,
    body::Bytes,
    extract::{Path, State, rejection::BytesRejection},
    http::{HeaderMap, StatusCode, header},
    response::Response,
};
use engine::Fleet;
use model::ServerKey;
use store::{ProductRow, ServerRow};

use super::{
    AppState, Problem, Rest,
    access::{Project, Who},
    answer::found,
    input::{self, Conditions, Page, etag, server_name},
    manifest::{Format, Manifest},
    projects::{saved, tagged},
    secrets::Named,
};
use auth::Role;
use backend::entries::{Owner, masked};

fn to_api(row: &ProductRow, servers: &[ServerRow], fleet: &Fleet) -> Product {
    let own = |server: &&ServerRow| server.product_id.as_ref() == Some(&row.id);
    let servers = servers.iter().filter(own);
    let kept_back = |server: &ServerRow| {
        let key = ServerKey {
            owner: Some(server.project_id.clone()),
            name: server.name.clone(),
        };
        fleet
            .get(&key)
            .map_or(0, |server| fleet.kept_back(server).len())
    };
    Product {
        kept_back: servers.clone().map(kept_back).sum(),
        name: row.name.clone(),
        version: row.version.clone(),
        description: row.manifest["description"]
            .as_str()
            .unwrap_or_default()
            .to_owned(),
        servers: servers.map(|server| server.name.to_string()).collect(),
        created_at: row.created_at,
        updated_at: row.updated_at,
    }
}

pub(super) async fn list(
    State(rest): State<AppState>,
    Project(project): Project,
    page: Page,
) -> Result<Json<Products>, Problem> {
    rest.projects.known(&project).await?;
    let fleet = rest.gateway.fleet();
    let store = rest.projects.store();
    let rows = page.cut(store.product_list(&project).await?, |row| row.name.as_str());
    let servers = store.server_list(&project).await?;
    Ok(Json(Products {
        next: page.next(&rows, |row| row.name.clone()),
        products: rows
            .iter()
            .map(|row| to_api(row, &servers, &fleet))
            .collect(),
    }))
}

pub(super) async fn show(
    State(rest): State<AppState>,
    Extension(who): Who,
    Project(project): Project,
    Path(Named { name }): Path<Named>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    rest.projects.known(&project).await?;
    let store = rest.projects.store();
    let row = store.product_get(&project, &name).await?;
    let servers = store.server_list(&project).await?;
    let may_change = who.may(Role::Manage, Some(&project));
    let tag = etag(&row.manifest);
    let whole = WholeProduct {
        product: to_api(&row, &servers, &rest.gateway.fleet()),
        manifest: may_change.then(|| masked(&row.manifest)),
    };
    Ok(tagged(&headers, tag, &whole))
}

pub(super) async fn save(
    State(rest): State<AppState>,
    Project(project): Project,
    Path(Named { name }): Path<Named>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    // A product name follows the rules for server names.
    let name = server_name(&name)?;
    let kind = headers.get(header::CONTENT_TYPE);
    let format = Format::of(kind.map(|kind| kind.to_str().unwrap_or_default()))?;
    let body = input::whole(body)?;
    let store = rest.projects.store();
    let _one_at_a_time = rest.turn().await?;
    let row = rest.product(&project, name.as_str()).await?;
    let owner = Owner::Product(&project, name.as_str());
    let before = match &row {
        Some(row) => {
            let opened = rest.projects.opened(owner, &row.manifest).await?;
            Some(opened.map_err(|why| Problem::new(500, why))?)
        }
        None => None,
    };
    let mut manifest = Manifest::read(&project, name.as_str(), &body, format, before.as_ref())?;
    let tag = row.as_ref().map(|row| etag(&row.manifest));
    Conditions::of(&headers).permit(tag.as_deref())?;
    let sealing = rest.sealing().await?;
    let old = row.as_ref().map(|row| &row.manifest);
    manifest.value = sealing.seal(owner, &manifest.value, old);
    let rows = store.server_list(&project).await?;
    for server in &mut manifest.servers {
        let old = rows.iter().find(|row| row.name == server.name);
        let owner = Owner::Server(&project, &server.name);
        server.config = sealing.seal(owner, &server.config, old.map(|row| &row.config));
    }
    let installed = store
        .product_install(
            &project,
            name.as_str(),
            &manifest.version,
            &manifest.value,
            &manifest.servers,
        )
        .await?;
    rest.projects.reload(&project).await?;
    let row = &installed.product.row;
    let body = InstalledProduct {
        product: to_api(row, &installed.servers, &rest.gateway.fleet()),
        removed: installed.removed.iter().map(ToString::to_string).collect(),
    };
    Ok(saved(installed.product.created, etag(&row.manifest), &body))
}

pub(super) async fn remove(
    State(rest): State<AppState>,
    Project(project): Project,
    Path(Named { name }): Path<Named>,
    headers: HeaderMap,
) -> Result<StatusCode, Problem> {
    let _one_at_a_time = rest.turn().await?;
    if let Some(row) = rest.product(&project, &name).await? {
        Conditions::of(&headers).permit(Some(&etag(&row.manifest)))?;
    }
    rest.projects
        .store()
        .product_uninstall(&project, &name)
        .await?;
    rest.projects.reload(&project).await?;
    Ok(StatusCode::NO_CONTENT)
}

impl Rest {
    async fn product(
        &self,
        project: &model::ProjectId,
        name: &str,
    ) -> Result<Option<ProductRow>, Problem> {
        found(self.projects.store().product_get(project, name).await)
    }
}
