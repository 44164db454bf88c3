//! Routes of projects, their secrets and their products.

use crate::{
    access::Need,
    products, projects,
    route::{ADMIN, MANAGE, OWNER, PAGED, READ, Route, handled_by},
    secrets,
};

const MANIFEST: &[&str] = &["application/json", "application/yaml"];

pub(super) const PROJECTS: &[Route] = &[
    Route::new(
        "listProjects",
        "GET /api/v1/projects",
        ADMIN,
        "List the projects",
        handled_by!(projects::list),
    )
    .asks(PAGED)
    .answers::<api::Projects>(),
    Route::new(
        "getProject",
        "GET /api/v1/projects/{project}",
        READ,
        "Show a project",
        handled_by!(projects::show),
    )
    .tagged()
    .answers::<api::Project>(),
    Route::new(
        "putProject",
        "PUT /api/v1/projects/{project}",
        Need::NewProject,
        "Add or change a project",
        handled_by!(projects::save),
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
        handled_by!(projects::remove),
    )
    .about("Its servers, secrets, products and keys are deleted with it.")
    .tagged(),
    Route::new(
        "listSecrets",
        "GET /api/v1/projects/{project}/secrets",
        READ,
        "List the secrets, without their values",
        handled_by!(secrets::list),
    )
    .asks(PAGED)
    .answers::<api::Secrets>(),
    Route::new(
        "putSecret",
        "PUT /api/v1/projects/{project}/secrets/{name}",
        MANAGE,
        "Set a secret",
        handled_by!(secrets::save),
    )
    .takes::<api::SecretValue>()
    .creates()
    .answers::<api::Secret>(),
    Route::new(
        "deleteSecret",
        "DELETE /api/v1/projects/{project}/secrets/{name}",
        MANAGE,
        "Remove a secret",
        handled_by!(secrets::remove),
    ),
    Route::new(
        "listProducts",
        "GET /api/v1/projects/{project}/products",
        READ,
        "List the products",
        handled_by!(products::list),
    )
    .asks(PAGED)
    .answers::<api::Products>(),
    Route::new(
        "getProduct",
        "GET /api/v1/projects/{project}/products/{name}",
        READ,
        "Show one product",
        handled_by!(products::show),
    )
    .tagged()
    .answers::<api::WholeProduct>(),
    Route::new(
        "putProduct",
        "PUT /api/v1/projects/{project}/products/{name}",
        OWNER,
        "Install or update a product",
        handled_by!(products::save),
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
        handled_by!(products::remove),
    )
    .tagged(),
];
