//! The configuration of a server, before it runs.
//!
//! Invariants: two specs are equal if and only if a hot reload can keep the running instance, and `Debug` shows no
//! secrets. Deliberately absent: any state of the instance.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use crate::host_env::is_secretive;
use crate::{
    Breaker, CallerValues, EraPolicy, ExposedName, HeaderTemplate, Heartbeat, Hidden, Launch,
    Login, NativeName, Origin, ProjectId, Reach, RestartPolicy, Sandbox, ServerKey, ServerName,
    Sharing,
};

const REDACTED: &str = "[secret]";
/// Shorter values are too common to search for.
const MIN_SECRET_BYTES: usize = 4;

/// Maximum number of levels of JSON escaping at which a secret is recognised. Texts in results are often JSON themselves.
const MAX_ESCAPE_LEVELS: usize = 3;

/// The place where a server is declared. Lists of all servers are in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Declared {
    File,
    /// Registered as a hosted server, which is kept running.
    Registered,
    Project,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSpec {
    pub name: ServerName,
    /// The key in the configuration file, if it cannot be a `name`. Otherwise the entry's display name, if it has one.
    pub label: Option<String>,
    /// The source of this configuration.
    pub declared: Declared,
    /// The project that owns the server. A server declared in a project is connected at its first use. After some
    /// consecutive failures, the circuit breaker stops further attempts for a while.
    pub owner: Option<ProjectId>,
    pub origin: Origin,
    pub enabled: bool,
    pub era: EraPolicy,
    pub sharing: Sharing,
    /// Maximum number of concurrent calls. `None`: see [`ServerSpec::max_concurrency_or_default`].
    pub max_concurrency: Option<NonZeroU32>,
    /// Maximum number of different values of callers' headers that are served at the same time. `None`:
    /// [`ServerSpec::DEFAULT_CALLER_VALUES`].
    pub max_caller_values: Option<NonZeroU32>,
    /// Wall time of a call, including queueing.
    pub call_timeout: Duration,
    /// Wall time from launch to a completed handshake. A launched server that writes to its stderr gets more: see
    /// [`ServerSpec::longest_start`].
    pub start_timeout: Duration,
    pub tools: ToolChoice,
    /// The projects that see the server. If empty: all projects that see servers of the configuration file.
    pub projects: BTreeSet<ProjectId>,
    /// Why the server cannot be started or reached, such as a secret that is not set.
    pub unusable: Option<String>,
    /// True: the server starts only at its first use. `None`: the default for this kind of server (file, project or
    /// registered) and the settings decide.
    pub lazy: Option<bool>,
    /// The action when the server exits. `None`: [`RestartPolicy::Always`].
    pub restart: Option<RestartPolicy>,
    /// `None`: it is not pinged.
    pub heartbeat: Option<Heartbeat>,
    /// When to stop starting a project's server after failures. `None`: taken from the settings.
    pub breaker: Option<Breaker>,
    /// The values of the secrets that were filled in.
    pub secrets: Secrets,
    /// The names of the variables that its entry needs and that are not set.
    pub unset: BTreeSet<String>,
}

/// The choice of the tools of a server that are offered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolChoice {
    /// The tools that are offered. `None`: all.
    pub enabled: Option<BTreeSet<NativeName>>,
    /// Tools that are not offered, even if they are enabled.
    pub disabled: BTreeSet<NativeName>,
}

impl ToolChoice {
    #[must_use]
    pub fn offers(&self, tool: &str) -> bool {
        let enabled = self.enabled.as_ref();
        enabled.is_none_or(|enabled| enabled.contains(tool)) && !self.disabled.contains(tool)
    }

    /// Offers the tool, or stops offering it.
    pub fn set(&mut self, tool: &NativeName, enabled: bool) {
        if !enabled {
            self.disabled.insert(tool.clone());
            return;
        }
        self.disabled.remove(tool);
        if let Some(enabled) = &mut self.enabled {
            enabled.insert(tool.clone());
        }
    }
}

/// Values that must not appear in logs, records, responses or `Debug` output.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets(pub BTreeSet<String>);

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{} hidden]", self.0.len())
    }
}

/// A project's settings for a tool, which override what the server says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolSetting {
    /// `None`: as in the server's configuration.
    pub enabled: Option<bool>,
    /// The name that clients see.
    pub alias: Option<ExposedName>,
    pub description: Option<String>,
}

