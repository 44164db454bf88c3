//! Backups: one file with the database, the configuration and, if asked for, the keys and the volumes of hosted
//! servers; and their restore.
//!
//! - [`create`] writes a backup, while gateways run or without one. [`restore`] reads one, without a gateway.
//!   [`schedule`] makes backups regularly.
//! - `file`: the file as a whole: how it is written, and how damage is recognised. `archive`: its contents. `tree`:
//!   directories. `passphrase`: the encryption of the keys.
//!
//! # Invariants
//!
//! - A backup contains every row that was acknowledged before it began.
//! - Under the name that the user gave, there is a complete backup or what was there before. Whatever kills the process,
//!   the rest has the suffix `.partial`, and the next backup to the same name removes it.
//! - A restore checks the whole file, and all that could refuse it, before it changes anything.
//! - Keys are in a backup only encrypted with a passphrase: the master key, the administrator's token and the keys of
//!   clients.
//!
//! # Deliberately absent
//!
//! Packages of `npx` and `uvx`, which are installed again, and volumes that other systems have: those of Docker without
//! a size limit, of Kubernetes, of a swarm and of E2B.

mod archive;
pub mod create;
mod file;
mod passphrase;
mod progress;
pub mod restore;
pub mod schedule;
#[cfg(test)]
mod tests;
mod tree;

pub use file::is_unfinished;
pub use passphrase::{MIN_PASSPHRASE_CHARS, Passphrase};
pub use progress::{Progress, Step};

/// The database in an archive, if it is a file.
const DATABASE_ENTRY: &str = "database/toolwharf.db";
/// The folder of the tables in an archive, if the database is Postgres.
const TABLES: &str = "database/tables";
/// The encrypted keys in an archive.
const KEYS_ENTRY: &str = "keys.sealed";
/// The folder for volumes in an archive. Below it are the paths of `hosting` in the data directory.
const VOLUMES: &str = "volumes";
/// Follows the name of an image whose files are in the archive instead.
const FILES_SUFFIX: &str = ".files";
/// The folder of configuration files in an archive.
const CONFIG: &str = "config";
/// The folder for the data directory in an archive, apart from the database, keys and volumes.
const DATA: &str = "data";
/// The folder of the data directory with runtimes and volumes.
const HOSTING: &str = "hosting";
/// Files and folders of the data directory that every backup contains: the id of the installation, the ports of
/// servers, and servers that were installed from bundles.
const DATA_ITEMS: [&str; 3] = ["installation", "hosting/ports.json", "bundles"];
/// The folder of the data directory with the keys of clients.
const CLIENTS: &str = "clients";
