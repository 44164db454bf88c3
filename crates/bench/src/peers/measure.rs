//! One round of one program: its start, calls of one client, calls of 32 clients, and its memory.

use std::time::Duration;

use anyhow::Context as _;
use tokio::time::{Instant, sleep, timeout};

use super::Candidate;
use super::process::Running;
use super::programs::{Launch, Place, Registration, Server, Way, echo_command};
use crate::echo::Era;
use crate::run::calls::{CLIENTS, Transport};
use crate::run::client::Client;
use crate::run::load::{Load, Round, Work};
use crate::run::part::{self, Part};

/// Time for a program to answer its first call.
const START_DEADLINE: Duration = Duration::from_secs(120);
/// Time for one attempt to call a program that may not be ready.
const ATTEMPT_DEADLINE: Duration = Duration::from_secs(10);
/// Time between two attempts.
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(5);
/// Calls per round at most.
const MAX_CALLS: f64 = 50_000.0;

/// The amount of work per figure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    pub(super) name: &'static str,
    pub(super) rounds: usize,
    /// Duration of the measured calls, in seconds. The calls before them take half as long again.
    seconds: f64,
    /// Calls per client at least.
    calls: u64,
}

pub(super) const FULL: Effort = Effort {
    name: "full",
    rounds: 3,
    seconds: 5.0,
    calls: 10,
};
pub(super) const QUICK: Effort = Effort {
    name: "quick",
    rounds: 3,
    seconds: 1.0,
    calls: 10,
};
pub(super) const SMOKE: Effort = Effort {
    name: "smoke",
    rounds: 1,
    seconds: 0.0,
    calls: 4,
};

/// The figures of one round.
#[derive(Debug)]
pub(super) struct Figures {
    /// Time from the start of the program to the response to the first call, in seconds.
    pub(super) start: f64,
    /// Calls of one client.
    pub(super) one: Round,
    /// Calls of 32 clients.
    pub(super) many: Round,
    /// Peak resident memory, in MiB.
    pub(super) peak: f64,
    /// Echo servers that the program has started, after the calls of 32 clients.
    pub(super) servers: usize,
}

/// Starts the program, measures it and stops it.
///
/// # Errors
///
/// The program does not start, exits, or does not answer.
pub(super) async fn round(
    candidate: &Candidate,
    transport: Transport,
    effort: Effort,
) -> anyhow::Result<Figures> {
    let (server, echo) = server(transport).await?;
    let measured = measured(candidate, server, effort).await;
    if let Some(echo) = echo {
        echo.stop().await;
    }
    measured
}

/// The server to put a program in front of, and its process unless the program starts it.
async fn server(transport: Transport) -> anyhow::Result<(Server, Option<Part>)> {
    Ok(match transport {
        Transport::Stdio => (Server::Command(echo_command()?), None),
        Transport::Http => {
            let echo = part::own(&["echo-http"]).await?;
            (Server::Url(echo.url.clone()), Some(echo))
        }
    })
}

async fn measured(
    candidate: &Candidate,
    server: Server,
    effort: Effort,
) -> anyhow::Result<Figures> {
    let folder = tempfile::tempdir().context("no temporary directory")?;
    let place = Place {
        file: &candidate.file,
        port: free_port()?,
        folder: folder.path(),
        server,
    };
    let launch = candidate.program.launch(&place)?;
    let started = Instant::now();
    let mut running = Running::start(&launch, folder.path(), candidate.path.as_deref())?;
    let figures = async {
        let target = first_answer(&mut running, &launch, place.port).await?;
        let start = started.elapsed().as_secs_f64();
        let one = calls(&running, &target, 1, effort)
            .await
            .context("1 client")?;
        let many = calls(&running, &target, CLIENTS, effort);
        let many = many.await.context("32 clients")?;
        running.check()?;
        anyhow::Ok(Figures {
            start,
            one,
            many,
            peak: running.peak(),
            servers: running.servers(),
        })
    };
    let figures = figures.await;
    running.stop().await;
    figures
}

/// A port that nothing listens on now.
fn free_port() -> anyhow::Result<u16> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").context("no free port")?;
    Ok(listener.local_addr()?.port())
}

/// The URL and the tool that the load generator calls.
struct Target {
    url: String,
    work: Work,
}

impl Target {
    async fn connect(&self, pid: u32, clients: usize) -> anyhow::Result<Load> {
        Load::connect(&self.url, pid, Era::Legacy, clients, &self.work).await
    }
}

/// Registers the server if necessary, and calls the echo tool until a response is correct.
async fn first_answer(running: &mut Running, launch: &Launch, port: u16) -> anyhow::Result<Target> {
    let root = format!("http://127.0.0.1:{port}");
    let deadline = Instant::now() + START_DEADLINE;
    let mut registration = launch.registration.as_ref();
    loop {
        let attempt = async {
            if let Some(wanted) = registration {
                register(&root, wanted).await.context("its registration")?;
                registration = None;
            }
            let target = target(&root, launch.way).await?;
            target.connect(running.pid, 1).await?.round(1).await?;
            anyhow::Ok(target)
        };
        let error = match timeout(ATTEMPT_DEADLINE, attempt).await {
            Ok(Ok(target)) => return Ok(target),
            Ok(Err(error)) => error,
            Err(late) => late.into(),
        };
        running.check()?;
        anyhow::ensure!(
            Instant::now() < deadline,
            "no correct response within {} s: {error:#}; its log: {}",
            START_DEADLINE.as_secs(),
            running.log()
        );
        sleep(ATTEMPT_INTERVAL).await;
    }
}

async fn register(root: &str, wanted: &Registration) -> anyhow::Result<()> {
    let mut client = Client::bare(&format!("{root}{}", wanted.path), Era::Legacy).await?;
    client.authorize(&wanted.bearer)?;
    client.call(wanted.body.clone().into()).await?;
    Ok(())
}

/// Finds the echo tool, by its listed name if the program speaks MCP.
async fn target(root: &str, way: Way) -> anyhow::Result<Target> {
    let (path, work) = match way {
        Way::OpenApi(path) => (path, Work::OpenApi),
        Way::Hub(path) => (path, Work::Hub),
        Way::Mcp(path) => {
            let mut client = Client::connect(&format!("{root}{path}"), Era::Legacy).await?;
            let tools = client.tools().await?;
            let tool = tools.into_iter().find(|name| name.ends_with("echo"));
            let tool = tool.context("no echo tool is listed")?;
            (path, Work::Echo { tool })
        }
    };
    let url = format!("{root}{path}");
    Ok(Target { url, work })
}

/// Calls of this many clients. The first calls show how many fit into the time, and warm the program up.
async fn calls(
    running: &Running,
    target: &Target,
    clients: usize,
    effort: Effort,
) -> anyhow::Result<Round> {
    let mut load = target.connect(running.pid, clients).await?.leniently();
    let least = effort.calls * clients as u64;
    let first = load.round(least).await?;
    let fitting = (first.calls_per_second() * effort.seconds).min(MAX_CALLS);
    let calls = least.max(fitting as u64);
    let warm_up = load.round(calls / 2).await?;
    let before = running.cpu();
    let mut round = load.round(calls).await?;
    round.cpu = running.cpu_since(&before);
    for other in [warm_up, first] {
        round.wrong += other.wrong;
        round.complaint = other.complaint.or(round.complaint);
    }
    Ok(round)
}
