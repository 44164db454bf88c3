//! A stand-in for E2B: its REST API and the `envd` of its sandboxes, on one local port.
//!
//! **It is not E2B.** It was written from E2B's published OpenAPI document, `process.proto` and the source of `envd`.
//! E2B's own clients for Python (2.63) and JavaScript can create, list, use and kill sandboxes with it. It has not been
//! compared with the real service. It provides no isolation: a command is a local process in a separate process group.
//!
//! It implements what a client needs to run one command in a sandbox:
//!
//! - `POST /sandboxes` and `/v2/sandboxes`, `GET` and `DELETE /sandboxes/{id}`, `POST /sandboxes/{id}/timeout`, and
//!   `GET /v2/sandboxes` with the filters `metadata` and `state` and with pagination. The API key is checked. Errors
//!   are `{"code": 404, "message": "…"}`.
//! - A sandbox ends when its timeout expires, with all its processes.
//! - `process.Process/Start` and `Connect` (streams), `SendInput`, `CloseStdin`, `SendSignal` and `List` of the Connect
//!   protocol with JSON, addressed by the headers `E2b-Sandbox-Id` and `E2b-Sandbox-Port`. The sandbox token is
//!   checked. A request that carries the API key is refused, because the key must never reach a sandbox.
//! - A command continues when its stream breaks. Output without a listener is lost.
//!
//! Two endpoints exist for tests only: `POST /stand-in/cut/{id}` breaks all streams of a sandbox, and `POST
//! /stand-in/forget/{id}` ends a sandbox without a request from its owner, as E2B itself might.
//!
//! Deliberately absent: templates (only `base` and those given by `--template` exist), pausing, metrics, networks,
//! users.

mod api;
mod envd;
mod sandbox;

use std::{net::SocketAddr, process::ExitCode, sync::Arc};

use clap::Parser;

use crate::sandbox::World;

#[derive(Debug, Parser)]
#[command(about = "A stand-in for E2B, for tests")]
struct Options {
    /// The address to listen on.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// The only API key that is accepted.
    #[arg(long, default_value = "e2b_0000000000000000000000000000000000000000")]
    key: String,
    /// Templates that exist in addition to `base`.
    #[arg(long)]
    template: Vec<String>,
    /// The version that `envd` reports. Before 0.5.2 it cannot close the stdin of a command.
    #[arg(long, default_value = "0.5.7")]
    envd: String,
    /// Sandboxes per page of a list.
    #[arg(long, default_value_t = 100)]
    page: usize,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut options = Options::parse();
    let address = options.listen;
    options.template.push("base".to_owned());
    let app = api::routes()
        .merge(envd::routes())
        .with_state(Arc::new(World::new(options)));
    match testkit::serve::listen(address, "", app).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cannot listen on {address}: {error}");
            ExitCode::FAILURE
        }
    }
}
