//! Masks the secrets of entries that are shown, and restores them when a masked entry is saved.
//!
//! A masked value is restored only if the secret goes to the same place and server as before:
//!
//! - *Place*: it is in the same field, or in the same argument after the same option.
//! - *Origin*: the server is the same. For a remote server that is scheme, host and port of its URL; for a launched one
//!   the program, the image, the working directory and the arguments that say what is run. Secrets of a `login` are
//!   also sent to its issuer, so the issuer must not change either.

use crate::entries::literal::MASK;
use std::{collections::HashMap, time::Duration};

use api::Wrong;
use serde_json::{Map, Value, json};
use similar::TextDiff;

use super::{
    literal::{self, escaped},
    seal::refuse_sealed,
};

/// Time limit of the search for the shortest difference. After that, a longer one is returned.
const DIFF_TIME: Duration = Duration::from_millis(200);
/// Programs for which any argument may say what they run. For all other programs, only the first argument that is not
/// an option does.
const RUNNERS: &[&str] = &[
    "bash", "bun", "cargo", "cmd", "deno", "docker", "dotnet", "env", "go", "nerdctl", "npm",
    "pnpm", "podman", "sh", "ssh", "sudo", "uv", "yarn", "zsh",
];

/// An entry with its secrets masked, for display.
pub fn masked(entry: &Value) -> Value {
    literal::map(entry, &mut |_| Some(MASK.to_owned()))
}

/// The difference between two masked entries. A changed secret is marked `(another)`.
pub fn difference(before: &Value, after: &Value) -> String {
    let mut known: HashMap<String, Vec<String>> = HashMap::new();
    literal::map(before, &mut |secret| {
        let texts = known.entry(secret.pointer.to_owned()).or_default();
        texts.push(secret.text.to_owned());
        None
    });
    let mut seen: HashMap<String, usize> = HashMap::new();
    let marked = literal::map(after, &mut |secret| {
        let count = seen.entry(secret.pointer.to_owned()).or_default();
        let texts = known.get(secret.pointer);
        let same = texts
            .and_then(|texts| texts.get(*count))
            .map(String::as_str);
        *count += 1;
        Some(match before.pointer(secret.pointer) {
            Some(_) if same != Some(secret.text) => format!("{MASK} (another)"),
            _ => MASK.to_owned(),
        })
    });
    let pretty = |value: &Value| serde_json::to_string_pretty(value).unwrap_or_default() + "\n";
    TextDiff::configure()
        .timeout(DIFF_TIME)
        .diff_lines(&pretty(&masked(before)), &pretty(&marked))
        .unified_diff()
        .header("before", "after")
        .to_string()
}

/// A submitted entry in which masked values are replaced by the secrets of `before`. `None`: no such entry exists yet.
///
/// # Errors
/// Masked values that cannot be restored, each with a remedy.
pub fn restored(given: Value, before: Option<&Value>) -> Result<Value, Vec<Wrong>> {
    refuse_sealed(&given)?;
    if !has_mask(&given) {
        return Ok(given);
    }
    let mut restoring = Restoring {
        moved: before.and_then(|before| moved(before, &given)),
        moved_login: before.and_then(|before| moved_login(before, &given)),
        before: before.map(|before| (before, masked(before))),
        wrong: Vec::new(),
    };
    let restored = restoring.value(given, "", None, false);
    if restoring.wrong.is_empty() {
        Ok(restored)
    } else {
        Err(restoring.wrong)
    }
}

