//! Checks that what npm and uv resolved comes only from configured registries, and that each package has a hash.

use serde_json::{Map, Value};

use super::request::without_secrets;
use super::sources::Place;

const MODULES_PREFIX: &str = "node_modules/";
const WAY_OUT: &str = "if you trust it, install it yourself and give its program by its full path";

/// Checks `package-lock.json`.
///
/// # Errors
/// The text names the package, the problem and the remedy.
pub(super) fn check_npm(lock: &Value, registries: &[Place]) -> Result<(), String> {
    let packages = lock["packages"]
        .as_object()
        .ok_or("npm made no lock file with `packages`; npm 7 or newer is needed")?;
    packages
        .iter()
        .filter(|(place, _)| !place.is_empty())
        .try_for_each(|(place, entry)| check_entry(packages, place, entry, registries))
}

fn check_entry(
    packages: &Map<String, Value>,
    place: &str,
    entry: &Value,
    registries: &[Place],
) -> Result<(), String> {
    let name = place.rsplit(MODULES_PREFIX).next().unwrap_or(place);
    let refused = |what: &str| {
        Err(format!(
            "its dependency `{}` {what}, but packages are installed only from the configured registries: {WAY_OUT}",
            name.escape_debug()
        ))
    };
    let resolved = entry["resolved"].as_str();
    let shown = |url: &str| without_secrets(url).escape_debug().to_string();
    let is_module = place.starts_with(MODULES_PREFIX) && !place.split('/').any(|part| part == "..");
    if entry["link"] == true || !is_module {
        let to = resolved.unwrap_or(place);
        return refused(&format!("is a folder, `{}`", shown(to)));
    }
    if entry["inBundle"] == true && resolved.is_none() {
        // A bundled dependency is in the tarball of the package around it, whose hash covers both.
        let around = place
            .rsplit_once(&format!("/{MODULES_PREFIX}"))
            .map(|(around, _)| around);
        return match around.and_then(|around| Some((around, packages.get(around)?))) {
            Some((around, entry)) => check_entry(packages, around, entry, registries),
            None => refused("is marked as bundled, but no package contains it"),
        };
    }
    let Some(url) = resolved else {
        return refused("has no URL in the lock file");
    };
    if !registries.iter().any(|registry| registry.holds(url)) {
        return refused(&format!("comes from `{}`", shown(url)));
    }
    let kinds = ["sha512-", "sha384-", "sha256-", "sha1-"];
    let hash = entry["integrity"].as_str().unwrap_or_default();
    if !kinds
        .iter()
        .any(|kind| hash.len() > kind.len() && hash.starts_with(kind))
    {
        return refused("has no hash in its registry");
    }
    Ok(())
}

