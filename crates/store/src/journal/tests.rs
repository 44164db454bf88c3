use std::{
    fs,
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};

use super::*;
use crate::{
    CallDetail, CallEnd, CallFilter, CallStatus, CallSteps, CallWriter, Export, Location, NewCall,
    Page, Store, Time, export::dump_of_file, id::floor, new_id, now,
};

struct Office {
    dir: tempfile::TempDir,
    store: Store,
    calls: CallWriter,
}

impl Office {
    async fn open() -> Self {
        Self::of(tempfile::tempdir().expect("a folder")).await
    }

    async fn of(dir: tempfile::TempDir) -> Self {
        let store = Store::open(&Location::Sqlite(dir.path().join("wharf.db"))).await;
        let store = store.expect("a database");
        let calls = store.call_writer();
        Self { dir, store, calls }
    }

    fn journal(&self) -> &Journal {
        match &self.store.pool {
            crate::sql::Pool::Sqlite { journal, .. } => journal,
            crate::sql::Pool::Postgres(_) => panic!("it is a file"),
        }
    }

    async fn write(&mut self, writes: &[CallWrite]) {
        self.calls.write(writes).await.expect("it is written");
    }

    /// A copy of the files as they are now, as if the process were killed.
    fn killed(&self) -> tempfile::TempDir {
        let copy = tempfile::tempdir().expect("a folder");
        copy_files(self.dir.path(), copy.path());
        copy
    }

    fn folder(&self) -> PathBuf {
        self.dir.path().join("wharf.db-calls")
    }

    async fn call(&self, id: &str) -> Option<CallDetail> {
        self.store.call_get(None, id).await.ok()
    }

    async fn count(&self) -> usize {
        let all = CallFilter::default();
        let rows = self.store.calls_list(&all, &Page::first(1_000)).await;
        rows.expect("the calls").len()
    }
}

