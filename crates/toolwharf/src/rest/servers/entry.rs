//! A server's entry, wherever it is declared: shown without its secrets, and changed where it is kept.
//!
//! Invariants: no literal value of a variable, of a header or of a secret is told or logged, and no part of an argument or a URL
//! that is named as a secret (`--api-key=…`, `?token=…`, `https://name:password@…`). A masked value that is sent back unchanged
//! keeps the value it stands for, and nothing else is ever taken for a mask. Only files that are configured are changed.

use std::{ops::Range, time::Duration};

use api::{DeclaredEntry, EntryChange, Wrong};
use axum::{
    Extension, Json,
    body::Bytes,
    extract::{
        Query, State,
        rejection::{BytesRejection, QueryRejection},
    },
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use config::{EditError, Sources};
use serde::Deserialize;
use serde_json::Value;
use similar::TextDiff;

use super::{Entry, Home, Target, file, tag_of_registration, unfit, whole};
use crate::{
    auth::Role,
    hosting,
    itself::Itself,
    registry,
    rest::{
        AppState, Problem, Rest,
        access::{Who, permit},
        input::{self, Conditions, etag},
    },
};

/// What is told in the place of a secret.
const MASK: &str = "•••";
/// How long the shortest difference is looked for; then a longer one does.
const DIFF_TIME: Duration = Duration::from_millis(200);
/// Objects whose values are secrets, and values that are.
const HOLDERS: &[&str] = &["env", "environment", "headers"];
const SECRETS: &[&str] = &[
    "clientSecret",
    "client_secret",
    "privateKey",
    "private_key",
    "assertion",
];
/// Words in the names of options and of parameters of a URL whose values are secrets.
const SECRET_WORDS: &[&str] = &[
    "apikey",
    "auth",
    "authorization",
    "cookie",
    "credential",
    "key",
    "passwd",
    "password",
    "pat",
    "pwd",
    "secret",
    "sig",
    "signature",
    "token",
];
/// Words before a `${NAME}` that are no secrets.
const SCHEMES: &[&str] = &["", "Bearer", "Basic", "Token", "token"];

/// What is asked for when an entry is changed.
#[derive(Debug, Deserialize)]
pub(in crate::rest) struct Changing {
    #[serde(default)]
    dry_run: bool,
}

pub(in crate::rest) async fn show(
    State(rest): State<AppState>,
    Extension(who): Who,
    target: Target,
) -> Result<Response, Problem> {
    let (tag, declared, at, entry) = match &target.home {
        Home::Project(row) => (super::tag_of_row(row), "project", None, whole(row)),
        Home::Registered(row) => {
            permit(&who, Role::Admin, target.key.owner.as_ref())?;
            let tag = tag_of_registration(row);
            (tag, "registered", None, hosting::given(row))
        }
        Home::File => {
            permit(&who, Role::Admin, None)?;
            let name = target.key.name.clone();
            let read = move |sources: &Sources, _: &Itself| registry::entry(sources, &name);
            let (at, entry) = rest.live.read(read).await?;
            (etag(&entry), "file", Some(file(at)), entry)
        }
    };
    let told = DeclaredEntry {
        declared: declared.to_owned(),
        file: at,
        entry: masked(&entry, None, false),
    };
    let headers = [
        (header::ETAG, tag),
        (header::CACHE_CONTROL, "no-store".to_owned()),
    ];
    Ok((headers, Json(told)).into_response())
}

pub(in crate::rest) async fn save(
    State(rest): State<AppState>,
    who: Who,
    target: Target,
    query: Result<Query<Changing>, QueryRejection>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<EntryChange>, Problem> {
    let Changing { dry_run } = input::query(query)?;
    let conditions = Conditions::of(&headers);
    let given: Value = input::json(body)?;
    if !given.is_object() {
        return Err(Problem::field(422, "", "a server's entry is an object"));
    }
    let name = &target.key.name;
    let bad = |wrong| unfit(&format!("server `{name}` is not usable so"), wrong);
    let (before, tag) = match &target.home {
        Home::File => {
            permit(&who, Role::Admin, None)?;
            return rest
                .change_in_file(&target, conditions, given, dry_run)
                .await;
        }
        Home::Project(row) => (whole(row), super::tag_of_row(row)),
        Home::Registered(row) => {
            permit(&who, Role::Admin, target.key.owner.as_ref())?;
            (hosting::given(row), tag_of_registration(row))
        }
    };
    let entry = restored(given, &before).map_err(bad)?;
    let diff = difference(&before, &entry);
    match (&target.home, &target.key.owner) {
        (Home::Project(_), Some(project)) => {
            Entry::read(project, name, entry.clone())
                .map(drop)
                .map_err(bad)?;
        }
        _ => {
            let entry = super::put::registration(&target, entry.clone());
            hosting::Entry::read(entry)
                .map(drop)
                .map_err(hosting::Error::Unfit)?;
        }
    }
    // Only once all else is right (RFC 9110, section 13.2.1).
    conditions.permit(Some(&tag))?;
    if !dry_run {
        // What was read just now is what is replaced, and nothing else.
        let conditions = Conditions::only(tag);
        match (&target.home, target.key.owner.clone()) {
            (Home::Project(_), Some(project)) => {
                rest.own(&who, project, name.clone(), &conditions, entry)
                    .await?;
            }
            _ => drop(rest.replace(&who, &target, &conditions, entry).await?),
        }
    }
    Ok(Json(EntryChange {
        saved: !dry_run,
        diff,
        notices: Vec::new(),
    }))
}

impl Rest {
    async fn change_in_file(
        &self,
        target: &Target,
        conditions: Conditions,
        given: Value,
        dry_run: bool,
    ) -> Result<Json<EntryChange>, Problem> {
        let name = target.key.name.clone();
        let change = move |sources: &Sources, myself: &Itself| {
            registry::update(sources, myself, &name, dry_run, |before| {
                if conditions.permit(Some(&etag(&before))).is_err() {
                    return Err(EditError::Changed(name.clone()));
                }
                let entry = restored(given.clone(), &before).map_err(|wrong| EditError::Unfit {
                    name: name.clone(),
                    problems: wrong.iter().map(|wrong| wrong.detail.clone()).collect(),
                    wrong,
                })?;
                let diff = difference(&before, &entry);
                Ok((entry, diff))
            })
        };
        let ((_, diff, warnings), more) = match dry_run {
            true => (self.live.read(change).await?, Vec::new()),
            false => self.edit(change).await?,
        };
        Ok(Json(EntryChange {
            saved: !dry_run,
            diff,
            notices: warnings.into_iter().chain(more).collect(),
        }))
    }
}

/// An entry as it is told; a secret that is another one in `before` says so.
fn masked(value: &Value, before: Option<&Value>, is_secret: bool) -> Value {
    match value {
        Value::Object(members) => {
            let masked = members.iter().map(|(key, value)| {
                let before = before.and_then(|before| before.get(key));
                let is_secret = is_secret || is_secret_key(key);
                (key.clone(), masked(value, before, is_secret))
            });
            Value::Object(masked.collect())
        }
        Value::Array(items) => {
            let masked = items.iter().enumerate().map(|(at, value)| {
                let before = before.and_then(|before| before.get(at));
                let is_secret = is_secret || follows_secret_option(items, at);
                masked(value, before, is_secret)
            });
            Value::Array(masked.collect())
        }
        value if is_secret && is_literal(value) => match before {
            Some(before) if before != value => format!("{MASK} (another)").into(),
            _ => MASK.into(),
        },
        Value::String(text) => {
            let before = before.and_then(Value::as_str);
            masked_parts(text, before).into()
        }
        value => value.clone(),
    }
}

fn is_secret_key(key: &str) -> bool {
    HOLDERS.contains(&key) || SECRETS.contains(&key)
}

/// Whether an option or parameter of this name has a secret as its value.
fn names_secret(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let mut words = lower.split(|letter: char| !letter.is_ascii_alphanumeric());
    words.any(|word| SECRET_WORDS.contains(&word)) || lower.ends_with("token")
}

/// Whether the item before this one is an option (`--api-key`) whose value it is.
fn follows_secret_option(items: &[Value], at: usize) -> bool {
    let text = |at: usize| items.get(at).and_then(Value::as_str);
    let option = at.checked_sub(1).and_then(text).unwrap_or_default();
    let is_value = text(at).is_some_and(|text| !text.starts_with('-'));
    is_value && option.starts_with('-') && !option.contains('=') && names_secret(option)
}

/// The parts of an argument or a URL that are secrets: the value of `--api-key=…`, `API_KEY=…` or `Authorization: …`, and of a URL its password and
/// the parameters that are named so.
fn secret_parts(text: &str) -> Vec<Range<usize>> {
    let mut parts = Vec::new();
    let name_ends = text.find(['=', '/', '?', ' ', ':']);
    if let Some(at) = name_ends
        && text[at..].starts_with('=')
        && names_secret(&text[..at])
    {
        parts.push(at + 1..text.len());
    } else if let Some((field, value)) = text.split_once(": ")
        && names_secret(field.rsplit('=').next().unwrap_or_default())
    {
        // A field of a header: `--header "Authorization: Bearer …"`.
        parts.push(text.len() - value.len()..text.len());
    } else if let Some(scheme) = text.find("://") {
        let host = scheme + "://".len();
        let host_ends = text[host..]
            .find(['/', '?', '#'])
            .map_or(text.len(), |at| host + at);
        if let Some(at) = text[host..host_ends].rfind('@') {
            let user = &text[host..host + at];
            // A user without a password is often a token.
            let start = user.find(':').map_or(0, |colon| colon + 1);
            parts.push(host + start..host + at);
        }
        let mut start = text[host_ends..]
            .find('?')
            .map_or(text.len(), |at| host_ends + at + 1);
        while start < text.len() {
            let end = text[start..]
                .find(['&', '#'])
                .map_or(text.len(), |at| start + at);
            if let Some(at) = text[start..end].find('=')
                && names_secret(&text[start..start + at])
            {
                parts.push(start + at + 1..end);
            }
            start = end + 1;
        }
    }
    parts.retain(|part| is_literal(&text[part.clone()].into()));
    parts
}

/// An argument or a URL without its secrets; one that is another one in `before` says so.
fn masked_parts(text: &str, before: Option<&str>) -> String {
    let kept: Option<Vec<&str>> = before.map(|before| {
        secret_parts(before)
            .into_iter()
            .map(|part| &before[part])
            .collect()
    });
    let mut masked = text.to_owned();
    for (at, part) in secret_parts(text).into_iter().enumerate().rev() {
        let is_other = kept
            .as_ref()
            .is_some_and(|kept| kept.get(at) != Some(&&text[part.clone()]));
        let other = if is_other { " (another)" } else { "" };
        masked.replace_range(part, &format!("{MASK}{other}"));
    }
    masked
}

/// Whether a value says something itself, besides naming variables.
fn is_literal(value: &Value) -> bool {
    let Some(text) = value.as_str() else {
        return !value.is_null();
    };
    let mut rest = text;
    let mut literal = String::new();
    while let Some((before, form)) = rest.split_once("${") {
        literal.push_str(before);
        let Some((form, tail)) = form.split_once('}') else {
            return true;
        };
        let name = form.strip_prefix("env:").or(form.strip_prefix("login:"));
        if !name
            .unwrap_or(form)
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        {
            return true;
        }
        rest = tail;
    }
    literal.push_str(rest);
    !SCHEMES.contains(&literal.trim()) || (rest == text && !text.is_empty())
}

/// An entry as it was sent, with the secrets of the one `before` where they were sent back as they were told.
///
/// # Errors
/// Places where there is nothing to be kept.
fn restored(given: Value, before: &Value) -> Result<Value, Vec<Wrong>> {
    let mut wrong = Vec::new();
    let restored = restore(given, Some(before), false, "", &mut wrong);
    if wrong.is_empty() {
        Ok(restored)
    } else {
        Err(wrong)
    }
}

fn restore(
    given: Value,
    before: Option<&Value>,
    is_secret: bool,
    at: &str,
    wrong: &mut Vec<Wrong>,
) -> Value {
    match given {
        Value::Object(members) => {
            let restored = members.into_iter().map(|(key, value)| {
                let at = format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"));
                let before = before.and_then(|before| before.get(&key));
                let is_secret = is_secret || is_secret_key(&key);
                let value = restore(value, before, is_secret, &at, wrong);
                (key, value)
            });
            Value::Object(restored.collect())
        }
        Value::Array(items) => {
            let restored = items.into_iter().enumerate().map(|(index, value)| {
                let now = before.and_then(|before| before.get(index));
                let list = before.and_then(Value::as_array);
                let is_secret =
                    is_secret || list.is_some_and(|list| follows_secret_option(list, index));
                restore(value, now, is_secret, &format!("{at}/{index}"), wrong)
            });
            Value::Array(restored.collect())
        }
        Value::String(text) if text.contains(MASK) => match before {
            Some(before)
                if is_secret && text == MASK && is_literal(before) && !before.is_object() =>
            {
                before.clone()
            }
            // All of it as it was told: a secret is put into no other argument, and sent to no other host.
            Some(Value::String(before)) if !is_secret && text == masked_parts(before, None) => {
                before.as_str().into()
            }
            _ => {
                let why = format!(
                    "`{MASK}` stands for a value that is kept, and there is none here: write the value, or `${{NAME}}`"
                );
                wrong.push(Wrong::new(at, why));
                Value::Null
            }
        },
        given => given,
    }
}

/// The difference of two entries as they are told.
fn difference(before: &Value, after: &Value) -> String {
    let pretty = |value: &Value| serde_json::to_string_pretty(value).unwrap_or_default() + "\n";
    let (old, new) = (
        pretty(&masked(before, None, false)),
        pretty(&masked(after, Some(before), false)),
    );
    TextDiff::configure()
        .timeout(DIFF_TIME)
        .diff_lines(&old, &new)
        .unified_diff()
        .header("before", "after")
        .to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_are_not_told_and_stay() {
        let entry = json!({
            "command": "c", "args": ["--port", "1"],
            "env": { "A": "sk-1234", "B": "${B}", "C": "x${C}", "D": "${D:-sk-5}", "N": 7, "E": "" },
            "headers": { "Authorization": "Bearer ${T}", "X": "Bearer" },
            "toolwharf": { "login": { "clientSecret": "s3", "idp": { "client_secret": "s4" } } },
        });
        let told = masked(&entry, None, false);
        assert_eq!(
            told,
            json!({
                "command": "c", "args": ["--port", "1"],
                "env": { "A": MASK, "B": "${B}", "C": MASK, "D": MASK, "N": MASK, "E": "" },
                "headers": { "Authorization": "Bearer ${T}", "X": MASK },
                "toolwharf": { "login": { "clientSecret": MASK, "idp": { "client_secret": MASK } } },
            })
        );
        assert_eq!(restored(told, &entry).expect("it is as it was told"), entry);
        assert_eq!(difference(&entry, &entry), "");
    }

    #[test]
    fn secrets_in_arguments_and_urls_are_not_told_and_stay() {
        let entry = json!({
            "args": ["--api-key=sk-1", "--token", "sk-2", "--key", "--port", "1", "API_KEY=sk-3", "--key=${K}", "-y",
                "postgresql://me:sk-4@db/x?sslmode=off", "monkey=1", "--keyboard=de", "a b=c",
                "Authorization: Bearer sk-9", "X-Auth: ${T}"],
            "url": "https://sk-5@h.example/mcp?key=sk-6&n=1&access_token=sk-7#x",
        });
        let told = masked(&entry, None, false);
        assert_eq!(
            told,
            json!({
                "args": ["--api-key=•••", "--token", MASK, "--key", "--port", "1", "API_KEY=•••", "--key=${K}", "-y",
                    "postgresql://me:•••@db/x?sslmode=off", "monkey=1", "--keyboard=de", "a b=c",
                    "Authorization: •••", "X-Auth: ${T}"],
                "url": "https://•••@h.example/mcp?key=•••&n=1&access_token=•••#x",
            })
        );
        assert_eq!(restored(told, &entry).expect("it is as it was told"), entry);
        let after = json!({ "url": "https://sk-5@h.example/mcp?key=sk-8&n=1&access_token=sk-7#x" });
        let diff = difference(&entry, &after);
        assert!(
            diff.contains("key=••• (another)&n=1&access_token=•••#x"),
            "{diff}"
        );
        assert!(!diff.contains("sk-"), "{diff}");
        // A secret does not move to another host.
        let moved = json!({ "url": "https://•••@evil.example/mcp?key=•••" });
        assert_eq!(
            restored(moved, &entry).expect_err("moved")[0].pointer,
            "/url"
        );
    }

    #[test]
    fn what_stands_for_a_secret_is_kept_nowhere_else() {
        let before = json!({ "env": { "A": "sk-1234", "B": "${B}" } });
        for (given, at) in [
            (json!({ "env": { "NEW": MASK } }), "/env/NEW"),
            (json!({ "env": { "B": MASK } }), "/env/B"),
            (json!({ "env": { "A": "•••-5" } }), "/env/A"),
            (json!({ "headers": { "A": MASK } }), "/headers/A"),
        ] {
            let wrong = restored(given, &before).expect_err(at);
            assert_eq!(wrong[0].pointer, at);
        }
        let after = json!({ "env": { "A": "sk-5678", "B": "${B}" } });
        let diff = difference(&before, &after);
        assert!(diff.contains("+    \"A\": \"••• (another)\""), "{diff}");
        assert!(!diff.contains("sk-"), "{diff}");
    }
}
