//! A database for one gateway, and a server whose starts a test controls.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};
use store::Location;
use testkit::{Bin, DEADLINE, Peer, peer, postgres::Database, wait_for};

use crate::{
    api::Api,
    common::{Gateway, LEGACY, Setup, rows},
};

/// Turns each function `async fn name(db: &Db)` into the tests `name::sqlite` and `name::postgres`.
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {$(
        mod $name {
            #[tokio::test]
            async fn sqlite() {
                super::$name(&crate::support::Db::Sqlite).await;
            }

            #[tokio::test]
            async fn postgres() {
                super::$name(&crate::support::Db::postgres().await).await;
            }
        }
    )*};
}

/// The database of a gateway.
pub(crate) enum Db {
    /// A file in the data directory.
    Sqlite,
    Postgres(Database),
}

impl Db {
    pub(crate) async fn postgres() -> Self {
        Self::Postgres(Database::create().await)
    }

    pub(crate) fn is_sqlite(&self) -> bool {
        matches!(self, Self::Sqlite)
    }

    /// A setup with this database.
    pub(crate) fn setup(&self) -> Setup {
        match self {
            Self::Sqlite => Setup::new(),
            Self::Postgres(database) => Setup::new().env("TOOLWHARF_DATABASE_URL", database.url()),
        }
    }

    /// The database's location, to open it before the gateway does.
    pub(crate) fn location(&self, setup: &Setup) -> Location {
        match self {
            Self::Sqlite => {
                let folder = setup.folder().join("data");
                std::fs::create_dir(&folder).unwrap();
                Location::Sqlite(folder.join("toolwharf.db"))
            }
            Self::Postgres(database) => Location::Postgres(database.url().to_owned()),
        }
    }

    /// Returns the only column of a query, as text. Tables are named `kb.…`.
    pub(crate) async fn column(&self, gateway: &Gateway, query: &str) -> Vec<Option<String>> {
        let url = match self {
            Self::Sqlite => None,
            Self::Postgres(database) => Some(database.url()),
        };
        rows::column(&gateway.folder().join("data"), url, query).await
    }

    /// Adds or removes the row of a replica with an earlier version. Has no effect on SQLite.
    pub(crate) async fn old_replica(&self, is_there: bool) {
        let Self::Postgres(database) = self else {
            return;
        };
        let mut conn = PgConnection::connect(database.url()).await.unwrap();
        let text = match is_there {
            true => {
                "INSERT INTO kb.toolwharf_replicas (id, name, version, started_at, seen_at, expires_at)
                 VALUES ('old', 'old', '0.0.1', now(), now(), now() + INTERVAL '1 hour')"
            }
            false => "DELETE FROM kb.toolwharf_replicas WHERE id = 'old'",
        };
        sqlx::query(text).execute(&mut conn).await.unwrap();
        conn.close().await.unwrap();
    }

    /// Like [`Db::column`], without nulls.
    pub(crate) async fn texts(&self, gateway: &Gateway, query: &str) -> Vec<String> {
        let rows = self.column(gateway, query).await;
        rows.into_iter().map(Option::unwrap).collect()
    }
}

/// A scripted stdio server that is started by a shell. The shell records each start, and first runs commands from a
/// file that a test can change without changing the configuration.
pub(crate) struct Governed {
    name: String,
    orders: PathBuf,
    entry: Value,
}

impl Governed {
    pub(crate) fn new(folder: &Path, name: &str, options: &[&str]) -> Self {
        let script = "echo x >> \"$0.starts\"; . \"$0\"; exec \"$@\"";
        let orders = folder.join(format!("{name}.orders"));
        std::fs::write(&orders, "").unwrap();
        let scripted = Bin::path("testkit-scripted");
        let mut args = vec![json!("-c"), json!(script), json!(orders), json!(scripted)];
        args.extend(["--name", name].map(Value::from));
        args.extend(options.iter().map(|&option| Value::from(option)));
        Self {
            name: name.to_owned(),
            orders,
            entry: json!({"command": "sh", "args": args}),
        }
    }

    /// The entry to register.
    pub(crate) fn entry(&self) -> Value {
        self.entry.clone()
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Sets the commands that the shell runs before each start.
    pub(crate) fn order(&self, commands: &str) {
        let new = self.orders.with_extension("new");
        std::fs::write(&new, commands).unwrap();
        std::fs::rename(&new, &self.orders).unwrap();
    }

    pub(crate) fn starts(&self) -> usize {
        let mut file = self.orders.clone().into_os_string();
        file.push(".starts");
        std::fs::read(file).map_or(0, |text| text.len() / 2)
    }
}

/// A client of a project with the newest legacy version.
pub(crate) async fn legacy(gateway: &Gateway, project: &str) -> Peer {
    let client = gateway.at(&format!("/mcp/{project}"));
    Peer::http(client, LEGACY, peer::all_capabilities()).await
}

pub(crate) async fn modern(gateway: &Gateway, project: &str) -> Peer {
    let client = gateway.at(&format!("/mcp/{project}"));
    Peer::http(client, peer::MODERN, peer::all_capabilities()).await
}

/// Clients of both eras of a project.
pub(crate) async fn both(gateway: &Gateway, project: &str) -> [Peer; 2] {
    [
        legacy(gateway, project).await,
        modern(gateway, project).await,
    ]
}

/// Asserts that a tool returns its arguments.
pub(crate) async fn works(peer: &mut Peer, tool: &str) {
    let answer = peer.tool(tool, json!({"n": 1})).await;
    assert_eq!(answer.result()["structuredContent"]["n"], 1, "{tool}");
}

/// Creates a project with the server `one`.
pub(crate) async fn with_server(api: &Api<'_>, id: &str, one: Value) {
    api.project(id).await;
    api.server(id, "one", one).await;
}

/// Starts a server of a project, and waits until it runs. A first list or call waits for ten seconds only, and real
/// servers may need longer beside other tests.
pub(crate) async fn up(api: &Api<'_>, project: &str, server: &str) {
    let path = |what| format!("/mcp/servers/{server}{what}?project={project}");
    api.ok("POST", &path("/start"), json!({})).await;
    wait_for(&format!("server {server}"), DEADLINE, async || {
        api.get(&path("")).await["status"] == "running"
    })
    .await;
}

pub(crate) async fn restart(api: &Api<'_>, server: &str, project: &str) {
    let path = format!("/mcp/servers/{server}/restart?project={project}");
    api.ok("POST", &path, json!({})).await;
}

/// Waits until a server's lists are stored, which happens in the background.
pub(crate) async fn kept(db: &Db, gateway: &Gateway, server: &str) {
    let kept = format!("SELECT server FROM kb.catalog_snapshots WHERE server = '{server}'");
    wait_for("the snapshot", DEADLINE, async || {
        db.texts(gateway, &kept).await == [server]
    })
    .await;
}

/// Calls the tool `pid` of a scripted server.
pub(crate) async fn pid(peer: &mut Peer, tool: &str) -> u32 {
    peer.tool(tool, json!({})).await.text().parse().unwrap()
}
