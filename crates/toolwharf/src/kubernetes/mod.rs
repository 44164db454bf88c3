//! Toolwharf's own resource in Kubernetes: `MCPServer`.
//!
//! [`definition`] is the resource's definition, [`convert`] makes such resources of ToolHive's. With the feature `kubernetes`, [`follow`]
//! makes a registered server of each resource in one namespace, and keeps its status: `cluster` speaks to the API server, `look` decides
//! and acts, `status` is what is told, and `events` what happened.
//!
//! # Invariants
//!
//! - One replica at a time does this. All that it knows is in the resources and in the rows, so that its start, another replica's
//!   taking over and the normal path are one path, and each step can be done twice.
//! - A resource has the finalizer before there is a row, so that it cannot go without its server. The server goes, with its volumes,
//!   before the finalizer does.
//! - A server is removed only if its resource is known to be gone: not while the API server is away, and not if the definition itself
//!   is deleted or is another one. Then servers go on, and belong to the resource of their name again once there is one.
//! - What is wrong with a resource is in its conditions, and concerns no other. A server whose resource became wrong goes on as it was.
//! - Values of Secrets are sealed in the rows, and are in no status, event or log.
//! - No request is without a deadline; an object is written to once a second at most, whatever others do to it.
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
pub(crate) use self::follow::follow;
pub(crate) use self::{convert::convert, definition::definition};
