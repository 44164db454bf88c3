//! Audit records of calls, agent runs, and server events.

use chrono::Duration;
use model::ProjectId;
use serde_json::json;
use store::{
    CallEnd, CallFilter, CallStatus, CallSteps, CallWrite, NewCall, NewEvent, NewRun, Page, RunEnd,
    RunFilter, Store, Time, new_id, now,
};

use crate::support::{Db, new_run, ok};

on_both!(
    a_call,
    a_batch_is_written_wholly_or_not_at_all,
    writing_a_batch_again,
    calls_are_filtered_and_paged,
    calls_that_were_open,
    pruning,
    what_happened_is_never_refused,
    runs,
    open_runs_are_closed_at_the_start,
    events,
);

pub(crate) fn intent(project: Option<&ProjectId>, tool: &str) -> NewCall {
    NewCall {
        id: new_id(),
        run_id: None,
        project: project.cloned(),
        caller: "key:abc".to_owned(),
        server: "time".to_owned(),
        tool: tool.to_owned(),
        arguments_digest: "sha256:a".to_owned(),
        arguments: Some("{ \"n\": 1.0 }".to_owned()),
        started_at: now(),
        replay_of: None,
    }
}

pub(crate) fn outcome(id: &str, status: CallStatus) -> CallEnd {
    CallEnd {
        id: id.to_owned(),
        status,
        error: (status != CallStatus::Ok).then(|| format!("it was {}", status.as_str())),
        result_digest: Some("sha256:r".to_owned()),
        result: Some("{\"content\":[]}".to_owned()),
        finished_at: now(),
        duration_us: 1_234_567_890_123,
        steps: CallSteps {
            turn_us: Some(1),
            sent_us: Some(2),
            answered_us: Some(3_000_000_000),
            questions: None,
        },
    }
}

async fn write(store: &Store, calls: &[NewCall]) {
    let writes: Vec<_> = calls.iter().cloned().map(CallWrite::Intent).collect();
    store.call_writer().write(&writes).await.unwrap();
}

async fn finish(store: &Store, end: CallEnd) {
    let writes = [CallWrite::Outcome(end)];
    store.call_writer().write(&writes).await.unwrap();
}

async fn count(store: &Store) -> usize {
    let (filter, page) = (CallFilter::default(), Page::default());
    store.calls_list(&filter, &page).await.unwrap().len()
}

async fn a_call(db: &Db) {
    let store = &db.store;
    let (id, other) = (db.project("p").await, db.project("other").await);
    let call = intent(Some(&id), "now");
    write(store, std::slice::from_ref(&call)).await;
    let open = store.call_get(Some(&id), &call.id).await.unwrap();
    assert_eq!(open.arguments, call.arguments);
    assert_eq!(
        (open.call.status, open.call.started_at),
        (CallStatus::Open, call.started_at)
    );
    assert_eq!(
        (open.call.finished_at, open.call.duration_us, open.result),
        (None, None, None)
    );

    for status in [CallStatus::ToolError, CallStatus::Ok] {
        finish(store, outcome(&call.id, status)).await;
    }
    let done = store.call_get(None, &call.id).await.unwrap();
    assert_eq!(
        done.call.status,
        CallStatus::ToolError,
        "the first outcome stays"
    );
    let first = outcome(&call.id, CallStatus::ToolError);
    assert_eq!((done.call.error, done.result), (first.error, first.result));
    assert_eq!(done.call.duration_us, Some(first.duration_us));

    assert_error!(store.call_get(Some(&other), &call.id).await, NotFound);
    assert_error!(store.call_get(None, &new_id()).await, NotFound);
    finish(store, outcome(&new_id(), CallStatus::Ok)).await;
    store.call_writer().write(&[]).await.unwrap();
    assert_eq!(count(store).await, 1);
}