impl ServerSpec {
    pub const DEFAULT_CALLER_VALUES: usize = 16;
    pub const DEFAULT_CALL_TIMEOUT: Duration = Duration::from_secs(30);
    /// Long, because `uvx` and `npx` may have to install the server first.
    pub const DEFAULT_START_TIMEOUT: Duration = Duration::from_secs(60);

    /// A start with signs of life may take this many times the start timeout,
    const MAX_START_TIMEOUTS: u32 = 10;
    /// and this long, unless the start timeout itself is longer.
    const MAX_START: Duration = Duration::from_secs(600);

    /// Wall time from launch to a completed handshake of a server that shows signs of life: no [`Self::start_timeout`]
    /// passes without output on its stderr.
    #[must_use]
    pub fn longest_start(&self) -> Duration {
        let extended = self.start_timeout.saturating_mul(Self::MAX_START_TIMEOUTS);
        extended.min(Self::MAX_START).max(self.start_timeout)
    }

    /// An enabled server with default options.
    #[must_use]
    pub fn new(name: ServerName, origin: Origin) -> Self {
        Self {
            name,
            label: None,
            declared: Declared::File,
            owner: None,
            origin,
            enabled: true,
            era: EraPolicy::default(),
            sharing: Sharing::default(),
            max_concurrency: None,
            max_caller_values: None,
            call_timeout: Self::DEFAULT_CALL_TIMEOUT,
            start_timeout: Self::DEFAULT_START_TIMEOUT,
            tools: ToolChoice::default(),
            projects: BTreeSet::new(),
            unusable: None,
            lazy: None,
            restart: None,
            heartbeat: None,
            breaker: None,
            secrets: Secrets::default(),
            unset: BTreeSet::new(),
        }
    }

    /// Returns the text without secrets: those that were filled in, and values of variables and headers whose names
    /// indicate secrets. User information is removed too if a URL in the host's variables contains it. Finds them in plain form and escaped as in JSON, including
    /// JSON within JSON.
    #[must_use]
    pub fn redact(&self, text: &str) -> String {
        self.redact_also(text, &[])
    }