fn copy_files(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            fs::create_dir(&target).unwrap();
            copy_files(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// The journals of a folder, oldest first.
fn journals(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).unwrap();
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    files
}

fn intent(arguments: Option<String>) -> NewCall {
    NewCall {
        id: new_id(),
        run_id: None,
        project: None,
        caller: "local".to_owned(),
        server: "one".to_owned(),
        tool: "écho".to_owned(),
        arguments_digest: "d".to_owned(),
        arguments,
        started_at: now(),
        replay_of: None,
    }
}

fn outcome(call: &NewCall) -> CallEnd {
    CallEnd {
        id: call.id.clone(),
        status: CallStatus::ToolError,
        error: Some("it was \"wrong\"\n".to_owned()),
        result_digest: Some("r".to_owned()),
        result: None,
        finished_at: now(),
        duration_us: 7,
        steps: CallSteps {
            sent_us: Some(3),
            ..CallSteps::default()
        },
    }
}

/// A call with its outcome in one batch.
fn both() -> (String, [CallWrite; 2]) {
    let call = intent(None);
    let end = outcome(&call);
    let id = call.id.clone();
    (id, [CallWrite::Intent(call), CallWrite::Outcome(end)])
}

#[tokio::test(flavor = "multi_thread")]
async fn p09_a_record_survives_before_it_is_in_the_table() {
    let mut office = Office::open().await;
    let (first, call) = both();
    office.write(&call).await;
    assert_eq!(office.count().await, 1);
    // While another process writes, nothing is entered.
    let turn = office.journal().0.database.turn().await.expect("its turn");
    let slow = intent(Some("{\"a\": \"\0\"}".to_owned()));
    office.write(&[CallWrite::Intent(slow.clone())]).await;
    let (second, call) = both();
    office.write(&call).await;
    let killed = office.killed();
    office.write(&[CallWrite::Outcome(outcome(&slow))]).await;
    let killed_later = office.killed();
    drop(turn);
    for dir in [killed, killed_later] {
        let next = Office::of(dir).await;
        let call = next.call(&second).await.expect("it was acknowledged");
        assert_eq!(call.call.status, CallStatus::ToolError);
        assert_eq!(call.call.error.as_deref(), Some("it was \"wrong\"\n"));
        assert_eq!((call.steps.sent_us, call.steps.turn_us), (Some(3), None));
        assert!(next.call(&first).await.is_some());
        let call = next.call(&slow.id).await.expect("it was acknowledged");
        assert_eq!(call.arguments.as_deref(), Some("{\"a\": \"\u{fffd}\"}"));
        assert_eq!(call.call.started_at, slow.started_at);
        // It finished the journal, and does not read it again.
        let rest = fs::read(&journals(&next.folder())[0]).unwrap();
        assert_eq!(rest.last(), Some(&b'\n'));
        next.store.close().await;
    }
    let call = office.call(&slow.id).await.expect("it was acknowledged");
    assert_eq!(call.call.status, CallStatus::ToolError);
}

#[tokio::test(flavor = "multi_thread")]
async fn p09_a_journal_is_read_up_to_its_last_whole_record() {
    let mut office = Office::open().await;
    let (_, call) = both();
    office.write(&call).await;
    assert_eq!(office.count().await, 1);
    let turn = office.journal().0.database.turn().await.expect("its turn");
    for _ in 0..2 {
        let (_, call) = both();
        office.write(&call).await;
    }
    let whole = fs::read(&journals(&office.folder())[0]).unwrap();
    let end = whole.iter().position(|byte| *byte == 0).expect("zeros");
    let lines = whole[..end].split_inclusive(|byte| *byte == b'\n');
    let last_call: usize = lines.clone().take(5).map(<[u8]>::len).sum();
    let damaged = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        bytes
    };
    let cases = [
        // (content, calls, open calls)
        (whole.clone(), 3, 0),
        (whole[..end].to_vec(), 3, 0),
        (whole[..end - 1].to_vec(), 3, 1),
        (whole[..last_call].to_vec(), 2, 0),
        (whole[..=last_call].to_vec(), 2, 0),
        (damaged(end - 1), 3, 1),
        (damaged(end - 2), 3, 1),
        (damaged(last_call), 2, 0),
        (damaged(0), 1, 0),
        (Vec::new(), 1, 0),
        (vec![b'x'; 1 << 20], 1, 0),
    ];
    for (case, (content, calls, open)) in cases.into_iter().enumerate() {
        let dir = office.killed();
        let file = journals(&dir.path().join("wharf.db-calls")).remove(0);
        fs::write(&file, &content).unwrap();
        let next = Office::of(dir).await;
        assert_eq!(next.count().await, calls, "case {case}");
        let filter = CallFilter {
            status: Some(CallStatus::Open),
            ..CallFilter::default()
        };
        let found = next.store.calls_list(&filter, &Page::first(10)).await;
        assert_eq!(found.unwrap().len(), open, "case {case}");
        next.store.close().await;
    }
    drop(turn);
}

#[tokio::test(flavor = "multi_thread")]
async fn p09_the_lines_of_all_journals_are_one_chain() {
    let mut office = Office::open().await;
    let long = "x".repeat(1 << 20);
    for _ in 0..40 {
        let call = CallWrite::Intent(intent(Some(long.clone())));
        office.write(&[call]).await;
    }
    assert_eq!(office.count().await, 40);
    office.store.close().await;
    let files = journals(&office.folder());
    assert_eq!(files.len(), 3);
    let mut last: Option<(String, String)> = None;
    let mut calls = 0;
    for file in &files {
        let text = fs::read_to_string(file).unwrap();
        let mut previous = "0".repeat(64);
        for (number, line) in text.lines().enumerate() {
            let (hash, json) = line.split_once(' ').unwrap();
            let digest = Sha256::digest(format!("{previous}{json}"));
            assert_eq!(hash, hex::encode(digest));
            previous = hash.to_owned();
            let json: serde_json::Value = serde_json::from_str(json).unwrap();
            if number == 0 {
                assert_eq!(json["journal"]["version"], 1);
                let after = &json["journal"]["after"];
                let named = last.take().unwrap_or_default();
                assert_eq!(after["file"].as_str().unwrap_or_default(), named.0);
                assert_eq!(after["hash"].as_str().unwrap_or_default(), named.1);
            } else {
                assert_eq!(json["call"]["tool"], "écho");
                calls += 1;
            }
        }
        let name = file.file_name().unwrap().to_str().unwrap().to_owned();
        last = Some((name, previous));
    }
    assert_eq!(calls, 40);
}

