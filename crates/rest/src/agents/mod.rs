//! The agents of this installation: one for each project that has chats, and one for all servers together.
//!
//! The crate `agent` knows neither servers nor a database. This module provides both: [`servers`] makes the agent a
//! client of the gateway, so that its calls are handled like all others; [`ledger`] stores its runs. An agent is
//! created at the first chat, with the current settings and key, and created again when one of them changes.

mod ledger;
mod native;
mod servers;

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

use agent::{
    Agent, Config, Price, Questions,
    llm::{ApiKey, Endpoint, Model, ModelError, Options, anthropic, openai},
};
use engine::{Gateway, Scope};
use model::{AgentSettings, Hidden, ModelApi, ProjectId};
use parking_lot::Mutex;
use store::Store;
use tokio::time::Instant;

pub(crate) use self::servers::offered;
use self::{
    ledger::Records,
    servers::{Ours, Started},
};
use backend::projects::Projects;

/// The caller named in records of an agent's calls.
const CALLER: &str = "agent";

pub struct Agents {
    gateway: Gateway,
    projects: Arc<Projects>,
    store: Store,
    made: Mutex<HashMap<Option<ProjectId>, Made>>,
    turns: Arc<Mutex<UnderWay>>,
}

/// Turns in progress.
#[derive(Default)]
struct UnderWay {
    /// Since when no new turn may begin, because the gateway stops.
    closed: Option<Instant>,
    count: usize,
    /// The turns' conversations, with their pending questions. A turn that is still beginning is not included.
    conversations: HashMap<(Option<ProjectId>, String), Questions>,
}

struct Made {
    settings: AgentSettings,
    key: Option<Hidden>,
    started: Started,
    agent: Arc<Agent>,
}

/// Why no agent is available.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoAgent {
    #[error(
        "no model is set up: add `[agent]` with `model = \"claude-sonnet-4-5\"` (for example) to toolwharf.toml"
    )]
    NotSetUp,
    #[error(
        "there is no key for the model: set {0} in the environment of `toolwharf serve` or as a secret of the project, \
         or `api_key` under `[agent]` in toolwharf.toml"
    )]
    NoKey(&'static str),
    #[error("{0}")]
    Closed(String),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Native(#[from] agent::native::Error),
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// A turn in progress, until it is dropped.
pub(crate) struct Turn {
    turns: Arc<Mutex<UnderWay>>,
    conversation: Option<(Option<ProjectId>, String)>,
    questions: Questions,
}

/// Why no turn may begin now.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoTurn {
    #[error(
        "the limit of concurrent chats ({0}) is reached: wait until one ends, or raise `max_chats` under `[agent]` in \
         toolwharf.toml"
    )]
    TooMany(usize),
    #[error("Toolwharf is stopping: send the message again after the restart")]
    Stopping,
}

impl Turn {
    /// Assigns the turn to a conversation; `false` if another turn is in progress in it.
    pub(crate) fn of(&mut self, project: Option<&ProjectId>, conversation: &str) -> bool {
        let conversation = (project.cloned(), conversation.to_owned());
        match self.turns.lock().conversations.entry(conversation.clone()) {
            Entry::Occupied(_) => return false,
            Entry::Vacant(free) => free.insert(self.questions.clone()),
        };
        self.conversation = Some(conversation);
        true
    }

    /// The questions that servers ask during the turn.
    pub(crate) fn questions(&self) -> Questions {
        self.questions.clone()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut turns = self.turns.lock();
        turns.count = turns.count.saturating_sub(1);
        if let Some(conversation) = &self.conversation {
            turns.conversations.remove(conversation);
        }
    }
}

impl Agents {
    pub fn new(gateway: Gateway, projects: Arc<Projects>, store: Store) -> Arc<Self> {
        Arc::new(Self {
            gateway,
            projects,
            store,
            made: Mutex::default(),
            turns: Arc::default(),
        })
    }

