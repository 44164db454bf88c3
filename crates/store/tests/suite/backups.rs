//! Copies of the whole database, and their restore.

use std::{
    collections::BTreeMap,
    io,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use store::{
    CallEnd, CallFilter, CallStatus, CallSteps, CallWrite, Chunk, Dump, Export, ImportError,
    Location, NewCall, NewEvent, NewProject, NewReplica, OpenError, Page, Store, dump_of_file,
    new_id, now,
};
use tempfile::TempDir;
use testkit::{postgres::Database, wait_for};
use tokio::task::JoinSet;

use crate::support::{Db, new_key, new_run, new_server, ok, project, secret, server};

on_both!(
    o07_a_copy_made_under_load_has_every_acknowledged_row,
    o07_a_copy_is_restored_unchanged,
    o07_outcomes_of_backups,
);

/// A copy: a file, or tables with their rows.
struct Snapshot {
    dump: Dump,
    folder: TempDir,
    chunks: Vec<Chunk>,
}

/// A restored database, with the guard that keeps it from being deleted.
struct Restored {
    store: Store,
    _place: (Option<Database>, Option<TempDir>),
}

impl Snapshot {
    async fn of(store: &Store) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("copy.db");
        std::fs::File::create(&file).unwrap();
        let mut chunks = Vec::new();
        let dump = match store.export(&file, &AtomicU64::new(0)).await.unwrap() {
            Export::File(dump) => dump,
            Export::Tables(tables) => {
                let dump = tables.dump().clone();
                let all = tables.send(async |chunk| {
                    chunks.push(chunk);
                    true
                });
                assert!(all.await.unwrap());
                dump
            }
        };
        Self {
            dump,
            folder,
            chunks,
        }
    }

    async fn import(&self, location: &Location, replace: bool) -> Result<(), ImportError> {
        let mut chunks = self.chunks.iter().cloned();
        let next = async || Ok(chunks.next());
        Store::import(location, &self.dump, replace, next).await
    }

    async fn restored(self) -> Restored {
        let (location, place) = match self.dump.engine.as_str() {
            "sqlite" => {
                let file = self.folder.path().join("copy.db");
                assert_eq!(dump_of_file(&file).unwrap(), self.dump);
                (Location::Sqlite(file), (None, Some(self.folder)))
            }
            _ => {
                let database = Database::create().await;
                let location = Location::Postgres(database.url().to_owned());
                self.import(&location, false).await.unwrap();
                (location, (Some(database), None))
            }
        };
        Restored {
            store: Store::open(&location).await.unwrap(),
            _place: place,
        }
    }

    /// The rows of each table, sorted.
    fn rows(&self) -> BTreeMap<&str, Vec<String>> {
        let mut all: BTreeMap<&str, String> = BTreeMap::new();
        for chunk in &self.chunks {
            let text = str::from_utf8(&chunk.rows).unwrap();
            all.entry(&chunk.table).or_default().push_str(text);
        }
        let sorted = |text: String| {
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        all.into_iter()
            .map(|(table, text)| (table, sorted(text)))
            .collect()
    }
}

fn call(arguments: &str) -> NewCall {
    NewCall {
        id: new_id(),
        run_id: None,
        project: None,
        caller: "somebody".to_owned(),
        server: "s".to_owned(),
        tool: "t".to_owned(),
        arguments_digest: "d".to_owned(),
        arguments: Some(arguments.to_owned()),
        started_at: now(),
        replay_of: None,
    }
}

/// Other processes write calls and projects all the time. Every write that was acknowledged before the copy began is in
/// the copy.
async fn o07_a_copy_made_under_load_has_every_acknowledged_row(db: &Db) {
    let acknowledged = Arc::new(Mutex::new((Vec::new(), Vec::new())));
    let stop = Arc::new(AtomicBool::new(false));
    let mut writing = JoinSet::new();
    for number in 0..3 {
        let (store, acknowledged, stop) = (db.another().await, acknowledged.clone(), stop.clone());
        writing.spawn(async move {
            let mut calls = store.call_writer();
            for count in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let call = call(&"x".repeat(2000));
                let id = call.id.clone();
                // A file may be locked by the other writers for longer than a write waits.
                if calls.write(&[CallWrite::Intent(call)]).await.is_ok() {
                    acknowledged.lock().unwrap().0.push(id);
                }
                let id = project(&format!("p{number}-{count}"));
                if store
                    .project_put(&NewProject::new(id.clone()))
                    .await
                    .is_ok()
                {
                    acknowledged.lock().unwrap().1.push(id);
                }
            }
            store.close().await;
        });
    }
    let some = async || acknowledged.lock().unwrap().1.len() > 100;
    wait_for("100 projects", Duration::from_secs(60), some).await;
    let (calls, projects) = acknowledged.lock().unwrap().clone();
    let copy = Snapshot::of(&db.store).await;
    let after = acknowledged.lock().unwrap().1.len();
    let go_on = async || acknowledged.lock().unwrap().1.len() > after;
    wait_for("the writers to go on", Duration::from_secs(60), go_on).await;
    stop.store(true, Ordering::Relaxed);
    writing.join_all().await;

    let restored = copy.restored().await;
    for id in &calls {
        let found = restored.store.call_get(None, id).await.unwrap();
        assert_eq!(found.call.id, *id);
    }
    for id in &projects {
        restored.store.project_get(id).await.unwrap();
    }
}