    /// Like [`ServerSpec::redact`], and also replaces `more`.
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
        let of_host = match &self.origin {
            Origin::Remote(_) => None,
            Origin::Launch(launch) => Some(launch.host_env.secrets()),
        };
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
            .chain(of_host.into_iter().flatten())
            .chain(login)
            .chain(more.iter().map(Hidden::reveal))
            .filter(|value| value.len() >= MIN_SECRET_BYTES)
            .collect();
        // Longest first, because a value may be part of another one.
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        let mut text = text.to_owned();
        for value in values {
            let mut spelling = value.to_owned();
            for _ in 0..=MAX_ESCAPE_LEVELS {
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

    /// Returns a value of its environment or headers without secrets. If the name indicates a secret, the whole value
    /// is replaced.
    #[must_use]
    pub fn redact_value(&self, name: &str, value: &str) -> String {
        if is_secretive(name) {
            REDACTED.to_owned()
        } else {
            self.redact(value)
        }
    }

    /// The headers whose values callers supply.
    fn caller_headers(&self) -> impl Iterator<Item = (&String, &HeaderTemplate)> {
        let remote = match &self.origin {
            Origin::Remote(remote) => Some(remote),
            Origin::Launch(_) => None,
        };
        remote.into_iter().flat_map(|remote| &remote.caller_headers)
    }

    /// Names of the callers' headers that are passed on to it, in lower case.
    #[must_use]
    pub fn passed_on(&self) -> BTreeSet<&str> {
        let templates = self.caller_headers().map(|(_, template)| template);
        templates.flat_map(HeaderTemplate::names).collect()
    }

    /// The caller's values that matter to it.
    #[must_use]
    pub fn own_values(&self, values: &CallerValues) -> CallerValues {
        values.of(&self.passed_on())
    }

    /// Names of the headers without which a caller cannot be served, and which are not among `values`.
    #[must_use]
    pub fn missing_headers(&self, values: &CallerValues) -> BTreeSet<&str> {
        let templates = self.caller_headers().map(|(_, template)| template);
        let required = templates.flat_map(HeaderTemplate::required);
        required.filter(|name| values.get(name).is_none()).collect()
    }

    /// The spec with the header values of one caller. They count as secrets of the spec. A header that cannot be filled
    /// in is left out.
    #[must_use]
    pub fn filled_for(&self, values: &CallerValues) -> Self {
        let mut spec = self.clone();
        if let Origin::Remote(remote) = &mut spec.origin {
            let filled = remote.caller_headers.iter();
            let filled =
                filled.filter_map(|(name, template)| Some((name.clone(), template.fill(values)?)));
            remote.headers.extend(filled);
            let values = values.iter().map(|(_, value)| value.to_owned());
            spec.secrets.0.extend(values);
        }
        spec
    }

    /// Maximum number of different values of callers' headers that are served at the same time.
    #[must_use]
    pub fn max_caller_values_or_default(&self) -> usize {
        let set = self.max_caller_values.map(NonZeroU32::get);
        set.map_or(Self::DEFAULT_CALLER_VALUES, |set| {
            usize::try_from(set).unwrap_or(usize::MAX)
        })
    }

    /// The program to launch, unless the server is remote.
    #[must_use]
    pub fn launch(&self) -> Option<&Launch> {
        match &self.origin {
            Origin::Remote(_) => None,
            Origin::Launch(launch) => Some(launch),
        }
    }

    /// Its sandbox, if any.
    #[must_use]
    pub fn sandbox(&self) -> Option<&Sandbox> {
        self.launch()?.sandbox()
    }

    /// Looks up the login for the variables of the server. The server becomes unusable if the login does not exist.
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

    /// The id of the registration, if it is registered.
    #[must_use]
    pub fn registered_as(&self) -> Option<&str> {
        match self.declared {
            Declared::Registered => Some(&self.sandbox()?.id),
            Declared::File | Declared::Project => None,
        }
    }

    /// The key of its events: the id of the registration, otherwise its owner and name.
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

    /// [`Origin::target`] without the secrets that were filled in.
    #[must_use]
    pub fn target(&self) -> String {
        self.redact(&self.origin.target())
    }

    /// 1 for a registered server on standard input and output. 64 for all others: as many as a single client might
    /// send.
    #[must_use]
    pub fn max_concurrency_or_default(&self) -> u32 {
        let has_streams = || self.launch().is_some_and(|it| it.reach == Reach::Streams);
        match (self.max_concurrency, self.declared) {
            (Some(limit), _) => limit.get(),
            (None, Declared::Registered) if has_streams() => 1,
            (None, _) => 64,
        }
    }

    /// Returns whether a caller of this project sees the server. `None`: the caller has no project.
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
    use crate::{HeaderPart, Place, Program, Remote};

    /// A process on this host with these variables.
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
            // This is JSON inside a JSON string, as many tools return it.
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
    fn a_callers_values_are_secrets() {
        let template = |name: &str, default: Option<&str>| {
            HeaderTemplate(vec![HeaderPart::Caller {
                name: name.to_owned(),
                default: default.map(str::to_owned),
            }])
        };
        let mut remote = Remote::new("http://localhost".into());
        remote.caller_headers = BTreeMap::from([
            ("Authorization".to_owned(), template("x-upstream", None)),
            ("X-Zone".to_owned(), template("x-zone", Some("eu"))),
        ]);
        let spec = ServerSpec {
            origin: Origin::Remote(remote.into()),
            ..process(&[])
        };
        let sent = [("x-upstream", "Bearer hunter2"), ("x-other", "a")];
        let sent = sent.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let values = spec.own_values(&sent.into_iter().collect());
        assert_eq!(values.iter().count(), 1);
        assert!(spec.missing_headers(&values).is_empty());
        let none = CallerValues::default();
        assert_eq!(spec.missing_headers(&none), BTreeSet::from(["x-upstream"]));
        let filled = spec.filled_for(&values);
        let Origin::Remote(remote) = &filled.origin else {
            panic!("it is still remote");
        };
        assert_eq!(remote.headers["Authorization"], "Bearer hunter2");
        assert_eq!(remote.headers["X-Zone"], "eu");
        assert_eq!(filled.redact("got Bearer hunter2"), "got [secret]");
        assert!(!format!("{filled:?}").contains("hunter2"));
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
        spec.origin = Origin::Remote(Remote::new("http://localhost".into()).into());
        assert_eq!(spec.max_concurrency_or_default(), 64);
    }
}
