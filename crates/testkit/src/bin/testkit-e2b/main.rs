//! A stand-in for E2B: its REST API, and the `envd` of its sandboxes, on one port of this machine.
//!
//! **It is not E2B.** It was written from E2B's published OpenAPI document and `process.proto`, and from how `envd` is
//! seen to behave in its source. E2B's own clients for Python (2.63) and JavaScript make, list, use and kill sandboxes
//! with it; nothing here has been compared with the real service. It has no sandboxes: a command is a process of this
//! machine, in a process group of its own, and isolated from nothing.
//!
//! What it has is what a client that runs one command in a sandbox meets:
//!
//! - `POST /sandboxes` and `/v2/sandboxes`, `GET` and `DELETE /sandboxes/{id}`, `POST /sandboxes/{id}/timeout`, `GET /v2/sandboxes` with the
//!   filters `metadata` and `state` and with pages. The key is looked at; errors are `{"code": 404, "message": "…"}`.
//! - A sandbox ends at the end of its time, with all that runs in it.
//! - `process.Process/Start` and `Connect` (streams), `SendInput`, `CloseStdin`, `SendSignal` and `List` of the Connect
//!   protocol with JSON, addressed by the headers `E2b-Sandbox-Id` and `E2b-Sandbox-Port`. The sandbox's own token is
//!   looked at, and a request with the API's key is refused, for it has no business there.
//! - A command goes on when its stream breaks off; what it says while nobody listens is lost.
//!
//! For tests only, and not of E2B: `POST /stand-in/cut/{id}` breaks all streams of a sandbox off, and
//! `POST /stand-in/forget/{id}` ends a sandbox as E2B itself would end it, without a request of its owner's.
//!
//! Deliberately absent: templates (there are `base` and what `--template` names), pausing, metrics, networks, users.

mod api;
mod envd;
mod sandbox;

use std::{net::SocketAddr, process::ExitCode, sync::Arc};

use clap::Parser;

use crate::sandbox::World;

#[derive(Debug, Parser)]
#[command(about = "A stand-in for E2B, for tests")]
struct Options {
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// The one key that is taken.
    #[arg(long, default_value = "e2b_0000000000000000000000000000000000000000")]
    key: String,
    /// Templates that there are, besides `base`.
    #[arg(long)]
    template: Vec<String>,
    /// What `envd` says that it is. Before 0.5.2 it cannot end the input of a command.
    #[arg(long, default_value = "0.5.7")]
    envd: String,
    /// Sandboxes of one page of a list.
    #[arg(long, default_value_t = 100)]
    page: usize,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut options = Options::parse();
    let listener = match tokio::net::TcpListener::bind(options.listen).await {
        Ok(listener) => listener,
        Err(error) => {
            eprintln!("cannot listen on {}: {error}", options.listen);
            return ExitCode::FAILURE;
        }
    };
    if let Ok(address) = listener.local_addr() {
        println!("http://{address}");
    }
    options.template.push("base".to_owned());
    let world = Arc::new(World::new(options));
    let app = api::routes()
        .merge(envd::routes())
        .with_state(Arc::clone(&world));
    match axum::serve(listener, app).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
