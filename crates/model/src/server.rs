//! What is known about a configured server before it runs.
//!
//! Invariants: two specs are equal exactly when a hot reload may leave the running instance
//! alone, and `Debug` shows no secrets. Deliberately absent: any state of the instance.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use crate::{
    Breaker, EraPolicy, ExposedName, Heartbeat, Hidden, Launch, Login, NativeName, Origin,
    ProjectId, Reach, RestartPolicy, Sandbox, ServerKey, ServerName, Sharing,
};

/// What stands in the place of a secret.
const REDACTED: &str = "[secret]";
/// Shorter values are too common to be looked for.
const LEAST_SECRET: usize = 4;

/// How often a secret may be escaped as in JSON and is still found: texts in results are JSON themselves, often.
const MAX_ESCAPED: usize = 3;

/// Whether a variable or header of this name usually holds a secret.
fn is_secretive(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    [
        "key",
        "token",
        "secret",
        "passw",
        "auth",
        "credential",
        "cookie",
    ]
    .iter()
    .any(|word| name.contains(word))
}

/// Where a server is declared. Of several that see each other they stand in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Declared {
    /// In the configuration file.
    File,
    /// It was registered to be kept running.
    Registered,
    /// Among the servers of a project.
    Project,
}

/// A server as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSpec {
    pub name: ServerName,
    /// Where that is said of it which stands here.
    pub declared: Declared,
    /// The project whose own server it is. One that the project declared is connected at its first use, and left alone for
    /// a while after some failures in a row.
    pub owner: Option<ProjectId>,
    pub origin: Origin,
    pub enabled: bool,
    pub era: EraPolicy,
    pub sharing: Sharing,
    /// Calls in flight at a time; `None` leaves it to
    /// [`ServerSpec::max_concurrency_or_default`].
    pub max_concurrency: Option<NonZeroU32>,
    /// Wall time of one call, queueing included.
    pub call_timeout: Duration,
    /// Wall time from launch to an answered handshake.
    pub start_timeout: Duration,
    pub disabled_tools: BTreeSet<NativeName>,
    /// The projects that see the server; empty means all that see servers of the configuration file.
    pub projects: BTreeSet<ProjectId>,
    /// Why it cannot be started or reached as it stands, for instance a secret that is not set.
    pub unusable: Option<String>,
    /// Whether it is started at its first use only; `None`: as its kind and the settings have it.
    pub lazy: Option<bool>,
    /// What happens when it ends; `None`: as its kind has it.
    pub restart: Option<RestartPolicy>,
    /// `None`: it is not asked whether it still answers.
    pub heartbeat: Option<Heartbeat>,
    /// When it is left alone after starts that failed, where it is a project's own; `None`: as the settings say.
    pub breaker: Option<Breaker>,
    /// Values of secrets that were filled in.
    pub secrets: Secrets,
}

/// Values that must be in no log, record or answer; not even in `Debug`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets(pub BTreeSet<String>);

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{} hidden]", self.0.len())
    }
}

/// What a project wants of one tool, besides what its server says of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolSetting {
    /// `None`: as the server's own configuration has it.
    pub enabled: Option<bool>,
    /// The name that clients see.
    pub alias: Option<ExposedName>,
    pub description: Option<String>,
}

impl ServerSpec {
    pub const DEFAULT_CALL_TIMEOUT: Duration = Duration::from_secs(30);
    /// Long, because `uvx` and `npx` may install the server first.
    pub const DEFAULT_START_TIMEOUT: Duration = Duration::from_secs(60);

    /// An enabled server with every option at its default.
    #[must_use]
    pub fn new(name: ServerName, origin: Origin) -> Self {
        Self {
            name,
            declared: Declared::File,
            owner: None,
            origin,
            enabled: true,
            era: EraPolicy::default(),
            sharing: Sharing::default(),
            max_concurrency: None,
            call_timeout: Self::DEFAULT_CALL_TIMEOUT,
            start_timeout: Self::DEFAULT_START_TIMEOUT,
            disabled_tools: BTreeSet::new(),
            projects: BTreeSet::new(),
            unusable: None,
            lazy: None,
            restart: None,
            heartbeat: None,
            breaker: None,
            secrets: Secrets::default(),
        }
    }

    /// The text without the server's secrets: those that were filled in, and what stands under a name that
    /// says so in its environment and headers. Plain, or escaped as in JSON, also in JSON within JSON.
    #[must_use]
    pub fn redact(&self, text: &str) -> String {
        self.redact_also(text, &[])
    }

    /// As [`ServerSpec::redact`], and without `more`.
    #[must_use]
    pub fn redact_also(&self, text: &str, more: &[Hidden]) -> String {
        let named: &BTreeMap<String, String> = match &self.origin {
            Origin::Remote(remote) => &remote.headers,
            Origin::Launch(launch) => &launch.env,
        };
        let named = named
            .iter()
            .filter(|(name, _)| is_secretive(name))
            .map(|(_, value)| value.as_str());
        let login = match &self.origin {
            Origin::Remote(remote) => Some(&remote.login),
            Origin::Launch(launch) => launch.login.as_ref().and_then(|all| all.login.as_ref()),
        };
        let login = login.into_iter().flat_map(Login::secrets);
        let mut values: Vec<&str> = self
            .secrets
            .0
            .iter()
            .map(String::as_str)
            .chain(named)
            .chain(login)
            .chain(more.iter().map(Hidden::reveal))
            .filter(|value| value.len() >= LEAST_SECRET)
            .collect();
        // The longer first: one may be a part of another.
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        let mut text = text.to_owned();
        for value in values {
            let mut spelling = value.to_owned();
            for _ in 0..=MAX_ESCAPED {
                if text.contains(&spelling) {
                    text = text.replace(&spelling, REDACTED);
                }
                let quoted = serde_json::Value::from(spelling.as_str()).to_string();
                let escaped = &quoted[1..quoted.len() - 1];
                if escaped == spelling {
                    break;
                }
                spelling = escaped.to_owned();
            }
        }
        text
    }

