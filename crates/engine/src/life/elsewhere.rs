//! The life of a server that another gateway of the installation runs: a connection to that gateway.

use std::{sync::Arc, time::Duration};

use model::Sharing;
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use crate::{
    life::supervisor::asked,
    server::{
        Server,
        gate::{Held, RemoteReplica, Runs},
        launch::StartError,
    },
    shared::Shared,
};
use lifecycle::Event;

/// Time that callers wait for another gateway to start a server whose gateway was lost.
pub(crate) const MOVE_WAIT: Duration = Duration::from_secs(10);
/// Delay between attempts to run a server that another gateway runs.
const RETRY_DELAY: Duration = Duration::from_secs(1);

impl Server {
    /// Determines which gateway runs the server.
    pub(crate) async fn enter(&self, shared: &Shared) -> Result<Runs, String> {
        match shared.gate.get() {
            Some(gate) if gate.is_for_one(&self.spec) => gate.enter(&self.spec).await,
            _ => Ok(Runs::Here(Held::default())),
        }
    }

    /// Returns whether this gateway may run the server, as far as the gateway knows.
    pub(crate) fn may_run(&self, shared: &Shared) -> bool {
        match shared.gate.get() {
            Some(gate) if gate.is_for_one(&self.spec) => self.fence.lock().is_some(),
            _ => true,
        }
    }

    /// Returns whether all callers share one instance.
    pub(crate) fn is_for_all(&self) -> bool {
        !self.is_personal && self.spec.sharing != Sharing::Session
    }

    /// One life of a server that another gateway runs: from connecting to that gateway until the connection is lost.
    pub(crate) async fn life_elsewhere(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        place: &RemoteReplica,
        launched: Instant,
        tell: &mpsc::Sender<Event>,
        mut stop: watch::Receiver<Option<Duration>>,
    ) -> Event {
        let capabilities = shared.shared_capabilities();
        // Callers do not wait longer than they were promised for a gateway that does not respond.
        let moves_until = self.known.status().moves_until;
        let moves_until = moves_until.filter(|until| *until > launched);
        let until = moves_until.unwrap_or(launched + MOVE_WAIT);
        let reaching = async {
            let reaching = shared.connect.reach(&self.spec, place, &capabilities);
            let reached = tokio::time::timeout_at(until, reaching).await;
            reached.unwrap_or_else(|_| Err(StartError::new("it does not respond")))
        };
        let reached = tokio::select! {
            biased;
            _ = asked(&mut stop) => return Event::Stopped,
            () = place.lost.cancelled() => return self.elsewhere(&place.why),
            reached = reaching => reached,
        };
        let (connection, ambient) = match reached {
            Ok((connection, ambient)) => (Arc::new(connection), ambient),
            Err(error) => {
                let why = format!("{}, but cannot be reached there: {error}", place.why);
                return self.elsewhere(&why);
            }
        };
        self.note_elsewhere();
        let is_stopped = tokio::select! {
            biased;
            _ = asked(&mut stop) => true,
            () = place.lost.cancelled() => false,
            _ = self.conversation(shared, &connection, ambient, launched, tell) => false,
        };
        *self.live.lock() = None;
        self.known.status().moves_until = Some(Instant::now() + MOVE_WAIT);
        connection.close(Duration::ZERO).await;
        match is_stopped {
            true => Event::Stopped,
            false => self.elsewhere(&place.why),
        }
    }

    /// The event for a server that another gateway runs, or that this one may not run at the moment.
    pub(crate) fn elsewhere(&self, why: &str) -> Event {
        self.note_elsewhere();
        self.say(why);
        Event::Refused {
            why: why.to_owned(),
            again: Some(RETRY_DELAY),
        }
    }

    /// The event for a server that no gateway can run at the moment.
    pub(crate) fn nowhere(&self, why: String) -> Event {
        self.note(false);
        self.say(why.as_str());
        Event::Refused {
            why,
            again: Some(RETRY_DELAY),
        }
    }

    fn note_elsewhere(&self) {
        self.note(true);
    }

    /// Resets the status of a server that does not run here.
    fn note(&self, elsewhere: bool) {
        *self.fence.lock() = None;
        let mut status = self.known.status();
        status.elsewhere = elsewhere;
        status.refused = None;
        status.needs_login = false;
    }
}
