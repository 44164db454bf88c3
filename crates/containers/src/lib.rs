//! Runtimes whose instances are not processes of this host: containers of a Docker daemon and of a swarm, pods of Kubernetes, sandboxes of E2B.
//!
//! Each implements [`runtime::Runtime`]. Deliberately absent: what all runtimes share, and processes of this host (`runtime`).

pub mod docker;
pub mod e2b;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
