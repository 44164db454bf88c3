//! The store's guarantees, tested on both engines: each test runs as `sqlite::…` and as `postgres::…`. The Postgres
//! tests need a server: `cargo xtask postgres -- cargo nextest run -p store`.

#![expect(clippy::unwrap_used, reason = "a test helper may fail, as a test may")]

#[macro_use]
mod support;

mod audit;
mod backups;
mod changes;
mod conversations;
mod faults;
mod hostile;
mod keys;
mod quotas;
mod recordings;
mod registrations;
mod registry;
mod replicas;
mod results;
mod secrets;
mod tools;
