//! A daemon that hangs, stops, or comes back.

#![expect(
    clippy::unwrap_used,
    reason = "a failure in a test's helper is the test's"
)]

use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::Duration;

use containers::docker::{Docker, Options};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use model::{Network, Port, Provider};
use runtime::{Error, Exit, Runtime as _};
use testkit::in_time;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::support::{Bench, TEST_TIMEOUT, bench, own_id, rest, running, wait_for};

#[tokio::test]
async fn a_daemon_that_hangs_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sock");
    let socket = UnixListener::bind(&path).unwrap();
    let hang = async {
        let mut open = Vec::new();
        loop {
            open.push(socket.accept().await.unwrap());
        }
    };
    let mut options = bench(Provider::Gvisor).options;
    options.host = format!("unix://{}", path.display());
    let docker = Docker::new(options.clone()).unwrap();
    let asked = async {
        let start = Instant::now();
        let (probe, launch, sweep, remove) = tokio::join!(
            docker.probe(),
            docker.launch(running(&["/bin/cat"]).unit()),
            docker.sweep(),
            docker.volumes_remove("h2", None),
        );
        for error in [probe.err(), launch.err(), sweep.err(), remove.err()] {
            let error = error.unwrap();
            assert!(matches!(error, Error::Timeout { .. }), "{error}");
        }
        // Each probe has a deadline of 10 s, and they run concurrently.
        assert!(start.elapsed() < Duration::from_secs(20));
    };
    tokio::select! {
        () = hang => {}
        () = asked => {}
    }
    options.host = format!("unix://{}/missing", dir.path().display());
    let missing = Docker::new(options.clone())
        .unwrap()
        .probe()
        .await
        .unwrap_err();
    let text = missing.to_string();
    assert!(
        matches!(missing, Error::Unavailable(_)) && text.contains("docker.io"),
        "{text}"
    );
    options.host = "tcp://example.com:2375".into();
    assert!(Docker::new(options).is_err());
}

/// How a faulty daemon behaves.
#[derive(Clone, Copy, PartialEq)]
enum Mood {
    Well,
    Gone,
    /// The daemon receives the request to start a container but does not respond.
    HangsAtStart,
    /// Just before the daemon starts a container, another program listens on this address.
    LosesPort(SocketAddr),
}

/// A proxy in front of the daemon.
async fn between(socket: UnixListener, target: String, mut mood: watch::Receiver<Mood>) {
    // Listeners that stay open until the test ends.
    let taken = RefCell::default();
    let mut open = FuturesUnordered::new();
    loop {
        tokio::select! {
            accepted = socket.accept() => {
                if *mood.borrow() != Mood::Gone {
                    open.push(relay(accepted.unwrap().0, target.clone(), mood.clone(), &taken));
                }
            }
            Some(()) = open.next() => {}
            changed = mood.changed() => {
                changed.unwrap();
                if *mood.borrow() == Mood::Gone {
                    open.clear();
                }
            }
        }
    }
}

async fn relay(
    client: UnixStream,
    target: String,
    mood: watch::Receiver<Mood>,
    taken: &RefCell<Vec<TcpListener>>,
) {
    let daemon = UnixStream::connect(target).await.unwrap();
    let (mut from, mut to) = client.into_split();
    let (mut answers, mut requests) = daemon.into_split();
    let forth = async {
        let mut chunk = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut chunk).await {
            let text = String::from_utf8_lossy(&chunk[..count]);
            let mood = *mood.borrow();
            match mood {
                Mood::HangsAtStart if text.contains("/start ") => std::future::pending().await,
                Mood::LosesPort(address) if text.contains("/start ") => {
                    let listener = TcpListener::bind(address).await;
                    taken.borrow_mut().extend(listener);
                }
                _ => {}
            }
            if requests.write_all(&chunk[..count]).await.is_err() {
                break;
            }
        }
        let _ = requests.shutdown().await;
    };
    let back = async {
        let _ = tokio::io::copy(&mut answers, &mut to).await;
        let _ = to.shutdown().await;
    };
    tokio::join!(forth, back);
}

/// Runs a test behind a proxy to the daemon. The test sets the proxy's [`Mood`].
async fn with_moods<F: Future<Output = ()>>(
    provider: Provider,
    test: impl FnOnce(Bench, Docker, watch::Sender<Mood>) -> F,
) {
    let bench = bench(provider);
    let path = bench.options.dir.join("sock");
    let socket = UnixListener::bind(&path).unwrap();
    let target = bench
        .options
        .host
        .strip_prefix("unix://")
        .unwrap()
        .to_owned();
    let options = Options {
        host: format!("unix://{}", path.display()),
        network: "toolwharf-test".into(),
        ..bench.options.clone()
    };
    let docker = Docker::new(options).unwrap();
    let (mood, moods) = watch::channel(Mood::Well);
    tokio::select! {
        () = between(socket, target, moods) => {}
        () = test(bench, docker, mood) => {}
    }
}

