//! O07: `toolwharf backup` under load, and `toolwharf restore` on an empty machine. The restored gateway serves
//! everything that was acknowledged before the backup.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

mod common;
mod kept;

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Read as _},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use common::{
    cli::{Said, said},
    holds, rows, scripted,
};
use kept::{Kept, Running};
use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::{DEADLINE, Process, wait_for, wait_for_some};
use tokio::{process::Command, task::JoinSet};

/// Runs a test on both databases.
macro_rules! on_both {
    ($name:ident, $test:path) => {
        mod $name {
            #[tokio::test]
            async fn sqlite() {
                $test(super::Kept::sqlite().await, super::Kept::sqlite().await).await;
            }

            #[tokio::test]
            async fn postgres() {
                $test(super::Kept::postgres().await, super::Kept::postgres().await).await;
            }
        }
    };
}

/// A command line on this machine. Its first word is the command.
fn command(kept: &Kept, words: &[&str]) -> Command {
    let mut command = kept.command(words[0]);
    command
        .args(["--data-dir".as_ref(), kept.data("").as_os_str()])
        .args(&words[1..])
        .env("HOME", kept.dir.path())
        .kill_on_drop(true);
    command
}

async fn run(kept: &Kept, words: &[&str]) -> Said {
    said(command(kept, words), "").await
}

/// The calls and secrets that the gateway has acknowledged.
#[derive(Default)]
struct Acknowledged {
    calls: Mutex<BTreeSet<u64>>,
    secrets: Mutex<BTreeSet<String>>,
    stop: AtomicBool,
}

/// Makes calls, or stores secrets, one after another.
async fn work(running: Arc<Running>, acknowledged: Arc<Acknowledged>, lane: u64) {
    for n in 0.. {
        if acknowledged.stop.load(Ordering::Relaxed) {
            return;
        }
        let number = lane * 1_000_000 + n;
        if lane == 0 {
            let name = format!("S_{number}");
            let path = format!("/projects/p/secrets/{name}");
            let reply = running.try_rest("PUT", &path, json!({"value": "v"})).await;
            if reply.is_ok_and(|reply| reply.status.is_success()) {
                acknowledged.secrets.lock().unwrap().insert(name);
            }
        } else {
            let params = json!({"name": "echo", "arguments": {"n": number}});
            let reply = running.try_mcp("p", "tools/call", params).await;
            let is_answer = |text: String| {
                text.contains("structuredContent") && text.contains(&number.to_string())
            };
            if reply.is_ok_and(|reply| is_answer(reply.text())) {
                acknowledged.calls.lock().unwrap().insert(number);
            }
        }
    }
}

fn settings(kept: &Kept, more: &str) {
    let text = format!("{}[audit]\nbodies = \"full\"\n{more}", common::SETTINGS);
    kept.settings(&text);
}

async fn served_after_the_restore(old: Kept, new: Kept) {
    settings(&old, "");
    let running = Arc::new(old.start().await);
    running.ok("PUT", "/projects/p", json!({})).await;
    let mut entry = scripted("one", &[]);
    entry["env"] = json!({"TOKEN": "${TOKEN}"});
    running.ok("PUT", "/mcp/servers/one?project=p", entry).await;
    let secret = json!({"value": "sesame"});
    running.ok("PUT", "/projects/p/secrets/TOKEN", secret).await;
    let key = json!({"name": "client", "role": "call", "projects": ["p"]});
    let key = running.ok("POST", "/keys", key).await;
    let acknowledged = Arc::new(Acknowledged::default());
    let mut lanes = JoinSet::new();
    for lane in 0..4 {
        lanes.spawn(work(running.clone(), acknowledged.clone(), lane));
    }
    wait_for("a load", DEADLINE, async || {
        let calls = acknowledged.calls.lock().unwrap().len();
        calls > 200 && !acknowledged.secrets.lock().unwrap().is_empty()
    })
    .await;

    let calls = acknowledged.calls.lock().unwrap().clone();
    let secrets = acknowledged.secrets.lock().unwrap().clone();
    let passphrase = old.dir.path().join("passphrase");
    fs::write(&passphrase, "correct horse battery\n").unwrap();
    let file = old.dir.path().join("backup.tar.zst");
    let (file, passphrase) = (file.to_str().unwrap(), passphrase.to_str().unwrap());
    let words = [
        "backup",
        file,
        "--with-master-key",
        "--passphrase-file",
        passphrase,
    ];
    run(&old, &words).await.code(0).says("wrote ");
    let during = acknowledged.calls.lock().unwrap().len();
    wait_for("calls to go on", DEADLINE, async || {
        acknowledged.calls.lock().unwrap().len() > during
    })
    .await;
    acknowledged.stop.store(true, Ordering::Relaxed);
    lanes.join_all().await;
    // The old machine is lost.
    Arc::into_inner(running).unwrap().kill().await;

    fs::remove_file(new.dir.path().join("mcp.json")).unwrap();
    fs::remove_file(new.dir.path().join("toolwharf.toml")).unwrap();
    let words = ["restore", file, "--passphrase-file", passphrase];
    run(&new, &words).await.code(0).says("restored the backup");
    let running = new.start().await;
    let url = new.database.as_ref().map(|database| database.url());
    let query = "SELECT arguments FROM kb.agent_run_tool_calls WHERE status = 'ok'";
    let found = rows::column(&new.data(""), url, query).await;
    let found: BTreeSet<u64> = found
        .iter()
        .flatten()
        .filter_map(|text| serde_json::from_str::<Value>(text).unwrap()["n"].as_u64())
        .collect();
    let missing: Vec<_> = calls.difference(&found).collect();
    assert_eq!(missing, Vec::<&u64>::new());
    let query = "SELECT name FROM kb.secrets";
    let found: BTreeSet<String> = rows::column(&new.data(""), url, query)
        .await
        .into_iter()
        .flatten()
        .collect();
    assert!(found.is_superset(&secrets));
    // A client of the old machine still has access with its key, and the server has its secret.
    let token = key["token"].as_str().unwrap();
    let running = Running {
        token: token.to_owned(),
        ..running
    };
    wait_for("the server to have its secret", DEADLINE, async || {
        let params = json!({"name": "env", "arguments": {}});
        let reply = running.mcp("p", "tools/call", params).await;
        reply.text().contains("sesame")
    })
    .await;
}

