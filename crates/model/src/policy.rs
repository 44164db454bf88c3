//! Policies: settings that choose between conflicting goals.
//!
//! In configuration, each is written as the word that [`fmt::Display`] returns.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The protocol era for a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EraPolicy {
    /// Detected by asking the server, and remembered.
    #[default]
    Auto,
    /// 2024-11-05 to 2025-11-25: `initialize` and sessions.
    Legacy,
    /// 2026-07-28: stateless.
    Modern,
}

/// The sharing of running instances between callers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sharing {
    /// All callers.
    #[default]
    Shared,
    /// Each client session has its own instance.
    Session,
}

/// How the tools and prompts of several servers are named for clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NamingPolicy {
    /// `server__tool`, but only for names that two servers offer.
    #[default]
    PrefixOnConflict,
    /// `server__tool` for all names.
    AlwaysPrefix,
    /// A tool of a later server replaces an earlier server's tool with the same name.
    LastWins,
    /// Names exactly as the servers gave them. A clash is an error.
    Preserve,
}

/// How servers are started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StartPolicy {
    /// One after another in configuration order. The first failure fails the start.
    Sequential,
    /// All at once. A failing server does not affect the others.
    #[default]
    Parallel,
    /// Each at its first use.
    Lazy,
}

/// The tools in the list that clients get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ToolMode {
    /// All tools.
    #[default]
    All,
    /// Tools that find and call the others, and the tools chosen by setting.
    Search,
    /// [`ToolMode::All`], unless the list is longer than the setting `search_above`.
    Auto,
}

/// The recording of arguments and results of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuditBodies {
    /// Digests.
    #[default]
    Digests,
    /// Digests and texts, with the project's secrets redacted.
    Full,
}

/// The handling of a tool whose definition differs from the approved one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pinning {
    /// The tool is not offered until a user approves the new definition.
    #[default]
    Quarantine,
    /// The tool is offered, and a warning is logged.
    Warn,
    /// Definitions are not remembered.
    Off,
}

/// The package version of a server that `npx` or `uvx` starts directly on the host. In a sandbox, the version is always
/// pinned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Packages {
    /// The version that `npx` or `uvx` finds at each start.
    #[default]
    Newest,
    /// The version that was installed first, until it is updated.
    Pinned,
}

/// The isolation of a server from the host, strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Provider {
    /// Docker with `runsc`: a separate kernel in user space.
    Gvisor,
    /// Docker with a Kata or Firecracker runtime: a virtual machine.
    Firecracker,
    /// A virtual machine hosted by E2B.
    E2b,
    /// A pod in a Kubernetes cluster.
    Kubernetes,
    /// A service in a Docker Swarm.
    Swarm,
    /// Docker with `runc`: namespaces.
    Runc,
    /// A process on this host in separate namespaces (bubblewrap).
    Process,
}

/// The action when a server exits, with the same meaning as in Docker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RestartPolicy {
    /// Restart it. If it was stopped manually, start it again when the gateway starts.
    #[default]
    Always,
    /// Restart it unless its exit code was 0.
    OnFailure,
    /// Like [`RestartPolicy::Always`], but a server that was stopped manually stays stopped when the gateway starts.
    UnlessStopped,
    No,
}

/// A word that is not a value of the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be one of {}", .allowed.join(", "))]
pub struct UnknownWord {
    pub allowed: &'static [&'static str],
}

/// The permissions of a user. Each role includes the previous ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// View.
    Read,
    /// Use tools.
    Call,
    /// Change a project.
    Manage,
    /// Everything, everywhere.
    Admin,
}

macro_rules! words {
    ($($policy:ident { $($variant:ident = $word:literal),* })*) => {$(
        impl $policy {
            /// The words that configuration may use, in the order of the variants.
            pub const WORDS: &'static [&'static str] = &[$($word),*];

            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),* }
            }
        }

        impl fmt::Display for $policy {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl FromStr for $policy {
            type Err = UnknownWord;
            fn from_str(word: &str) -> Result<Self, UnknownWord> {
                match word {
                    $($word => Ok(Self::$variant),)*
                    _ => Err(UnknownWord { allowed: Self::WORDS }),
                }
            }
        }
    )*};
}

words! {
    AuditBodies { Digests = "digests", Full = "full" }
    EraPolicy { Auto = "auto", Legacy = "legacy", Modern = "modern" }
    Sharing { Shared = "shared", Session = "session" }
    NamingPolicy {
        PrefixOnConflict = "prefix-on-conflict",
        AlwaysPrefix = "always-prefix",
        LastWins = "last-wins",
        Preserve = "preserve"
    }
    Packages { Newest = "newest", Pinned = "pinned" }
    Pinning { Quarantine = "quarantine", Warn = "warn", Off = "off" }
    Provider {
        Gvisor = "gvisor",
        Firecracker = "firecracker",
        E2b = "e2b",
        Kubernetes = "kubernetes",
        Swarm = "swarm",
        Runc = "runc",
        Process = "process"
    }
    Role { Read = "read", Call = "call", Manage = "manage", Admin = "admin" }
    RestartPolicy {
        Always = "always",
        OnFailure = "on-failure",
        UnlessStopped = "unless-stopped",
        No = "no"
    }
    StartPolicy { Sequential = "sequential", Parallel = "parallel", Lazy = "lazy" }
    ToolMode { All = "all", Search = "search", Auto = "auto" }
}

/// The circuit breaker for a project's server that fails to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breaker {
    /// Consecutive failed starts. 0 counts as 1.
    pub failures: u32,
    pub cooldown: Duration,
}

impl Default for Breaker {
    fn default() -> Self {
        Self {
            failures: 3,
            cooldown: Duration::from_secs(60),
        }
    }
}

/// Pings to find out whether a running server still responds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// Time from a response to the next ping.
    pub interval: Duration,
    /// A response that takes longer counts as missed.
    pub timeout: Duration,
    /// Consecutive missed responses after which the server is unresponsive.
    pub misses: u32,
}

impl Default for Heartbeat {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(30),
            timeout: Duration::from_secs(10),
            misses: 3,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_serde_agree() {
        for word in NamingPolicy::WORDS {
            let parsed: NamingPolicy = word.parse().unwrap();
            assert_eq!(serde_json::to_value(parsed).unwrap(), *word);
        }
        for word in StartPolicy::WORDS {
            let parsed: StartPolicy = word.parse().unwrap();
            assert_eq!(serde_json::to_value(parsed).unwrap(), *word);
        }
        for word in ToolMode::WORDS {
            let parsed: ToolMode = word.parse().unwrap();
            assert_eq!(serde_json::to_value(parsed).unwrap(), *word);
        }
        assert_eq!(
            "never".parse::<Sharing>().unwrap_err().to_string(),
            "must be one of shared, session"
        );
    }
}