/// Like [`restored`], for the manifest of a product, in which each server is a separate entry.
///
/// # Errors
/// See [`restored`].
pub fn manifest_restored(mut given: Value, before: Option<&Value>) -> Result<Value, Vec<Wrong>> {
    const PLACE: &str = "/mcp/servers";
    refuse_sealed(&given)?;
    if !has_mask(&given) {
        return Ok(given);
    }
    let servers = given.pointer_mut(PLACE).map(Value::take);
    let before_servers = before.and_then(|before| before.pointer(PLACE));
    let mut wrong = Vec::new();
    let mut one = |at: String, entry: Value, before: Option<&Value>| {
        restored(entry, before).unwrap_or_else(|errors| {
            wrong.extend(errors.into_iter().map(|mut one| {
                one.pointer.insert_str(0, &at);
                one
            }));
            Value::Null
        })
    };
    let servers = match servers {
        Some(Value::Object(entries)) => {
            let entries = entries.into_iter().map(|(name, entry)| {
                let at = format!("{PLACE}/{}", escaped(&name));
                let before = before_servers.and_then(|all| all.get(&name));
                let entry = one(at, entry, before);
                (name, entry)
            });
            Some(Value::Object(entries.collect()))
        }
        Some(Value::Array(items)) => {
            let items = items.into_iter().enumerate().map(|(at, item)| {
                let before = before_servers.and_then(Value::as_array).and_then(|all| {
                    let mut all = all.iter();
                    all.find(|one| one["name"].is_string() && one["name"] == item["name"])
                });
                one(format!("{PLACE}/{at}"), item, before)
            });
            Some(items.collect())
        }
        other => other,
    };
    match restored(given, before) {
        Ok(restored) => given = restored,
        Err(errors) => {
            wrong.extend(errors);
            given = Value::Null;
        }
    }
    if !wrong.is_empty() {
        return Err(wrong);
    }
    if let (Some(at), Some(servers)) = (given.pointer_mut(PLACE), servers) {
        *at = servers;
    }
    Ok(given)
}

fn has_mask(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains(MASK),
        Value::Array(items) => items.iter().any(has_mask),
        Value::Object(members) => members.values().any(has_mask),
        _ => false,
    }
}

struct Restoring<'a> {
    /// The stored entry, and its masked form.
    before: Option<(&'a Value, Value)>,
    /// Why the entry counts as one for another server than before, if it does.
    moved: Option<String>,
    moved_login: Option<String>,
    wrong: Vec<Wrong>,
}

impl Restoring<'_> {
    /// `option`: the submitted argument before this one.
    fn value(&mut self, given: Value, at: &str, option: Option<&Value>, is_login: bool) -> Value {
        match given {
            Value::Object(members) => {
                let members = members.into_iter().map(|(key, value)| {
                    let at = format!("{at}/{}", escaped(&key));
                    let is_login = is_login || key == "login";
                    let value = self.value(value, &at, None, is_login);
                    (key, value)
                });
                Value::Object(members.collect::<Map<_, _>>())
            }
            Value::Array(items) => {
                let sent = items.clone();
                let items = items.into_iter().enumerate().map(|(index, value)| {
                    let option = index.checked_sub(1).and_then(|at| sent.get(at));
                    self.value(value, &format!("{at}/{index}"), option, is_login)
                });
                items.collect()
            }
            Value::String(text) if text.contains(MASK) => {
                match self.kept(&text, at, option, is_login) {
                    Ok(kept) => kept,
                    Err(why) => {
                        self.wrong.push(Wrong::new(at, why));
                        Value::Null
                    }
                }
            }
            given => given,
        }
    }

    /// The stored value at this place, if it was shown as `text`.
    fn kept(
        &self,
        text: &str,
        at: &str,
        option: Option<&Value>,
        is_login: bool,
    ) -> Result<Value, String> {
        const WAY_OUT: &str = "write the value again, or `${NAME}`";
        let nothing =
            || format!("`{MASK}` stands for a stored value, but this field has none: {WAY_OUT}");
        let (before, shown) = self.before.as_ref().ok_or_else(nothing)?;
        let kept = before.pointer(at).ok_or_else(nothing)?;
        let is_same = shown.pointer(at).and_then(Value::as_str) == Some(text);
        let follows = at.rsplit_once('/').and_then(|(list, index)| {
            let before_it = index.parse::<usize>().ok()?.checked_sub(1)?;
            shown.pointer(list)?.as_array()?.get(before_it)
        });
        // An argument may be masked because of the option before it, which must then be the same.
        let is_option = |value: &Value| value.as_str().is_some_and(|text| text.starts_with('-'));
        let is_moved = option != follows && [option, follows].into_iter().flatten().any(is_option);
        if !is_same || kept.as_str() == Some(text) || is_moved {
            return Err(nothing());
        }
        let moved = self.moved.as_ref();
        match moved.or(self.moved_login.as_ref().filter(|_| is_login)) {
            Some(moved) => Err(format!(
                "`{MASK}` stands for a value that was given for another server, and is not sent to this one: {moved}; \
                 {WAY_OUT}"
            )),
            None => Ok(kept.clone()),
        }
    }
}

