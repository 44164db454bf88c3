//! Servers on the host itself, without a sandbox.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use super::Spawner;
use crate::unit::{Error, Instance, Runtime, Stdio, Unit};

impl Runtime for Spawner {
    fn probe(&self) -> BoxFuture<'_, Result<String, Error>> {
        async { Ok("processes of this host".to_owned()) }.boxed()
    }

    fn launch(&self, unit: Unit) -> BoxFuture<'_, Result<Instance, Error>> {
        async move {
            let spawned = self.spawn(unit).await;
            let child = spawned.map_err(|error| match error.is_lasting() {
                true => Error::Lasting(model::with_causes(&error)),
                false => Error::Failed(model::with_causes(&error)),
            })?;
            Ok(Instance {
                stdio: Some(Stdio {
                    stdin: Box::new(child.stdin),
                    stdout: Box::new(child.stdout),
                }),
                ports: BTreeMap::new(),
                handle: child.handle,
                enforced: Arc::default(),
                files: None,
            })
        }
        .boxed()
    }
}
