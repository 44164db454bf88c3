//! Store errors, grouped by what the caller can do about them.
//!
//! Messages name the object, and never contain SQL or a stored value. Of a database error, only the short message is
//! kept ([`Fault`]), because Postgres repeats the row in its detail lines.

use std::{fmt, io};

use sqlx::error::ErrorKind;

const READ_ONLY: &str = "it is read-only";

/// The result of a store method.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a store method failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The object does not exist (404).
    #[error("there is no {what} {name:?}")]
    NotFound { what: &'static str, name: String },
    /// The object is not in the expected state, or its name is taken (409).
    #[error("{what} {name:?}: {why}")]
    Conflict {
        what: &'static str,
        name: String,
        why: &'static str,
    },
    /// The database is locked, unreachable, full or too slow at the moment (503). It is unknown whether the change was
    /// made.
    #[error("the database is unavailable: {reason}")]
    Unavailable {
        reason: &'static str,
        #[source]
        source: Option<Fault>,
    },
    /// The value can never be stored (400).
    #[error("{0}")]
    Invalid(String),
    /// The database contains something that this program never wrote (500).
    #[error("the database is damaged, or another program changed it")]
    Corrupt(#[source] Fault),
}

/// Why a database could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The location is invalid.
    #[error("cannot use the database `{location}`: {why}")]
    Location { location: String, why: String },
    /// A later version of this program migrated the database.
    #[error(
        "the database has schema version {found}, but this Toolwharf supports versions up to {known}: start \
         a newer Toolwharf, or restore a backup from before the upgrade; nothing was \
         changed"
    )]
    Newer { found: i64, known: i64 },
    /// An applied migration differs from the one in this program.
    #[error(
        "migration {version} of the database differs from the one in this Toolwharf: the database comes \
         from another build; nothing was changed"
    )]
    Changed { version: i64 },
    /// The database could not be reached, read or migrated.
    #[error("cannot open the database at {location}")]
    Database {
        location: String,
        #[source]
        source: Error,
    },
}

/// An error message of the database or of the connection to it.
#[derive(Debug)]
pub struct Fault {
    code: Option<String>,
    message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.code {
            Some(code) => write!(f, "{} ({code})", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for Fault {}

impl Fault {
    pub(crate) fn new(message: impl fmt::Display) -> Self {
        Self {
            code: None,
            message: message.to_string(),
        }
    }
}

impl Error {
    pub(crate) fn not_found(what: &'static str, name: impl fmt::Display) -> Self {
        Self::NotFound {
            what,
            name: name.to_string(),
        }
    }

    /// Returns [`Error::NotFound`] if a statement that should change one row has changed none.
    pub(crate) fn unless_found(
        changed: u64,
        what: &'static str,
        name: impl fmt::Display,
    ) -> Result<()> {
        match changed {
            0 => Err(Self::not_found(what, name)),
            _ => Ok(()),
        }
    }

    pub(crate) fn conflict(what: &'static str, name: impl fmt::Display, why: &'static str) -> Self {
        Self::Conflict {
            what,
            name: name.to_string(),
            why,
        }
    }

    fn unavailable(reason: &'static str) -> Self {
        let source = None;
        Self::Unavailable { reason, source }
    }

    pub(crate) fn timed_out() -> Self {
        Self::unavailable("it did not answer in time")
    }

    pub(crate) fn interrupted() -> Self {
        Self::unavailable("the work was interrupted")
    }

    pub(crate) fn disk_too_slow() -> Self {
        Self::unavailable(
            "earlier writes to its file have not finished within 20 seconds: its disk is too slow, or too busy",
        )
    }

    /// The journal of calls cannot be written or read.
    pub(crate) fn journal(error: io::Error) -> Self {
        let reason = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "the disk is full",
            _ => "the journal of calls cannot be written or read",
        };
        Self::Unavailable {
            reason,
            source: Some(Fault::new(error)),
        }
    }

    /// The database does not take the records of the journal.
    pub(crate) fn behind(why: impl fmt::Display) -> Self {
        Self::Unavailable {
            reason: "records of calls wait to be entered into it",
            source: Some(Fault::new(why)),
        }
    }

    pub(crate) fn closed() -> Self {
        Self::unavailable("it was closed")
    }

    pub(crate) fn read_only() -> Self {
        Self::unavailable(READ_ONLY)
    }
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        let unavailable = |reason, error: sqlx::Error| Self::Unavailable {
            reason,
            source: Some(Fault::new(error)),
        };
        match error {
            sqlx::Error::Database(error) => from_database(error.as_ref()),
            // This error comes from [`crate::sql`]: `Text` and the similar types refuse a value by failing to encode
            // it.
            sqlx::Error::Encode(error) => Self::Invalid(error.to_string()),
            sqlx::Error::PoolTimedOut => {
                Self::unavailable("it cannot be reached, or all connections to it are busy")
            }
            sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::PoolClosed => {
                unavailable("the connection to it is broken", error)
            }
            sqlx::Error::WorkerCrashed
            | sqlx::Error::Protocol(_)
            | sqlx::Error::BeginFailed
            | sqlx::Error::InvalidSavePointStatement => {
                unavailable("the connection to it is in an unusable state", error)
            }
            error => Self::Corrupt(Fault::new(error)),
        }
    }
}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        let rusqlite::Error::SqliteFailure(failure, message) = error else {
            return Self::Corrupt(Fault::new(error));
        };
        let code = failure.extended_code;
        let fault = Fault {
            code: Some(code.to_string()),
            message: message.unwrap_or_else(|| failure.to_string()),
        };
        let kind = match code {
            rusqlite::ffi::SQLITE_CONSTRAINT_FOREIGNKEY => ErrorKind::ForeignKeyViolation,
            // All other constraint violations are handled in the same way.
            code if code & 0xff == rusqlite::ffi::SQLITE_CONSTRAINT => ErrorKind::CheckViolation,
            _ => ErrorKind::Other,
        };
        judged(&kind, sqlite_reason(code & 0xff), fault)
    }
}

