//! Policies: the settings that choose between promises which pull apart.
//!
//! Each is written in configuration as the word that [`fmt::Display`] gives.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Which protocol era is spoken to a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EraPolicy {
    /// Found out by asking the server, and remembered.
    #[default]
    Auto,
    /// 2024-11-05 to 2025-11-25: `initialize` and sessions.
    Legacy,
    /// 2026-07-28: stateless.
    Modern,
}

/// Who shares one running instance of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sharing {
    /// All callers.
    #[default]
    Shared,
    /// Nobody: an instance per client session.
    Session,
}

/// How tools and prompts of several servers are named towards clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NamingPolicy {
    /// `server__tool` only for names that two servers offer.
    #[default]
    PrefixOnConflict,
    /// `server__tool` for all.
    AlwaysPrefix,
    /// The later server replaces the earlier one's tool of that name.
    LastWins,
    /// Names exactly as the servers gave them; a clash is an error.
    Preserve,
}

/// How the servers are started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StartPolicy {
    /// One after another in configuration order; the first failure fails the start.
    Sequential,
    /// All at once; one failing does not touch the others.
    #[default]
    Parallel,
    /// Each at its first use.
    Lazy,
}

/// What is kept of the arguments and results of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuditBodies {
    /// Their digests.
    #[default]
    Digests,
    /// Their digests and texts, the project's secrets blotted out.
    Full,
}

/// What happens to a tool whose definition is not the one that was agreed to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pinning {
    /// It is not offered until somebody approves the new definition.
    #[default]
    Quarantine,
    /// It is offered, and a warning is logged.
    Warn,
    /// Definitions are not remembered.
    Off,
}

/// Which version of its package a server gets that `npx` or `uvx` starts on the host itself. In a sandbox it is always the
/// pinned one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Packages {
    /// Whatever `npx` and `uvx` find at each start.
    #[default]
    Newest,
    /// The one that was installed first, until it is updated.
    Pinned,
}

/// What isolates a server from the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Provider {
    /// Docker with `runsc`: a kernel of its own, in user space.
    Gvisor,
    /// Docker with a Kata or Firecracker runtime: a virtual machine.
    Firecracker,
    /// Somebody else's virtual machine.
    E2b,
    /// A pod of a Kubernetes cluster.
    Kubernetes,
    /// A service of a Docker Swarm.
    Swarm,
    /// Docker with `runc`: namespaces.
    Runc,
    /// A process of this host in namespaces of its own (bubblewrap).
    Process,
}

/// What happens when a server ends; as Docker has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RestartPolicy {
    /// It is started again, also when the product starts and it had been stopped by hand.
    #[default]
    Always,
    /// It is started again if it ended with anything but code 0.
    OnFailure,
    /// As [`RestartPolicy::Always`], but what was stopped by hand stays stopped when the product starts.
    UnlessStopped,
    No,
}

/// A word that is none of a policy's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the value is none of {}", .allowed.join(", "))]
pub struct UnknownWord {
    pub allowed: &'static [&'static str],
}

/// What somebody may do; each one all that the ones before may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// See what there is.
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
}

/// When a project's own server that does not start is left alone (P12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breaker {
    /// Starts in a row that came to nothing; 0 is taken as 1.
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

/// How to find out whether a server that runs still answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// From one answer to the next question.
    pub interval: Duration,
    /// An answer that takes longer is a miss.
    pub timeout: Duration,
    /// Misses in a row after which it is unresponsive.
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
        assert_eq!(
            "never".parse::<Sharing>().unwrap_err().to_string(),
            "the value is none of shared, session"
        );
    }
}
