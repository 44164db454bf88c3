//! A fake service manager that speaks systemd's protocol over a real socket: readiness, reloads, the watchdog, the stop,
//! and a listening socket that it passes.

#[path = "common/mod.rs"]
mod common;

use std::{
    fs::{self, Permissions},
    net::TcpListener,
    os::{
        fd::{AsFd, AsRawFd},
        unix::{fs::PermissionsExt as _, net::UnixListener},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use common::{Setup, holds, noted};
use rustix::{
    io::{FdFlags, fcntl_setfd},
    process::Signal,
};
use serde_json::json;
use tempfile::TempDir;
use testkit::{Bin, DEADLINE, RawClient, wait_for, within};
use tokio::net::UnixDatagram;

/// Starts the gateway as systemd does: `LISTEN_PID` and `WATCHDOG_PID` are its process id, and the passed sockets begin
/// at descriptor 3.
const STARTER: &str = r#"#!/bin/bash
if [ -n "$PASSED" ]; then
    number=3
    for descriptor in $PASSED; do
        eval "exec $number<&$descriptor"
        number=$((number + 1))
    done
    export LISTEN_FDS=$((number - 3))
    unset PASSED
fi
export LISTEN_PID=${LISTEN_PID-$$} WATCHDOG_PID=${WATCHDOG_PID-$$}
exec PROGRAM "$@"
"#;

/// A service manager with a socket for notifications.
struct Manager {
    folder: TempDir,
    socket: UnixDatagram,
}

impl Manager {
    fn new() -> Self {
        let folder = common::folder();
        let socket = UnixDatagram::bind(folder.path().join("notify")).expect("a socket");
        let program = Bin::path("toolwharf").display().to_string();
        let starter = folder.path().join("starter");
        fs::write(&starter, STARTER.replace("PROGRAM", &program)).expect("a script");
        fs::set_permissions(&starter, Permissions::from_mode(0o755)).expect("permissions");
        Self { folder, socket }
    }

    fn address(&self) -> PathBuf {
        self.folder.path().join("notify")
    }

    /// A gateway that this manager starts.
    fn setup(&self) -> Setup {
        let address = self.address().display().to_string();
        Setup::new()
            .program(&self.folder.path().join("starter"))
            .env("NOTIFY_SOCKET", &address)
    }

    /// A gateway that this manager starts with these sockets.
    fn passing(&self, sockets: &[&dyn AsFd]) -> Setup {
        let numbers = sockets.iter().map(|socket| {
            // Not closed when the gateway is started.
            fcntl_setfd(socket.as_fd(), FdFlags::empty()).expect("a descriptor");
            socket.as_fd().as_raw_fd().to_string()
        });
        let numbers = numbers.collect::<Vec<_>>().join(" ");
        self.setup().env("PASSED", &numbers)
    }

    /// Returns the next message.
    async fn message(&self) -> String {
        let mut buffer = [0; 4096];
        let read = within(
            "a message to the service manager",
            DEADLINE,
            self.socket.recv(&mut buffer),
        );
        let length = read.await.expect("a message");
        String::from_utf8(buffer[..length].to_vec()).expect("UTF-8")
    }

    /// Returns the first message with this line, and the number of pings before it.
    async fn hears(&self, line: &str) -> (String, usize) {
        let mut pings = 0;
        loop {
            let message = self.message().await;
            if has(&message, line) {
                return (message, pings);
            }
            assert!(has(&message, "WATCHDOG=1"), "{line}: {message}");
            pings += 1;
        }
    }

    /// Returns the rest of the first line that begins so. Only pings may come before it.
    async fn hears_of(&self, begin: &str) -> String {
        loop {
            let message = self.message().await;
            if let Some(rest) = message.lines().find_map(|line| line.strip_prefix(begin)) {
                return rest.to_owned();
            }
            assert!(has(&message, "WATCHDOG=1"), "{begin}: {message}");
        }
    }

    /// Returns whether a message arrives within this time.
    async fn has_message(&self, limit: Duration) -> bool {
        tokio::time::timeout(limit, self.message()).await.is_ok()
    }
}

fn has(message: &str, line: &str) -> bool {
    message.lines().any(|it| it == line)
}

async fn status(url: &str, path: &str) -> u16 {
    let reply = RawClient::new(&format!("{url}{path}")).get(&[]).await;
    reply.status.as_u16()
}

/// Waits until a file exists.
async fn exists(file: &Path) {
    let what = format!("the file {}", file.display());
    wait_for(&what, DEADLINE, async || file.exists()).await;
}

#[tokio::test]
async fn o02_ready_is_sent_once_the_gateway_answers() {
    let manager = Manager::new();
    let setup = manager.setup();
    let [begun, go] = ["begun", "go"].map(|name| setup.folder().join(name));
    // With this policy, the gateway accepts connections when its servers are up.
    let settings = format!("start = \"sequential\"\n{}", common::SETTINGS);
    let script = format!(
        "touch {}; until [ -e {} ]; do sleep 0.05; done; exec \"$0\" --name slow",
        begun.display(),
        go.display()
    );
    let slow = json!({"command": "sh", "args": ["-c", script, Bin::path("testkit-scripted")]});
    let (mut process, _folder) = setup.settings(&settings).server("slow", slow).spawn();
    exists(&begun).await;
    let is_told = manager.has_message(Duration::from_millis(300)).await;
    assert!(!is_told, "the server is not up yet");
    fs::write(&go, "").expect("a file");
    let ready = manager.message().await;
    assert!(has(&ready, "READY=1"), "{ready}");
    let url = ready
        .lines()
        .find_map(|line| line.strip_prefix("STATUS=serving "));
    let url = url.and_then(|url| url.strip_suffix("/mcp")).expect("a URL");
    assert_eq!(status(url, "/readyz").await, 200);

    process.signal(Signal::TERM);
    let stopping = manager.message().await;
    assert!(has(&stopping, "STOPPING=1"), "{stopping}");
    assert!(process.wait(DEADLINE).await.success());
}

#[tokio::test]
async fn the_watchdog_is_pinged_twice_per_period() {
    let manager = Manager::new();
    let period = Duration::from_millis(500);
    let micros = period.as_micros().to_string();
    let gateway = manager.setup().env("WATCHDOG_USEC", &micros).serve().await;
    manager.hears("READY=1").await;
    // Twice the time that they should take, for a busy machine.
    within("the pings of four periods", 8 * period, async {
        for _ in 0..8 {
            manager.hears("WATCHDOG=1").await;
        }
    })
    .await;
    // A suspended gateway sends no pings, so systemd would restart it.
    gateway.process.signal(Signal::STOP);
    wait_for("the end of the pings", DEADLINE, async || {
        !manager.has_message(2 * period).await
    })
    .await;
}

#[tokio::test]
async fn the_watchdog_of_another_process_is_not_pinged() {
    let manager = Manager::new();
    let setup = manager.setup().env("WATCHDOG_PID", "1");
    let mut gateway = setup.env("WATCHDOG_USEC", "2000").serve().await;
    manager.hears("READY=1").await;
    gateway.edit(|servers| drop(servers.insert("one".into(), common::scripted("one", &[]))));
    let (_, pings) = manager.hears("RELOADING=1").await;
    assert_eq!(pings, 0);
}

#[tokio::test]
async fn a_reload_is_announced_with_its_outcome() {
    let manager = Manager::new();
    let mut gateway = manager.setup().scripted("one", &[]).serve().await;
    let (ready, _) = manager.hears("READY=1").await;
    let serving = format!("STATUS=serving {}/mcp", gateway.url);
    assert!(has(&ready, &serving), "{ready}");
    gateway.edit(|servers| drop(servers.insert("two".into(), common::scripted("two", &[]))));
    let (reloading, _) = manager.hears("RELOADING=1").await;
    holds(&reloading, &["MONOTONIC_USEC="]);
    let (ready, _) = manager.hears("READY=1").await;
    assert!(has(&ready, &serving), "{ready}");

    gateway.replace(&gateway.servers_file(), "{ broken");
    manager.hears("RELOADING=1").await;
    let (ready, _) = manager.hears("READY=1").await;
    holds(
        &ready,
        &[
            "STATUS=the changed configuration is invalid",
            "toolwharf doctor",
        ],
    );

    gateway.edit(|servers| drop(servers.remove("two")));
    manager.hears("RELOADING=1").await;
    let (ready, _) = manager.hears("READY=1").await;
    assert!(has(&ready, &serving), "{ready}");
}

#[tokio::test]
async fn a_manager_that_does_not_read_delays_nothing() {
    let manager = Manager::new();
    let mut gateway = manager.setup().env("WATCHDOG_USEC", "2000").serve().await;
    let other = std::os::unix::net::UnixDatagram::unbound().expect("a socket");
    other
        .connect(manager.address())
        .expect("the manager's socket");
    other.set_nonblocking(true).expect("a socket");
    wait_for("the queue of the socket to be full", DEADLINE, async || {
        other.send(b"X_FULL=1").is_err()
    })
    .await;
    assert_eq!(status(&gateway.url, "/readyz").await, 200);
    gateway.process.signal(Signal::TERM);
    assert!(gateway.process.wait(DEADLINE).await.success());
}

/// Other users may read the log of a service manager.
#[tokio::test]
async fn no_secret_is_printed_for_a_service_manager() {
    let manager = Manager::new();
    let gateway = manager.setup().serve().await;
    let printed = gateway.process.stderr();
    holds(
        &printed,
        &["administrator's token: kept in ", "`toolwharf open`"],
    );
    for secret in ["twh_", "/sign-in#"] {
        assert!(!printed.contains(secret), "{printed}");
    }
}

#[tokio::test]
async fn servers_get_neither_the_variables_nor_the_sockets() {
    let manager = Manager::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let setup = manager.passing(&[&listener]);
    let notes = setup.folder().join("notes");
    let look = format!(
        "env > {0}; for one in /proc/$$/fd/*; do readlink $one; done >> {0};",
        notes.display()
    );
    let names = setup.folder().join("names");
    let gateway = setup
        .env("WATCHDOG_USEC", "5000000")
        .server("one", noted("one", &names, &look))
        .connected()
        .await;
    let seen = fs::read_to_string(&notes).expect("the server's notes");
    holds(&seen, &["PATH=", "pipe:"]);
    for part in ["NOTIFY_SOCKET", "LISTEN_", "WATCHDOG_", "socket:"] {
        assert!(!seen.contains(part), "{part}: {seen}");
    }
    drop(gateway);
}

#[tokio::test]
async fn o02_a_passed_socket_is_used_and_outlives_the_gateway() {
    let manager = Manager::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address").to_string();
    // The address is in use, so a second bind would fail.
    let setup = manager.passing(&[&listener]).listen(&address);
    let mut gateway = setup.scripted("one", &[]).connected().await;
    assert_eq!(gateway.url, format!("http://{address}"));
    manager.hears("READY=1").await;
    let record = gateway.folder().join("data/serve.json");
    let record = fs::read_to_string(record).expect("the gateway's record");
    holds(&record, &[&gateway.url, "\"is_fixed\":true"]);

    gateway.process.signal(Signal::TERM);
    assert!(gateway.process.wait(DEADLINE).await.success());
    // Without a gateway, the kernel accepts the connection, and the request waits for the next gateway.
    let url = gateway.url.clone();
    let (status, gateway) = tokio::join!(status(&url, "/healthz"), gateway.again());
    assert_eq!((status, gateway.url.as_str()), (200, url.as_str()));
}

/// The old process names the new one before it stops, and only the new one sends messages afterwards.
#[tokio::test]
async fn o06_an_upgrade_names_the_new_main_process() {
    let manager = Manager::new();
    let period = Duration::from_secs(1);
    let setup = manager.setup().env("WATCHDOG_USEC", "1000000");
    let mut gateway = setup.scripted("one", &[]).connected().await;
    let serving = format!("STATUS=serving {}/mcp", gateway.url);
    manager.hears("READY=1").await;
    gateway.process.signal(Signal::USR2);
    let pid = manager.hears_of("MAINPID=").await;
    assert_ne!(pid, gateway.process.pid().to_string());
    let (ready, _) = manager.hears("READY=1").await;
    assert!(has(&ready, &serving), "{ready}");
    assert!(gateway.process.wait(DEADLINE).await.success());
    for _ in 0..3 {
        assert!(manager.has_message(period).await, "a ping");
    }
    let new = pid.parse().ok().and_then(rustix::process::Pid::from_raw);
    rustix::process::kill_process(new.expect("a process id"), Signal::TERM).expect("it runs");
    manager.hears("STOPPING=1").await;
}

/// Without a socket unit, the service manager keeps the listener that the gateway has opened.
#[tokio::test]
async fn o06_a_listener_that_the_manager_kept_is_used_again() {
    let manager = Manager::new();
    let mut gateway = manager.setup().at_one_port().serve().await;
    let name = manager.hears_of("FDNAME=").await;
    gateway.process.signal(Signal::TERM);
    gateway.process.wait(DEADLINE).await;

    let kept = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = kept.local_addr().expect("an address").to_string();
    let setup = manager.passing(&[&kept]).env("LISTEN_FDNAMES", &name);
    let gateway = setup.listen(&address).serve().await;
    assert_eq!(gateway.url, format!("http://{address}"));
    assert_eq!(status(&gateway.url, "/healthz").await, 200);
    drop(gateway);

    // `listen` has changed, so the old address must refuse connections.
    let setup = manager.passing(&[&kept]).env("LISTEN_FDNAMES", &name);
    let gateway = setup.listen("127.0.0.1:0").serve().await;
    assert_ne!(gateway.url, format!("http://{address}"));
    let refused = std::net::TcpStream::connect(&address);
    assert!(refused.is_err(), "{refused:?}");
}

#[tokio::test]
async fn sockets_of_another_process_are_left_alone() {
    let manager = Manager::new();
    let setup = manager
        .setup()
        .env("LISTEN_FDS", "1")
        .env("LISTEN_PID", "1");
    let gateway = setup.serve().await;
    assert_eq!(status(&gateway.url, "/healthz").await, 200);
}

#[tokio::test]
async fn other_sockets_are_refused_with_the_remedy() {
    let manager = Manager::new();
    let bind = || TcpListener::bind("127.0.0.1:0").expect("a free port");
    let (one, two) = (bind(), bind());
    let unix = UnixListener::bind(manager.folder.path().join("unix")).expect("a socket");
    let connected = std::net::TcpStream::connect(one.local_addr().expect("an address"));
    let connected = connected.expect("a connection");
    let sockets: [(&[&dyn AsFd], &str); 3] = [
        (&[&one, &two], "2 sockets"),
        (&[&unix], "not a TCP socket"),
        (&[&connected], "does not listen"),
    ];
    for (sockets, why) in sockets {
        let said = manager.passing(sockets).refused().await;
        holds(&said, &["service manager", why, "`ListenStream=`"]);
    }
    let said = manager.setup().env("LISTEN_FDS", "soon").refused().await;
    holds(&said, &["service manager", "unset LISTEN_FDS"]);
}