    pub(crate) fn projects(&self) -> &Arc<Projects> {
        &self.projects
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Begins a turn.
    ///
    /// # Errors
    /// If the limit of concurrent turns is reached, or the gateway is stopping.
    pub(crate) fn turn(&self) -> Result<Turn, NoTurn> {
        let settings = self.gateway.settings();
        let most = settings.agent.as_ref().map_or(0, |agent| agent.max_chats);
        let mut turns = self.turns.lock();
        if turns.closed.is_some() {
            return Err(NoTurn::Stopping);
        }
        if turns.count >= most {
            return Err(NoTurn::TooMany(most));
        }
        turns.count += 1;
        Ok(Turn {
            turns: self.turns.clone(),
            conversation: None,
            questions: Questions::default(),
        })
    }

    /// The open questions of the turn that is in progress in a conversation. `None` if no turn is in progress.
    pub(crate) fn questions(
        &self,
        project: Option<&ProjectId>,
        conversation: &str,
    ) -> Option<Questions> {
        let conversation = (project.cloned(), conversation.to_owned());
        self.turns.lock().conversations.get(&conversation).cloned()
    }

    /// The agent of a project, or of all servers.
    ///
    /// # Errors
    /// If no model is set up, its key is missing, or the database does not respond. Nothing was started then.
    pub(crate) async fn of(&self, project: Option<&ProjectId>) -> Result<Arc<Agent>, NoAgent> {
        let settings = self.gateway.settings().agent.clone();
        let settings = settings.ok_or(NoAgent::NotSetUp)?;
        let key = self.key(project, &settings).await?;
        let mut started = Started::default();
        if let Some(made) = self.made.lock().get(&project.cloned()) {
            if made.settings == settings && made.key == key {
                return Ok(made.agent.clone());
            }
            started = made.started.clone();
        }
        let agent = Arc::new(self.make(project, &settings, key.as_ref(), started.clone())?);
        let made = Made {
            settings,
            key,
            started,
            agent: agent.clone(),
        };
        self.made.lock().insert(project.cloned(), made);
        Ok(agent)
    }

    /// Prevents new turns. Turns in progress continue.
    pub fn close(&self) {
        self.turns.lock().closed.get_or_insert_with(Instant::now);
    }

    /// Ends all chats, with an error that states how long they could continue after [`Agents::close`], and waits until
    /// everything is written. Returns how many turns were in progress.
    pub async fn stop(&self) -> usize {
        let (cut, waited) = {
            let mut turns = self.turns.lock();
            let closed = turns.closed.get_or_insert_with(Instant::now);
            let waited = closed.elapsed();
            (turns.count, waited)
        };
        let why = why_stopped(waited);
        let made: Vec<Made> = self.made.lock().drain().map(|(_, made)| made).collect();
        futures_util::future::join_all(made.iter().map(|made| made.agent.stop(&why))).await;
        cut
    }

    /// The key in the settings, else the project's secret, else the environment's.
    async fn key(
        &self,
        project: Option<&ProjectId>,
        settings: &AgentSettings,
    ) -> Result<Option<Hidden>, NoAgent> {
        if settings.api_key.is_some() {
            return Ok(settings.api_key.clone());
        }
        let name = match settings.api {
            ModelApi::Anthropic => "ANTHROPIC_API_KEY",
            ModelApi::OpenAi => "OPENAI_API_KEY",
        };
        if let Some(project) = project {
            let mut secrets = self.projects.secret_values(project).await?;
            if let Some(key) = secrets.values.remove(name) {
                return Ok(Some(Hidden::new(key)));
            }
            // Do not fall back to the environment's key, because a project with its own key pays for its own chats.
            if let Some(why) = secrets.closed(name) {
                return Err(NoAgent::Closed(why.to_owned()));
            }
        }
        let key = std::env::var(name)
            .ok()
            .filter(|key| !key.trim().is_empty());
        match (key, settings.api) {
            (Some(key), _) => Ok(Some(Hidden::new(key))),
            // A self-hosted model server needs no key.
            (None, ModelApi::OpenAi) => Ok(None),
            (None, ModelApi::Anthropic) => Err(NoAgent::NoKey(name)),
        }
    }

    fn make(
        &self,
        project: Option<&ProjectId>,
        settings: &AgentSettings,
        key: Option<&Hidden>,
        started: Started,
    ) -> Result<Agent, NoAgent> {
        let mut config = Config::new("toolwharf");
        config.project = project.cloned();
        config.system = settings.system.as_deref().map(Into::into);
        config.max_turns = settings.max_turns;
        for (model, price) in &settings.prices {
            let [input, output, cache_read, cache_write] = price.map(|micros| micros as f64 / 1e6);
            let price = Price {
                input,
                output,
                cache_read,
                cache_write,
            };
            config.prices.insert(model.clone(), price);
        }
        let scope = Scope {
            project: project.cloned(),
            ..Scope::default()
        };
        let (gateway, projects) = (self.gateway.clone(), self.projects.clone());
        let servers = Ours::new(gateway, projects, scope, settings.start, started);
        let records = Records::new(self.store.clone(), self.gateway.clone(), project.cloned());
        let tools = native::chosen(&settings.native);
        let model = model(settings, key)?;
        Ok(Agent::new(
            config,
            model,
            Arc::new(servers),
            Arc::new(records),
            tools,
        )?)
    }
}

/// The error of a turn that was still in progress this long after the gateway began to stop.
fn why_stopped(waited: Duration) -> String {
    let tenths = (waited.as_secs_f32() * 10.0).round() / 10.0;
    format!(
        "Toolwharf was stopped while the turn was running, and the turn did not end within {tenths} s; completed parts of the turn are kept"
    )
}

fn model(settings: &AgentSettings, key: Option<&Hidden>) -> Result<Arc<dyn Model>, ModelError> {
    let key = key.map(|key| ApiKey::new(key.reveal())).transpose()?;
    let endpoint = |base: &str| Endpoint::new(settings.base_url.as_deref().unwrap_or(base));
    let options = Options {
        max_tokens: settings.max_tokens,
        ..Options::new(&settings.model)
    };
    match (settings.api, key) {
        (ModelApi::Anthropic, key) => {
            let key =
                key.ok_or_else(|| ModelError::Settings("the model's key is missing".to_owned()))?;
            let endpoint = endpoint(anthropic::BASE_URL);
            Ok(Arc::new(anthropic::Anthropic::new(
                &endpoint, key, options,
            )?))
        }
        (ModelApi::OpenAi, key) => {
            let endpoint = endpoint(openai::BASE_URL);
            Ok(Arc::new(openai::OpenAi::new(&endpoint, key, options)?))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a11_a_stopped_turn_is_told_how_long_it_could_continue() {
        for (waited, expect) in [(0, "0 s"), (2_003, "2 s"), (9_260, "9.3 s")] {
            let why = why_stopped(Duration::from_millis(waited));
            assert!(why.contains(&format!("within {expect};")), "{why}");
        }
    }
}
