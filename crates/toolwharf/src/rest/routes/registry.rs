//! Servers that registries list.

use axum::routing::{get, post};

use crate::{
    auth::Role,
    rest::{
        access::Need,
        registry,
        route::{Kind, PAGED, Parameter, Route, parameter},
    },
};

const REGISTRY: Parameter = parameter(
    "registry",
    Kind::Text,
    "The name of one registry, or with an administrator's key its URL (default: all)",
);

const SEARCHED: &[Parameter] = &[
    parameter(
        "search",
        Kind::Text,
        "A word of the name or the description",
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
        "List the servers that registries have",
        || get(registry::list),
    )
    .about("By name. A registry that does not answer is told among the notices.")
    .asks(SEARCHED)
    .answers::<api::RegistryServers>(),
    Route::new(
        "getRegistryServer",
        "GET /api/v1/registry/servers/{name}",
        Need::Within(Role::Manage),
        "Show a server of a registry, and what it takes to install it",
        || get(registry::show),
    )
    .about("The part of the name behind the `/` is enough where only one server has it. An MCPB file is downloaded and unpacked for that.")
    .asks(SHOWN)
    .answers::<api::RegistryServer>(),
    Route::new(
        "installRegistryServer",
        "POST /api/v1/registry/servers/{name}/install",
        Need::Within(Role::Manage),
        "Install a server of a registry",
        || post(registry::install),
    )
    .about("The server is tried once, as it will run, and then declared: in the project that is named, or else in the configuration file. It is not enabled yet. If the trial fails, nothing is declared.")
    .takes::<api::InstallRequest>()
    .asks(SHOWN)
    .creates()
    .answers::<api::Installed>(),
];
