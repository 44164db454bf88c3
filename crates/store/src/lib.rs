//! Persistent state, and all of the SQL.
//!
//! A [`Store`] is a handle to one database: a SQLite file or Postgres. Both engines run the same query texts. Only the
//! migrations and the statements that write call records exist twice. Each module holds the rows and the methods of one
//! noun (`project_put` is in `project`).
//!
//! Invariants:
//! - A project's rows are read and changed only with its id in the `WHERE` clause.
//! - A write is durable when its method returns, and each method is one transaction. After [`Error::Unavailable`], it
//!   is unknown whether the transaction was committed.
//! - Every wait has a deadline: connections, locks and statements time out after a few seconds.
//! - Lists are paged with at most [`MAX_PAGE`] rows, unless the method says otherwise.
//! - Both engines refuse the same input: a text with a NUL (Postgres cannot store it), and a name that is too long for
//!   an index entry ([`MAX_KEY`]).
//! - Errors contain neither SQL nor secrets.
//!
//! [`encryption`] is how secrets in rows are sealed. Deliberately absent: behaviour. Other crates decide what a status
//! means, what is sealed and which tool is quarantined.

mod backup;
mod call;
mod call_writer;
mod change;
mod config_secret;
mod connect;
mod conversation;
pub mod encryption;
mod error;
mod event;
mod export;
mod id;
mod import;
mod journal;
mod key;
mod login;
mod master;
mod migrate;
mod names;
mod open;
mod page;
mod product;
mod project;
mod quota;
mod recorded;
mod recording;
mod registration;
mod replica;
mod result;
mod run;
mod sealing;
mod secret;
mod server;
mod snapshot;
mod sql;
mod ticket;
mod tool;
mod tool_change;
mod writer;

pub use crate::connect::Location;
pub use backup::{BackupRow, Backups};
pub use call::{CallCount, CallDetail, CallFilter, CallRow};
pub use call_writer::CallWriter;
pub use change::{Hints, Sight, Topic};
pub use config_secret::MAX_CONFIG_SECRETS;
pub use conversation::{ConversationDetail, ConversationRow};
pub use error::{Error, Fault, OpenError, Result};
pub use event::{EventRow, NewEvent};
pub use export::{Chunk, Dump, DumpMigration, DumpTable, Export, Tables, dump_of_file};
pub use id::{Time, floor as id_at, new_id, now};
pub use import::{Existing, ImportError};
pub use key::{HashedKey, KeyName, KeyRow, NewKey, Role};
pub use login::{LoginClientRow, LoginRow, NewLogin};
pub use master::MasterRow;
pub use migrate::{LATEST as SCHEMA_VERSION, is_usable_with};
pub use names::MAX_KEY;
pub use open::Store;
pub use page::{MAX_PAGE, Page, Put};
pub use product::{Installed, ProductRow};
pub use project::{NewProject, ProjectRow};
pub use quota::MAX_OF_A_PROJECT;
pub use recorded::{CallEnd, CallStatus, CallSteps, CallWrite, NewCall};
pub use registration::{Home, NewRegistration, RegistrationRow};
pub use replica::{LeaseRow, NewReplica, ReplicaRow};
pub use result::{NewResult, ResultRoom, ResultRow};
pub use run::{NewRun, RunEnd, RunFilter, RunRow};
pub use secret::{SealedSecret, SecretRow};
pub use server::{NewServer, ServerRow, TransportKind};
pub use snapshot::{NewSnapshot, SnapshotRow};
pub use ticket::{NewTicket, TicketRow};
pub use tool::{PinDigest, PinRow, Seen, ToolSetting, ToolSettingRow};
pub use tool_change::ToolChangeRow;
