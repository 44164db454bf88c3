//! Domain types (ids, server specifications, policies, settings and exposed names), and what all crates must do in the
//! same way: decide which addresses are public, read the URLs of proxies, format errors, and tell the time.
//!
//! Invariants: every value is valid, because input is parsed by the constructors of the types; `Debug` output contains
//! no secrets. Deliberately absent: tokio, SQL, HTTP, files and any behaviour that waits.

mod address;
mod auth;
mod caller_headers;
mod causes;
pub mod clock;
mod digest;
mod hidden;
mod host_env;
mod id;
mod login;
pub mod naming;
mod origin;
mod policy;
mod proxy;
mod sandbox;
mod server;
mod settings;
mod share;
mod target;

pub use address::{AddressRange, InvalidRange, is_public};
pub use auth::{AccessRule, OidcSettings};
pub use caller_headers::{
    CallerValues, HeaderPart, HeaderTemplate, MAX_HEADER_VALUE_BYTES, never_passed,
};
pub use causes::with_causes;
pub use digest::sha256_hex;
pub use hidden::Hidden;
pub use host_env::{CA_FILES, HostEnv, Surroundings};
pub use id::{ExposedName, InvalidName, NativeName, ProjectId, ServerKey, ServerName, ToolRef};
pub use login::{
    Assertion, AssertionText, ClientAuth, Endpoints, Grant, Idp, Login, LoginMode, LoginVariables,
    Pkce,
};
pub use origin::{Launch, Origin, Place, Program, Reach, Remote};
pub use policy::{
    AuditBodies, Breaker, EraPolicy, Heartbeat, NamingPolicy, Packages, Pinning, Provider,
    RestartPolicy, Role, Sharing, StartPolicy, ToolMode, UnknownWord,
};
pub use proxy::{NoProxy, Proxy};
pub use sandbox::{Mount, Network, Port, ResourceLimits, Sandbox};
pub use server::{Declared, Secrets, ServerSpec, ToolChoice, ToolSetting};
pub use settings::{
    AgentSettings, Audit, BackupSettings, Defaults, EmbeddingSettings, HostingSettings,
    KubernetesSettings, Limits, Log, LogFormat, ModelApi, ProjectView, Replicas, ResultSettings,
    RunBy, Settings, SwarmSettings, TlsSettings, origin_and_prefix,
};
pub use share::fair_share;
pub use target::url_for_display;
