//! Everything that survives a restart, and all of the SQL.
//!
//! A [`Store`] is a handle to one database, either a SQLite file or Postgres. Every query is one
//! text that both engines run; only the migrations and the records of calls are written twice. One module per noun holds
//! the rows and the methods of that noun (`project_put` is in `project`).
//!
//! Invariants:
//! - A project's rows are read and changed only with its id in the `WHERE` clause.
//! - What is written is durable when the method returns, and a method is one transaction: it
//!   happened wholly or not at all. After [`Error::Unavailable`] either may be true.
//! - Nothing waits for ever: connections, locks and statements have deadlines of a few seconds.
//! - Lists are paged with at most [`MAX_PAGE`] rows, but where a method says otherwise.
//! - Both engines refuse the same input: a NUL in a text (Postgres cannot hold it), and a name
//!   that is longer than an index entry can be ([`MAX_KEY`]).
//! - No error holds SQL or the value of a secret.
//!
//! Deliberately absent: behaviour. What a status means, when something is sealed, which tool is
//! quarantined: all of that is the engine's.

mod call;
mod call_writer;
mod change;
mod conversation;
mod error;
mod event;
mod id;
mod key;
mod login;
mod master;
mod migrate;
mod open;
mod page;
mod product;
mod project;
mod quota;
mod replica;
mod run;
mod sealing;
mod secret;
mod server;
mod snapshot;
mod sql;
mod ticket;
mod tool;
mod tool_change;
mod workspace;
mod writer;

pub use call::{
    CallCount, CallDetail, CallEnd, CallFilter, CallRow, CallStatus, CallSteps, CallWrite, NewCall,
};
pub use call_writer::CallWriter;
pub use change::{Hints, Sight, Topic};
pub use conversation::{ConversationDetail, ConversationRow};
pub use error::{Error, Fault, OpenError, Result};
pub use event::{EventRow, NewEvent};
pub use id::{Time, floor as id_at, new_id, now};
pub use key::{HashedKey, KeyRow, NewKey, Role};
pub use login::{LoginClientRow, LoginRow, NewLogin};
pub use master::MasterRow;
pub use open::{Location, Store};
pub use page::{MAX_PAGE, Page, Put};
pub use product::{Installed, ProductRow};
pub use project::{NewProject, ProjectRow};
pub use quota::MAX_OF_A_PROJECT;
pub use replica::{LeaseRow, NewReplica, ReplicaRow};
pub use run::{NewRun, RunEnd, RunFilter, RunRow};
pub use secret::{SealedSecret, SecretRow};
pub use server::{NewServer, ServerRow, TransportKind};
pub use snapshot::{NewSnapshot, SnapshotRow};
pub use sql::MAX_KEY;
pub use ticket::{NewTicket, TicketRow};
pub use tool::{PinDigest, PinRow, Seen, ToolSetting, ToolSettingRow};
pub use tool_change::ToolChangeRow;
pub use workspace::{Home, NewWorkspace, WorkspaceRow};