#[tokio::test]
async fn a_daemon_that_goes_away_in_mid_run_is_waited_for() {
    with_moods(Provider::Runc, |bench, docker, mood| async move {
        let launch = async |command: &[&str], id: &str| {
            let mut server = running(command);
            server.sandbox.id = id.into();
            in_time(TEST_TIMEOUT, docker.launch(server.unit())).await
        };
        let mut polite = launch(&["/bin/cat"], "h1").await.unwrap();
        let deaf = launch(&["/bin/sleep", "1000"], "h2").await.unwrap();
        mood.send_replace(Mood::Gone);
        // The stream has ended on both sides. That alone ends a server that exits when its input closes.
        assert_eq!(rest(&mut polite).await, "");
        let running = ["inspect", "--format", "{{.State.Running}}"];
        let state = |id| bench.cli(&[&running[..], &[&bench.name(id)]].concat());
        wait_for("the polite one has ended", || state("h1") == "false").await;
        assert_eq!(state("h2"), "true");
        let error = launch(&["/bin/cat"], "h3").await.unwrap_err();
        assert!(
            matches!(error, Error::Failed(_) | Error::Unavailable(_)),
            "{error}"
        );
        // This is longer than the time after which a killed instance is given up.
        let early = timeout(Duration::from_secs(6), deaf.handle.exited()).await;
        assert!(early.is_err(), "its end was reported too early: {early:?}");
        assert_eq!(polite.handle.exit_status(), None);

        mood.send_replace(Mood::Well);
        let exit = in_time(TEST_TIMEOUT, polite.handle.exited()).await;
        assert!(exit.success(), "{exit}");
        // The streams of this server are gone, so it is killed.
        let exit = in_time(TEST_TIMEOUT, deaf.handle.exited()).await;
        assert_eq!(exit.signal, Some(9));
        bench.nothing_left().await;
    })
    .await;
}

#[tokio::test]
async fn a_stop_while_the_daemon_is_gone_has_an_end() {
    with_moods(Provider::Runc, |bench, docker, mood| async move {
        let launch = docker.launch(running(&["/bin/sleep", "1000"]).unit());
        let instance = in_time(TEST_TIMEOUT, launch).await.unwrap();
        mood.send_replace(Mood::Gone);
        let exit = timeout(Duration::from_secs(8), instance.handle.stop(Duration::ZERO)).await;
        assert_eq!(exit.unwrap(), Exit::default());
        // The container is removed when the daemon responds again.
        mood.send_replace(Mood::Well);
        bench.nothing_left().await;
    })
    .await;
}

#[tokio::test]
async fn a_start_that_hangs_leaves_nothing() {
    with_moods(Provider::Gvisor, |bench, docker, mood| async move {
        mood.send_replace(Mood::HangsAtStart);
        let launch = docker.launch(running(&["/bin/cat"]).unit());
        let error = in_time(TEST_TIMEOUT, launch).await.unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        assert!(error.to_string().contains("start a container"), "{error}");
        bench.nothing_left().await;
    })
    .await;
}

#[tokio::test]
async fn h02_a_chosen_port_that_is_lost_before_the_daemon_listens_is_replaced() {
    with_moods(Provider::Runc, |bench, docker, mood| async move {
        let launch = async |host| {
            let mut server = running(&["/bin/sleep", "1000"]);
            server.sandbox.id = own_id();
            server.sandbox.network = Network::Open;
            server.sandbox.ports = vec![Port { inside: 8080, host }];
            in_time(TEST_TIMEOUT, docker.launch(server.unit())).await
        };
        let first = launch(None).await.unwrap();
        let address = first.ports[&8080];
        first.handle.stop(Duration::ZERO).await;
        mood.send_replace(Mood::LosesPort(address));
        let second = launch(None).await.unwrap();
        assert_ne!(second.ports[&8080], address);
        second.handle.stop(Duration::ZERO).await;

        // A port that the server's settings name is not replaced by another one.
        let given = SocketAddr::from(([127, 0, 0, 1], address.port()));
        mood.send_replace(Mood::LosesPort(given));
        let error = launch(Some(given.port())).await.unwrap_err();
        let Error::Refused { field, why } = error else {
            panic!("{error}");
        };
        assert!(field == "ports" && why.contains("already in use"), "{why}");
        bench.nothing_left().await;
    })
    .await;
}