#[tokio::test(flavor = "multi_thread")]
async fn p09_calls_are_refused_while_too_many_records_wait() {
    let mut office = Office::open().await;
    let (_, call) = both();
    office.write(&call).await;
    assert_eq!(office.count().await, 1);
    let backlog = office.journal().0.backlog.clone();
    backlog.bytes.fetch_add(MAX_WAITING_BYTES, Ordering::AcqRel);
    *lock(&backlog.failure) = Some("it is locked by another process".to_owned());
    let refused = office.calls.write(&call).await.unwrap_err();
    let text = model::with_causes(&refused);
    assert!(matches!(refused, Error::Unavailable { .. }), "{text}");
    assert!(text.contains("locked by another process"), "{text}");
    backlog.bytes.fetch_sub(MAX_WAITING_BYTES, Ordering::AcqRel);
    office.write(&call).await;
}

/// A copy is complete by itself, and does not read journals at the place to which it is restored.
#[tokio::test(flavor = "multi_thread")]
async fn o07_a_copy_has_the_calls_that_are_only_in_the_journal() {
    let mut office = Office::open().await;
    let (_, call) = both();
    office.write(&call).await;
    assert_eq!(office.count().await, 1);
    let turn = office.journal().0.database.turn().await.expect("its turn");
    let (second, call) = both();
    office.write(&call).await;
    let restored = tempfile::tempdir().expect("a folder");
    let into = restored.path().join("wharf.db");
    fs::write(&into, "").unwrap();
    let copied = std::sync::atomic::AtomicU64::new(0);
    let copy = office.store.export(&into, &copied).await;
    assert!(matches!(copy, Ok(Export::File(_))));
    dump_of_file(&into).expect("it is whole");
    let (third, call) = both();
    office.write(&call).await;
    let folder = restored.path().join("wharf.db-calls");
    fs::create_dir(&folder).unwrap();
    copy_files(&office.folder(), &folder);
    let next = Office::of(restored).await;
    assert!(next.call(&second).await.is_some());
    assert!(next.call(&third).await.is_none());
    assert_eq!(next.count().await, 2);
    drop(turn);
}

