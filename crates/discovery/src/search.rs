//! The search over several segments.

use crate::{
    fusion::fuse,
    names::{Matcher, Tier},
    part::Part,
    ranking::{Ranking, words},
    segment::Field,
    vector::Vector,
    words::MAX_QUERY_BYTES,
};

/// The weight of a related word, as a share of that of the word itself, if their meanings are equal.
const RELATED_WEIGHT: f32 = 0.5;

/// The same if vectors are compared as well, which find tools with related words by themselves.
const RELATED_WEIGHT_BESIDE_MEANINGS: f32 = 0.2;

/// What to search for.
#[derive(Debug, Clone, Copy)]
pub struct Query<'q> {
    text: &'q str,
    vectors: &'q [Vector],
}

impl<'q> Query<'q> {
    /// A name, the beginning of a name, or a task in words.
    pub fn new(text: &'q str) -> Self {
        Self { text, vectors: &[] }
    }

    /// `vectors` are those of the text and of its clauses. Tools are similar to the task if they are similar to one of
    /// them.
    #[must_use]
    pub fn with_vectors(self, vectors: &'q [Vector]) -> Self {
        Self { vectors, ..self }
    }
}

/// A tool that was found.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Hit {
    /// The index of the part.
    pub part: usize,
    /// The index of the tool in the part.
    pub tool: usize,
    pub tier: Tier,
    /// Relevance. Only the scores of one search can be compared.
    pub score: f32,
    /// How similar the meanings of the query and of the tool are, from -1 to 1. `None` without vectors.
    pub similarity: Option<f32>,
    /// The score by words, divided among the fields. Without vectors, their sum is `score`.
    pub fields: FieldScores,
}

/// A score, divided among the fields of a definition, and earlier searches.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct FieldScores {
    pub name: f32,
    /// The title, the description and the annotations.
    pub description: f32,
    /// Names of parameters.
    pub parameters: f32,
    /// Descriptions and allowed values of parameters.
    pub parameter_text: f32,
    /// The server's name, description and instructions.
    pub server: f32,
    /// Words of earlier searches that led to a call.
    pub past: f32,
}

/// Returns the best `limit` of the visible tools of all parts. Tools that have nothing in common with the query are left
/// out, so an empty query finds nothing.
///
/// The order is that of [`Tier`], then the score, then the order of parts and tools. It depends on the arguments only.
pub fn search(parts: &[Part<'_>], query: &Query<'_>, limit: usize) -> Vec<Hit> {
    let text = &query.text[..query.text.floor_char_boundary(MAX_QUERY_BYTES)];
    let words = words(text);
    // A text without words has no meaning.
    let vectors = Some(query.vectors).filter(|vectors| !words.is_empty() && !vectors.is_empty());
    let cosines = vectors.map(|vectors| cosines(parts, vectors));
    let known = cosines
        .as_deref()
        .filter(|cosines| cosines.iter().any(Option::is_some));
    let related_weight = match known {
        Some(_) => RELATED_WEIGHT_BESIDE_MEANINGS,
        None => RELATED_WEIGHT,
    };
    let ranking = Ranking::new(parts, &words, related_weight);
    let mut scores = ranking.scores();
    if let Some(cosines) = known {
        scores = fuse(&scores, cosines);
    }
    let mut found: Vec<(Tier, f32, usize)> = Vec::new();
    let mut matcher = Matcher::new(text);
    let mut tools = scores.iter().copied().enumerate();
    for part in parts {
        for (number, name) in part.segment.names().iter().enumerate() {
            let Some((tool, score)) = tools.next() else {
                break;
            };
            let Some(exposed) = part.exposed(number) else {
                continue;
            };
            let tier = matcher
                .as_mut()
                .and_then(|matcher| matcher.tier(exposed, name));
            if let Some(tier) = tier.or_else(|| (score > 0.0).then_some(Tier::Relevance)) {
                found.push((tier, score, tool));
            }
        }
    }
    let order = |a: &(Tier, f32, usize), b: &(Tier, f32, usize)| {
        a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)).then(a.2.cmp(&b.2))
    };
    if limit == 0 {
        return Vec::new();
    }
    if found.len() > limit {
        found.select_nth_unstable_by(limit - 1, order);
        found.truncate(limit);
    }
    found.sort_unstable_by(order);
    let tools: Vec<usize> = found.iter().map(|(_, _, tool)| *tool).collect();
    let fields = ranking.by_field(&tools);
    found
        .into_iter()
        .zip(fields)
        .map(|((tier, score, tool), fields)| {
            let similarity = cosines.as_ref().and_then(|cosines| cosines[tool]);
            let (part, tool) = ranking.place(tool);
            Hit {
                part,
                tool,
                tier,
                score,
                similarity,
                fields: FieldScores {
                    name: fields[Field::Name as usize],
                    description: fields[Field::Description as usize],
                    parameters: fields[Field::Parameters as usize],
                    parameter_text: fields[Field::ParameterText as usize],
                    server: fields[Field::Server as usize],
                    past: fields[Field::Past as usize],
                },
            }
        })
        .collect()
}

/// For each visible tool that has a vector, the largest cosine with one of `vectors`.
fn cosines(parts: &[Part<'_>], vectors: &[Vector]) -> Vec<Option<f32>> {
    let of = |part: &Part<'_>, tool: usize| {
        part.exposed(tool)?;
        let own = part.vector(tool)?;
        let cosines = vectors.iter().map(|vector| own.cosine(vector));
        cosines.reduce(f32::max)
    };
    parts
        .iter()
        .flat_map(|part| (0..part.segment.len()).map(move |tool| of(part, tool)))
        .collect()
}
