//! Who looks at the resources, and when.

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
use crate::{
    hosting::Hosting,
    projects::Projects,
    replica::{RESOURCES, Replica},
};

/// How often the states of servers are looked at, and the lease is asked for.
const LOOK: Duration = Duration::from_secs(1);
/// From one attempt to reach the cluster to the next.
const RETRY: Duration = Duration::from_secs(10);

/// Makes servers of the resources of the namespace that the settings name, for ever. Of several replicas one does.
pub(crate) async fn follow(hosting: &Hosting, projects: &Projects, replica: Option<&Replica>) {
    let settings = hosting.settings().hosting.kubernetes.clone();
    let Some(namespace) = &settings.watch_namespace else {
        return std::future::pending().await;
    };
    let mut told = String::new();
    loop {
        let lost = match replica {
            None => CancellationToken::new(),
            Some(replica) => match replica.take(RESOURCES).await {
                Ok((_, lost)) => lost,
                Err(_) => {
                    tokio::time::sleep(LOOK).await;
                    continue;
                }
            },
        };
        match Cluster::new(&settings, namespace).await {
            Ok(cluster) => {
                tracing::info!(namespace, "its resources MCPServer are servers here");
                let look = Look::new(&cluster, hosting, projects, replica.is_some());
                tokio::select! {
                    () = lost.cancelled() => {}
                    () = watch(&cluster, look) => {}
                }
            }
            Err(error) => {
                let error = error.to_string();
                if error != told {
                    tracing::error!(namespace, "resources are not looked at: {error}");
                    told = error;
                }
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// What is known of the resources.
#[derive(Default)]
struct Known {
    all: BTreeMap<String, DynamicObject>,
    /// A list that is not whole yet.
    coming: BTreeMap<String, DynamicObject>,
    /// Whether all are there.
    is_whole: bool,
    /// Whether they were listed, or one went, since the last look.
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

/// Looks whenever a resource changed, and every second, for ever.
async fn watch(cluster: &Cluster, mut look: Look<'_>) {
    let events = watcher(cluster.resources.clone(), Cluster::watching());
    let mut events = pin!(events.default_backoff());
    let mut known = Known::default();
    let mut away = None;
    let mut tick = interval(LOOK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let mut next = tokio::select! {
            event = events.next() => event,
            _ = tick.tick() => None,
        };
        // All that is there already, for one look.
        while let Some(event) = next {
            match event {
                Ok(event) => {
                    if away.is_some() && !matches!(event, Event::Init | Event::InitApply(_)) {
                        tracing::info!(
                            namespace = cluster.namespace,
                            "resources are heard of again"
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
                            "resources are not heard of: {why}; their servers go on"
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