#[tokio::test(flavor = "multi_thread")]
async fn p09_the_journal_of_a_living_process_is_left_alone() {
    let mut office = Office::open().await;
    let (_, call) = both();
    office.write(&call).await;
    assert_eq!(office.count().await, 1);
    let location = Location::Sqlite(office.dir.path().join("wharf.db"));
    let other = Store::open(&location).await.expect("the same database");
    let (mine, call) = both();
    other
        .call_writer()
        .write(&call)
        .await
        .expect("it is written");
    other.calls_close_open(now(), "it died").await.unwrap();
    let reserved = fs::metadata(&journals(&office.folder())[0]).unwrap().len();
    assert_eq!(reserved % (256 << 10), 0);
    let (last, call) = both();
    office.write(&call).await;
    assert!(office.call(&last).await.is_some());
    other.close().await;
    assert!(office.call(&mine).await.is_some());
    assert_eq!(office.count().await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn p09_journals_are_removed_with_the_calls_in_them() {
    let mut office = Office::open().await;
    let (_, call) = both();
    office.write(&call).await;
    office.store.close().await;
    let dir = std::mem::replace(&mut office.dir, tempfile::tempdir().unwrap());
    let mut office = Office::of(dir).await;
    let (_, call) = both();
    office.write(&call).await;
    let foreign = office.folder().join("0.jsonl");
    fs::write(&foreign, "").unwrap();
    let files = journals(&office.folder());
    assert_eq!(files.len(), 3);
    let prune = async |before: Time| {
        while office.store.calls_prune(before).await.unwrap() > 0 {}
    };
    let hour = chrono::Duration::hours(1);
    prune(now() - hour).await;
    assert_eq!(journals(&office.folder()), files);
    prune(now() + hour).await;
    // One is not finished, and the other is not ours.
    let left = [files[0].clone(), files[2].clone()];
    assert_eq!(journals(&office.folder()), left);
    assert_eq!(office.count().await, 0);
    assert!(floor(now()).len() > 30);
}

/// A journal on a device that is always full.
#[test]
fn p09_of_a_batch_that_does_not_fit_nothing_counts() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut segment = Segment::create(dir.path()).expect("a journal");
    segment.begin(None).expect("its first line");
    let before = segment.position();
    let full = fs::OpenOptions::new().write(true).open("/dev/full");
    let file = segment.replace_file(full.unwrap());
    let (_, call) = both();
    let refused = Error::journal(segment.append(&call).unwrap_err());
    assert!(
        refused.to_string().contains("the disk is full"),
        "{refused}"
    );
    assert_eq!(segment.position(), before);
    segment.replace_file(file);
    segment.append(&call).expect("there is space again");
    let mut reader = record::Reader::open(&dir.path().join(&*segment.name)).unwrap();
    let mut lines = Vec::new();
    while reader.next(&mut lines).unwrap().is_some() {}
    assert_eq!(reader.position(), segment.position());
    assert_eq!(record::records(&lines).count(), 3);
}

/// The table refuses this record. The others are entered.
#[tokio::test(flavor = "multi_thread")]
async fn p09_a_record_that_cannot_be_entered_does_not_hold_up_others() {
    let office = Office::open().await;
    let lines = |status: &str| {
        let (odd, other) = (intent(None), intent(None));
        let end = outcome(&odd);
        let end = record::End {
            status: status.to_owned().into(),
            ..(&end).into()
        };
        let mut lines = Vec::new();
        for record in [
            record::Record::Call((&odd).into()),
            record::Record::End(end),
            record::Record::Call((&other).into()),
        ] {
            record::push(&mut lines, Position::START.hash, &record);
        }
        lines
    };
    let mut conn = index::open(office.journal().0.database.path()).unwrap();
    for (status, count) in [("odd", 1), ("ok", 3)] {
        let lines = lines(status);
        let lines = [Lines {
            file: "a".into(),
            lines,
            at: Position::START,
        }];
        index::enter(&mut conn, Durable::Now, &lines, &[]).unwrap();
        assert_eq!(office.count().await, count, "{status}");
    }
}

/// A later version may write other records, and leave its journal to this one.
#[tokio::test(flavor = "multi_thread")]
async fn p09_an_unknown_record_is_left_out() {
    let mut office = Office::open().await;
    let (_, call) = both();
    office.write(&call).await;
    assert_eq!(office.count().await, 1);
    let dir = office.killed();
    let file = journals(&dir.path().join("wharf.db-calls")).remove(0);
    let mut text = fs::read_to_string(&file).unwrap();
    text.truncate(text.find('\0').unwrap());
    let mut previous = text.lines().last().unwrap()[..64].to_owned();
    let known = serde_json::to_string(&record::Record::Call((&intent(None)).into())).unwrap();
    for json in [r#"{"later":{"id":"x"}}"#, "7", &known] {
        previous = hex::encode(Sha256::digest(format!("{previous}{json}")));
        text.push_str(&format!("{previous} {json}\n"));
    }
    fs::write(&file, &text).unwrap();
    let next = Office::of(dir).await;
    assert_eq!(next.count().await, 2);
    next.store.close().await;
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
}