/// Describes the change if the entry is for another server than before.
fn moved(before: &Value, after: &Value) -> Option<String> {
    let (old, new) = (origin(before), origin(after));
    if old == new {
        return None;
    }
    let shown = |origin: &Value| match (&origin["url"], &origin["image"], &origin["command"]) {
        (Value::String(url), ..) | (_, Value::String(url), _) => format!("`{url}`"),
        (.., Value::Array(words)) => {
            let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
            format!("`{}`", words.join(" "))
        }
        _ => "nothing".to_owned(),
    };
    let (old, new) = (shown(&old), shown(&new));
    Some(match old == new {
        true => format!("{old} has another command, image or working directory"),
        false => format!("{old} became {new}"),
    })
}

/// The identity of an entry's server, for the purpose of secrets.
fn origin(entry: &Value) -> Value {
    let entry = match entry.get("config") {
        Some(config @ Value::Object(_)) => config,
        _ => entry,
    };
    let url = ["url", "serverUrl", "httpUrl"]
        .iter()
        .find_map(|key| entry.get(key)?.as_str());
    let shown = masked(entry);
    let ours = &shown["toolwharf"];
    let mut words: Vec<&str> = Vec::new();
    let nested = &shown["command"]["path"];
    match (&shown["command"], nested) {
        (Value::String(program), _) | (_, Value::String(program)) => words.push(program),
        (Value::Array(all), _) => words.extend(all.iter().filter_map(Value::as_str)),
        _ => {}
    }
    for args in [&shown["args"], &shown["command"]["args"]] {
        words.extend(
            args.as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str),
        );
    }
    let program = words.first().copied().unwrap_or_default();
    let program = program.rsplit('/').next().unwrap_or_default();
    if !RUNNERS.contains(&program) {
        let mut rest = words.iter().skip(1);
        let what = rest.position(|word| !word.starts_with('-'));
        words.truncate(what.map_or(words.len(), |at| at + 2));
    }
    let image = match &shown["image"] {
        Value::Null => &ours["image"],
        image => image,
    };
    json!({
        "url": url.map(host),
        "image": image,
        "command": if words.is_empty() { Value::Null } else { words.into() },
        "cwd": shown["cwd"],
    })
}

/// Scheme, host and port of a URL.
fn host(url: &str) -> String {
    let (scheme, rest) = url.trim().split_once("://").unwrap_or_default();
    let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    let (scheme, host) = (scheme.to_ascii_lowercase(), host.to_ascii_lowercase());
    let usual = if scheme == "https" { ":443" } else { ":80" };
    let host = host.strip_suffix(usual).unwrap_or(&host);
    format!("{scheme}://{host}")
}

