//! An agent's settings and limits.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use model::ProjectId;
use serde::Deserialize;

use crate::llm::Usage;

/// An agent's settings. The default limits suit a chat.
#[derive(Clone, Debug)]
pub struct Config {
    /// The agent's name in the records of its runs.
    pub name: Arc<str>,
    pub project: Option<ProjectId>,
    pub system: Option<Arc<str>>,
    /// Maximum model requests per user message.
    pub max_turns: u32,
    /// Maximum concurrent tool calls in one turn.
    pub parallel_calls: usize,
    /// Timeout for starting the servers.
    pub start_timeout: Duration,
    /// Time after which a turn that still waits for servers reports this to the client.
    pub quiet_wait: Duration,
    /// Timeout for a tool call.
    pub tool_timeout: Duration,
    /// Timeout for the user's answer to a server's question. After it, the question is cancelled.
    pub answer_timeout: Duration,
    /// Maximum bytes of a result's text that are shown to the model at once.
    pub preview_bytes: usize,
    /// Maximum bytes kept of a longer result, so that the model can read more of it.
    pub result_bytes: usize,
    /// Maximum number of long results kept per conversation.
    pub results_kept: usize,
    /// Maximum bytes of a conversation: text, arguments and images.
    pub conversation_bytes: usize,
    /// Prices by model name.
    pub prices: BTreeMap<String, Price>,
}

impl Config {
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self {
            name: name.into(),
            project: None,
            system: None,
            max_turns: 20,
            parallel_calls: 8,
            start_timeout: Duration::from_secs(300),
            quiet_wait: Duration::from_secs(2),
            tool_timeout: Duration::from_secs(300),
            answer_timeout: Duration::from_secs(600),
            preview_bytes: 20_000,
            result_bytes: 512 * 1024,
            results_kept: 8,
            conversation_bytes: 8 * 1024 * 1024,
            prices: BTreeMap::new(),
        }
    }
}

/// Prices per million tokens, in the same currency for all models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Price {
    pub input: f64,
    pub output: f64,
    pub cache_read: f64,
    pub cache_write: f64,
}

impl Price {
    /// The cost in millionths of the currency.
    #[must_use]
    pub fn micros(&self, usage: Usage) -> u64 {
        // A price per million tokens equals the price of one token in millionths. The cast saturates, and turns NaN
        // into 0.
        let of = |tokens: u64, price: f64| tokens as f64 * price;
        let sum = of(usage.input, self.input)
            + of(usage.output, self.output)
            + of(usage.cache_read, self.cache_read)
            + of(usage.cache_write, self.cache_write);
        sum.round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs() {
        let price = Price {
            input: 3.0,
            output: 15.0,
            cache_read: 0.3,
            cache_write: 3.75,
        };
        let usage = Usage {
            input: 1_000,
            output: 100,
            cache_read: 10_000,
            cache_write: 1_001,
        };
        // The sum is 3,000 + 1,500 + 3,000 + 3,753.75, rounded up.
        assert_eq!(price.micros(usage), 11_254);
        assert_eq!(Price::default().micros(usage), 0);
        let broken = Price {
            input: f64::NAN,
            ..price
        };
        assert_eq!(broken.micros(usage), 0);
    }
}
