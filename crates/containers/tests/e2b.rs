//! Servers in E2B sandboxes, tested against the stand-in `testkit-e2b`: real processes and real HTTP, without E2B itself.

#![expect(
    clippy::unwrap_used,
    reason = "a failure in a test's helper is the test's"
)]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use containers::e2b::{E2b, Options};
use model::{Hidden, Network, Program};
use runtime::{Error, Exit, Instance, Runtime as _, Stdio};
use rustix::process::Signal;
use testkit::{Process, in_time, wait_for};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use self::server::Server;

#[path = "../../runtime/tests/support/server.rs"]
mod server;

const API_KEY: &str = "e2b_1f2e3d4c5b6a79880123456789abcdef01234567";
/// Timeout for everything that should complete quickly.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);
const GRACE: Duration = Duration::from_secs(10);

/// A stand-in for E2B, and a runtime that uses it.
struct Bench {
    standin: Process,
    e2b: E2b,
    options: Options,
}

impl Bench {
    async fn new(args: &[&str]) -> Self {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let mut standin = Process::bin("testkit-e2b", [&["--key", API_KEY], args].concat());
        let url = standin.url().await;
        let options = Options {
            url: url.clone(),
            sandbox_url: Some(url),
            key: Hidden::new(API_KEY),
            install: format!("test-{}", SERIAL.fetch_add(1, Ordering::Relaxed)),
            run: "this".into(),
            lease: Options::LEASE,
        };
        Self {
            standin,
            e2b: E2b::new(options.clone()).unwrap(),
            options,
        }
    }

    fn other(&self, change: impl FnOnce(&mut Options)) -> E2b {
        let mut options = self.options.clone();
        change(&mut options);
        E2b::new(options).unwrap()
    }

    async fn launch(&self, server: Server) -> Result<Instance, Error> {
        launch(&self.e2b, server).await
    }

    /// Launches a server whose first line is `up`.
    async fn up(&self, script: &str) -> Instance {
        let mut instance = self.launch(sh(script)).await.unwrap();
        said(&mut instance, "up\n").await;
        instance
    }

    async fn refused(&self, server: Server) -> (&'static str, String) {
        match self.launch(server).await {
            Err(Error::Refused { field, why }) => (field, why),
            other => panic!("not refused: {other:?}"),
        }
    }

