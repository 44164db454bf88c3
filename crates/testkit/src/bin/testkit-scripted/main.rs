//! An MCP server on bare lines that does what a test tells it, above all what no server should.
//!
//! It uses no SDK and hardly any parsing, so that it can send what an SDK would not, and returns
//! what it was sent byte for byte. On stdio it starts no runtime and answers within a few
//! milliseconds of its start. Every call runs in a thread of its own; what must not block
//! (`echo`) is answered by the reader itself.
//!
//! Deliberately absent: validation of requests, and any feature of the protocol that no test of a
//! gateway needs. For a well-behaved server see `testkit-conformance`.

mod hog;
mod http;
mod server;
mod tools;
mod wire;

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use clap::{Parser, ValueEnum};

use crate::{
    server::{Server, Session},
    wire::Out,
};

/// The generation of the protocol that the server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Era {
    /// `initialize`, sessions; does not know `server/discover`.
    Legacy,
    /// 2026-07-28; does not know `initialize`.
    Modern,
}

fn unescaped(text: &str) -> Result<String, serde_json::Error> {
    serde_json::from_str(&format!("\"{text}\""))
}

/// The server's script.
#[derive(Clone, Debug, Parser)]
#[command(about = "An MCP server that misbehaves on demand, for tests")]
pub(crate) struct Options {
    /// The name that the server gives itself.
    #[arg(long, env = "TESTKIT_NAME", default_value = "scripted")]
    pub(crate) name: String,
    /// The generation of the protocol to speak.
    #[arg(long, env = "TESTKIT_ERA", value_enum, default_value_t = Era::Legacy)]
    pub(crate) era: Era,
    /// The newest legacy revision to agree to.
    #[arg(long, default_value = "2025-11-25")]
    pub(crate) protocol_version: String,
    /// Only sleeps: what `forks` starts.
    #[arg(long)]
    sleep: bool,
    /// Lists this many tools `tool_0`, `tool_1`, … that behave as `echo` does.
    #[arg(long, env = "TESTKIT_TOOLS", default_value_t = 0)]
    pub(crate) tools: usize,
    /// What the description of each of them begins with.
    #[arg(
        long,
        env = "TESTKIT_DESCRIPTION",
        default_value = "Returns its arguments"
    )]
    pub(crate) description: String,
    /// Also lists a tool of this name, spelt as within a JSON string; may be given several times.
    #[arg(long, value_parser = unescaped)]
    pub(crate) also: Vec<String>,
    /// What it tells clients of itself.
    #[arg(long)]
    pub(crate) instructions: Option<String>,
    /// Does not list the tools that misbehave; they can still be called.
    #[arg(long)]
    pub(crate) no_builtin: bool,
    /// Lists this many prompts; with 0 the server has no prompts at all.
    #[arg(long, default_value_t = 0)]
    pub(crate) prompts: usize,
    /// Lists this many resources; with 0 the server has no resources at all.
    #[arg(long, default_value_t = 0)]
    pub(crate) resources: usize,
    /// Splits the lists into pages of this many items.
    #[arg(long, env = "TESTKIT_PAGE_SIZE")]
    pub(crate) page_size: Option<usize>,
    /// Sleeps this long before it reads anything.
    #[arg(long, env = "TESTKIT_START_DELAY_MS", default_value_t = 0)]
    pub(crate) start_delay_ms: u64,
    /// Sleeps this long before it answers a list.
    #[arg(long, default_value_t = 0)]
    pub(crate) list_delay_ms: u64,
    /// Exits with 4 when asked `server/discover`.
    #[arg(long)]
    pub(crate) exit_on_discover: bool,
    /// Never answers `server/discover`.
    #[arg(long)]
    pub(crate) no_answer_discover: bool,
    /// Never answers `initialize`.
    #[arg(long)]
    pub(crate) no_answer_initialize: bool,
    /// Exits with 5 at once.
    #[arg(long)]
    pub(crate) exit_at_start: bool,
    /// Writes this to stderr at the start.
    #[arg(long)]
    pub(crate) stderr_at_start: Option<String>,
    /// Writes this line to stdout at the start, where only frames belong.
    #[arg(long)]
    pub(crate) banner: Option<String>,
    /// Ignores SIGTERM from the start.
    #[arg(long)]
    pub(crate) ignore_sigterm: bool,
    /// Appends a line to this file when it gets SIGTERM, and ends then, unless it ignores that.
    #[arg(long, value_name = "FILE")]
    pub(crate) note_sigterm: Option<PathBuf>,
    /// Stays when its stdin is closed.
    #[arg(long)]
    pub(crate) ignore_eof: bool,
    /// Serves streamable HTTP at /mcp on this address instead of stdio.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) http: Option<SocketAddr>,
    /// Serves HTTP+SSE at /sse on this address instead of stdio.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "http")]
    pub(crate) sse_http: Option<SocketAddr>,
    /// Answers methods as this JSON file says: `methods` from a method, or a method and a URI, or a method and `*`, to
    /// a result or `{"error": …}`; `capabilities` are declared as well.
    #[arg(long, value_name = "FILE")]
    pub(crate) answers: Option<PathBuf>,
    /// With --http: a session is unknown (404) after this many calls.
    #[arg(long)]
    pub(crate) expire_sessions_after: Option<u64>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if options.sleep {
        std::thread::sleep(Duration::from_secs(1000));
        return ExitCode::SUCCESS;
    }
    if let Some(text) = &options.stderr_at_start {
        eprintln!("{text}");
    }
    if options.exit_at_start {
        return ExitCode::from(5);
    }
    if let Some(file) = options.note_sigterm.clone() {
        let ends = !options.ignore_sigterm;
        tools::on_sigterm(move || hog::note(&file, ends));
    } else if options.ignore_sigterm {
        tools::ignore_sigterm();
    }
    std::thread::sleep(Duration::from_millis(options.start_delay_ms));
    let out = Out::stdout();
    if let Some(banner) = &options.banner {
        out.line(banner.as_bytes());
    }
    let server = Arc::new(Server::new(options));
    if server.options.http.is_some() || server.options.sse_http.is_some() {
        return http::run(server);
    }

    let session = Arc::new(Session::default());
    let mut input = BufReader::with_capacity(64 * 1024, std::io::stdin());
    let mut line = Vec::new();
    // A line is as long as it is: this server trusts the gateway that it helps to test.
    while matches!(input.read_until(b'\n', &mut line), Ok(1..)) {
        server.receive(&line, &out, &session);
        line.clear();
    }
    if server.options.ignore_eof {
        loop {
            std::thread::park();
        }
    }
    ExitCode::SUCCESS
}
