//! What is known about a configured server before it runs.
//!
//! Invariants: two specs are equal exactly when a hot reload may leave the running instance
//! alone. Values of `env` and `headers`, arguments and the user part of a URL can hold
//! secrets, so `Debug` shows none of them. Deliberately absent: any state of the instance.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::{
    Breaker, EraPolicy, ExposedName, Hosting, NativeName, ProjectId, ServerKey, ServerName, Sharing,
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

/// How a server is reached.
#[derive(Clone, PartialEq, Eq)]
pub enum Transport {
    /// A child process, spoken to over its standard input and output.
    Stdio {
        command: String,
        args: Vec<String>,
        env: BTreeMap<String, String>,
        cwd: Option<PathBuf>,
    },
    /// Streamable HTTP. A server that turns out to speak HTTP+SSE is found out on connecting.
    Http {
        url: String,
        headers: BTreeMap<String, String>,
    },
    /// HTTP+SSE of 2024-11-05.
    Sse {
        url: String,
        headers: BTreeMap<String, String>,
    },
    /// An instance in a sandbox of ours, over its standard streams or at its port.
    Hosted(Arc<Hosting>),
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
    pub transport: Transport,
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
    /// Whether its URL may only lead to addresses of the public internet: it was not an administrator who
    /// named it.
    pub public_only: bool,
    /// Why it cannot be started or reached as it stands, for instance a secret that is not set.
    pub unusable: Option<String>,
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
    pub fn new(name: ServerName, transport: Transport) -> Self {
        Self {
            name,
            declared: Declared::File,
            owner: None,
            transport,
            enabled: true,
            era: EraPolicy::default(),
            sharing: Sharing::default(),
            max_concurrency: None,
            call_timeout: Self::DEFAULT_CALL_TIMEOUT,
            start_timeout: Self::DEFAULT_START_TIMEOUT,
            disabled_tools: BTreeSet::new(),
            projects: BTreeSet::new(),
            public_only: false,
            unusable: None,
            breaker: None,
            secrets: Secrets::default(),
        }
    }