    /// Sends one request to the stand-in. Returns status and body.
    async fn ask(&self, method: &str, path: &str) -> (u16, String) {
        let host = self.options.url.trim_start_matches("http://");
        let asking = async {
            let mut stream = TcpStream::connect(host).await.unwrap();
            let request = format!("{method} {path} HTTP/1.0\r\nX-API-Key: {API_KEY}\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let answer = in_time(TEST_TIMEOUT, asking).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, body.to_owned())
    }

    /// Lists the ids of all existing sandboxes.
    async fn sandboxes(&self) -> Vec<String> {
        let (_, body) = self.ask("GET", "/v2/sandboxes").await;
        let ids = body.split("\"sandboxID\":\"").skip(1);
        ids.map(|rest| rest.split('"').next().unwrap().to_owned())
            .collect()
    }

    async fn only(&self) -> String {
        let all = self.sandboxes().await;
        assert_eq!(all.len(), 1, "{all:?}");
        all[0].clone()
    }

    async fn nothing_left(&self) {
        wait_for("no sandbox is left", TEST_TIMEOUT, async || {
            self.sandboxes().await.is_empty()
        })
        .await;
    }
}

async fn launch(e2b: &E2b, server: Server) -> Result<Instance, Error> {
    in_time(TEST_TIMEOUT, e2b.launch(server.unit())).await
}

fn running(command: &[&str]) -> Server {
    let command = command.iter().map(|&word| word.to_owned()).collect();
    let image = "base".to_owned();
    Server::new("h1", Program::Image { image, command })
}

fn sh(script: &str) -> Server {
    running(&["/bin/sh", "-c", script])
}

fn stdio(instance: &mut Instance) -> &mut Stdio {
    instance.stdio.as_mut().expect("it is bridged")
}

/// Reads exactly the expected output.
async fn said(instance: &mut Instance, expected: &str) {
    let mut text = vec![0; expected.len()];
    let reading = stdio(instance).stdout.read_exact(&mut text);
    in_time(TEST_TIMEOUT, reading).await.unwrap();
    assert_eq!(String::from_utf8(text).unwrap(), expected);
}

async fn rest(instance: &mut Instance) -> String {
    let mut text = String::new();
    let reading = stdio(instance).stdout.read_to_string(&mut text);
    in_time(TEST_TIMEOUT, reading).await.unwrap();
    text
}

async fn write(instance: &mut Instance, text: &str) {
    let writing = stdio(instance).stdin.write_all(text.as_bytes());
    in_time(TEST_TIMEOUT, writing).await.unwrap();
}

async fn exited(instance: &Instance) -> Exit {
    in_time(TEST_TIMEOUT, instance.handle.exited()).await
}

#[tokio::test]
async fn a_server_in_a_sandbox_is_spoken_to_over_its_streams() {
    let bench = Bench::new(&[]).await;
    let probed = bench.e2b.probe().await.unwrap();
    assert!(probed.contains(&bench.options.url), "{probed}");
    let mut server = sh("echo \"$SECRET\"; echo words >&2; cat; echo end; exit 3");
    server.env = [("SECRET".to_owned(), "from us".to_owned())].into();
    let mut instance = bench.launch(server).await.unwrap();
    assert_eq!(instance.handle.pid(), None);
    said(&mut instance, "from us\n").await;
    for number in 0..20 {
        let line = format!("line {number}\n");
        write(&mut instance, &line).await;
        said(&mut instance, &line).await;
    }
    let (_, told) = bench
        .ask("GET", &format!("/sandboxes/{}", bench.only().await))
        .await;
    assert!(told.contains("\"allowInternetAccess\":false"), "{told}");
    for label in ["\"toolwharf-run\":\"this\"", "\"toolwharf-hosting\":\"h1\""] {
        assert!(told.contains(label), "{told}");
    }
    // Replacing the writer closes the server's input.
    let (empty, _) = tokio::io::duplex(1);
    drop(std::mem::replace(
        &mut stdio(&mut instance).stdin,
        Box::new(empty),
    ));
    assert_eq!(rest(&mut instance).await, "end\n");
    assert_eq!(exited(&instance).await.code, Some(3));
    assert_eq!(instance.handle.stderr_tail(), "words\n");
    bench.nothing_left().await;
    in_time(TEST_TIMEOUT, bench.e2b.idle()).await;
}

#[tokio::test]
async fn much_of_it_arrives_as_it_was() {
    let bench = Bench::new(&[]).await;
    let mut instance = bench.launch(running(&["cat"])).await.unwrap();
    let line = "0123456789abcde\n";
    let text = line.repeat((4 << 20) / line.len());
    let Stdio { stdin, stdout } = stdio(&mut instance);
    let mut back = vec![0; text.len()];
    // More data than all buffers hold is in flight in both directions, and neither side waits for the other to finish.
    let both = async {
        tokio::join!(
            stdin.write_all(text.as_bytes()),
            stdout.read_exact(&mut back)
        )
    };
    let (written, read) = in_time(TEST_TIMEOUT, both).await;
    written.unwrap();
    read.unwrap();
    assert!(back == text.as_bytes());
    instance.handle.kill_now();
    exited(&instance).await;
    bench.nothing_left().await;
}

#[tokio::test]
async fn a_flood_that_nobody_reads_waits_and_holds_up_no_end() {
    let bench = Bench::new(&[]).await;
    let flood = bench.launch(sh("echo up >&2; exec yes")).await.unwrap();
    wait_for("it has begun", TEST_TIMEOUT, async || {
        flood.handle.stderr_tail() == "up\n"
    })
    .await;
    // Another server has separate streams.
    let mut other = running(&["cat"]);
    other.sandbox.id = "h2".into();
    let mut other = bench.launch(other).await.unwrap();
    write(&mut other, "there\n").await;
    said(&mut other, "there\n").await;
    let exit = in_time(TEST_TIMEOUT, flood.handle.stop(Duration::from_millis(300))).await;
    assert!(matches!(exit.signal, Some(9 | 15)), "{exit}");
    drop(other);
    bench.nothing_left().await;
    in_time(TEST_TIMEOUT, bench.e2b.idle()).await;
}

#[tokio::test]
async fn a_server_that_is_busy_gets_its_input_later() {
    let bench = Bench::new(&[]).await;
    let script = "until [ -e /tmp/$GO ]; do sleep 0.02; done; rm /tmp/$GO; cat";
    let go = format!("toolwharf-go-{}", std::process::id());
    let mut server = sh(script);
    server.env = [("GO".to_owned(), go.clone())].into();
    let mut instance = bench.launch(server).await.unwrap();
    let text = "0123456789abcde\n".repeat(16 << 10);
    let Stdio { stdin, stdout } = stdio(&mut instance);
    let mut back = vec![0; text.len()];
    let writing = stdin.write_all(text.as_bytes());
    let reading = async {
        // At this point, more input is in flight than a pipe holds.
        std::fs::write(format!("/tmp/{go}"), "").unwrap();
        stdout.read_exact(&mut back).await
    };
    let both = async { tokio::join!(writing, reading) };
    let (written, read) = in_time(TEST_TIMEOUT, both).await;
    written.unwrap();
    read.unwrap();
    assert!(back == text.as_bytes());
    drop(instance);
    bench.nothing_left().await;
}

#[tokio::test]
async fn how_it_ended_is_told() {
    let bench = Bench::new(&[]).await;
    for (script, code, signal) in [
        ("exit 0", Some(0), None),
        ("exit 7", Some(7), None),
        ("kill -TERM $$", None, Some(15)),
        ("kill -SEGV $$", None, Some(11)),
        // A process that the server leaves behind keeps the output open, and is removed with the sandbox.
        ("sleep 1000 & exit 4", Some(4), None),
    ] {
        let instance = bench.launch(sh(script)).await.unwrap();
        let exit = exited(&instance).await;
        assert_eq!((exit.code, exit.signal), (code, signal), "{script}");
        bench.nothing_left().await;
    }
}

#[tokio::test]
async fn a_stop_asks_first_and_kills_then() {
    let bench = Bench::new(&[]).await;
    let polite = bench
        .up("trap 'exit 5' TERM; echo up; while :; do sleep 0.05; done")
        .await;
    let exit = in_time(TEST_TIMEOUT, polite.handle.stop(GRACE)).await;
    assert_eq!(exit.code, Some(5));
    let deaf = bench
        .up("trap '' TERM; echo up; while :; do sleep 0.05; done")
        .await;
    let stopping = deaf.handle.stop(Duration::from_millis(300));
    let exit = in_time(TEST_TIMEOUT, stopping).await;
    assert_eq!(exit.signal, Some(9));
    // Dropping the last handle kills the server.
    let forgotten = bench.up("echo up; exec sleep 1000").await;
    drop(forgotten);
    bench.nothing_left().await;
    in_time(TEST_TIMEOUT, bench.e2b.idle()).await;
}

#[tokio::test]
async fn a_sandbox_that_ends_by_itself_is_not_a_server_that_does() {
    let bench = Bench::new(&[]).await;
    let mut instance = bench.up("echo up; exec sleep 1000").await;
    let path = format!("/stand-in/forget/{}", bench.only().await);
    assert_eq!(bench.ask("POST", &path).await.0, 204);
    assert_eq!(exited(&instance).await, Exit::default());
    let tail = instance.handle.stderr_tail();
    assert!(tail.contains("the sandbox ended"), "{tail}");
    assert_eq!(rest(&mut instance).await, "");
    in_time(TEST_TIMEOUT, bench.e2b.idle()).await;
}

#[tokio::test]
async fn streams_that_break_off_end_the_server() {
    let bench = Bench::new(&[]).await;
    let instance = bench.up("echo up; exec cat").await;
    let path = format!("/stand-in/cut/{}", bench.only().await);
    assert_eq!(bench.ask("POST", &path).await.0, 204);
    // Some of the server's output may be lost, so it is killed instead of continuing with an incomplete line.
    assert_eq!(exited(&instance).await.signal, Some(9));
    bench.nothing_left().await;
}

#[tokio::test]
async fn an_api_that_is_lost_is_no_end() {
    let mut bench = Bench::new(&[]).await;
    let e2b = bench.other(|options| options.lease = Duration::from_secs(6));
    let mut instance = launch(&e2b, sh("echo up; exec cat")).await.unwrap();
    said(&mut instance, "up\n").await;
    // The API hangs: nothing counts as ended, and everything continues afterwards.
    bench.standin.signal(Signal::STOP);
    write(&mut instance, "late\n").await;
    let waited = timeout(Duration::from_millis(500), instance.handle.exited()).await;
    assert!(waited.is_err(), "{waited:?}");
    bench.standin.signal(Signal::CONT);
    said(&mut instance, "late\n").await;
    // The API is gone, and the streams with it.
    let address = bench.options.url.trim_start_matches("http://").to_owned();
    bench.standin.signal(Signal::KILL);
    bench.standin.wait(TEST_TIMEOUT).await;
    assert_eq!(rest(&mut instance).await, "");
    let waited = timeout(Duration::from_millis(500), instance.handle.exited()).await;
    assert!(waited.is_err(), "{waited:?}");
    assert_eq!(instance.handle.exit_status(), None);
    let error = bench.e2b.probe().await.unwrap_err();
    assert!(!error.to_string().contains(API_KEY), "{error}");
    // Whether the sandbox was killed or not, its exit is unknown. An unknown exit is reported only when the lease,
    // which was not renewed, is over.
    let stopped = timeout(TEST_TIMEOUT, instance.handle.stop(Duration::ZERO)).await;
    assert_eq!(stopped.unwrap(), Exit::default());
    assert!(instance.handle.stderr_tail().contains("the sandbox ended"));
    // All background tasks end, whether the API responds or not.
    in_time(TEST_TIMEOUT, e2b.idle()).await;
    let again = ["--key", API_KEY, "--listen", &address];
    bench.standin = Process::bin("testkit-e2b", again);
    bench.standin.url().await;
    assert!(bench.e2b.probe().await.is_ok());
}

#[tokio::test]
async fn a_lost_api_that_comes_back_tells_the_end() {
    let mut bench = Bench::new(&[]).await;
    let mut instance = bench.up("echo up; exec cat").await;
    let address = bench.options.url.trim_start_matches("http://").to_owned();
    bench.standin.signal(Signal::KILL);
    bench.standin.wait(TEST_TIMEOUT).await;
    assert_eq!(rest(&mut instance).await, "");
    assert_eq!(instance.handle.exit_status(), None);
    bench.standin = Process::bin("testkit-e2b", ["--key", API_KEY, "--listen", &address]);
    bench.standin.url().await;
    assert_eq!(exited(&instance).await, Exit::default());
    assert!(instance.handle.stderr_tail().contains("the sandbox ended"));
}

#[tokio::test]
async fn a_lease_is_renewed_while_it_is_wanted_and_no_longer() {
    let bench = Bench::new(&[]).await;
    let lease = Duration::from_secs(1);
    let e2b = bench.other(|options| options.lease = lease);
    let mut instance = launch(&e2b, running(&["cat"])).await.unwrap();
    let start = Instant::now();
    while start.elapsed() < 3 * lease {
        write(&mut instance, "x\n").await;
        said(&mut instance, "x\n").await;
    }
    assert_eq!(instance.handle.exit_status(), None);
    // The whole async runtime of the owner is gone without a clean-up, as after a kill -9.
    let options = Options {
        lease,
        ..bench.options.clone()
    };
    let forgotten = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut other = running(&["cat"]);
            other.sandbox.id = "h2".into();
            let e2b = E2b::new(options).unwrap();
            std::mem::forget(launch(&e2b, other).await.unwrap());
        });
    });
    forgotten.await.unwrap();
    assert_eq!(bench.sandboxes().await.len(), 2);
    wait_for(
        "the lease of the forgotten one is over",
        TEST_TIMEOUT,
        async || bench.sandboxes().await.len() == 1,
    )
    .await;
    write(&mut instance, "still\n").await;
    said(&mut instance, "still\n").await;
}