    /// A value of its environment or headers without secrets: none of it, if its name says that it is one.
    #[must_use]
    pub fn redact_value(&self, name: &str, value: &str) -> String {
        if is_secretive(name) {
            REDACTED.to_owned()
        } else {
            self.redact(value)
        }
    }

    /// What is launched for it, if we run it.
    #[must_use]
    pub fn launch(&self) -> Option<&Launch> {
        match &self.origin {
            Origin::Remote(_) => None,
            Origin::Launch(launch) => Some(launch),
        }
    }

    /// What confines it, if anything does.
    #[must_use]
    pub fn sandbox(&self) -> Option<&Sandbox> {
        self.launch()?.sandbox()
    }

    /// Looks up the login that its variables are of; without one it is unusable.
    pub fn resolve_login(&mut self, logins: &BTreeMap<String, Login>) {
        let Origin::Launch(launch) = &mut self.origin else {
            return;
        };
        if launch.login.is_none() {
            return;
        }
        let found = Arc::make_mut(launch)
            .login
            .as_mut()
            .map(|it| it.resolve(logins));
        if let Some(Err(why)) = found {
            self.unusable.get_or_insert(why);
        }
    }

    /// The id that it is registered under, if it is.
    #[must_use]
    pub fn registered_as(&self) -> Option<&str> {
        match self.declared {
            Declared::Registered => Some(&self.sandbox()?.id),
            Declared::File | Declared::Project => None,
        }
    }

    /// What its events are kept under: the id that it is registered under, else its owner and name.
    #[must_use]
    pub fn id(&self) -> String {
        let registered = self.registered_as().map(str::to_owned);
        registered.unwrap_or_else(|| self.key().to_string())
    }

    #[must_use]
    pub fn key(&self) -> ServerKey {
        ServerKey {
            owner: self.owner.clone(),
            name: self.name.clone(),
        }
    }

    /// [`Origin::target`] without secrets that were filled in.
    #[must_use]
    pub fn target(&self) -> String {
        self.redact(&self.origin.target())
    }

    /// 1 for a registered server that is spoken to over its streams (H07), 64 for all others: as many as a client of its
    /// own might send.
    #[must_use]
    pub fn max_concurrency_or_default(&self) -> u32 {
        let has_streams = || self.launch().is_some_and(|it| it.reach == Reach::Streams);
        match (self.max_concurrency, self.declared) {
            (Some(limit), _) => limit.get(),
            (None, Declared::Registered) if has_streams() => 1,
            (None, _) => 64,
        }
    }

    /// Whether a caller of this project (`None`: of no project) sees the server.
    #[must_use]
    pub fn is_in_project(&self, project: Option<&ProjectId>) -> bool {
        match project {
            None => true,
            Some(project) => self.projects.is_empty() || self.projects.contains(project),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Place, Program, Remote};

    /// A process of this host, with these variables.
    fn process(env: &[(&str, &str)]) -> ServerSpec {
        let program = Program::Command {
            program: "npx".into(),
            args: vec![],
        };
        let mut launch = Launch::new(program, Place::Host);
        let env = env.iter();
        launch.env = env
            .map(|&(name, value)| (name.into(), value.into()))
            .collect();
        let name = ServerName::parse("s").unwrap();
        ServerSpec::new(name, Origin::Launch(launch.into()))
    }

    #[test]
    fn secrets_are_blotted_out() {
        let mut spec = process(&[("API_KEY", "tea\"pot"), ("REGION", "europe")]);
        spec.secrets.0.extend([
            "hunter2".into(),
            "hunter22".into(),
            "a".into(),
            "\"odd\"".into(),
        ]);
        for (text, expect) in [
            (
                "a hunter2 hunter22 in europe",
                "a [secret] [secret] in europe",
            ),
            (
                r#"{"x":"tea\"pot"} tea"pot"#,
                r#"{"x":"[secret]"} [secret]"#,
            ),
            (r#"{"x":"\"odd\""}"#, r#"{"x":"[secret]"}"#),
            // JSON as a text in JSON, as many tools answer.
            (
                r#"{"t":"{\"x\":\"<tea\\\"pot>\"}"}"#,
                r#"{"t":"{\"x\":\"<[secret]>\"}"}"#,
            ),
            ("nothing", "nothing"),
        ] {
            assert_eq!(spec.redact(text), expect);
        }
        assert!(!format!("{spec:?}").contains("hunter"));
    }

    #[test]
    fn one_call_at_a_time_is_for_registered_servers_with_streams() {
        let mut spec = process(&[]);
        assert_eq!(spec.max_concurrency_or_default(), 64);
        spec.declared = Declared::Registered;
        assert_eq!(spec.max_concurrency_or_default(), 1);
        spec.max_concurrency = NonZeroU32::new(8);
        assert_eq!(spec.max_concurrency_or_default(), 8);
        spec.max_concurrency = None;
        spec.origin = Origin::Remote(Remote {
            url: "http://localhost".into(),
            headers: BTreeMap::new(),
            sse: false,
            public_only: false,
            login: Login::default(),
        });
        assert_eq!(spec.max_concurrency_or_default(), 64);
    }
}
