//! A database for one test, and short constructors for test data.

use std::panic::Location as Caller;

use model::{ProjectId, ServerName};
use serde_json::json;
use store::{
    Location, NewKey, NewProject, NewRun, NewServer, NewSnapshot, Role, SealedSecret, Seen, Store,
    TransportKind,
};
use tempfile::TempDir;
use testkit::postgres::Database;

/// Turns each function `async fn name(db: &Db)` into a test on SQLite and one on Postgres.
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod sqlite {$(
            #[tokio::test]
            async fn $name() {
                super::$name(&crate::support::Db::sqlite().await).await;
            }
        )*}

        mod postgres {$(
            #[tokio::test]
            async fn $name() {
                super::$name(&crate::support::Db::postgres().await).await;
            }
        )*}
    };
}

pub(crate) struct Db {
    pub(crate) store: Store,
    pub(crate) location: Location,
    pub(crate) place: Place,
}

/// Where the database is. Dropping it deletes the database.
pub(crate) enum Place {
    Directory(TempDir),
    Server(Database),
}

impl Db {
    pub(crate) async fn sqlite() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let location = Location::Sqlite(dir.path().join("wharf.db"));
        Self::open(location, Place::Directory(dir)).await
    }

    pub(crate) async fn postgres() -> Self {
        let database = Database::create().await;
        let location = Location::Postgres(database.url().to_owned());
        Self::open(location, Place::Server(database)).await
    }

    pub(crate) fn database(&self) -> &Database {
        match &self.place {
            Place::Server(database) => database,
            Place::Directory(_) => panic!("it is a file"),
        }
    }

    async fn open(location: Location, place: Place) -> Self {
        Self {
            store: Store::open(&location).await.unwrap(),
            location,
            place,
        }
    }

    /// A second handle with separate connections, as another process would have.
    pub(crate) async fn another(&self) -> Store {
        Store::open(&self.location).await.unwrap()
    }

    pub(crate) async fn project(&self, id: &str) -> ProjectId {
        let id = project(id);
        let put = self.store.project_put(&NewProject::new(id.clone())).await;
        put.unwrap();
        id
    }
}

pub(crate) fn project(id: &str) -> ProjectId {
    ProjectId::parse(id).unwrap()
}

pub(crate) fn server(name: &str) -> ServerName {
    ServerName::parse(name).unwrap()
}

pub(crate) fn new_server(name: &str) -> NewServer {
    NewServer {
        name: server(name),
        description: format!("the server {name}"),
        transport: TransportKind::Stdio,
        config: json!({"command": "uvx", "args": [name], "env": {"KEY": "${KEY}"}}),
        enabled: true,
    }
}

pub(crate) fn new_run(project: Option<&ProjectId>) -> NewRun<'_> {
    NewRun {
        project,
        agent: "cook",
        model: "m-1",
        conversation: None,
        caller: None,
    }
}

/// A key that may call tools. Its hash is its name, too.
pub(crate) fn new_key<'a>(project: Option<&'a ProjectId>, hash: &'a str) -> NewKey<'a> {
    NewKey {
        projects: project.map(std::slice::from_ref).unwrap_or_default(),
        name: hash,
        visible: None,
        role: Role::Call,
        hash,
        hint: "wharf_…1234",
        expires_at: None,
        tools: None,
    }
}

pub(crate) fn secret(name: &str, version: i32, sealed: &[u8]) -> SealedSecret {
    SealedSecret {
        name: name.to_owned(),
        version,
        nonce: vec![0, 1, 255],
        sealed: sealed.to_vec(),
    }
}

/// A tool as a server with the configuration `c` offers it.
pub(crate) fn seen(tool: &str, digest: &str, definition: &str) -> Seen {
    Seen {
        tool: tool.to_owned(),
        digest: digest.to_owned(),
        definition: definition.to_owned(),
        config_digest: "c".to_owned(),
    }
}

pub(crate) fn snapshot<'a>(
    server: &'a ServerName,
    config_digest: &'a str,
    catalog: &'a str,
) -> NewSnapshot<'a> {
    NewSnapshot {
        server,
        config_digest,
        catalog,
    }
}

/// Awaits a call that must succeed.
#[track_caller]
pub(crate) fn ok<T>(call: impl Future<Output = store::Result<T>>) -> impl Future<Output = T> {
    let caller = Caller::caller();
    async move {
        let result = call.await;
        result.unwrap_or_else(|error| panic!("{error:?} at {caller}"))
    }
}

macro_rules! assert_error {
    ($result:expr, $kind:ident) => {
        match $result {
            Err(store::Error::$kind { .. }) => {}
            other => panic!("expected {}, got {other:?}", stringify!($kind)),
        }
    };
}
