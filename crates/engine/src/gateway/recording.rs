//! Temporary recording of a server's bodies, and warnings about expired sign-ins of its callers.

use std::{collections::HashMap, sync::Arc};

use model::ServerKey;

use super::Gateway;
use records::event_log::Write;

impl Gateway {
    /// Sets the servers whose bodies are recorded regardless of the settings, each with the time when that ends.
    pub fn set_recordings(&self, recordings: HashMap<ServerKey, store::Time>) {
        self.shared.recordings.store(Arc::new(recordings));
    }

    /// The end of the temporary recording of bodies for this server, if there is one now.
    #[must_use]
    pub fn recording(&self, server: &ServerKey) -> Option<store::Time> {
        self.shared.recording(server)
    }

    /// Records a warning that the sign-in of one caller to a server has expired. The server itself may still run.
    pub fn report_expired_sign_in(&self, server: &ServerKey, why: &str) {
        let fleet = self.shared.fleet();
        let Some(server) = fleet.get(server) else {
            return;
        };
        server.known.status().warnings += 1;
        let message = format!("the sign-in of a caller has expired: {why}");
        self.shared.event_log.write(Write::Event {
            project: server.spec.owner.clone(),
            id: server.spec.id(),
            name: server.name().clone(),
            kind: "needs-login",
            warning: true,
            detail: serde_json::json!({ "name": server.name().as_str(), "message": message }),
        });
    }
}
