//! The store under failure: killed during a write, locked, disk full, unreachable, and with a wrong master key.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

mod common;
mod kept;

use std::{
    collections::{HashMap, HashSet},
    path::Path,
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use common::{holds, says, scripted};
use kept::{Kept, Running};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use testkit::{DEADLINE, Process, Reply, soak, wait_for};
use tokio::{task::JoinSet, time::Instant};

/// Runs a test on both databases.
macro_rules! on_both {
    ($name:ident, $test:path) => {
        mod $name {
            #[tokio::test]
            async fn sqlite() {
                $test(super::Kept::sqlite().await).await;
            }

            #[tokio::test]
            async fn postgres() {
                $test(super::Kept::postgres().await).await;
            }
        }
    };
}

fn digest(text: &str) -> String {
    hex::encode(Sha256::digest(text.as_bytes()))
}

/// Everything that a gateway has acknowledged.
#[derive(Default)]
struct Acknowledged {
    secrets: Mutex<HashSet<String>>,
    calls: Mutex<HashSet<String>>,
    /// The last number written to the project's description.
    described: AtomicU64,
}

/// Returns whether a write was acknowledged.
async fn wrote(running: &Running, path: &str, body: Value) -> bool {
    let reply = running.try_rest("PUT", path, body).await;
    reply.is_ok_and(|reply| reply.status.is_success())
}

/// Performs writes of all kinds, one after another, until the gateway is gone.
async fn write_on(running: Arc<Running>, acknowledged: Arc<Acknowledged>, round: u64, lane: u64) {
    for n in 0.. {
        let number = round * 1_000_000 + lane * 100_000 + n;
        match lane {
            0 => {
                let name = format!("S_{number}");
                let path = format!("/projects/p/secrets/{name}");
                if !wrote(&running, &path, json!({"value": "v"})).await {
                    return;
                }
                acknowledged.secrets.lock().unwrap().insert(name);
            }
            1 => {
                let body = json!({"description": number.to_string()});
                if !wrote(&running, "/projects/p", body).await {
                    return;
                }
                acknowledged.described.store(number, Ordering::SeqCst);
            }
            _ => {
                let arguments = json!({"n": number});
                let params = json!({"name": "echo", "arguments": arguments});
                let reply = running.try_mcp("p", "tools/call", params).await;
                let Ok(reply) = reply else { return };
                if reply.status != 200 || reply.response().get("result").is_none() {
                    return;
                }
                let digest = digest(&arguments.to_string());
                acknowledged.calls.lock().unwrap().insert(digest);
            }
        }
    }
}

/// Asserts that all acknowledged writes exist and no call record is open.
async fn check(running: &Running, acknowledged: &Acknowledged) {
    let mut missing = acknowledged.secrets.lock().unwrap().clone();
    each_row(running, "/projects/p/secrets", "secrets", |row| {
        missing.remove(row["name"].as_str().unwrap());
        !missing.is_empty()
    })
    .await;
    assert!(missing.is_empty(), "lost secrets: {missing:?}");
    let project = running.ok("GET", "/projects/p", Value::Null).await;
    let described = project["description"].as_str().unwrap();
    let described: u64 = described.parse().unwrap_or_default();
    assert!(described >= acknowledged.described.load(Ordering::SeqCst));
    let mut missing = acknowledged.calls.lock().unwrap().clone();
    each_row(running, "/calls", "calls", |row| {
        assert_ne!(row["status"], "open", "{row}");
        if row["status"] == "ok" {
            missing.remove(row["arguments_digest"].as_str().unwrap());
        }
        !missing.is_empty()
    })
    .await;
    assert!(missing.is_empty(), "lost calls: {missing:?}");
}

/// Passes the rows to `more`, page by page. Stops after the first page for whose last row `more` returns false.
async fn each_row(running: &Running, path: &str, list: &str, mut more: impl FnMut(&Value) -> bool) {
    let mut next = format!("{path}?limit=1000");
    loop {
        let page = running.ok("GET", &next, Value::Null).await;
        let mut wanted = true;
        for row in page[list].as_array().unwrap() {
            wanted = more(row);
        }
        match page["next"].as_str() {
            Some(after) if wanted => next = format!("{path}?limit=1000&after={after}"),
            _ => break,
        }
    }
}

/// Kills the gateway with SIGKILL at random times. Acknowledged writes exist after the next start, and the database is
/// intact.
async fn kill_9(kept: Kept, rounds: u64) {
    let acknowledged = Arc::new(Acknowledged::default());
    let mut before = Arc::new(Acknowledged::default());
    let mut secrets = 0;
    for round in 1..=rounds {
        let running = kept.start().await;
        if round == 1 {
            put_server(&running, scripted("one", &[])).await;
        }
        // Checks only the writes of the previous round. All writes are checked at the end.
        check(&running, &before).await;
        if soak() {
            // A project has room for 500 secrets, fewer than a long run writes.
            let mut names = Vec::new();
            each_row(&running, "/projects/p/secrets", "secrets", |row| {
                names.push(row["name"].as_str().unwrap().to_owned());
                true
            })
            .await;
            for name in names {
                let path = format!("/projects/p/secrets/{name}");
                running.ok("DELETE", &path, Value::Null).await;
            }
            acknowledged.secrets.lock().unwrap().clear();
        }
        let fresh = Arc::new(Acknowledged::default());
        let running = Arc::new(running);
        let mut lanes = JoinSet::new();
        for lane in 0..5 {
            lanes.spawn(write_on(running.clone(), fresh.clone(), round, lane));
        }
        let longest = kept.database.as_ref().map_or(150_000, |_| 500_000);
        let moment = Duration::from_micros(rand::random_range(1_000..longest));
        let end = Instant::now() + moment;
        // The test kills the gateway at a random time, so there is no condition to wait for.
        tokio::time::sleep_until(end).await;
        running.process.signal(rustix::process::Signal::KILL);
        lanes.join_all().await;
        let running = Arc::into_inner(running).expect("all writers have ended");
        running.kill().await;
        for (all, new) in [
            (&acknowledged.secrets, &fresh.secrets),
            (&acknowledged.calls, &fresh.calls),
        ] {
            let new = new.lock().unwrap();
            all.lock().unwrap().extend(new.iter().cloned());
        }
        secrets += fresh.secrets.lock().unwrap().len();
        let described = fresh.described.load(Ordering::SeqCst);
        if described > 0 {
            acknowledged.described.store(described, Ordering::SeqCst);
        }
        before = fresh;
    }
    let calls = acknowledged.calls.lock().unwrap().len();
    assert!(calls > 0);
    assert!(secrets > 0);
    let running = kept.start().await;
    check(&running, &acknowledged).await;
    running.stop().await;
    eprintln!(
        "kill-loop: {rounds} kills, none of {calls} calls and {secrets} secrets lost (bound 0)"
    );
    if kept.database.is_none() {
        let output = sqlite(&kept.data("toolwharf.db"), "PRAGMA integrity_check").await;
        assert_eq!(output.trim(), "ok");
    }
}

#[tokio::test]
async fn kill_9_loses_nothing_that_was_acknowledged_on_sqlite() {
    let rounds = if soak() { 10_000 } else { 60 };
    kill_9(Kept::sqlite().await, rounds).await;
}

#[tokio::test]
async fn kill_9_loses_nothing_that_was_acknowledged_on_postgres() {
    let rounds = if soak() { 1_000 } else { 50 };
    kill_9(Kept::postgres().await, rounds).await;
}

/// Queries a SQLite file with Python's own library, an implementation other than ours.
async fn sqlite(file: &Path, statement: &str) -> String {
    let script = "import sqlite3,sys\n\
                  db=sqlite3.connect(sys.argv[1])\n\
                  for row in db.execute(sys.argv[2]): print(*row)\n\
                  db.commit()";
    let output = tokio::process::Command::new("python3")
        .args(["-c", script])
        .arg(file)
        .arg(statement)
        .output()
        .await
        .expect("python3 is installed: run `cargo xtask setup`");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// Puts this server into project `p`.
async fn put_server(running: &Running, entry: Value) {
    running.ok("PUT", "/projects/p", json!({})).await;
    running.ok("PUT", "/mcp/servers/one?project=p", entry).await;
}

/// Puts a server with a secret into project `p`.
async fn put_with_secret(running: &Running) {
    let mut entry = scripted("one", &[]);
    entry["env"] = json!({"TOKEN": "${TOKEN}"});
    put_server(running, entry).await;
    set_secret(running, "sesame").await;
}

async fn set_secret(running: &Running, value: &str) {
    let secret = json!({ "value": value });
    running.ok("PUT", "/projects/p/secrets/TOKEN", secret).await;
}

async fn with_one(kept: &Kept) -> Running {
    let running = kept.start().await;
    put_server(&running, scripted("one", &[])).await;
    call(&running, 1).await.unwrap();
    running
}

/// Calls a tool of the server.
async fn tool(running: &Running, name: &str, arguments: Value) -> Reply {
    let params = json!({"name": name, "arguments": arguments});
    running.mcp("p", "tools/call", params).await
}

/// Makes a tool call. A refusal is returned as status and message.
async fn call(running: &Running, n: u64) -> Result<(), (u16, String)> {
    let reply = tool(running, "echo", json!({ "n": n })).await;
    let response = reply.response();
    if reply.status == 200 {
        let echoed = &response["result"]["structuredContent"]["n"];
        assert_eq!(*echoed, n, "{response}");
        return Ok(());
    }
    let message = response["error"]["message"].as_str().unwrap_or_default();
    Err((reply.status.as_u16(), message.to_owned()))
}

/// While the database is unreachable, calls are refused with the reason, and reads that do not need the database work.
/// When it is back, everything works within five seconds, and no unrecorded call was made.
async fn survives(running: &Running, away: impl AsyncFnOnce(), back: impl AsyncFnOnce()) {
    let counted = async || {
        let reply = tool(running, "counter", json!({})).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.response()["result"]["structuredContent"]["total"].clone()
    };
    let hold = async || tool(running, "hold", json!({"ms": 1})).await;
    assert_eq!(hold().await.status, 200);
    assert_eq!(counted().await, 1);
    away().await;
    let gone = Instant::now();
    let (length, mut refused) = (Duration::from_secs(if soak() { 60 } else { 0 }), 0);
    while refused < 2 || gone.elapsed() < length {
        let begun = Instant::now();
        let reply = hold().await;
        assert_eq!(reply.status, 503, "{}", reply.text());
        let parts = ["could not be recorded", "the call was not made"];
        says(&reply.response(), &parts);
        assert!(begun.elapsed() < Duration::from_secs(10));
        refused += 1;
        let lists = running.mcp("p", "tools/list", json!({})).await;
        assert_eq!(lists.status, 200);
        let lists = lists.response();
        assert!(lists["result"]["tools"][0].is_object(), "{lists}");
    }
    // The secret is too large for the space that the database has reserved.
    let secret = json!({"value": "x".repeat(60_000)});
    let path = "/projects/p/secrets/LARGE";
    let written = running.rest("PUT", path, secret).await;
    assert_eq!(written.status, 503, "{}", written.text());
    assert!(written.header("retry-after").is_some());
    back().await;
    let since = Instant::now();
    wait_for("calls to be recorded again", DEADLINE, async || {
        call(running, 2).await.is_ok()
    })
    .await;
    let took = since.elapsed();
    eprintln!(
        "database: {refused} calls refused, the next one accepted {took:?} after the end (bound 5 s)"
    );
    assert!(took < Duration::from_secs(5), "{took:?}");
    // No refused call has reached the server. A gateway that was without Postgres for longer than its lease has started
    // the server again, and the new one has counted nothing.
    let counted = counted().await;
    assert!(counted == 1 || (soak() && counted == 0), "{counted}");
    let open = running.ok("GET", "/calls?status=open", Value::Null).await;
    assert_eq!(open["calls"], json!([]));
}

/// Calls are recorded in the journal, and enter the table when the lock is gone.
#[tokio::test]
async fn a_locked_database_refuses_changes_and_no_calls() {
    let kept = Kept::sqlite().await;
    let running = with_one(&kept).await;
    // This process takes the lock, reports that, and holds the lock until its input is closed.
    let script = "import sqlite3,sys\n\
                  db=sqlite3.connect(sys.argv[1],isolation_level=None)\n\
                  db.execute('PRAGMA busy_timeout=5000')\n\
                  db.execute('BEGIN IMMEDIATE')\n\
                  print('locked',flush=True)\n\
                  sys.stdin.read()";
    let mut command = tokio::process::Command::new("python3");
    command.args(["-c", script]).arg(kept.data("toolwharf.db"));
    let mut holder = Process::spawn(command);
    let locked = holder.announced(|line| (line == "locked").then_some(()));
    locked.await;
    let gone = Instant::now();
    let (length, mut made) = (Duration::from_secs(if soak() { 60 } else { 0 }), 1);
    while made < 20 || gone.elapsed() < length {
        let begun = Instant::now();
        made += 1;
        call(&running, made).await.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
    let lists = running.mcp("p", "tools/list", json!({})).await;
    assert_eq!(lists.status, 200);
    let listed = running.ok("GET", "/calls?tool=echo", Value::Null).await;
    assert_eq!(listed["calls"].as_array().unwrap().len(), 1, "{listed}");
    let secret = json!({"value": "x"});
    let path = "/projects/p/secrets/ONE";
    let written = running.rest("PUT", path, secret).await;
    assert_eq!(written.status, 503, "{}", written.text());
    assert!(written.header("retry-after").is_some());
    drop(holder);
    let since = Instant::now();
    let path = "/calls/statistics?tool=echo";
    wait_for("the calls to be in the table", DEADLINE, async || {
        running.ok("GET", path, Value::Null).await["calls"] == made
    })
    .await;
    let took = since.elapsed();
    eprintln!(
        "database: {made} calls while it was locked, in the table {took:?} after the end (bound 5 s)"
    );
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[tokio::test]
async fn a_postgres_that_is_gone_refuses_calls_and_nothing_else() {
    let kept = Kept::postgres().await;
    let running = with_one(&kept).await;
    let database = kept.database.as_ref().unwrap();
    survives(
        &running,
        async || database.close_to_all().await,
        async || database.open_to_all().await,
    )
    .await;
}

/// The gateway runs in a separate mount namespace, in which the data directory is a small file system.
#[tokio::test]
async fn a_full_disk_refuses_calls_and_nothing_else() {
    let kept = Kept::sqlite().await;
    let data = kept.data("");
    std::fs::create_dir_all(&data).unwrap();
    let serve = kept.command("serve");
    let mut command = tokio::process::Command::new("unshare");
    command
        .args(["--mount", "--propagation=private", "sh", "-c"])
        .arg(r#"mount -t tmpfs -o size=4m,mode=700 tmpfs "$0" && exec "$@""#)
        .arg(&data)
        .arg(serve.as_std().get_program())
        .args(serve.as_std().get_args())
        .args(["--listen", "127.0.0.1:0", "--data-dir"])
        .arg(&data)
        .env("HOME", kept.dir.path())
        .stdin(Stdio::null());
    let mut process = Process::spawn(command);
    let url = common::ready(&mut process).await;
    // Path to the data directory as seen inside the namespace.
    let inside = Path::new("/proc")
        .join(process.pid().to_string())
        .join("root")
        .join(data.strip_prefix("/").unwrap());
    let token = std::fs::read_to_string(inside.join("admin-token")).unwrap();
    let running = Running {
        process,
        url,
        token: token.trim().to_owned(),
    };
    put_server(&running, scripted("one", &[])).await;
    call(&running, 1).await.unwrap();
    let filler = inside.join("filler");
    let begun = Instant::now();
    survives(
        &running,
        async || {
            let mut file = std::fs::File::create(&filler).unwrap();
            let block = [0u8; 4096];
            while std::io::Write::write_all(&mut file, &block).is_ok() {}
            // Writing continues until the space reserved by the database's log is used up.
            wait_for("the disk to be full", DEADLINE, async || {
                let refused = call(&running, 3).await.err();
                refused.is_some_and(|(_, why)| why.contains("the call was not made"))
            })
            .await;
        },
        async || std::fs::remove_file(&filler).unwrap(),
    )
    .await;
    // Each cause is logged at most once per second, regardless of the number of calls.
    let seconds = usize::try_from(begun.elapsed().as_secs()).unwrap();
    let stderr = running.process.stderr();
    let mut causes: HashMap<&str, usize> = HashMap::new();
    for line in stderr.lines() {
        if let Some((_, cause)) = line.split_once("calls cannot be recorded: ") {
            let cause = cause.split(" (").next().unwrap_or_default();
            *causes.entry(cause).or_default() += 1;
        }
    }
    assert!(!causes.is_empty(), "{stderr}");
    let most = causes.values().max();
    assert!(most <= Some(&(seconds + 1)), "{causes:?}");
}

fn key_of(kept: &Kept) -> String {
    std::fs::read_to_string(kept.data("master.key")).unwrap()
}

/// With a different master key, the start is refused with the remedy, and nothing is changed.
async fn wrong_key(kept: Kept) {
    let running = kept.start().await;
    put_with_secret(&running).await;
    running.stop().await;
    let key = key_of(&kept);
    let database = || std::fs::read(kept.data("toolwharf.db")).ok();
    let before = database();
    std::fs::write(kept.data("master.key"), "0".repeat(64)).unwrap();
    let words = kept.refused().await;
    let why = "is not the key that this database's secrets were encrypted with";
    holds(&words, &[why, "TOOLWHARF_MASTER_KEY_OLD"]);
    assert!(!words.contains(key.trim()));
    std::fs::write(kept.data("master.key"), "no key").unwrap();
    holds(&kept.refused().await, &["64 hexadecimal digits"]);
    assert_eq!(database(), before);
    std::fs::write(kept.data("master.key"), &key).unwrap();
    let running = kept.start().await;
    assert_eq!(secret_of(&running).await, "sesame");
    // Without the key file, a new key is generated, and that key does not match either.
    running.stop().await;
    std::fs::remove_file(kept.data("master.key")).unwrap();
    holds(&kept.refused().await, &["Restore the old key"]);
}

on_both!(a_wrong_master_key_is_refused, super::wrong_key);

/// Returns the secret that the server of project `p` received.
async fn secret_of(running: &Running) -> String {
    let reply = tool(running, "env", json!({})).await;
    let text = reply.response()["result"]["content"][0]["text"].clone();
    let env: Value = serde_json::from_str(text.as_str().unwrap_or_default()).unwrap();
    env["TOKEN"].as_str().unwrap_or_default().to_owned()
}

/// Rotates the master key in one go, after an interruption, and with a key from the environment.
async fn rotated(mut kept: Kept) {
    let running = kept.start().await;
    put_with_secret(&running).await;
    let old = key_of(&kept);
    running.ok("POST", "/master-key/rotate", Value::Null).await;
    let new = key_of(&kept);
    assert_ne!(old, new);
    // The secrets can be read by this process and by the next one.
    set_secret(&running, "open").await;
    assert_eq!(secret_of(&running).await, "open");
    running.stop().await;
    // This is the state of a rotation that was interrupted before the new key replaced the old key.
    std::fs::rename(kept.data("master.key"), kept.data("master.key.new")).unwrap();
    std::fs::write(kept.data("master.key"), &old).unwrap();
    let running = kept.start().await;
    assert_eq!(secret_of(&running).await, "open");
    assert_eq!(key_of(&kept), new);
    running.stop().await;
    // With a key from the environment, the old key is needed once.
    let given = "5e".repeat(32);
    kept.set_env("TOOLWHARF_MASTER_KEY", Some(&given));
    let words = kept.refused().await;
    assert!(!words.contains(&given), "{words}");
    kept.set_env("TOOLWHARF_MASTER_KEY_OLD", Some(new.trim()));
    let running = kept.start().await;
    assert_eq!(secret_of(&running).await, "open");
    let rotate = "/master-key/rotate";
    let refused = running.rest("POST", rotate, Value::Null).await;
    assert!(refused.status.is_client_error(), "{}", refused.text());
    running.stop().await;
    kept.set_env("TOOLWHARF_MASTER_KEY_OLD", None);
    let running = kept.start().await;
    assert_eq!(secret_of(&running).await, "open");
    running.stop().await;
}

on_both!(the_master_key_is_rotated, super::rotated);
