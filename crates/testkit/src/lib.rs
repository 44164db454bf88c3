//! Shared test support: servers to test against, and clients to test with.
//!
//! This crate also builds three servers. `testkit-conformance` is a well-behaved MCP server of both eras, built
//! on the official SDK. `testkit-scripted` works on bare lines and misbehaves on demand. `testkit-llm` is a language
//! model that follows a script ([`llm`]).
//!
//! The library
//!
//! - locates and guards such processes ([`Bin`], [`Process`]),
//! - talks to servers without interpreting their responses ([`RawClient`], [`StdioClient`]) or as a complete client of
//!   any era ([`Peer`]),
//! - waits with deadlines ([`wait_for`]),
//! - runs the official conformance suite ([`conformance`]),
//! - provides a database ([`postgres::Database`]) or a whole Postgres ([`Cluster`]), a web site ([`Site`]), a package
//!   registry ([`Registry`]), a receiver of webhooks ([`Webhook`]), an endpoint for embeddings ([`Embeddings`]), an
//!   authorization server ([`Issuer`]) with a protected server ([`Protected`]), and a browser ([`Browser`]),
//! - stands between the product and its servers: a TCP proxy ([`Proxy`]), the proxy of a company ([`ForwardProxy`]), and
//!   TLS ([`PrivateCa`]).
//!
//! Invariants: every wait has a deadline. Every child process dies with its guard. A helper that fails panics with a
//! message that says what to do, because it runs in tests only. No product code is used here: a bug in the product's
//! client code must not hide a bug in its server code.
//!
//! ```no_run
//! # async fn example() {
//! use serde_json::json;
//! use testkit::{Peer, Process, RawClient, peer};
//!
//! let mut server = Process::bin("testkit-conformance", ["--listen", "127.0.0.1:0"]);
//! let client = RawClient::new(&server.url().await);
//! let mut peer = Peer::http(client, peer::MODERN, peer::all_capabilities()).await;
//! let outcome = peer.tool("ask_roots", json!({})).await;
//! assert_eq!(outcome.asked, ["roots/list"]);
//! # }
//! ```

mod bin;
pub mod browser;
mod cluster;
pub mod conformance;
mod embeddings;
mod forward_proxy;
pub mod issuer;
pub mod llm;
mod package_registry;
mod path_proxy;
pub mod peer;
pub mod postgres;
mod private_ca;
mod process;
mod promises;
pub mod protected;
mod proxy;
mod raw;
pub mod serve;
mod site;
mod soak;
mod sse;
mod stdio;
mod wait;
mod webhook;

pub use bin::Bin;
pub use browser::Browser;
pub use cluster::Cluster;
pub use embeddings::{EmbeddingRequest, Embeddings, Embeds};
pub use forward_proxy::ForwardProxy;
pub use issuer::Issuer;
pub use package_registry::Registry;
pub use path_proxy::PathProxy;
pub use peer::{Outcome, Peer};
pub use private_ca::PrivateCa;
pub use process::Process;
pub use promises::PROMISES;
pub use protected::Protected;
pub use proxy::{Proxy, Way};
pub use raw::{RawClient, Reply, Streaming, form_token};
pub use site::Site;
pub use soak::soak;
pub use sse::{Event, EventParser};
pub use stdio::StdioClient;
pub use wait::{DEADLINE, at_once, in_time, wait_for, wait_for_some, within};
pub use webhook::Webhook;
