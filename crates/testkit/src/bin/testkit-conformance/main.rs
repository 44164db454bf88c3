//! A well-behaved MCP server of both eras, for the official conformance suite and for tests of what a gateway must
//! forward: progress, cancellation, sampling, elicitation, roots, logging, list changes and resource subscriptions.
//!
//! It is built on the official SDK, so that our own protocol code is tested against an independent implementation. The
//! same tools work for every client: a tool that needs input from the client sends a server request to a legacy peer
//! and returns an `input_required` result to a modern one ([`ask`]).
//!
//! Deliberately absent: the skills extension, authorization, and any misbehaviour (see `testkit-scripted`).

// Sampling, roots, logging and resources/subscribe are deprecated in the newest revision, but this server exists to
// test them.
#![expect(deprecated, reason = "older revisions of the protocol are under test")]

mod ask;
mod content;
mod input_tools;
mod server;
mod shared;
mod tasks;
mod tools;
mod transport;

use std::{net::SocketAddr, process::ExitCode, sync::Arc};

use clap::{Parser, ValueEnum};

use crate::shared::Shared;

/// The protocol generations that the server supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Era {
    /// `initialize` and sessions only. Modern requests are refused as a server from 2025 would refuse them.
    Legacy,
    /// 2026-07-28 only.
    Modern,
    /// Both; the client chooses.
    Both,
}

#[derive(Debug, Parser)]
#[command(about = "A well-behaved MCP server of both eras, for tests")]
struct Options {
    /// Serve streamable HTTP at /mcp on this address; port 0 picks a free port.
    #[arg(long, value_name = "ADDRESS", required_unless_present = "stdio")]
    listen: Option<SocketAddr>,
    /// Serve on stdin and stdout.
    #[arg(long, conflicts_with = "listen")]
    stdio: bool,
    /// The protocol generations to speak.
    #[arg(long, value_enum, default_value_t = Era::Both)]
    era: Era,
    /// With --listen: serve the HTTP+SSE transport of 2024-11-05 at /sse instead.
    #[arg(long, requires = "listen")]
    sse: bool,
    /// With --listen: respond with JSON if no notification precedes the response, and keep no sessions.
    #[arg(long, requires = "listen")]
    json: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    let shared = Arc::new(Shared::new(options.era));
    let outcome = match options.listen {
        None => transport::stdio(shared).await,
        Some(address) if options.sse => transport::sse(shared, address).await,
        Some(address) => transport::http(shared, address, options.json).await,
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("testkit-conformance: {error}");
            ExitCode::FAILURE
        }
    }
}
