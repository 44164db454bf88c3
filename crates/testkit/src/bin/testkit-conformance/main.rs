//! A well-behaved MCP server of both eras, for the official conformance suite and for tests of
//! what a gateway must carry: progress, cancellation, sampling, elicitation, roots, logging, list
//! changes and resource subscriptions.
//!
//! It is written on the official SDK, so that tests of our own protocol code have an independent
//! counterpart. The same tools work for every client: what needs an answer from the client is a
//! server request for a legacy peer and an `input_required` result for a modern one ([`ask`]).
//!
//! Deliberately absent: the skills extension, authorization, and misbehaviour of any
//! kind (that is `testkit-scripted`).

// Sampling, roots, logging and resources/subscribe are deprecated in the newest revision and are
// exactly what has to be tested.
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

/// The generations of the protocol that the server admits to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Era {
    /// `initialize` and sessions only; a modern request is refused as a server of 2025 would.
    Legacy,
    /// 2026-07-28 only.
    Modern,
    /// Whatever the client speaks.
    Both,
}

#[derive(Debug, Parser)]
#[command(about = "A well-behaved MCP server of both eras, for tests")]
struct Options {
    /// Serve streamable HTTP at /mcp on this address; port 0 takes a free one.
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
    /// With --listen: answer with JSON where no notification precedes the answer, keep no
    /// sessions.
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