    /// The text without the server's secrets: those that were filled in, and what stands under a name that
    /// says so in its environment and headers. Plain, or escaped as in JSON, also in JSON within JSON.
    #[must_use]
    pub fn redact(&self, text: &str) -> String {
        let named: &BTreeMap<String, String> = match &self.transport {
            Transport::Stdio { env, .. } => env,
            Transport::Http { headers, .. } | Transport::Sse { headers, .. } => headers,
            Transport::Hosted(hosting) => &hosting.env,
        };
        let named = named
            .iter()
            .filter(|(name, _)| is_secretive(name))
            .map(|(_, value)| value.as_str());
        let mut values: Vec<&str> = self
            .secrets
            .0
            .iter()
            .map(String::as_str)
            .chain(named)
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

    /// How it is hosted, if it is.
    #[must_use]
    pub fn hosting(&self) -> Option<&Arc<Hosting>> {
        match &self.transport {
            Transport::Hosted(hosting) => Some(hosting),
            _ => None,
        }
    }

    #[must_use]
    pub fn key(&self) -> ServerKey {
        ServerKey {
            owner: self.owner.clone(),
            name: self.name.clone(),
        }
    }

    /// [`Transport::target`] without secrets that were filled in.
    #[must_use]
    pub fn target(&self) -> String {
        self.redact(&self.transport.target())
    }

    /// 1 for a bridged server (H07), 64 for all others: as many as a client of its own might send.
    #[must_use]
    pub fn max_concurrency_or_default(&self) -> u32 {
        match (&self.max_concurrency, &self.transport) {
            (Some(limit), _) => limit.get(),
            (None, Transport::Hosted(hosting)) if hosting.bridge => 1,
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

impl Transport {
    /// The word that configuration uses.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Stdio { .. } => "stdio",
            Self::Http { .. } => "http",
            Self::Sse { .. } => "sse",
            Self::Hosted(_) => "hosted",
        }
    }

    /// The command without its arguments, the URL without user, query and fragment, or the image: fit
    /// for lists and logs.
    #[must_use]
    pub fn target(&self) -> String {
        match self {
            Self::Stdio { command, .. } => command.clone(),
            Self::Http { url, .. } | Self::Sse { url, .. } => url_for_display(url),
            Self::Hosted(hosting) => hosting.source.target().to_owned(),
        }
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdio {
                command,
                args,
                env,
                cwd,
            } => f
                .debug_struct("Stdio")
                .field("command", command)
                .field("args", &format_args!("[{} hidden]", args.len()))
                .field("env", &env.keys())
                .field("cwd", cwd)
                .finish(),
            Self::Http { url, headers } => debug_remote(f, "Http", url, headers),
            Self::Sse { url, headers } => debug_remote(f, "Sse", url, headers),
            Self::Hosted(hosting) => hosting.fmt(f),
        }
    }
}

fn debug_remote(
    f: &mut fmt::Formatter<'_>,
    kind: &str,
    url: &str,
    headers: &BTreeMap<String, String>,
) -> fmt::Result {
    f.debug_struct(kind)
        .field("url", &url_for_display(url))
        .field("headers", &headers.keys())
        .finish()
}

/// A URL without the parts that carry secrets: user, query and fragment.
#[must_use]
pub fn url_for_display(url: &str) -> String {
    let end = url.find(['?', '#']).unwrap_or(url.len());
    let (shown, cut) = url.split_at(end);
    let authority = shown.find("://").map_or(0, |at| at + 3);
    let path = shown[authority..]
        .find('/')
        .map_or(shown.len(), |at| authority + at);
    let host = shown[authority..path]
        .rfind('@')
        .map_or(authority, |at| authority + at + 1);
    let tail = if cut.len() > 1 { "?…" } else { "" };
    format!("{}{}{tail}", &shown[..authority], &shown[host..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(transport: Transport) -> ServerSpec {
        ServerSpec::new(ServerName::parse("s").unwrap(), transport)
    }

    #[test]
    fn debug_shows_no_secret() {
        let secret = || "hunter2".to_owned();
        let stdio = spec(Transport::Stdio {
            command: "npx".into(),
            args: vec![secret()],
            env: BTreeMap::from([("API_KEY".into(), secret())]),
            cwd: None,
        });
        let http = spec(Transport::Http {
            url: "https://me:hunter2@example.com/mcp?key=hunter2".into(),
            headers: BTreeMap::from([("Authorization".into(), secret())]),
        });
        let text = format!("{stdio:?} {http:?} {}", http.transport.target());
        assert!(!text.contains("hunter2"), "{text}");
        assert!(text.contains("API_KEY") && text.contains("example.com/mcp"));
    }

    #[test]
    fn secrets_are_blotted_out() {
        let mut stdio = spec(Transport::Stdio {
            command: "npx".into(),
            args: vec![],
            env: BTreeMap::from([
                ("API_KEY".into(), "tea\"pot".into()),
                ("REGION".into(), "europe".into()),
            ]),
            cwd: None,
        });
        stdio.secrets.0.extend([
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
            assert_eq!(stdio.redact(text), expect);
        }
        assert!(!format!("{stdio:?}").contains("hunter"));
    }

    #[test]
    fn one_call_at_a_time_is_for_bridged_servers() {
        let mut stdio = spec(Transport::Stdio {
            command: "x".into(),
            args: vec![],
            env: BTreeMap::new(),
            cwd: None,
        });
        assert_eq!(stdio.max_concurrency_or_default(), 64);
        stdio.max_concurrency = NonZeroU32::new(8);
        assert_eq!(stdio.max_concurrency_or_default(), 8);
        let http = spec(Transport::Http {
            url: "http://localhost".into(),
            headers: BTreeMap::new(),
        });
        assert_eq!(http.max_concurrency_or_default(), 64);
    }

    #[test]
    fn urls_for_display() {
        for (url, expect) in [
            ("http://h:1/p", "http://h:1/p"),
            ("http://u:p@h/p@q", "http://h/p@q"),
            ("http://u:a/b@h/p", "http://u:a/b@h/p"),
            ("http://h?k=v", "http://h?…"),
            ("http://h/#f", "http://h/?…"),
            ("no url", "no url"),
            ("", ""),
        ] {
            assert_eq!(url_for_display(url), expect, "{url}");
        }
    }
}