on_both!(
    o07_everything_acknowledged_before_the_backup_is_served_after_the_restore,
    super::served_after_the_restore
);

/// After `kill -9`, only unfinished files exist, and the next backup removes them.
#[tokio::test]
async fn o07_kill_9_in_the_middle_of_a_backup_leaves_no_file() {
    let kept = Kept::sqlite().await;
    kept.start().await.stop().await;
    // Large enough that the backup takes a moment, and not compressible.
    fs::create_dir_all(kept.data("bundles")).unwrap();
    let mut large = fs::File::create(kept.data("bundles/large")).unwrap();
    let random = fs::File::open("/dev/urandom").unwrap();
    io::copy(&mut random.take(32 << 20), &mut large).unwrap();
    let folder = kept.dir.path().join("backups");
    fs::create_dir(&folder).unwrap();
    let file = folder.join("backup");
    let partial = folder.join("backup.partial");
    let words = ["backup", file.to_str().unwrap()];
    for size in [1, 1_000_000] {
        for entry in fs::read_dir(&folder).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        let mut process = Process::spawn(command(&kept, &words));
        wait_for("the unfinished file", DEADLINE, async || {
            fs::metadata(&partial).is_ok_and(|meta| meta.len() >= size)
        })
        .await;
        process.signal(Signal::KILL);
        let status = process.ended(DEADLINE).await;
        assert!(
            !status.success(),
            "the backup was complete before it was killed"
        );
        assert!(
            !file.exists() && partial.exists(),
            "killed after {size} bytes"
        );
    }
    run(&kept, &words).await.code(0);
    let names: Vec<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["backup"]);
    // After an interrupt, the command removes its files itself.
    fs::remove_file(&file).unwrap();
    let mut process = Process::spawn(command(&kept, &words));
    wait_for("the unfinished file", DEADLINE, async || {
        fs::read_dir(&folder).unwrap().count() > 0
    })
    .await;
    process.signal(Signal::INT);
    let status = process.ended(DEADLINE).await;
    assert_eq!(status.code(), Some(130), "{}", process.stderr());
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}