/// Describes the change if the issuer that receives the secrets of a `login` is another one than before.
fn moved_login(before: &Value, after: &Value) -> Option<String> {
    let issuers = |entry: &Value| {
        let entry = match entry.get("config") {
            Some(config @ Value::Object(_)) => config.clone(),
            _ => entry.clone(),
        };
        let login = match &entry["toolwharf"]["login"] {
            Value::Null => &entry["login"],
            login => login,
        };
        [login["issuer"].clone(), login["idp"]["issuer"].clone()]
    };
    let (old, new) = (issuers(before), issuers(after));
    let shown = |issuer: &Value| match issuer.as_str() {
        Some(issuer) => format!("`{}`", literal::masked_url(issuer)),
        None => "none".to_owned(),
    };
    let changed = old.iter().zip(&new).find(|(old, new)| old != new)?;
    Some(format!(
        "the issuer was changed from {} to {}",
        shown(changed.0),
        shown(changed.1)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown_and_stay() {
        let entry = json!({
            "command": "c", "args": ["--port", "1"],
            "env": { "A": "sk-1234", "B": "${B}", "C": "x${C}", "D": "${D:-sk-5}", "N": 7, "E": "" },
            "headers": { "Authorization": "Bearer ${T}", "X": "Bearer" },
            "toolwharf": { "login": { "clientSecret": "s3", "clientAuth": "none", "idp": { "client_secret": "s4" } } },
        });
        let shown = masked(&entry);
        assert_eq!(
            shown,
            json!({
                "command": "c", "args": ["--port", "1"],
                "env": { "A": MASK, "B": "${B}", "C": MASK, "D": MASK, "N": MASK, "E": "" },
                "headers": { "Authorization": "Bearer ${T}", "X": MASK },
                "toolwharf": { "login": { "clientSecret": MASK, "clientAuth": "none", "idp": { "client_secret": MASK } } },
            })
        );
        let back = restored(shown, Some(&entry)).expect("as it was shown");
        assert_eq!(back, entry);
        assert_eq!(difference(&entry, &entry), "");
    }

    #[test]
    fn secrets_in_arguments_and_urls_are_not_shown_and_stay() {
        let entry = json!({
            "args": ["--api-key=sk-1", "--token", "sk-2", "--key", "--port", "1", "API_KEY=sk-3", "--key=${K}", "-y",
                "postgresql://me:sk-4@db/x?sslmode=off", "monkey=1", "--keyboard=de", "a b=c",
                "Authorization: Bearer sk-9", "X-Auth: ${T}", "-H", "X-Mine: sk-10", "-e", "PLACE=sk-11"],
            "url": "https://sk-5@h.example/mcp?key=sk-6&n=1&access_token=sk-7#x",
        });
        let shown = masked(&entry);
        assert_eq!(
            shown,
            json!({
                "args": ["--api-key=•••", "--token", MASK, "--key", "--port", "1", "API_KEY=•••", "--key=${K}", "-y",
                    "postgresql://me:•••@db/x?sslmode=off", "monkey=1", "--keyboard=de", "a b=c",
                    "Authorization: •••", "X-Auth: ${T}", "-H", "X-Mine: •••", "-e", "PLACE=•••"],
                "url": "https://•••@h.example/mcp?key=•••&n=1&access_token=•••#x",
            })
        );
        let back = restored(shown, Some(&entry)).expect("as it was shown");
        assert_eq!(back, entry);
        let after = json!({ "url": "https://sk-5@h.example/mcp?key=sk-8&n=1&access_token=sk-7#x" });
        let diff = difference(&entry, &after);
        assert!(
            diff.contains("key=••• (another)&n=1&access_token=•••#x"),
            "{diff}"
        );
        assert!(!diff.contains("sk-"), "{diff}");
    }

    #[test]
    fn a_masked_value_is_kept_nowhere_else() {
        let before = json!({ "env": { "A": "sk-1234", "B": "${B}" }, "args": ["--token", "sk-2"] });
        for (given, at) in [
            (json!({ "env": { "NEW": MASK } }), "/env/NEW"),
            (json!({ "env": { "B": MASK } }), "/env/B"),
            (json!({ "env": { "A": "•••-5" } }), "/env/A"),
            (json!({ "headers": { "A": MASK } }), "/headers/A"),
            (json!({ "args": ["--callback", MASK] }), "/args/1"),
            (json!({ "args": [MASK] }), "/args/0"),
        ] {
            let wrong = restored(given, Some(&before)).expect_err(at);
            assert_eq!(wrong[0].pointer, at);
        }
        assert!(restored(json!({ "headers": { "A": MASK } }), None).is_err());
        let after = json!({ "env": { "A": "sk-5678", "B": "${B}" } });
        let diff = difference(&before, &after);
        assert!(diff.contains("+    \"A\": \"••• (another)\""), "{diff}");
        assert!(!diff.contains("sk-"), "{diff}");
    }

    #[test]
    fn a_masked_value_goes_to_no_other_server() {
        let remote = |url: &str| json!({ "url": url, "headers": { "X-Key": MASK } });
        let run = |command: Value, args: Value| json!({ "command": command, "args": args, "env": { "K": MASK } });
        let npx = |args: &str| run("npx".into(), args.split(' ').collect());
        let docker = |image: &str| run("docker".into(), json!(["run", image]));
        let node = |file: &str| run(json!(["node", file]), json!([]));
        let login = |issuer: Value| json!({ "url": "https://h/", "login": { "issuer": issuer, "clientSecret": MASK } });
        let evil = login("https://evil".into());
        let secret = |mut entry: Value| {
            for at in ["/headers/X-Key", "/env/K", "/login/clientSecret"] {
                if let Some(value) = entry.pointer_mut(at) {
                    *value = "hidden".into();
                }
            }
            entry
        };
        for (before, after, is_kept) in [
            (remote("https://h/a"), remote("https://h/b"), true),
            (remote("https://h/a"), remote("https://H:443/a"), true),
            (remote("https://h/a"), remote("http://h/a"), false),
            (remote("https://h/a"), remote("https://h:444/a"), false),
            (remote("https://h/a"), remote("https://evil/a"), false),
            (remote("https://h/a"), remote("https://h@evil/a"), false),
            (remote("https://h/a"), remote("https://${H}/a"), false),
            (remote("https://h/a"), npx("x"), false),
            (npx("-y a -v"), npx("-y a -q"), true),
            (npx("-y a"), npx("-y b"), false),
            (npx("-y a"), npx("--registry=http://evil -y a"), false),
            (docker("a"), docker("b"), false),
            (node("a.js"), node("b.js"), false),
            (login("https://i".into()), login("https://i".into()), true),
            (login("https://i".into()), evil.clone(), false),
            (login(Value::Null), evil, false),
        ] {
            let before = secret(before);
            let restored = restored(after.clone(), Some(&before));
            assert_eq!(restored.is_ok(), is_kept, "{before} {after} {restored:?}");
            if let Err(wrong) = restored {
                assert!(
                    wrong[0].detail.contains("write the value again"),
                    "{wrong:?}"
                );
                assert!(!wrong[0].detail.contains("hidden"), "{wrong:?}");
            } else if let Ok(restored) = restored {
                assert_eq!(restored, secret(after));
            }
        }
    }

    #[test]
    fn servers_of_a_manifest_are_entries_of_their_own() {
        let one = |url: &str| json!({ "name": "one", "url": url, "headers": { "A": "hidden" } });
        let list = |servers: Value| json!({ "name": "p", "mcp": { "servers": servers } });
        let before = list(json!([{ "name": "two", "command": "c" }, one("https://h/")]));
        let mut moved = list(json!([masked(&one("https://h/"))]));
        let kept = manifest_restored(moved.clone(), Some(&before));
        assert_eq!(kept.expect("kept"), list(json!([one("https://h/")])));
        moved["mcp"]["servers"][0]["url"] = "https://evil/".into();
        let wrong = manifest_restored(moved, Some(&before)).expect_err("moved");
        assert_eq!(wrong[0].pointer, "/mcp/servers/0/headers/A");
    }
}