async fn a_batch_is_written_wholly_or_not_at_all(db: &Db) {
    let store = &db.store;
    let id = db.project("p").await;
    let earlier: Vec<_> = (0..64).map(|_| intent(Some(&id), "earlier")).collect();
    write(store, &earlier).await;
    let mut writes: Vec<_> = (0..64)
        .map(|_| CallWrite::Intent(intent(Some(&id), "new")))
        .collect();
    let ends = earlier.iter().map(|call| outcome(&call.id, CallStatus::Ok));
    writes.extend(ends.map(CallWrite::Outcome));

    let mut bad = writes.clone();
    let CallWrite::Intent(last) = &mut bad[63] else {
        unreachable!("intents come first")
    };
    last.run_id = Some("no such run".to_owned());
    // SQLite has a journal, which takes any record. (`journal` tests a batch that does not fit on the disk.)
    if store.has_replicas() {
        assert_error!(store.call_writer().write(&bad).await, Invalid);
    }
    let open = CallFilter {
        status: Some(CallStatus::Open),
        ..CallFilter::default()
    };
    assert_eq!(count(store).await, 64);
    assert_eq!(
        store
            .calls_list(&open, &Page::default())
            .await
            .unwrap()
            .len(),
        64
    );

    store.call_writer().write(&writes).await.unwrap();
    let rows = store.calls_list(&open, &Page::default()).await.unwrap();
    assert!(rows.len() == 64 && rows.iter().all(|row| row.tool == "new"));
    assert_eq!(count(store).await, 128);
}

async fn writing_a_batch_again(db: &Db) {
    let store = &db.store;
    let call = intent(None, "now");
    let end = outcome(&call.id, CallStatus::Ok);
    // The order in a batch does not matter, because intents are written first. An intent that is written again never
    // reopens a closed call.
    let batch = [CallWrite::Outcome(end), CallWrite::Intent(call.clone())];
    for _ in 0..3 {
        store.call_writer().write(&batch).await.unwrap();
        let row = store.call_get(None, &call.id).await.unwrap();
        assert_eq!(row.call.status, CallStatus::Ok);
    }
    assert_eq!(count(store).await, 1);
}

async fn calls_are_filtered_and_paged(db: &Db) {
    let store = &db.store;
    let (a, b) = (db.project("a").await, db.project("b").await);
    let mut calls = Vec::new();
    for n in 0..100 {
        let project = [Some(&a), Some(&b), None][n % 3];
        let mut call = intent(project, ["now", "zone"][n % 2]);
        call.server = format!("s{}", n % 5);
        call.caller = format!("c{}", n % 4);
        calls.push(call);
    }
    write(store, &calls).await;
    let ends = calls
        .iter()
        .take(10)
        .map(|call| CallWrite::Outcome(outcome(&call.id, CallStatus::Timeout)));
    ok(store.call_writer().write(&ends.collect::<Vec<_>>())).await;

    let check = async |filter: CallFilter, keep: &dyn Fn(usize, &NewCall) -> bool| {
        let mut found = Vec::new();
        let mut page = Page::first(7);
        loop {
            let rows = store.calls_list(&filter, &page).await.unwrap();
            found.extend(rows.iter().map(|row| row.id.clone()));
            let Some(last) = rows.last().filter(|_| rows.len() == 7) else {
                break;
            };
            page = Page::after(last.id.as_str(), 7);
        }
        let kept = calls.iter().enumerate().filter(|(n, call)| keep(*n, call));
        let mut expect: Vec<_> = kept.map(|(_, call)| call.id.clone()).collect();
        expect.reverse();
        assert_eq!(found, expect, "{filter:?}");
    };
    let all = CallFilter::default();
    check(all.clone(), &|_, _| true).await;
    let project = Some(a.clone());
    check(
        CallFilter {
            project: project.clone(),
            ..all.clone()
        },
        &|_, call| call.project == project,
    )
    .await;
    let (server, tool) = (Some("s3".to_owned()), Some("zone".to_owned()));
    let filter = CallFilter {
        server,
        tool,
        ..all.clone()
    };
    check(filter, &|_, call| {
        call.server == "s3" && call.tool == "zone"
    })
    .await;
    let filter = CallFilter {
        status: Some(CallStatus::Timeout),
        ..all.clone()
    };
    check(filter, &|n, _| n < 10).await;
    let filter = CallFilter {
        project: project.clone(),
        caller: Some("c1".to_owned()),
        status: Some(CallStatus::Open),
        ..all.clone()
    };
    check(filter, &|n, call| {
        call.project == project && call.caller == "c1" && n >= 10
    })
    .await;
    let filter = CallFilter {
        server: Some("' OR 1=1 --".to_owned()),
        ..all.clone()
    };
    check(filter, &|_, _| false).await;

    let day = Duration::days(1);
    for (since, until, expect) in [
        (-day, day, true),
        (day, day * 2, false),
        (-day * 2, -day, false),
    ] {
        let filter = CallFilter {
            since: Some(now() + since),
            until: Some(now() + until),
            ..all.clone()
        };
        check(filter, &|_, _| expect).await;
    }
    let rows = store.calls_list(&all, &Page::first(0)).await.unwrap();
    assert_eq!(rows, []);
}

