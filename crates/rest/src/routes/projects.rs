//! Routes of projects, their secrets and their products.

use axum::routing::{delete, get, put};

use crate::{
    access::Need,
    products, projects,
    route::{ADMIN, MANAGE, OWNER, PAGED, READ, Route},
    secrets,
};

const MANIFEST: &[&str] = &["application/json", "application/yaml"];

pub(super) const PROJECTS: &[Route] = &[
    Route::new(
        "listProjects",
        "GET /api/v1/projects",
        ADMIN,
        "List the projects",
        || get(projects::list),
    )
    .asks(PAGED)
    .answers::<api::Projects>(),
    Route::new(
        "getProject",
        "GET /api/v1/projects/{project}",
        READ,
        "Show a project",
        || get(projects::show),
    )
    .tagged()
    .answers::<api::Project>(),
    Route::new(
        "putProject",
        "PUT /api/v1/projects/{project}",
        Need::NewProject,
        "Add or change a project",
        || put(projects::save),
    )
    .takes::<api::ProjectConfig>()
    .creates()
    .tagged()
    .answers::<api::Project>(),
    Route::new(
        "deleteProject",
        "DELETE /api/v1/projects/{project}",
        OWNER,
        "Delete a project",
        || delete(projects::remove),
    )
    .about("Its servers, secrets, products and keys are deleted with it.")
    .tagged(),
    Route::new(
        "listSecrets",
        "GET /api/v1/projects/{project}/secrets",
        READ,
        "List the secrets, without their values",
        || get(secrets::list),
    )
    .asks(PAGED)
    .answers::<api::Secrets>(),
    Route::new(
        "putSecret",
        "PUT /api/v1/projects/{project}/secrets/{name}",
        MANAGE,
        "Set a secret",
        || put(secrets::save),
    )
    .takes::<api::SecretValue>()
    .creates()
    .answers::<api::Secret>(),
    Route::new(
        "deleteSecret",
        "DELETE /api/v1/projects/{project}/secrets/{name}",
        MANAGE,
        "Remove a secret",
        || delete(secrets::remove),
    ),
    Route::new(
        "listProducts",
        "GET /api/v1/projects/{project}/products",
        READ,
        "List the products",
        || get(products::list),
    )
    .asks(PAGED)
    .answers::<api::Products>(),
    Route::new(
        "getProduct",
        "GET /api/v1/projects/{project}/products/{name}",
        READ,
        "Show one product",
        || get(products::show),
    )
    .tagged()
    .answers::<api::WholeProduct>(),
    Route::new(
        "putProduct",
        "PUT /api/v1/projects/{project}/products/{name}",
        OWNER,
        "Install or update a product",
        || put(products::save),
    )
    .takes_written("ProductManifest", MANIFEST)
    .creates()
    .tagged()
    .answers::<api::InstalledProduct>(),
    Route::new(
        "deleteProduct",
        "DELETE /api/v1/projects/{project}/products/{name}",
        OWNER,
        "Remove a product and its servers",
        || delete(products::remove),
    )
    .tagged(),
];