/// Fills many tables, with characters that have a meaning in the text form of `COPY`.
async fn fill(store: &Store) {
    let odd = "tab\t, newline\n, return\r, backslash \\N \\. \\\\, quotes \" ', é 🦀, end";
    let id = project("p");
    let new = NewProject {
        name: odd.to_owned(),
        ..NewProject::new(id.clone())
    };
    ok(store.project_put(&new)).await;
    ok(store.server_put(&id, &new_server("time"))).await;
    ok(store.secret_put(&id, &secret("KEY", 1, b"\0\x01\\\t\n\xff"))).await;
    ok(store.key_put(new_key(Some(&id), "hash"))).await;
    let event = NewEvent {
        project: Some(&id),
        server: "time",
        kind: "ready",
        detail: &serde_json::json!({ "text": odd, "number": 12_345_678_901_234_567_890_u64 }),
    };
    ok(store.event_add(event)).await;
    let run = ok(store.run_put(new_run(Some(&id)))).await;
    let mut calls = store.call_writer();
    let open = call("");
    let done = NewCall {
        run_id: Some(run.id.clone()),
        ..call(odd)
    };
    let end = CallEnd {
        id: done.id.clone(),
        status: CallStatus::Error,
        error: Some(odd.to_owned()),
        result_digest: None,
        result: Some(String::new()),
        finished_at: now(),
        duration_us: 5,
        steps: CallSteps::default(),
    };
    let writes = [
        CallWrite::Intent(open),
        CallWrite::Intent(done),
        CallWrite::Outcome(end),
    ];
    calls.write(&writes).await.unwrap();
}

async fn o07_a_copy_is_restored_unchanged(db: &Db) {
    fill(&db.store).await;
    let before = Snapshot::of(&db.store).await;
    let rows: Vec<_> = before.rows().into_values().collect();
    let tables = before.dump.tables.clone();
    let restored = before.restored().await;
    let id = project("p");
    let secrets = ok(restored.store.secret_all(&id)).await;
    assert_eq!(secrets[0].sealed, b"\0\x01\\\t\n\xff");
    let (old, new) = (&db.store, &restored.store);
    assert_eq!(
        ok(old.project_get(&id)).await,
        ok(new.project_get(&id)).await
    );
    let time = server("time");
    assert_eq!(
        ok(old.server_get(&id, &time)).await,
        ok(new.server_get(&id, &time)).await
    );
    let again = Snapshot::of(new).await;
    assert_eq!(again.dump.tables, tables);
    let again: Vec<_> = again.rows().into_values().collect();
    // The call and the run that were open are closed, because nothing will report their results.
    let changed = rows.iter().flatten().zip(again.iter().flatten());
    let changed = changed.filter(|(old, new)| old != new).count();
    let calls = ok(new.calls_list(&CallFilter::default(), &Page::default())).await;
    assert_eq!(calls.len(), 2);
    if db.store.has_replicas() {
        assert!(changed <= 4, "{rows:?}\n{again:?}");
        assert!(calls.iter().all(|call| call.status != CallStatus::Open));
    }
    // New rows can be added.
    fill_again(new).await;
}

async fn fill_again(store: &Store) {
    ok(store.project_put(&NewProject::new(project("later")))).await;
    let mut calls = store.call_writer();
    calls.write(&[CallWrite::Intent(call("x"))]).await.unwrap();
}

async fn o07_outcomes_of_backups(db: &Db) {
    let last = ok(db.store.backups_get()).await;
    assert_eq!((last.succeeded, last.failed), (None, None));
    ok(db
        .store
        .backup_failed("host", "/folder", "the disk\0 is full"))
    .await;
    let last = ok(db.store.backups_get()).await;
    let why = last.failing().and_then(|row| row.reason.as_deref());
    assert_eq!(why, Some("the disk is full"));
    ok(db.store.backup_succeeded("host", "/folder/file", 7)).await;
    let last = ok(db.store.backups_get()).await;
    assert_eq!(last.failing(), None);
    let made = last.succeeded.unwrap();
    assert_eq!((made.place.as_str(), made.bytes), ("/folder/file", Some(7)));
    assert!(last.failed.is_some());
}