async fn calls_that_were_open(db: &Db) {
    let store = &db.store;
    let calls: Vec<_> = (0..3).map(|_| intent(None, "now")).collect();
    write(store, &calls).await;
    finish(store, outcome(&calls[0].id, CallStatus::Ok)).await;
    let mut later = intent(None, "now");
    later.started_at = now() + Duration::hours(1);
    write(store, std::slice::from_ref(&later)).await;

    let closed = ok(store.calls_close_open(now(), "the program stopped")).await;
    assert_eq!(closed, 2);
    assert_eq!(store.calls_close_open(now(), "again").await.unwrap(), 0);
    let status = async |call: &NewCall| store.call_get(None, &call.id).await.unwrap().call;
    assert_eq!(status(&calls[0]).await.status, CallStatus::Ok);
    assert_eq!(status(&calls[1]).await.status, CallStatus::Unknown);
    assert_eq!(
        status(&calls[1]).await.error.as_deref(),
        Some("the program stopped")
    );
    assert_eq!(status(&later).await.status, CallStatus::Open);

    // The process that made the call reports its outcome.
    finish(store, outcome(&calls[1].id, CallStatus::Ok)).await;
    let row = status(&calls[1]).await;
    assert_eq!((row.status, row.error), (CallStatus::Ok, None));
}

async fn pruning(db: &Db) {
    let store = &db.store;
    let calls: Vec<_> = (0..1_500).map(|_| intent(None, "now")).collect();
    write(store, &calls).await;
    let hour = Duration::hours(1);
    assert_eq!(store.calls_prune(now() - hour).await.unwrap(), 0);
    for expect in [1_000, 500, 0] {
        assert_eq!(store.calls_prune(now() + hour).await.unwrap(), expect);
    }
    assert_eq!(count(store).await, 0);
    assert_eq!(store.calls_prune(Time::MIN_UTC).await.unwrap(), 0);
}

async fn what_happened_is_never_refused(db: &Db) {
    let mut call = intent(None, &format!("nul\0{}", "ü".repeat(1_000_000)));
    call.arguments = Some("\"\0\"".to_owned());
    let mut end = outcome(&call.id, CallStatus::Error);
    end.error = Some("the server wrote \0 ☃ '; DROP TABLE kb.projects; --".to_owned());
    let batch = [CallWrite::Intent(call.clone()), CallWrite::Outcome(end)];
    db.store.call_writer().write(&batch).await.unwrap();
    let row = db.store.call_get(None, &call.id).await.unwrap();
    assert_eq!(row.call.tool, format!("nul\u{fffd}{}", "ü".repeat(509)));
    assert_eq!(row.arguments.as_deref(), Some("\"\u{fffd}\""));
    let expect = "the server wrote \u{fffd} ☃ '; DROP TABLE kb.projects; --";
    assert_eq!(row.call.error.as_deref(), Some(expect));
}

async fn runs(db: &Db) {
    let store = &db.store;
    let (id, other) = (db.project("p").await, db.project("other").await);
    let new = NewRun {
        conversation: Some("c-1"),
        ..new_run(Some(&id))
    };
    let run = store.run_put(new).await.unwrap();
    assert_eq!((run.status.as_str(), run.finished_at), ("running", None));
    let mut call = intent(Some(&id), "now");
    call.run_id = Some(run.id.clone());
    write(store, std::slice::from_ref(&call)).await;
    let row = store.call_get(Some(&id), &call.id).await.unwrap();
    assert_eq!(row.call.run_id.as_ref(), Some(&run.id));

    let end = RunEnd {
        status: "done".to_owned(),
        turns: 3,
        input_tokens: 5_000_000_000,
        output_tokens: 7,
        cost_micros: 1_234,
        error: None,
    };
    assert_error!(
        store.run_finish(Some(&other), &run.id, &end).await,
        NotFound
    );
    assert_error!(store.run_finish(None, &run.id, &end).await, NotFound);
    let done = store.run_finish(Some(&id), &run.id, &end).await.unwrap();
    assert_eq!(
        (done.turns, done.input_tokens, done.cost_micros),
        (3, 5_000_000_000, 1_234)
    );
    assert!(done.finished_at.is_some());
    assert_eq!(store.run_get(Some(&id), &run.id).await.unwrap(), done);
    assert_eq!(store.run_get(None, &run.id).await.unwrap(), done);
    assert_eq!(done.conversation_id.as_deref(), Some("c-1"));
    assert_error!(store.run_get(Some(&other), &run.id).await, NotFound);
}

