//! What requests hold: bodies, pages, conditions; each checked before anything is done.

use api::Wrong;
use axum::{
    body::Bytes,
    extract::{
        FromRequestParts, Query,
        rejection::{BytesRejection, QueryRejection},
    },
    http::{HeaderMap, HeaderName, StatusCode, header, request::Parts},
};
use model::ServerName;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use serde_path_to_error::Segment;
use sha2::{Digest, Sha256};

use super::Problem;

/// Deepest nesting of a body.
const DEPTH: usize = 64;
/// Longest name that somebody gives something, in characters.
const NAME_CHARS: usize = 200;
/// Longest description, in characters.
const DESCRIPTION_CHARS: usize = 4_000;
/// Rows of a page where nothing else is asked.
const PAGE: u32 = 100;

/// A JSON body within its limits.
pub(super) fn json<T: DeserializeOwned>(body: Result<Bytes, BytesRejection>) -> Result<T, Problem> {
    read(&whole(body)?, DEPTH)
}

/// A JSON text that is nested no deeper than that.
pub(super) fn read<T: DeserializeOwned>(text: &[u8], depth: usize) -> Result<T, Problem> {
    // Duplicate keys and absurd depth, which serde_json would take or say less well.
    mcp::json::validate(text, depth).map_err(|fault| not_json(&fault))?;
    typed(&mut serde_json::Deserializer::from_slice(text))
}

/// A JSON body that has named members.
pub(super) fn object<T: DeserializeOwned>(
    body: Result<Bytes, BytesRejection>,
) -> Result<T, Problem> {
    // Serde would take a list of the members' values, too.
    match body {
        Ok(body) if body.trim_ascii_start().first() == Some(&b'[') => {
            Err(not_json(&"a list stands where an object is wanted"))
        }
        body => json(body),
    }
}

/// An entry as `mcp.json` has it, also where it is written as a row of the store: `{"transport": …, "config": {…}}`.
///
/// # Errors
/// Its `config` is no object.
pub(super) fn entry(mut members: Map<String, Value>) -> Result<Map<String, Value>, Wrong> {
    let mut entry = match members.remove("config") {
        None => return Ok(members),
        Some(Value::Object(config)) => config,
        Some(_) => return Err(Wrong::new("/config", "must be an object")),
    };
    for (key, own) in [
        ("transport", "type"),
        ("name", "name"),
        ("description", "description"),
        ("enabled", "enabled"),
    ] {
        entry.extend(members.remove(key).map(|value| (own.to_owned(), value)));
    }
    Ok(entry)
}

/// A value as a type, or the place that does not fit.
pub(super) fn typed<'de, D, T>(from: D) -> Result<T, Problem>
where
    D: serde::Deserializer<'de>,
    D::Error: std::fmt::Display,
    T: DeserializeOwned,
{
    serde_path_to_error::deserialize(from).map_err(|error| {
        let pointer = pointer(error.path());
        let why = error.into_inner();
        let mut problem = not_json(&why);
        problem.errors.push(Wrong {
            pointer,
            detail: why.to_string(),
        });
        problem
    })
}

/// The whole body.
pub(super) fn whole(body: Result<Bytes, BytesRejection>) -> Result<Bytes, Problem> {
    body.map_err(|rejection| {
        let status = rejection.status();
        let detail = match status {
            StatusCode::PAYLOAD_TOO_LARGE => "the body is too large".to_owned(),
            _ => rejection.body_text(),
        };
        Problem::new(status.as_u16(), detail)
    })
}

fn not_json(why: &dyn std::fmt::Display) -> Problem {
    Problem::new(400, format!("the body is not the JSON wanted here: {why}"))
}

/// RFC 6901.
fn pointer(path: &serde_path_to_error::Path) -> String {
    let mut out = String::new();
    for segment in path {
        let part = match segment {
            Segment::Seq { index } => index.to_string(),
            Segment::Map { key } => key.replace('~', "~0").replace('/', "~1"),
            Segment::Enum { .. } | Segment::Unknown => continue,
        };
        out.push('/');
        out.push_str(&part);
    }
    out
}

