//! BM25 alone, the usual ranking by words, for comparison.
//!
//! The name counts three times; the server, the description, and the names and descriptions of parameters count once. Names are
//! divided at `_`, `-` and capital letters. A few endings and frequent words are dropped.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::Value;

use super::data::Catalog;

const SATURATION: f64 = 1.2;
const LENGTH_EFFECT: f64 = 0.75;
const NAME_WEIGHT: usize = 3;
const STOP_WORDS: &str = "a an and are as at be by can for from has have in into is it its of on or that the their this to \
    was were will with you your i me my we our";

pub(super) struct Bm25 {
    tools: Vec<Document>,
}

struct Document {
    place: (usize, usize),
    counts: HashMap<String, usize>,
    length: usize,
}

impl Bm25 {
    pub(super) fn new(catalog: &Catalog) -> Self {
        let document = |place: (usize, usize)| {
            let server = &catalog.servers[place.0];
            let tool = &server.tools[place.1];
            let mut words = Vec::new();
            for _ in 0..NAME_WEIGHT {
                words.extend(self::words(&server.names[place.1]));
            }
            words.extend(self::words(&server.name));
            words.extend(self::words(
                tool["description"].as_str().unwrap_or_default(),
            ));
            let parameters = tool["inputSchema"]["properties"].as_object();
            for (name, parameter) in parameters.into_iter().flatten() {
                words.extend(self::words(name));
                let description = parameter.get("description").and_then(Value::as_str);
                words.extend(self::words(description.unwrap_or_default()));
            }
            let length = words.len();
            let mut counts = HashMap::new();
            for word in words {
                *counts.entry(word).or_default() += 1;
            }
            Document {
                place,
                counts,
                length,
            }
        };
        Self {
            tools: catalog.places().into_iter().map(document).collect(),
        }
    }

    /// The places of the tools that fit best, best first.
    pub(super) fn search(
        &self,
        shown: &[Vec<bool>],
        query: &str,
        count: usize,
    ) -> Vec<(usize, usize)> {
        let tools = self.tools.iter();
        let tools = tools.filter(|tool| shown[tool.place.0][tool.place.1]);
        let tools: Vec<&Document> = tools.collect();
        let length: usize = tools.iter().map(|tool| tool.length).sum();
        let usual = length as f64 / tools.len().max(1) as f64;
        let query: HashSet<String> = words(query).into_iter().collect();
        let rarities: BTreeMap<&String, f64> = query
            .iter()
            .map(|word| {
                let with = tools.iter().filter(|tool| tool.counts.contains_key(word));
                let with = with.count() as f64;
                let without = tools.len() as f64 - with;
                (word, (1.0 + (without + 0.5) / (with + 0.5)).ln())
            })
            .collect();
        let score = |tool: &Document| {
            let long = 1.0 - LENGTH_EFFECT + LENGTH_EFFECT * tool.length as f64 / usual;
            let scores = rarities.iter().map(|(word, rarity)| {
                let count = tool.counts.get(*word).copied().unwrap_or(0) as f64;
                rarity * count * (SATURATION + 1.0) / (count + SATURATION * long)
            });
            scores.sum::<f64>()
        };
        let mut scored: Vec<_> = tools.iter().map(|tool| (score(tool), tool.place)).collect();
        scored.retain(|(score, _)| *score > 0.0);
        scored.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
        scored.truncate(count);
        scored.into_iter().map(|(_, place)| place).collect()
    }
}

fn words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = ' ';
    for character in text.chars() {
        let begins = character.is_uppercase() && before.is_lowercase();
        if begins || !character.is_alphanumeric() {
            words.push(String::new());
        }
        if character.is_alphanumeric()
            && let Some(word) = words.last_mut()
        {
            word.extend(character.to_lowercase());
        }
        before = character;
    }
    words
        .retain(|word| !word.is_empty() && !STOP_WORDS.split_whitespace().any(|stop| stop == word));
    words
        .into_iter()
        .map(|word| stem(&word).to_owned())
        .collect()
}

/// The word without a usual ending.
fn stem(word: &str) -> &str {
    let endings = ["ing", "ies", "ed", "es", "s"].iter();
    let mut stems = endings.filter_map(|ending| word.strip_suffix(ending));
    stems.find(|stem| stem.len() > 2).unwrap_or(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::data;

    #[test]
    fn names_are_divided_into_words() {
        let divided = |text: &str| words(text).join(" ");
        assert_eq!(divided("getStock_prices for the URL"), "get stock pric url");
        assert_eq!(divided("searching"), "search");
    }

    #[test]
    fn the_tool_with_the_rare_word_is_first() {
        let catalog = data::ours();
        let index = Bm25::new(&catalog);
        let all = catalog.everything();
        let found = index.search(&all, "whois information about a domain", 1);
        let (server, tool) = found[0];
        assert_eq!(catalog.servers[server].names[tool], "whois_domain");
        assert_eq!(index.search(&all, "xylophone", 5), []);
    }
}
