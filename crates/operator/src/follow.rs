//! The loop that watches the resources.

use std::{collections::BTreeMap, pin::pin, time::Duration};

use futures_util::{FutureExt as _, StreamExt as _};
use kube::{
    api::DynamicObject,
    runtime::{
        WatchStreamExt as _,
        watcher::{Event, watcher},
    },
};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::{
    cluster::{Cluster, name},
    look::Look,
};
use backend::{
    hosting::Hosting,
    projects::Projects,
    replica::{RESOURCES, Replica},
};

/// Interval between updates of the status, and between attempts to take the lease.
const PASS_INTERVAL: Duration = Duration::from_secs(1);
/// Delay between attempts to reach the cluster.
const RECONNECT_DELAY: Duration = Duration::from_secs(10);

/// Registers servers for the resources of the configured namespace, in a loop. Only one of several replicas does this.
pub async fn follow(hosting: &Hosting, projects: &Projects, replica: Option<&Replica>) {
    let settings = hosting.settings().hosting.kubernetes.clone();
    let Some(namespace) = &settings.watch_namespace else {
        return std::future::pending().await;
    };
    let mut last_error = String::new();
    loop {
        let lost = match replica {
            None => CancellationToken::new(),
            Some(replica) => match replica.take(RESOURCES).await {
                Ok((_, lost)) => lost,
                Err(_) => {
                    tokio::time::sleep(PASS_INTERVAL).await;
                    continue;
                }
            },
        };
        match Cluster::new(&settings, namespace).await {
            Ok(cluster) => {
                tracing::info!(namespace, "watching MCPServer resources");
                let look = Look::new(&cluster, hosting, projects, replica.is_some());
                tokio::select! {
                    () = lost.cancelled() => {}
                    () = watch(&cluster, look) => {}
                }
            }
            Err(error) => {
                let error = error.to_string();
                if error != last_error {
                    tracing::error!(namespace, "cannot watch MCPServer resources: {error}");
                    last_error = error;
                }
                tokio::time::sleep(RECONNECT_DELAY).await;
            }
        }
    }
}

#[derive(Default)]
struct Known {
    all: BTreeMap<String, DynamicObject>,
    /// The part of a new list that has arrived so far.
    coming: BTreeMap<String, DynamicObject>,
    /// Set once the list is complete.
    is_whole: bool,
    /// Set if the resources were listed again, or one was deleted, since the last pass.
    is_fresh: bool,
}

impl Known {
    fn take_in(&mut self, event: Event<DynamicObject>) {
        match event {
            Event::Init => self.coming.clear(),
            Event::InitApply(object) => {
                self.coming.insert(name(&object).to_owned(), object);
            }
            Event::InitDone => {
                self.all = std::mem::take(&mut self.coming);
                (self.is_whole, self.is_fresh) = (true, true);
            }
            Event::Apply(object) => {
                self.all.insert(name(&object).to_owned(), object);
            }
            Event::Delete(object) => {
                self.all.remove(name(&object));
                self.is_fresh = true;
            }
        }
    }
}

/// Runs a pass whenever a resource changed, and every second, in a loop.
async fn watch(cluster: &Cluster, mut look: Look<'_>) {
    let events = watcher(cluster.resources.clone(), Cluster::watching());
    let mut events = pin!(events.default_backoff());
    let mut known = Known::default();
    let mut away = None;
    let mut tick = interval(PASS_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let mut next = tokio::select! {
            event = events.next() => event,
            _ = tick.tick() => None,
        };
        // All pending events are handled in one pass.
        while let Some(event) = next {
            match event {
                Ok(event) => {
                    if away.is_some() && !matches!(event, Event::Init | Event::InitApply(_)) {
                        tracing::info!(
                            namespace = cluster.namespace,
                            "the watch on MCPServer resources works again"
                        );
                        away = None;
                    }
                    known.take_in(event);
                }
                Err(error) => {
                    let why = model::with_causes(&error);
                    if away.as_ref() != Some(&why) {
                        tracing::warn!(
                            namespace = cluster.namespace,
                            "the watch on MCPServer resources failed: {why}; their servers continue to run"
                        );
                        away = Some(why);
                    }
                }
            }
            next = events.next().now_or_never().flatten();
        }
        if known.is_whole {
            let is_fresh = std::mem::take(&mut known.is_fresh);
            look.at(&mut known.all, is_fresh).await;
        }
    }
}