/// Checks the requirements that uv resolved.
///
/// # Errors
/// As [`check_npm`].
pub(super) fn check_pypi(pins: &str) -> Result<(), String> {
    let joined = pins.replace("\\\n", " ");
    let lines = joined
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    for line in lines {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        let shown = || {
            let words: Vec<_> = line
                .split_whitespace()
                .take_while(|word| !word.starts_with("--hash="))
                .map(without_secrets)
                .collect();
            words.join(" ").escape_debug().to_string()
        };
        let is_pin = first.split_once("==").is_some_and(|(name, version)| {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-[],+!".contains(&byte);
            let sound = |text: &str| !text.is_empty() && text.bytes().all(plain);
            !name.starts_with('-') && sound(name) && sound(version.trim_end_matches(';'))
        });
        if !is_pin || line.contains("://") {
            return Err(format!(
                "its dependency `{}` is not a version of a package in an index; nothing else is installed: {WAY_OUT}",
                shown()
            ));
        }
        if !words.any(|word| word.starts_with("--hash=sha")) {
            return Err(format!(
                "its dependency `{}` has no hash in its index; packages without one are not installed: {WAY_OUT}",
                shown()
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn u03_a_lock_file_has_hashes_and_configured_registries_only() {
        let registries: Vec<_> = ["https://registry.example/npm", "http://127.0.0.1:4873"]
            .iter()
            .filter_map(|url| Place::parse(url))
            .collect();
        let good = json!({
            "resolved": "https://registry.example/npm/one/-/one-1.0.0.tgz", "integrity": "sha512-AA==",
        });
        let with = |change: Value| {
            let mut entry = good.clone();
            let changes = change.as_object().unwrap().clone();
            entry.as_object_mut().unwrap().extend(changes);
            entry
        };
        let from = |url: &str| with(json!({"resolved": url}));
        // Checks a lock file with this entry and a valid one. If `place` is inside the package `bad`, the file also has
        // `bad`, from a registry that is not configured.
        let check = |place: &str, entry: &Value| {
            let mut packages = json!({"": {}, "node_modules/around": good});
            if place.starts_with("node_modules/bad/") {
                packages["node_modules/bad"] = from("https://evil.example/x");
            }
            packages[place] = entry.clone();
            check_npm(&json!({"packages": packages}), &registries)
        };
        let (one, scoped) = ("node_modules/one", "node_modules/@s/one");
        let bundled = json!({"inBundle": true});
        for (place, entry) in [
            (one, good.clone()),
            (scoped, from("http://127.0.0.1:4873/@s%2fone.tgz")),
            ("node_modules/around/node_modules/one", bundled.clone()),
        ] {
            assert_eq!(check(place, &entry), Ok(()), "{place} {entry}");
        }
        let refused = |place: &str, entry: Value, part: &str| {
            let why = check(place, &entry).expect_err(part);
            assert!(
                why.contains(part) && why.contains("full path") && !why.contains("hunter2"),
                "{part}: {why}"
            );
        };
        for (url, part) in [
            (
                "https://registry.example/one.tgz",
                "comes from `https://registry",
            ),
            ("http://registry.example/npm/one.tgz", "comes from"),
            ("https://registry.example/npm/../one.tgz", "comes from"),
            ("https://registry.example/npm/%2E%2e/one.tgz", "comes from"),
            ("https://registry.example:444/npm/one.tgz", "comes from"),
            ("https://registry.example.evil/npm/one.tgz", "comes from"),
            (
                "https://registry.example@evil/npm/one.tgz",
                "comes from `https://evil/npm/",
            ),
            ("file:../x.tgz", "comes from `file:"),
        ] {
            refused(one, from(url), part);
        }
        let git = from("git+ssh://git:hunter2@evil/x.git?hunter2");
        refused(scoped, git, "`@s/one` comes from `git+ssh://evil/x.git");
        let inside = "node_modules/bad/node_modules/one";
        let part = "`bad` comes from `https://evil.example/x`";
        refused(inside, bundled.clone(), part);
        refused(
            one,
            bundled,
            "`one` is marked as bundled, but no package contains it",
        );
        refused(one, with(json!({"resolved": null})), "no URL");
        for integrity in [Value::Null, json!("md5-AA")] {
            let entry = with(json!({"integrity": integrity}));
            refused(one, entry, "`one` has no hash");
        }
        let link = json!({"link": true, "resolved": "../../x"});
        refused(one, link, "`one` is a folder, `../../x`");
        refused("../x", good.clone(), "is a folder, `https");
        let old = check_npm(&json!({"dependencies": {}}), &registries);
        assert!(old.unwrap_err().contains("npm 7"));
    }

    #[test]
    fn u03_requirements_have_versions_and_hashes_only() {
        for (pins, expected) in [
            (
                "# x\na==1.0 \\\n    --hash=sha256:0\nb[c]==2!1+x ; python_version < '4' \\\n  --hash=sha256:0\n",
                None,
            ),
            ("a==1.0\n", Some("`a==1.0` has no hash")),
            (
                "a @ https://me:hunter2@evil/a.whl \\\n --hash=sha256:0",
                Some("`a @ https://evil/a.whl` is not a version"),
            ),
            (
                "a==1.0 @ https://evil/a.whl --hash=sha256:0",
                Some("is not a version"),
            ),
            ("--index-url https://evil\n", Some("is not a version")),
            ("-e .\n", Some("is not a version")),
            ("./a.whl --hash=sha256:0\n", Some("is not a version")),
        ] {
            match (check_pypi(pins), expected) {
                (Ok(()), None) => {}
                (Err(why), Some(part)) => {
                    assert!(why.contains(part) && !why.contains("hunter2"), "{why}")
                }
                (found, _) => panic!("{pins}: {found:?}"),
            }
        }
    }
}