#[tokio::test]
async fn what_earlier_runs_left_is_swept_and_nothing_else() {
    // With one sandbox per page, the list has several pages.
    let bench = Bench::new(&["--page", "1"]).await;
    let named = |id: &str| {
        let mut server = running(&["cat"]);
        server.sandbox.id = id.into();
        server
    };
    let next = bench.other(|options| options.run = "next".into());
    let stranger = bench.other(|options| options.install = "another".into());
    let old = [
        bench.launch(named("a")).await.unwrap(),
        bench.launch(named("b")).await.unwrap(),
        bench.launch(named("c")).await.unwrap(),
    ];
    let mut own = launch(&next, named("d")).await.unwrap();
    let mut others = launch(&stranger, named("a")).await.unwrap();
    assert_eq!(
        bench.e2b.sweep().await.unwrap(),
        1,
        "`next` is another run to it"
    );
    exited(&own).await;
    own = launch(&next, named("d")).await.unwrap();
    assert_eq!(next.sweep().await.unwrap(), 3);
    for instance in &old {
        exited(instance).await;
    }
    assert_eq!(next.sweep().await.unwrap(), 0);
    for instance in [&mut own, &mut others] {
        write(instance, "there\n").await;
        said(instance, "there\n").await;
    }
}

#[tokio::test]
async fn of_a_server_there_is_one_sandbox() {
    let bench = Bench::new(&[]).await;
    let first = bench.launch(running(&["cat"])).await.unwrap();
    let next = bench.other(|options| options.run = "next".into());
    let mut second = launch(&next, running(&["cat"])).await.unwrap();
    exited(&first).await;
    bench.only().await;
    write(&mut second, "there\n").await;
    said(&mut second, "there\n").await;
    // A cancelled launch leaves nothing.
    drop(second);
    drop(next.launch(running(&["cat"]).unit()));
    in_time(TEST_TIMEOUT, next.idle()).await;
    bench.nothing_left().await;
}

