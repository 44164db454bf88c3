//! The state behind the surfaces: configuration files, projects with their entries, secrets and sign-ins, hosting, and
//! membership of replicas.
//!
//! - [`startup`]: builds the engine from the settings. [`lock`]: the lock of the data directory. [`reload`]: reloads
//!   configuration files. [`service_manager`]: messages to systemd, and its socket. [`handover`]: the socket pair of an
//!   upgrade.
//! - [`projects`], [`entries`], [`server_files`]: server entries of projects and of `mcp.json`. [`clients`]: entries in the
//!   files of MCP clients.
//! - [`hosting`]: registered servers on the runtimes. [`replica`]: membership and leases. [`master`]: the master key.
//! - [`backup`]: backups and their restore.
//! - [`logins`]: sign-ins at the issuers of remote servers. [`loop_detection`]: loop detection.
//!
//! Deliberately absent: HTTP routes of clients (`gateway`) and of operators (`rest`), and the command line.

pub mod backup;
pub mod clients;
pub mod config_secrets;
pub mod entries;
pub mod handover;
pub mod hosting;
pub mod html;
pub mod lock;
pub mod locks;
pub mod logins;
pub mod loop_detection;
pub mod master;
pub mod projects;
pub mod reload;
pub mod replica;
pub mod server_files;
pub mod service_manager;
pub mod startup;