/// A text that people read.
pub(super) fn text(pointer: &str, text: &str, most: usize) -> Result<(), Problem> {
    if text.contains('\0') {
        return Err(Problem::field(
            400,
            pointer,
            "must not contain the character U+0000",
        ));
    }
    if text.chars().nth(most).is_some() {
        return Err(Problem::field(
            400,
            pointer,
            format!("must have at most {most} characters"),
        ));
    }
    Ok(())
}

/// The name of something.
pub(super) fn name(pointer: &str, name: &str) -> Result<(), Problem> {
    if name.trim().is_empty() {
        return Err(Problem::field(400, pointer, "must not be empty"));
    }
    text(pointer, name, NAME_CHARS)
}

pub(super) fn description(pointer: &str, description: &str) -> Result<(), Problem> {
    text(pointer, description, DESCRIPTION_CHARS)
}

/// A server's name in a path of a project.
pub(super) fn server_name(name: &str) -> Result<ServerName, Problem> {
    ServerName::parse(name).map_err(|error| Problem::new(400, error.to_string()))
}

/// `?limit=` and `?after=`.
pub(super) struct Page(store::Page);

#[derive(Deserialize)]
struct Asked {
    limit: Option<u32>,
    after: Option<String>,
}

impl<S: Send + Sync> FromRequestParts<S> for Page {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Asked { limit, after } = query(Query::from_request_parts(parts, state).await)?;
        Self::of(limit.unwrap_or(PAGE), after)
    }
}

impl Page {
    pub(super) fn of(limit: u32, after: Option<String>) -> Result<Self, Problem> {
        if limit == 0 || limit > store::MAX_PAGE {
            let why = format!("`limit` is from 1 to {}", store::MAX_PAGE);
            return Err(Problem::new(400, why));
        }
        Ok(Self(store::Page {
            after,
            limit: Some(limit),
        }))
    }

    pub(super) fn asked(&self) -> &store::Page {
        &self.0
    }

    fn limit(&self) -> usize {
        self.0.limit.map_or(usize::MAX, |limit| limit as usize)
    }

    /// Where the next page begins, if these rows fill this one.
    pub(super) fn next<T>(&self, rows: &[T], key: impl Fn(&T) -> String) -> Option<String> {
        rows.last().filter(|_| rows.len() >= self.limit()).map(key)
    }

    /// This page of all rows. Sorted here: databases sort by customs of their own.
    pub(super) fn cut<T>(&self, mut rows: Vec<T>, key: impl Fn(&T) -> &str) -> Vec<T> {
        rows.sort_by(|one, other| key(one).cmp(key(other)));
        let after = self.0.after.as_deref().unwrap_or_default();
        let rows = rows.into_iter().filter(|row| key(row) > after);
        rows.take(self.limit()).collect()
    }
}

/// What stands behind the `?`.
pub(super) fn query<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, Problem> {
    match query {
        Ok(Query(asked)) => Ok(asked),
        Err(rejection) => Err(Problem::new(400, rejection.body_text())),
    }
}

/// The tag of a configuration: the same exactly when the configuration is, whatever the order of its keys.
///
/// It is of what `PUT` takes, not of how things are at the moment.
pub(super) fn etag(config: &Value) -> String {
    let mut canonical = String::new();
    write_canonical(config, &mut canonical);
    let digest = Sha256::digest(canonical.as_bytes());
    format!("\"{}\"", hex::encode(&digest[..16]))
}

fn write_canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by_key(|(key, _)| *key);
            out.push('{');
            for (key, value) in members {
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push(':');
                write_canonical(value, out);
                out.push(',');
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for item in items {
                write_canonical(item, out);
                out.push(',');
            }
            out.push(']');
        }
        _ => out.push_str(&value.to_string()),
    }
}

/// `If-Match` and `If-None-Match` (RFC 9110 section 13).
pub(super) struct Conditions {
    matches: Option<String>,
    none_match: Option<String>,
}

