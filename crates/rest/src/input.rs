//! Request input: bodies, pages and preconditions. All of them are checked before a handler changes anything.

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

/// Maximum nesting of a body.
const MAX_DEPTH: usize = 64;
/// Maximum length of a display name, in characters.
const MAX_NAME_CHARS: usize = 200;
/// Maximum length of a description, in characters.
const MAX_DESCRIPTION_CHARS: usize = 4_000;
/// Default number of rows in a page.
const DEFAULT_PAGE_ROWS: u32 = 100;

/// Parses a JSON body, within its limits.
pub(super) fn json<T: DeserializeOwned>(body: Result<Bytes, BytesRejection>) -> Result<T, Problem> {
    read(&whole(body)?, MAX_DEPTH)
}

/// Parses a JSON text that is nested at most `depth` levels deep.
pub(super) fn read<T: DeserializeOwned>(text: &[u8], depth: usize) -> Result<T, Problem> {
    // Rejects duplicate keys, which serde_json accepts, and excessive depth, for which its message is unclear.
    mcp::json::validate(text, depth).map_err(|fault| not_json(&fault))?;
    typed(&mut serde_json::Deserializer::from_slice(text))
}

/// Parses a JSON object.
pub(super) fn object<T: DeserializeOwned>(
    body: Result<Bytes, BytesRejection>,
) -> Result<T, Problem> {
    // Serde would also accept a list of the members' values.
    match body {
        Ok(body) if body.trim_ascii_start().first() == Some(&b'[') => {
            Err(not_json(&"expected an object, found a list"))
        }
        body => json(body),
    }
}

/// Returns an entry in the form of `mcp.json`. The form of a database row is accepted too:
/// `{"transport": …, "config": {…}}`.
///
/// # Errors
/// `config` is not an object.
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

/// Deserializes a value. An error names the location of the invalid value.
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

/// Returns the whole body.
pub(super) fn whole(body: Result<Bytes, BytesRejection>) -> Result<Bytes, Problem> {
    body.map_err(|rejection| {
        let status = rejection.status();
        let detail = match status {
            StatusCode::PAYLOAD_TOO_LARGE => {
                "the request body is too large: the limit is 256 KiB for a server entry, 16 MiB for an import, and 2 MiB for other requests".to_owned()
            }
            _ => rejection.body_text(),
        };
        Problem::new(status.as_u16(), detail)
    })
}

fn not_json(why: &dyn std::fmt::Display) -> Problem {
    Problem::new(400, format!("invalid JSON body: {why}"))
}

/// Returns the path as a JSON pointer (RFC 6901).
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

/// Checks a text that users read.
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

/// Checks a display name.
pub(super) fn name(pointer: &str, name: &str) -> Result<(), Problem> {
    if name.trim().is_empty() {
        return Err(Problem::field(400, pointer, "must not be empty"));
    }
    text(pointer, name, MAX_NAME_CHARS)
}

pub(super) fn description(pointer: &str, description: &str) -> Result<(), Problem> {
    text(pointer, description, MAX_DESCRIPTION_CHARS)
}

/// Parses the name of a project's server from a path.
pub(super) fn server_name(name: &str) -> Result<ServerName, Problem> {
    ServerName::parse(name).map_err(|error| Problem::new(400, error.to_string()))
}

/// `?limit=` and `?after=`.
pub(super) struct Page(store::Page);

#[derive(Deserialize)]
struct QueryParams {
    limit: Option<u32>,
    after: Option<String>,
}

impl<S: Send + Sync> FromRequestParts<S> for Page {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let QueryParams { limit, after } = query(Query::from_request_parts(parts, state).await)?;
        Self::of(limit.unwrap_or(DEFAULT_PAGE_ROWS), after)
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

    /// Returns where the next page begins, if these rows fill the current page.
    pub(super) fn next<T>(&self, rows: &[T], key: impl Fn(&T) -> String) -> Option<String> {
        rows.last().filter(|_| rows.len() >= self.limit()).map(key)
    }

    /// Returns this page of all rows. Sorts them here, because databases have different collations.
    pub(super) fn cut<T>(&self, mut rows: Vec<T>, key: impl Fn(&T) -> &str) -> Vec<T> {
        rows.sort_by(|one, other| key(one).cmp(key(other)));
        let after = self.0.after.as_deref().unwrap_or_default();
        let rows = rows.into_iter().filter(|row| key(row) > after);
        rows.take(self.limit()).collect()
    }
}

/// The query parameters.
pub(super) struct Asked<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Asked<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        query(Query::from_request_parts(parts, state).await).map(Self)
    }
}

/// Returns the query parameters.
pub(super) fn query<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, Problem> {
    match query {
        Ok(Query(asked)) => Ok(asked),
        Err(rejection) => Err(Problem::new(400, rejection.body_text())),
    }
}

/// Returns the tag of a configuration. Two tags are equal exactly if the configurations are, regardless of key order.
///
/// The tag covers what `PUT` accepts, not the current state.
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

    /// The resource must not exist yet.
    pub(super) fn only_new() -> Self {
        Self {
            matches: None,
            none_match: Some("*".to_owned()),
        }
    }

    /// The resource must have this tag.
    pub(super) fn only(tag: String) -> Self {
        Self {
            matches: Some(tag),
            none_match: None,
        }
    }

    /// Checks whether a resource with this tag may be changed. `None` means that it does not exist.
    pub(super) fn permit(&self, current: Option<&str>) -> Result<(), Problem> {
        if let Some(wanted) = &self.matches
            && !lists(wanted, current, false)
        {
            let why =
                "the resource does not match `If-Match`: fetch it again and repeat the change";
            return Err(Problem::new(412, why));
        }
        if let Some(unwanted) = &self.none_match
            && lists(unwanted, current, true)
        {
            return Err(Problem::new(
                412,
                "the resource already exists, which `If-None-Match` rules out",
            ));
        }
        Ok(())
    }

    /// Returns whether a resource without a tag may be replaced. `there`: the resource exists.
    pub(super) fn may_replace(&self, there: bool) -> Result<bool, Problem> {
        if self.matches.is_some() {
            self.permit(there.then_some(""))?;
        }
        Ok(self.none_match.as_deref() != Some("*"))
    }

    /// Returns whether the caller already has the version with this tag.
    pub(super) fn is_known(&self, current: &str) -> bool {
        self.none_match
            .as_ref()
            .is_some_and(|known| lists(known, Some(current), true))
    }
}

/// Returns whether a list of tags contains the current tag. Weak tags never match in a strong comparison.
fn lists(list: &str, current: Option<&str>, weakly: bool) -> bool {
    let Some(current) = current else { return false };
    // Our tags contain no commas.
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
