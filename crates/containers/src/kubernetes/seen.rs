//! The state of a pod as seen by the watch.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use runtime::handle::Exit;

use super::readback::state;
use super::spec::SERVER_CONTAINER;
use crate::common::exit_of;

/// The state of a pod as last reported by the watch.
#[derive(Clone)]
pub(super) enum Seen {
    There(Arc<Pod>),
    /// The pod has been deleted. This was its last state.
    Gone(Arc<Pod>),
}

impl Seen {
    pub(super) fn pod(&self) -> &Arc<Pod> {
        let (Self::There(pod) | Self::Gone(pod)) = self;
        pod
    }

    /// Returns how the server ended, and a note about it for the log. `None` while it may run.
    pub(super) fn end(&self) -> Option<(Exit, Option<String>)> {
        let pod = self.pod();
        let ended = state(pod, SERVER_CONTAINER).and_then(|state| state.terminated.as_ref());
        let status = pod.status.as_ref();
        let reason = status.and_then(|status| status.reason.as_deref());
        let message = status
            .and_then(|status| status.message.as_deref())
            .unwrap_or_default();
        let removed = reason.map(|reason| {
            format!("toolwharf: the pod was ended by the cluster: {reason}: {message}")
        });
        if let Some(ended) = ended {
            let out_of_memory = ended.reason.as_deref() == Some("OOMKilled");
            let exit = Exit {
                out_of_memory,
                ..exit_of(ended.exit_code)
            };
            return Some((exit, removed));
        }
        let failed = status.and_then(|status| status.phase.as_deref()) == Some("Failed");
        match self {
            Self::There(_) if !failed => None,
            _ => {
                let gone = || "toolwharf: another program removed the pod".to_owned();
                Some((Exit::default(), Some(removed.unwrap_or_else(gone))))
            }
        }
    }
}
