//! What an agent is and how far it goes.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use model::ProjectId;
use serde::Deserialize;

use crate::llm::Usage;

/// An agent's settings. All bounds have defaults that suit a chat.
#[derive(Clone, Debug)]
pub struct Config {
    /// What its runs are recorded under.
    pub name: Arc<str>,
    pub project: Option<ProjectId>,
    /// The system prompt.
    pub system: Option<Arc<str>>,
    /// The most requests to the model for one message of the user.
    pub max_turns: u32,
    /// The most tool calls in flight of one turn.
    pub parallel_calls: usize,
    /// The longest that starting the servers may take.
    pub start_timeout: Duration,
    /// The longest that a tool call may take.
    pub tool_timeout: Duration,
    /// The longest that a person's answer to a server's question is waited for; then it is cancelled.
    pub answer_timeout: Duration,
    /// How much of a result's text the model is shown at once, in bytes.
    pub preview_bytes: usize,
    /// How much of a longer one is kept to be read on, in bytes.
    pub result_bytes: usize,
    /// How many of those a conversation keeps.
    pub results_kept: usize,
    /// The largest conversation, in bytes of text, arguments and pictures.
    pub conversation_bytes: usize,
    /// What models cost, by their names.
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

/// What a million tokens cost, in one currency for all models.
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
        // A price for a million tokens is the price of one token in millionths. The cast saturates, and makes nothing
        // of what is no number.
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
        // 3,000 + 1,500 + 3,000 + 3,753.75
        assert_eq!(price.micros(usage), 11_254);
        assert_eq!(Price::default().micros(usage), 0);
        let broken = Price {
            input: f64::NAN,
            ..price
        };
        assert_eq!(broken.micros(usage), 0);
    }
}
