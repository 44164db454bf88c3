//! Servers on the host itself, with optional pinned packages.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use crate::process::Spawner;
use crate::sandbox::packages::Packages;
use crate::unit::{Error, Instance, Runtime, Unit};

/// Runs servers on the host itself, without a sandbox. A server with pinned packages is started from [`Packages`] if
/// its command is `npx` or `uvx`.
pub struct Host {
    spawner: Spawner,
    packages: Arc<Packages>,
}

impl Host {
    #[must_use]
    pub fn new(spawner: Spawner, packages: Arc<Packages>) -> Self {
        Self { spawner, packages }
    }

    async fn start(&self, mut unit: Unit) -> Result<Instance, Error> {
        let pinned = match unit.launch.packages {
            model::Packages::Pinned => self.packages.pin(&unit).await?,
            model::Packages::Newest => None,
        };
        let Some(pinned) = pinned else {
            return self.spawner.launch(unit).await;
        };
        unit.launch = pinned.launch;
        let instance = self.spawner.launch(unit).await?;
        self.packages.hold(pinned.lease, &instance.handle);
        Ok(instance)
    }
}

impl Runtime for Host {
    fn probe(&self) -> BoxFuture<'_, Result<String, Error>> {
        self.spawner.probe()
    }

    fn launch(&self, unit: Unit) -> BoxFuture<'_, Result<Instance, Error>> {
        self.start(unit).boxed()
    }
}
