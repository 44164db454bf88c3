//! Applies changes made by other replicas.
//!
//! Invariant: only what changed is read again. A failed topic is retried at the next poll, and does not delay other
//! topics.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use engine::Gateway;
use model::{NativeName, ProjectId, ServerKey};
use parking_lot::Mutex;
use store::{Store, Topic};

use auth::Identities;
use backend::{
    hosting::Hosting, logins::Logins, projects::Projects, reload::Live, replica::Replica,
};

/// Interval between attempts to apply all changes.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) struct Changes<'c> {
    identities: &'c Identities,
    store: &'c Store,
    gateway: &'c Gateway,
    logins: &'c Logins,
    projects: &'c Projects,
    hosting: &'c Hosting,
    live: &'c Arc<Live>,
    /// Topics whose failure was logged.
    logged: Mutex<BTreeSet<Topic>>,
}

impl<'c> Changes<'c> {
    pub(crate) fn new(
        (store, gateway): (&'c Store, &'c Gateway),
        (identities, logins): (&'c Identities, &'c Logins),
        (projects, hosting): (&'c Projects, &'c Hosting),
        live: &'c Arc<Live>,
    ) -> Self {
        Self {
            identities,
            store,
            gateway,
            logins,
            projects,
            hosting,
            live,
            logged: Mutex::default(),
        }
    }

    /// Applies the changes of other replicas in a loop, if the gateway may have other replicas.
    pub(crate) async fn follow(&self, replica: Option<&Replica>) {
        match replica {
            Some(replica) => {
                replica
                    .changes(async |topics| self.take_in(topics).await)
                    .await
            }
            None => std::future::pending().await,
        }
    }

    /// Applies everything that another process may have changed. Retries what fails.
    pub(crate) async fn all(&self) {
        let mut topics = BTreeSet::from(Topic::ALL);
        loop {
            topics = self.take_in(topics).await;
            if topics.is_empty() {
                return;
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    /// Applies changes. Returns the topics that must be retried.
    async fn take_in(&self, topics: BTreeSet<Topic>) -> BTreeSet<Topic> {
        let (identities, logins) = (self.identities, self.logins);
        let (keys, sessions, approvals, logins, recordings, secrets, mut failed) = tokio::join!(
            Self::taken(&topics, Topic::Keys, identities.keys.refresh(self.store)),
            Self::taken(&topics, Topic::Sessions, identities.refresh_browsers()),
            Self::taken(&topics, Topic::Approvals, self.approvals()),
            Self::taken(&topics, Topic::Logins, logins.take_in()),
            Self::taken(&topics, Topic::Recordings, self.recordings()),
            Self::taken(&topics, Topic::Secrets, self.secrets()),
            self.servers(&topics),
        );
        let others = [keys, sessions, approvals, logins, recordings, secrets];
        failed.extend(others.into_iter().flatten());
        let mut logged = self.logged.lock();
        logged.retain(|topic| failed.contains_key(topic));
        for (topic, error) in &failed {
            if logged.insert(topic.clone()) {
                tracing::warn!(
                    ?topic,
                    "cannot apply the changes of another replica yet: {error:#}"
                );
            }
        }
        failed.into_keys().collect()
    }

    /// Applies one topic, if it changed. Returns the topic and the error on failure.
    async fn taken(
        topics: &BTreeSet<Topic>,
        topic: Topic,
        taking: impl Future<Output = store::Result<()>>,
    ) -> Option<(Topic, anyhow::Error)> {
        match topics.contains(&topic) {
            true => taking.await.err().map(|error| (topic, error.into())),
            false => None,
        }
    }

    /// Applies changed projects, then registered servers, which may use the projects' secrets. Returns the failed
    /// topics.
    async fn servers(&self, topics: &BTreeSet<Topic>) -> BTreeMap<Topic, anyhow::Error> {
        let mut failed: BTreeMap<Topic, anyhow::Error> = BTreeMap::new();
        let named = topics.iter().filter_map(|topic| match topic {
            Topic::Project(id) => Some(id.clone()),
            _ => None,
        });
        let mut changed: BTreeSet<ProjectId> = named.collect();
        let any = topics.contains(&Topic::Projects);
        if any {
            match self.projects.wanted().await {
                Ok(ids) => changed.extend(ids),
                Err(error) => {
                    failed.insert(Topic::Projects, error.into());
                }
            }
        }
        for (id, error) in self.projects.reload_changed(&changed).await {
            failed.insert(Topic::Project(id), error.into());
        }
        let hosted = match any || topics.contains(&Topic::Servers) {
            true => self.hosting.reload().await,
            false => self.hosting.reload_of(&changed).await,
        };
        if let Err(error) = hosted {
            failed.insert(Topic::Servers, error.into());
        }
        failed
    }

    async fn recordings(&self) -> store::Result<()> {
        self.gateway
            .set_recordings(self.store.recording_list().await?);
        Ok(())
    }

    /// Applies changed secrets of the configuration file.
    async fn secrets(&self) -> store::Result<()> {
        if let Err(errors) = self.live.refresh_secrets().await? {
            tracing::error!("the configuration is invalid, keeping the old one:\n{errors}");
        }
        Ok(())
    }

    /// Approves definitions that were approved at another replica.
    async fn approvals(&self) -> store::Result<()> {
        let mut waiting: BTreeMap<Option<ProjectId>, Vec<ServerKey>> = BTreeMap::new();
        for key in self.gateway.unapproved() {
            waiting.entry(key.owner.clone()).or_default().push(key);
        }
        for (owner, servers) in waiting {
            let pins = self.store.pin_digest_list(owner.as_ref()).await?;
            for key in servers {
                let of_it = pins.iter().filter(|pin| pin.server == key.name);
                let agreed: Vec<_> = of_it
                    .map(|pin| (NativeName::new(&*pin.tool), pin.digest.as_str().into()))
                    .collect();
                self.gateway.approve_tools(&key, &agreed);
            }
        }
        Ok(())
    }
}
