//! Answers gateways that ask which other gateways are behind this one (see [`mcp::chain`]).

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use mcp::{
    Frame,
    chain::{Behind, Blocked, KEY},
    json::{Object, Splice},
};

use crate::{
    server::{Server, State, connection::Connection},
    shared::Shared,
};

/// Returns whether the request asks for the chain of gateways. Only gateways send such requests.
pub(crate) fn is_asked(request: &Frame) -> bool {
    request.meta().is_some_and(|meta| meta.find(KEY).is_some())
}

impl Shared {
    /// Adds this gateway's chain to the result's `_meta`.
    pub(crate) fn with_chain(&self, result: &Bytes) -> Bytes {
        let Some(chain) = &self.identity.chain else {
            return result.clone();
        };
        let fleet = self.fleet();
        let connected: Vec<_> = fleet
            .all()
            .filter_map(|server| match server.state() {
                State::Ready(connection) => connection.behind.load_full(),
                _ => None,
            })
            .collect();
        let member = chain.answer(connected.iter().map(|behind| &**behind));
        let Some(object) = Object::of(result) else {
            return result.clone();
        };
        let mut splice = Splice::new();
        match object.object("_meta") {
            Some(own) => splice.insert(result, &own.span(), member),
            None => splice.insert(result, &object.span(), format!("\"_meta\":{{{member}}}")),
        };
        splice.apply(result)
    }
}

/// Retry delay for a server that was blocked because of the gateways behind it.
pub(crate) const BLOCKED_RETRY_DELAY: Duration = Duration::from_secs(600);

impl Server {
    /// Records why the server must not be behind this gateway. The caller must then close the server's connection, if
    /// there is one.
    pub(crate) fn block(&self, blocked: Blocked) {
        *self.blocked.lock() = Some(blocked);
    }

    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked.lock().is_some() || self.needs_login.lock().is_some()
    }

    pub(crate) fn take_blocked(&self) -> Option<Blocked> {
        self.blocked.lock().take()
    }

    /// Checks the gateways that this server (itself a gateway) now reports to be behind it. Returns `false` if the
    /// server must be disconnected.
    pub(crate) fn look_behind(
        &self,
        shared: &Shared,
        connection: &Connection,
        behind: Option<Behind>,
    ) -> bool {
        let (Some(chain), Some(behind)) = (&shared.identity.chain, behind) else {
            return true;
        };
        if let Err(blocked) = chain.judge(&behind) {
            self.block(blocked);
            return false;
        }
        connection.behind.store(Some(Arc::new(behind)));
        true
    }
}