#[tokio::test]
async fn what_cannot_be_is_refused_and_leaves_nothing() {
    let bench = Bench::new(&[]).await;
    let (image, command) = ("no-such".to_owned(), vec!["cat".to_owned()]);
    let unknown = Server::new("h1", Program::Image { image, command });
    let (field, why) = bench.refused(unknown).await;
    assert_eq!(field, "image");
    assert!(why.contains("no-such") && why.contains("404"), "{why}");
    let missing = running(&["/no/such/program"]);
    assert_eq!(bench.refused(missing).await.0, "command");
    let mut volumes = running(&["cat"]);
    volumes.sandbox.volumes = vec!["/data".into()];
    let error = bench.launch(volumes).await.unwrap_err().to_string();
    assert!(error.contains("would not outlive the sandbox"), "{error}");
    let mut allow = running(&["cat"]);
    allow.sandbox.network = Network::Allow(vec!["example.com".into()]);
    assert_eq!(bench.refused(allow).await.0, "network");
    let mut strict = running(&["cat"]);
    strict.sandbox.strict = true;
    let error = bench.launch(strict).await.unwrap_err();
    assert!(
        matches!(error, Error::NotEnforced { what: "cpu", .. }),
        "{error}"
    );
    assert!(bench.sandboxes().await.is_empty());
}

