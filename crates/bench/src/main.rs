//! The bench: measures the cost of the gateway relative to the minimum that any proxy needs.
//!
//! One binary contains every part of a measurement, each run as a separate process: the MCP server ([`echo`]), the
//! baseline proxy ([`floor`]) and the driver with its load generator ([`run`]), whose docs explain how the figures are
//! made. [`context`] measures discovery and code mode, [`peers`] other proxies and gateways. [`chaos`] does not measure:
//! it checks that no call is lost or carried out twice while servers fail under load.
//!
//! A function fails if a process, a connection, a file or a system figure that it needs is not available. `# Errors`
//! sections list only other reasons.

mod chaos;
mod context;
mod echo;
mod floor;
mod frame;
mod peers;
mod run;
mod scale;
mod serve;
mod tables;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "bench", about, version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// An echo MCP server on stdin and stdout
    EchoStdio {
        #[command(flatten)]
        options: echo::Options,
        /// Milliseconds to wait before reading the first line, to imitate a server that starts slowly
        #[arg(long, default_value_t = 0)]
        start_delay: u64,
        /// Milliseconds of CPU time to use before that, to imitate a server that loads a program
        #[arg(long, default_value_t = 0)]
        start_work: u64,
    },
    /// An echo MCP server over streamable HTTP; its URL is the first line of stdout
    EchoHttp {
        #[command(flatten)]
        options: echo::Options,
        #[command(flatten)]
        listen: Listen,
    },
    /// Runs the baseline proxy (the floor) for a stdio server
    FloorStdio {
        #[command(flatten)]
        listen: Listen,
        /// The server's command
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Runs the baseline proxy (the floor) for an HTTP server
    FloorHttp {
        #[command(flatten)]
        listen: Listen,
        /// The server's URL
        #[arg(long)]
        upstream: String,
    },
    /// Runs the baseline server (the floor) for responses from memory
    FloorBytes {
        #[command(flatten)]
        listen: Listen,
        /// File with the JSON result
        #[arg(long)]
        file: PathBuf,
    },
    /// Holds idle streaming clients open; started by `run`
    #[command(hide = true)]
    IdleClients {
        #[arg(long)]
        url: String,
        #[arg(long)]
        count: usize,
    },
    /// A server of the catalogue that `context` measures; started by the gateway
    #[command(hide = true)]
    Definitions { file: PathBuf },
    /// Measures the gateway against the baseline (the floor)
    Run(run::Options),
    /// Measures the tokens that discovery and code mode save, how well searches find tools, and the cost
    Context(context::Options),
    /// Measures other MCP proxies and gateways beside this one
    Peers(peers::Options),
    /// Measures the load of replicas on their Postgres, and simulates how many it can serve
    Scale(scale::Options),
    /// Kills, hangs and starves hosted servers at random while clients call them, and checks the outcome of each call
    Chaos(chaos::Options),
}

#[derive(Debug, clap::Args)]
struct Listen {
    /// Address to listen on; port 0 picks a free one
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: String,
    /// Exits when stdin closes, which happens when the driver exits
    #[arg(long)]
    until_stdin_closes: bool,
}

impl Listen {
    fn address(&self) -> &str {
        if self.until_stdin_closes {
            serve::exit_when_stdin_closes();
        }
        &self.listen
    }
}

fn main() -> ExitCode {
    match perform(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn perform(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::EchoStdio {
            options,
            start_delay,
            start_work,
        } => {
            run::proc::compute(std::time::Duration::from_millis(start_work))?;
            std::thread::sleep(std::time::Duration::from_millis(start_delay));
            echo::stdio::run(&options)?;
        }
        Command::EchoHttp { options, listen } => {
            serve::runtime()?.block_on(echo::http::run(&options, listen.address()))?;
        }
        Command::FloorStdio { listen, command } => {
            serve::runtime()?.block_on(floor::stdio::run(&command, listen.address()))?;
        }
        Command::FloorHttp { listen, upstream } => {
            serve::runtime()?.block_on(floor::http::run(&upstream, listen.address()))?;
        }
        Command::FloorBytes { listen, file } => {
            serve::runtime()?.block_on(floor::bytes::run(&file, listen.address()))?;
        }
        Command::IdleClients { url, count } => {
            run::raise_descriptor_limit()?;
            client_runtime()?.block_on(run::idle::clients(&url, count))?;
        }
        Command::Definitions { file } => context::server::run(&file)?,
        Command::Context(options) => return client_runtime()?.block_on(context::run(options)),
        Command::Peers(options) => return client_runtime()?.block_on(peers::run(options)),
        Command::Scale(options) => return client_runtime()?.block_on(scale::run(options)),
        Command::Chaos(options) => return client_runtime()?.block_on(chaos::run(options)),
        Command::Run(options) => return client_runtime()?.block_on(run::run(options)),
    }
    Ok(ExitCode::SUCCESS)
}

/// A single-threaded runtime, so that the load generator leaves the other processors to the measured processes.
fn client_runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime did not start")
}