#[tokio::test]
async fn o07_postgres_data_is_replaced_only_if_asked_and_as_a_whole() {
    let source = Db::postgres().await;
    fill(&source.store).await;
    let copy = Snapshot::of(&source.store).await;
    let target = Db::postgres().await;
    target.project("precious").await;
    let has = async |id: &str| target.store.project_get(&project(id)).await.is_ok();

    let refused = copy.import(&target.location, false).await;
    assert!(matches!(refused, Err(ImportError::Exists)), "{refused:?}");
    // The file becomes unreadable in the middle.
    let mut chunks = copy.chunks.iter().take(2).cloned();
    let next = async || match chunks.next() {
        Some(chunk) => Ok(Some(chunk)),
        None => Err(io::Error::other("unreadable")),
    };
    let failed = Store::import(&target.location, &copy.dump, true, next).await;
    assert!(matches!(failed, Err(ImportError::Source(_))), "{failed:?}");
    // The rows do not fit the table.
    let wrong = Snapshot {
        dump: copy.dump.clone(),
        folder: tempfile::tempdir().unwrap(),
        chunks: vec![Chunk {
            table: copy.chunks[0].table.clone(),
            rows: b"not\ta\trow\n".to_vec(),
        }],
    };
    assert!(wrong.import(&target.location, true).await.is_err());
    assert!(has("precious").await && !has("p").await);

    copy.import(&target.location, true).await.unwrap();
    assert!(!has("precious").await && has("p").await);
}

/// Gateways notice a restored database, and no fencing token is granted twice.
#[tokio::test]
async fn o07_a_restored_postgres_begins_a_new_history() {
    let source = Db::postgres().await;
    let lease = Duration::from_secs(60);
    let replica = NewReplica {
        id: "r",
        name: "host",
        version: "1",
        address: None,
    };
    ok(source.store.replica_add(replica, lease)).await;
    let fence = ok(source.store.lease_take("l", "r", lease)).await.unwrap();
    let existing = Store::existing(&source.location).await.unwrap();
    assert!(existing.has_tables);
    assert_eq!(existing.replicas, 1);
    let restored = Snapshot::of(&source.store).await.restored().await;
    let store = &restored.store;
    assert_eq!(ok(store.replica_list()).await, []);
    assert_eq!(ok(store.lease_list()).await, []);
    assert!(ok(store.timeline_is_new()).await);
    ok(store.timeline_begin()).await;
    ok(store.replica_add(replica, lease)).await;
    // No lease is free before a lease period is over.
    assert_eq!(ok(store.lease_take("l", "r", lease)).await, None);
    let later = ok(store.lease_take("l", "r", Duration::ZERO))
        .await
        .unwrap();
    assert!(later > fence + 1_000_000, "{later} {fence}");
}

fn later(dump: &Dump) -> Dump {
    let mut later = dump.clone();
    let mut last = later.migrations.last().unwrap().clone();
    last.version += 1;
    later.migrations.push(last);
    later
}

#[tokio::test]
async fn o07_a_copy_of_a_newer_version_or_of_another_build_is_refused() {
    for db in [Db::sqlite().await, Db::postgres().await] {
        let copy = Snapshot::of(&db.store).await;
        copy.dump.check().unwrap();
        let error = later(&copy.dump).check().unwrap_err();
        assert!(matches!(error, OpenError::Newer { .. }), "{error:?}");
        assert!(error.to_string().contains("newer Toolwharf"), "{error}");
        let mut other = copy.dump.clone();
        other.migrations[3].checksum = "x".to_owned();
        let error = other.check().unwrap_err();
        assert!(
            matches!(error, OpenError::Changed { version: 4 }),
            "{error:?}"
        );
    }
    let target = Database::create().await;
    let location = Location::Postgres(target.url().to_owned());
    let db = Db::postgres().await;
    let mut copy = Snapshot::of(&db.store).await;
    copy.dump = later(&copy.dump);
    let refused = copy.import(&location, true).await;
    assert!(
        matches!(refused, Err(ImportError::Schema(_))),
        "{refused:?}"
    );
    let existing = Store::existing(&location).await.unwrap();
    assert!(!existing.has_tables);
}

#[tokio::test]
async fn o07_a_damaged_file_is_noticed() {
    let db = Db::sqlite().await;
    for number in 0..50 {
        db.project(&format!("p{number}")).await;
    }
    let copy = Snapshot::of(&db.store).await;
    let file = copy.folder.path().join("copy.db");
    let whole = std::fs::read(&file).unwrap();
    let damage = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        std::fs::write(&file, bytes).unwrap();
        dump_of_file(&file).map(|_| ())
    };
    assert_error!(damage(&|bytes| bytes.truncate(bytes.len() / 2)), Corrupt);
    assert_error!(damage(&|bytes| bytes[..1024].fill(7)), Corrupt);
    let empty = Path::new("/dev/null");
    assert!(dump_of_file(empty).is_err());
    std::fs::write(&file, &whole).unwrap();
    assert_eq!(dump_of_file(&file).unwrap(), copy.dump);
}

#[tokio::test]
async fn o07_a_full_disk_is_reported() {
    let db = Db::sqlite().await;
    db.project("p").await;
    // Nothing can be written to this file.
    let full = Path::new("/dev/full");
    let result = db.store.export(full, &AtomicU64::new(0)).await;
    assert!(result.is_err(), "it was written to {}", full.display());
    db.store.ping().await.unwrap();
}

#[tokio::test]
async fn o07_without_a_database_nothing_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let location = Location::Sqlite(dir.path().join("none.db"));
    assert!(Store::open_unmigrated(&location).await.unwrap().is_none());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    let database = Database::create().await;
    let location = Location::Postgres(database.url().to_owned());
    let existing = Store::existing(&location).await.unwrap();
    assert!(!existing.has_tables);
}
