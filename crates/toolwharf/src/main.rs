//! `toolwharf`: one endpoint over many MCP servers.
//!
//! `main` only chooses what to do. The surfaces are in [`gateway`], what operators ask for in [`ops`] and
//! `rest`, the command line in `cli`.

mod config;
mod gateway;
mod ops;
mod serve;
mod startup;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

/// One endpoint over many MCP servers.
#[derive(Parser)]
#[command(name = "toolwharf", version, about, arg_required_else_help = true)]
struct Cli {
    /// Server files (mcp.json) and settings (.toml); may be given several times.
    #[arg(long, short, global = true, value_name = "FILE")]
    config: Vec<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the gateway over HTTP.
    Serve(serve::Args),
    /// Run the gateway on standard input and output, for clients that start commands.
    Stdio(serve::StdioArgs),
    /// Kills what is left when Toolwharf dies; started by Toolwharf itself.
    #[command(hide = true, name = startup::SENTINEL)]
    Sentinel,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if matches!(cli.command, Command::Sentinel) {
        return runtime::sentinel::main();
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let outcome = runtime.block_on(async {
        match cli.command {
            Command::Serve(args) => serve::serve(&cli.config, args).await,
            Command::Stdio(args) => serve::stdio(&cli.config, args).await,
            Command::Sentinel => Ok(()),
        }
    });
    // A blocked read of standard input must not keep the process.
    runtime.shutdown_background();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