/// The backup goes to a small file system in a separate mount namespace.
#[tokio::test]
async fn o07_a_full_disk_leaves_no_file() {
    let kept = Kept::sqlite().await;
    let running = kept.start().await;
    for number in 0..40 {
        let body = json!({"description": "x".repeat(4_000)});
        running
            .ok("PUT", &format!("/projects/p{number}"), body)
            .await;
    }
    let folder = kept.dir.path().join("small");
    fs::create_dir(&folder).unwrap();
    let backup = command(&kept, &["backup", folder.join("backup").to_str().unwrap()]);
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation=private", "sh", "-c"])
        .arg(r#"mount -t tmpfs -o size=256k,mode=700 tmpfs "$0" && "$@"; code=$?; ls -A "$0"; exit $code"#)
        .arg(&folder)
        .arg(backup.as_std().get_program())
        .args(backup.as_std().get_args())
        .env("HOME", kept.dir.path());
    let said = said(command, "").await;
    assert_eq!(said.code, Some(1), "{said:?}");
    assert_eq!(said.out, "", "{said:?}");
    holds(&said.err, &["error: ", "the disk is full"]);
    // The gateway was not disturbed.
    running.ok("GET", "/projects/p1", Value::Null).await;
    running.stop().await;
}

/// A gateway that makes backups itself.
#[tokio::test]
async fn o07_scheduled_backups_and_their_failures() {
    let kept = Kept::sqlite().await;
    let folder = kept.dir.path().join("backups");
    let schedule = |folder: &Path| format!("[backup]\nfolder = {folder:?}\nkeep = 2\n");
    settings(&kept, &schedule(&folder));
    let running = kept.start().await;
    let backups = async || running.ok("GET", "/status", Value::Null).await["backups"].clone();
    let made = wait_for_some("a backup", DEADLINE, async || {
        let made = backups().await["succeeded"].clone();
        (!made.is_null()).then_some(made)
    })
    .await;
    let file = made["place"].as_str().unwrap();
    assert_eq!(
        fs::metadata(file).unwrap().len(),
        made["bytes"].as_u64().unwrap()
    );
    let doctor = run(&kept, &["doctor"]).await;
    holds(&doctor.out, &["the last scheduled backup is of", file]);
    // It is complete, and is not made again after a restart.
    running.stop().await;
    let target = Kept::sqlite().await;
    run(&target, &["restore", file, "--without-config"])
        .await
        .code(0);
    let running = kept.start().await;
    wait_for("the gateway to know the backup", DEADLINE, async || {
        let status = running.ok("GET", "/status", Value::Null).await;
        status["backups"]["succeeded"]["at"] == made["at"]
    })
    .await;
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    running.stop().await;

    // A folder that cannot be made, on a gateway that has no backup yet.
    let kept = Kept::sqlite().await;
    let blocked = kept.dir.path().join("mcp.json/backups");
    settings(&kept, &schedule(&blocked));
    let running = kept.start().await;
    wait_for("the failure", DEADLINE, async || {
        let status = running.ok("GET", "/status", Value::Null).await;
        status["backups"]["failing"] == true
    })
    .await;
    let needed = running.ok("GET", "/attention", Value::Null).await;
    let why = needed["backup"].as_str().unwrap();
    assert!(why.contains("cannot create the folder"), "{why}");
    let listed = run(&kept, &["ls"]).await;
    holds(
        &listed.err,
        &[
            "the last scheduled backup failed",
            "cannot create the folder",
        ],
    );
    let doctor = run(&kept, &["doctor"]).await.code(1);
    holds(
        &doctor.out,
        &["PROBLEM", "failed: cannot create the folder"],
    );
    running.stop().await;
}

#[tokio::test]
async fn o07_wrong_usage_says_what_to_do() {
    let kept = Kept::sqlite().await;
    let file = kept.dir.path().join("backup");
    let file = file.to_str().unwrap();
    let missing = run(&kept, &["backup", file]).await.code(1);
    missing.says("there is no database at");
    kept.start().await.stop().await;
    run(&kept, &["backup", file, "--with-master-key"])
        .await
        .code(2)
        .says("--passphrase-file");
    let short = kept.dir.path().join("short");
    fs::write(&short, "short\n").unwrap();
    let words = ["backup", file, "--with-master-key", "--passphrase-file"];
    let short = run(&kept, &[&words[..], &[short.to_str().unwrap()]].concat()).await;
    short.code(1).says("too short");
    assert!(!Path::new(file).exists());
    let made = run(&kept, &["backup", file, "-o", "json"]).await.code(0);
    assert_eq!(made.json()["file"], file);
    run(&kept, &["backup", file]).await.code(1).says("--force");
    run(&kept, &["backup", file, "--force"]).await.code(0);
    run(&kept, &["restore", file]).await.code(1).says("--force");
    let mut elsewhere = command(&kept, &["backup", file]);
    elsewhere.env("TOOLWHARF_URL", "http://127.0.0.1:1");
    said(elsewhere, "")
        .await
        .code(2)
        .says("not on the gateway at");
    let running = kept.start().await;
    let stop = run(&kept, &["restore", file, "--force"]).await.code(1);
    stop.says("stop it before the restore");
    // Another database than that of the running gateway.
    let mut other = command(&kept, &["backup", file, "--force"]);
    other.env(
        "TOOLWHARF_DATABASE_URL",
        "postgres://me:secret@127.0.0.1:1/x",
    );
    let other = said(other, "").await.code(1);
    assert!(!other.err.contains("secret"), "{other:?}");
    other.says("the running gateway uses the database at");
    running.stop().await;
}
