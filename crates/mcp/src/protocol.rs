//! Protocol versions, eras, and the names that the specification reserves.

use std::fmt;

/// The two protocol generations (2026-07-28 basic/versioning "Terminology").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Era {
    /// `initialize`, sessions, server requests.
    Legacy,
    /// Stateless: `_meta` on every request, `server/discover`, `input_required`.
    Modern,
}

/// A protocol revision that this crate supports, oldest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    V2024_11_05,
    V2025_03_26,
    V2025_06_18,
    V2025_11_25,
    V2026_07_28,
}

impl Version {
    pub const LATEST_LEGACY: Self = Self::V2025_11_25;
    pub const LATEST: Self = Self::V2026_07_28;
    pub const ALL: [Self; 5] = [
        Self::V2026_07_28,
        Self::V2025_11_25,
        Self::V2025_06_18,
        Self::V2025_03_26,
        Self::V2024_11_05,
    ];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V2024_11_05 => "2024-11-05",
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
            Self::V2026_07_28 => "2026-07-28",
        }
    }

    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|version| version.as_str() == text)
    }

    #[must_use]
    pub fn era(self) -> Era {
        if self >= Self::V2026_07_28 {
            Era::Modern
        } else {
            Era::Legacy
        }
    }

    /// The version for the response to `initialize` if the client asks for `asked`: that one, or the latest legacy
    /// revision (2025-11-25 basic/lifecycle "Version Negotiation").
    #[must_use]
    pub fn negotiate_legacy(asked: &str) -> Self {
        match Self::parse(asked) {
            Some(version) if version.era() == Era::Legacy => version,
            _ => Self::LATEST_LEGACY,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Reserved `_meta` keys (2026-07-28 basic "_meta").
pub mod meta {
    pub const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
    pub const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
    pub const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
    pub const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
    pub const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";
    pub const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
    pub const PROGRESS_TOKEN: &str = "progressToken";

    /// The members of `_meta` in each of the gateway's own requests, as JSON text without braces. `info` and
    /// `capabilities` are JSON objects (2026-07-28 basic "Per-request protocol fields").
    #[must_use]
    pub fn members(info: &str, capabilities: &str) -> String {
        let version = super::Version::LATEST;
        format!(
            "\"{PROTOCOL_VERSION}\":\"{version}\",\"{CLIENT_INFO}\":{info},\"{CLIENT_CAPABILITIES}\":{capabilities}"
        )
    }
}

/// Methods that the gateway handles. All others are only relayed.
pub mod method {
    pub const INITIALIZE: &str = "initialize";
    pub const INITIALIZED: &str = "notifications/initialized";
    pub const DISCOVER: &str = "server/discover";
    pub const LISTEN: &str = "subscriptions/listen";
    pub const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";
    pub const PING: &str = "ping";
    pub const TOOLS_LIST: &str = "tools/list";
    pub const TOOLS_CALL: &str = "tools/call";
    pub const RESOURCES_LIST: &str = "resources/list";
    pub const TEMPLATES_LIST: &str = "resources/templates/list";
    pub const RESOURCES_READ: &str = "resources/read";
    pub const RESOURCES_SUBSCRIBE: &str = "resources/subscribe";
    pub const RESOURCES_UNSUBSCRIBE: &str = "resources/unsubscribe";
    pub const SKILLS_LIST: &str = "skills/list";
    pub const SKILLS_GET: &str = "skills/get";
    pub const DIRECTORY_READ: &str = "resources/directory/read";
    pub const PROMPTS_LIST: &str = "prompts/list";
    pub const PROMPTS_GET: &str = "prompts/get";
    pub const COMPLETE: &str = "completion/complete";
    pub const SET_LEVEL: &str = "logging/setLevel";
    pub const CANCELLED: &str = "notifications/cancelled";
    pub const PROGRESS: &str = "notifications/progress";
    pub const MESSAGE: &str = "notifications/message";
    pub const RESOURCE_UPDATED: &str = "notifications/resources/updated";
    pub const TOOLS_CHANGED: &str = "notifications/tools/list_changed";
    pub const PROMPTS_CHANGED: &str = "notifications/prompts/list_changed";
    pub const RESOURCES_CHANGED: &str = "notifications/resources/list_changed";
    pub const ROOTS_CHANGED: &str = "notifications/roots/list_changed";
    pub const SAMPLING: &str = "sampling/createMessage";
    pub const ELICIT: &str = "elicitation/create";
    pub const ELICITATION_COMPLETE: &str = "notifications/elicitation/complete";
    pub const ROOTS_LIST: &str = "roots/list";
}