impl Conditions {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let joined = |name: HeaderName| {
            let values: Vec<&str> = headers
                .get_all(name)
                .iter()
                .map(|value| value.to_str().unwrap_or_default())
                .collect();
            (!values.is_empty()).then(|| values.join(","))
        };
        Self {
            matches: joined(header::IF_MATCH),
            none_match: joined(header::IF_NONE_MATCH),
        }
    }

    /// Only what is not there yet may be put.
    pub(super) fn only_new() -> Self {
        Self {
            matches: None,
            none_match: Some("*".to_owned()),
        }
    }

    /// Only what has this tag may be replaced.
    pub(super) fn only(tag: String) -> Self {
        Self {
            matches: Some(tag),
            none_match: None,
        }
    }

    /// Whether a change may be made to what has this tag now; `None`: there is nothing.
    pub(super) fn permit(&self, current: Option<&str>) -> Result<(), Problem> {
        if let Some(wanted) = &self.matches
            && !lists(wanted, current, false)
        {
            let why = "it is not as `If-Match` says: get it anew, and change that";
            return Err(Problem::new(412, why));
        }
        if let Some(unwanted) = &self.none_match
            && lists(unwanted, current, true)
        {
            return Err(Problem::new(
                412,
                "it is there already, against `If-None-Match`",
            ));
        }
        Ok(())
    }

    /// Whether something that has no tag may take the place of what is `there`, if anything is.
    pub(super) fn may_replace(&self, there: bool) -> Result<bool, Problem> {
        if self.matches.is_some() {
            self.permit(there.then_some(""))?;
        }
        Ok(self.none_match.as_deref() != Some("*"))
    }

    /// Whether the caller has what has this tag.
    pub(super) fn is_known(&self, current: &str) -> bool {
        self.none_match
            .as_ref()
            .is_some_and(|known| lists(known, Some(current), true))
    }
}

/// Whether a list of tags has this one. Weak tags never match strongly.
fn lists(list: &str, current: Option<&str>, weakly: bool) -> bool {
    let Some(current) = current else { return false };
    // Ours hold no commas.
    list.split(',').map(str::trim).any(|tag| {
        let tag = match tag.strip_prefix("W/") {
            Some(tag) if weakly => tag,
            _ => tag,
        };
        tag == "*" || tag == current
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tags_are_of_the_configuration_not_of_its_spelling() {
        let one = json!({"a": {"x": 1, "y": [1, 2]}, "b": "ü"});
        let same = json!({"b": "ü", "a": {"y": [1, 2], "x": 1}});
        assert_eq!(etag(&one), etag(&same));
        for other in [
            json!({"a": {"x": 1, "y": [2, 1]}, "b": "ü"}),
            json!({"a": {"x": 1}, "y": [1, 2], "b": "ü"}),
            json!({"a": {"x": "1", "y": [1, 2]}, "b": "ü"}),
        ] {
            assert_ne!(etag(&one), etag(&other), "{other}");
        }
    }

    #[test]
    fn conditions() {
        let check = |name: HeaderName, value: &str, current: Option<&str>, permitted: bool| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().expect(value));
            let conditions = Conditions::of(&headers);
            assert_eq!(
                conditions.permit(current).is_ok(),
                permitted,
                "{value} {current:?}"
            );
        };
        let (is, not) = (header::IF_MATCH, header::IF_NONE_MATCH);
        check(is.clone(), "\"a\"", Some("\"a\""), true);
        check(is.clone(), "\"b\", \"a\"", Some("\"a\""), true);
        check(is.clone(), "\"b\"", Some("\"a\""), false);
        check(is.clone(), "W/\"a\"", Some("\"a\""), false);
        check(is.clone(), "*", Some("\"a\""), true);
        check(is.clone(), "*", None, false);
        check(is, "\"a\"", None, false);
        check(not.clone(), "*", None, true);
        check(not.clone(), "*", Some("\"a\""), false);
        check(not.clone(), "W/\"a\"", Some("\"a\""), false);
        check(not, "\"b\"", Some("\"a\""), true);
    }
}
