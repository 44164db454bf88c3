//! Runtimes whose instances are not processes of this host.
//!
//! - [`docker`]: containers of a Docker daemon, optionally in gVisor, and services of a swarm.
//! - `kubernetes` (with the feature of the same name): pods of a Kubernetes cluster.
//! - [`e2b`]: E2B sandboxes.
//!
//! Each implements [`runtime::Runtime`]. Deliberately absent: what all runtimes share, and processes of this host (`runtime`).

#[macro_use]
mod common;
pub mod docker;
pub mod e2b;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
