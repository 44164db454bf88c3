//! Routes of server registries.

use crate::{
    access::Need,
    registry,
    route::{Kind, PAGED, Parameter, Route, handled_by, parameter},
};
use auth::Role;

const REGISTRY: Parameter = parameter(
    "registry",
    Kind::Text,
    "The name of one registry, or with an administrator's key its URL (default: all)",
);

const SEARCHED: &[Parameter] = &[
    parameter(
        "search",
        Kind::Text,
        "A word in the name or the description",
    ),
    REGISTRY,
    PAGED[0],
    PAGED[1],
];

const SHOWN: &[Parameter] = &[REGISTRY];

pub(super) const REGISTRY_SERVERS: &[Route] = &[
    Route::new(
        "searchRegistries",
        "GET /api/v1/registry/servers",
        Need::Within(Role::Read),
        "List the servers in registries",
        handled_by!(registry::list),
    )
    .about("Sorted by name. `notices` lists the registries that did not respond.")
    .asks(SEARCHED)
    .answers::<api::RegistryServers>(),
    Route::new(
        "getRegistryServer",
        "GET /api/v1/registry/servers/{name}",
        Need::Within(Role::Manage),
        "Show a registry server and its installation options",
        handled_by!(registry::show),
    )
    .about("The part of the name after the `/` is enough if it is unique. An MCPB file is downloaded and unpacked.")
    .asks(SHOWN)
    .answers::<api::RegistryServer>(),
    Route::new(
        "installRegistryServer",
        "POST /api/v1/registry/servers/{name}/install",
        Need::Within(Role::Manage),
        "Install a registry server",
        handled_by!(registry::install),
    )
    .about("The server first runs in a trial, under the same conditions as later. It is then added to the given project, or to the configuration file if no project is given, but not yet enabled. If the trial fails, nothing is added.")
    .takes::<api::InstallRequest>()
    .asks(SHOWN)
    .creates()
    .answers::<api::Installed>(),
];