fn from_database(error: &dyn sqlx::error::DatabaseError) -> Error {
    let code = error.code().unwrap_or_default().into_owned();
    let reason = if error
        .try_downcast_ref::<sqlx::sqlite::SqliteError>()
        .is_some()
    {
        // The low byte of an extended result code is the primary code.
        sqlite_reason(code.parse().unwrap_or(1) & 0xff)
    } else {
        postgres_reason(&code)
    };
    let fault = Fault {
        code: Some(code),
        message: error.message().to_owned(),
    };
    judged(&error.kind(), reason, fault)
}

fn judged(kind: &ErrorKind, reason: Reason, fault: Fault) -> Error {
    match (kind, reason) {
        (ErrorKind::Other, Reason::Now(reason)) => Error::Unavailable {
            reason,
            source: Some(fault),
        },
        (ErrorKind::Other, Reason::Damaged) => Error::Corrupt(fault),
        (ErrorKind::Other, Reason::Value) => {
            Error::Invalid(format!("a value cannot be stored: {}", fault.message))
        }
        (ErrorKind::ForeignKeyViolation, _) => {
            Error::Invalid("a value cannot be stored: it refers to a missing row".to_owned())
        }
        _ => Error::Invalid("a value cannot be stored: it violates a table constraint".to_owned()),
    }
}

enum Reason {
    /// The database is unavailable at the moment, for this reason. A retry may succeed.
    Now(&'static str),
    /// This value can never be stored.
    Value,
    /// A statement that should never fail has failed, so the database is damaged.
    Damaged,
}

/// Maps the primary result codes of <https://www.sqlite.org/rescode.html>.
fn sqlite_reason(code: i32) -> Reason {
    match code {
        5 | 6 => Reason::Now("it is locked by another process"),
        7 => Reason::Now("it is out of memory"),
        8 => Reason::Now(READ_ONLY),
        9 => Reason::Now("it was interrupted"),
        10 => Reason::Now("its file cannot be read or written"),
        13 => Reason::Now("the disk is full"),
        3 | 14 | 15 => Reason::Now("its file cannot be opened"),
        18 | 20 | 25 => Reason::Value,
        _ => Reason::Damaged,
    }
}

/// Maps the classes and codes of <https://www.postgresql.org/docs/current/errcodes-appendix.html>.
fn postgres_reason(code: &str) -> Reason {
    match code {
        "53100" => Reason::Now("the disk is full"),
        "53300" => Reason::Now("it has too many connections"),
        "25006" => Reason::Now(READ_ONLY),
        "57014" | "55P03" => Reason::Now("it did not answer in time"),
        "40001" | "40P01" => Reason::Now("another transaction changed the same rows: try again"),
        _ => match code.get(..2) {
            Some("08" | "57") => Reason::Now("it is shutting down or starting"),
            Some("28" | "3D") => Reason::Now("it refuses the connection"),
            Some("53") => Reason::Now("it is out of resources"),
            Some("25" | "40" | "55" | "58") => Reason::Now("it cannot run the statement now"),
            Some("22" | "54") => Reason::Value,
            _ => Reason::Damaged,
        },
    }
}
