//! An MCP server that follows a test's instructions and misbehaves on demand.
//!
//! It uses no SDK and parses very little, so that it can send what an SDK would not, and return its input byte for
//! byte. On stdio it starts no async runtime and answers within a few milliseconds of its start. Every call runs in a
//! separate thread, except calls that never block (`echo`), which the reader answers itself.
//!
//! Deliberately absent: validation of requests, and all protocol features that no gateway test needs. For a
//! well-behaved server see `testkit-conformance`.

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

/// The protocol generation that the server speaks.
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

/// Command-line options: how the server behaves.
#[derive(Clone, Debug, Parser)]
#[command(about = "An MCP server that misbehaves on demand, for tests")]
pub(crate) struct Options {
    /// The server's name.
    #[arg(long, env = "TESTKIT_NAME", default_value = "scripted")]
    pub(crate) name: String,
    /// The protocol generation to speak.
    #[arg(long, env = "TESTKIT_ERA", value_enum, default_value_t = Era::Legacy)]
    pub(crate) era: Era,
    /// The newest legacy revision to accept.
    #[arg(long, default_value = "2025-11-25")]
    pub(crate) protocol_version: String,
    /// Only sleep. Used for the processes that `forks` starts.
    #[arg(long)]
    sleep: bool,
    /// List this many tools `tool_0`, `tool_1`, … that behave like `echo`.
    #[arg(long, env = "TESTKIT_TOOLS", default_value_t = 0)]
    pub(crate) tools: usize,
    /// The beginning of the description of each `tool_N`.
    #[arg(
        long,
        env = "TESTKIT_DESCRIPTION",
        default_value = "Returns its arguments"
    )]
    pub(crate) description: String,
    /// Also list a tool of this name, escaped as in a JSON string. Can be repeated.
    #[arg(long, value_parser = unescaped)]
    pub(crate) also: Vec<String>,
    /// The `instructions` that the server sends to clients.
    #[arg(long)]
    pub(crate) instructions: Option<String>,
    /// Do not list the misbehaving tools. They can still be called.
    #[arg(long)]
    pub(crate) no_builtin: bool,
    /// List this many prompts. With 0, the server does not declare prompts.
    #[arg(long, default_value_t = 0)]
    pub(crate) prompts: usize,
    /// List this many resources. With 0, the server does not declare resources.
    #[arg(long, default_value_t = 0)]
    pub(crate) resources: usize,
    /// Split the lists into pages of this many items.
    #[arg(long, env = "TESTKIT_PAGE_SIZE")]
    pub(crate) page_size: Option<usize>,
    /// Sleep this long before reading any input.
    #[arg(long, env = "TESTKIT_START_DELAY_MS", default_value_t = 0)]
    pub(crate) start_delay_ms: u64,
    /// Sleep this long before answering a list request.
    #[arg(long, default_value_t = 0)]
    pub(crate) list_delay_ms: u64,
    /// Exit with code 4 on `server/discover`.
    #[arg(long)]
    pub(crate) exit_on_discover: bool,
    /// Never answer `initialize`.
    #[arg(long)]
    pub(crate) no_answer_initialize: bool,
    /// Exit with code 5 at once.
    #[arg(long)]
    pub(crate) exit_at_start: bool,
    /// Write this text to stderr at startup.
    #[arg(long)]
    pub(crate) stderr_at_start: Option<String>,
    /// Write this line to stdout at startup, where only frames are allowed.
    #[arg(long)]
    pub(crate) banner: Option<String>,
    /// Ignore SIGTERM from the start.
    #[arg(long)]
    pub(crate) ignore_sigterm: bool,
    /// Append a line to this file on SIGTERM, then exit unless --ignore-sigterm is set.
    #[arg(long, value_name = "FILE")]
    pub(crate) note_sigterm: Option<PathBuf>,
    /// Keep running after stdin is closed.
    #[arg(long)]
    pub(crate) ignore_eof: bool,
    /// Serve streamable HTTP at /mcp on this address instead of stdio.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) http: Option<SocketAddr>,
    /// With --http: speak both eras. Legacy and modern clients share only the list of tools.
    #[arg(long, requires = "http", conflicts_with = "era")]
    pub(crate) both: bool,
    /// Serve HTTP+SSE at /sse on this address instead of stdio.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "http")]
    pub(crate) sse_http: Option<SocketAddr>,
    /// Answer methods as defined in this JSON file. `methods` maps a method, a method and a URI, or a method and `*` to
    /// a result or `{"error": …}`. The members of `capabilities` are added to the capabilities that the server declares.
    #[arg(long, value_name = "FILE")]
    pub(crate) answers: Option<PathBuf>,
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
        tools::on_sigterm(|| {});
    }
    std::thread::sleep(Duration::from_millis(options.start_delay_ms));
    let out = Out::stdout();
    if let Some(banner) = &options.banner {
        out.line(banner);
    }
    let server = Arc::new(Server::new(options));
    if server.options.http.is_some() || server.options.sse_http.is_some() {
        return http::run(server);
    }

    let session = Arc::new(Session::default());
    let mut input = BufReader::with_capacity(64 * 1024, std::io::stdin());
    let mut line = Vec::new();
    // The line length is not limited, because this server trusts the gateway under test.
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