#[tokio::test]
async fn limits_that_e2b_does_not_set_are_told() {
    let bench = Bench::new(&[]).await;
    let instance = bench.launch(running(&["cat"])).await.unwrap();
    let row = |what: &str| {
        let row = instance.enforced.iter().find(|row| row.what == what);
        let row = row.unwrap_or_else(|| panic!("no row for {what}"));
        (row.holds, row.how.clone())
    };
    assert_eq!(
        row("cpu").1,
        "the template has 2 cores, which E2B cannot reduce; requested: 0.5 cores"
    );
    for (what, holds) in [
        ("cpu", false),
        ("memory", true),
        ("disk", true),
        ("pids", false),
        ("filesystem", false),
        ("network", true),
        ("privileges", false),
        ("kernel", true),
    ] {
        assert_eq!(row(what).0, holds, "{what}: {}", row(what).1);
    }
    assert_eq!(instance.handle.usage().await, None);
}

#[tokio::test]
async fn the_key_is_never_shown() {
    let bench = Bench::new(&[]).await;
    // The stand-in echoes the key, as a careless API would, and rejects it where it does not belong.
    let wrong = "e2b_ffffffffffffffffffffffffffffffffffffffff";
    let other = bench.other(|options| options.key = Hidden::new(wrong));
    let error = other.probe().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    let mut shown = format!("{error} {error:?} {other:?} {:?}", bench.options);
    let error = launch(&other, running(&["cat"])).await.unwrap_err();
    shown.push_str(&format!("{error} {error:?}"));
    let nowhere = bench.other(|options| options.url = "http://127.0.0.1:1".into());
    let error = nowhere.probe().await.unwrap_err();
    shown.push_str(&format!("{error} {error:?} {nowhere:?}"));
    assert!(shown.contains("rejected the key") && shown.contains("e2b_api_key"));
    assert!(
        !shown.contains(wrong) && !shown.contains(API_KEY),
        "{shown}"
    );
    for unfit in ["", "a\nb"] {
        let mut options = bench.options.clone();
        options.key = Hidden::new(unfit);
        assert!(E2b::new(options).is_err());
    }
}

#[tokio::test]
async fn an_older_envd_is_told_to_end_by_a_signal() {
    let bench = Bench::new(&["--envd", "0.3.9"]).await;
    let mut instance = bench.up("echo up; exec cat").await;
    drop(instance.stdio.take());
    assert_eq!(exited(&instance).await.signal, Some(15));
    bench.nothing_left().await;
}