async fn open_runs_are_closed_at_the_start(db: &Db) {
    let (store, id) = (&db.store, db.project("p").await);
    let mut runs = Vec::new();
    for project in [Some(&id), None, Some(&id)] {
        runs.push(store.run_put(new_run(project)).await.unwrap());
    }
    let end = RunEnd {
        status: "done".to_owned(),
        ..RunEnd::default()
    };
    let done = store.run_finish(Some(&id), &runs[2].id, &end).await;
    let done = done.unwrap();
    let began = runs[0].started_at;
    assert_eq!(store.run_interrupt_open(began, "x").await.unwrap(), 0);
    let hour = Duration::hours(1);
    let later = now() + hour;
    assert_eq!(store.run_interrupt_open(later, "a crash").await.unwrap(), 2);
    assert_eq!(store.run_interrupt_open(later, "again").await.unwrap(), 0);
    let list = async |filter: RunFilter, page: Page| store.run_list(&filter, &page).await.unwrap();
    let all = list(RunFilter::default(), Page::default()).await;
    let ids: Vec<_> = all.iter().map(|run| &run.id).collect();
    assert_eq!(ids, [&runs[2].id, &runs[1].id, &runs[0].id]);
    assert_eq!(all[0], done);
    for run in &all[1..] {
        assert_eq!(run.status, "interrupted");
        assert_eq!(run.error.as_deref(), Some("a crash"));
        assert!(run.finished_at.is_some());
    }
    let of_project = RunFilter {
        project: Some(id.clone()),
        ..RunFilter::default()
    };
    let page = Page::after(runs[2].id.as_str(), 10);
    assert_eq!(list(of_project, page).await, all[2..]);
    let interrupted = RunFilter {
        status: Some("interrupted".to_owned()),
        ..RunFilter::default()
    };
    assert_eq!(list(interrupted, Page::first(1)).await, all[1..2]);

    // A run is kept until its last call is pruned.
    let mut call = intent(Some(&id), "now");
    call.run_id = Some(runs[0].id.clone());
    write(store, std::slice::from_ref(&call)).await;
    assert_eq!(store.run_prune(began - hour).await.unwrap(), 0);
    assert_eq!(store.run_prune(later).await.unwrap(), 2);
    let of_run = CallFilter {
        run: Some(runs[0].id.clone()),
        ..CallFilter::default()
    };
    let calls = store.calls_list(&of_run, &Page::default()).await.unwrap();
    assert_eq!(calls.len(), 1);
    assert_eq!(store.calls_prune(later).await.unwrap(), 1);
    assert_eq!(store.run_prune(later).await.unwrap(), 1);
}

async fn events(db: &Db) {
    let store = &db.store;
    let id = db.project("p").await;
    let detail = json!({"exit": 1, "text": "☃"});
    for (project, server) in [(None, "a"), (Some(&id), "a"), (Some(&id), "b")] {
        let event = NewEvent {
            project,
            server,
            kind: "crashed",
            detail: &detail,
        };
        store.event_add(event).await.unwrap();
    }
    let list = async |project, server, page: &Page| {
        let rows = store.event_list(project, server, page).await.unwrap();
        assert!(rows.is_sorted_by(|a, b| a.id > b.id));
        rows
    };
    let all = list(None, None, &Page::default()).await;
    assert_eq!(
        (all.len(), &all[0].server[..], &all[0].detail),
        (3, "b", &detail)
    );
    assert_eq!(list(Some(&id), None, &Page::default()).await, all[..2]);
    assert_eq!(
        list(Some(&id), Some("a"), &Page::default()).await,
        all[1..2]
    );
    assert_eq!(
        list(None, None, &Page::after(all[0].id.as_str(), 1)).await,
        all[1..2]
    );
    assert_eq!(
        store
            .events_prune(now() - Duration::hours(1))
            .await
            .unwrap(),
        0
    );
    assert_eq!(
        store
            .events_prune(now() + Duration::hours(1))
            .await
            .unwrap(),
        3
    );
}
