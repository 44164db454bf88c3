//! The Kubernetes resource `MCPServer`.
//!
//! [`definition`] is the resource definition, [`convert`] converts ToolHive's resources. With the feature `kubernetes`,
//! [`follow`] registers a server for each resource in one namespace and maintains its status: `cluster` is the API
//! client, `look` decides and acts, `status` and `events` build what is reported.
//!
//! # Invariants
//!
//! - Only one replica at a time handles the resources. The whole state is in the resources and in the database rows.
//!   Starting, taking over from another replica and normal operation are therefore the same path, and each step is
//!   idempotent.
//! - A resource gets the finalizer before its row is created, so that it cannot disappear without its server. The
//!   server is removed, with its volumes, before the finalizer is.
//! - A server is removed only if its resource is known to be gone. It is kept while the API server is unreachable, and
//!   if the definition itself is deleted or replaced. The server then continues to run, and a new resource
//!   of the same name takes it over.
//! - Errors in a resource appear in its conditions and affect no other resource. A server whose resource becomes
//!   invalid continues to run unchanged.
//! - Values of Secrets are encrypted in the rows, and appear in no status, event or log.
//! - Every request has a deadline. An object is written at most once per second, however often others change it.
//!
//! Deliberately absent: more than one namespace, and servers that Toolwharf does not launch.

#[cfg(feature = "kubernetes")]
mod cluster;
mod convert;
mod definition;
#[cfg(feature = "kubernetes")]
mod events;
#[cfg(feature = "kubernetes")]
mod follow;
#[cfg(feature = "kubernetes")]
mod look;
#[cfg(feature = "kubernetes")]
mod status;

#[cfg(feature = "kubernetes")]
pub use follow::follow;
pub use {convert::convert, definition::definition};
