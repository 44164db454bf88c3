//! Completes errors about objects that do not exist: with the closest known name, or with the command that lists them.

use config::{ServerFile, nearest};
use model::ProjectId;

use super::{
    Context,
    http::{Api, Refused, path},
    pages,
    reach::{Place, all_servers},
};
use backend::server_files;

/// Kinds of objects in errors of the gateway, with the command that lists them.
const KINDS: &[(&str, &str)] = &[
    ("server", "ls"),
    ("project", "project ls"),
    ("tool", "tools ls"),
    ("secret", "secret ls"),
    ("product", "product ls"),
    ("key", "key ls"),
    ("call", "calls ls"),
    ("run", "runs ls"),
    ("conversation", "conversation ls"),
    ("sign-in to", "login"),
];

/// Returns the text of an error about a missing object.
pub(super) fn missing(what: &str, name: &str, known: &[&str], list: &str) -> String {
    format!(
        "there is no {what} `{name}`{}",
        hint(name, known, what, list)
    )
}

/// Returns the end of such an error.
fn hint(name: &str, known: &[&str], what: &str, list: &str) -> String {
    match nearest(name, known) {
        Some(near) => format!("; did you mean `{near}`?"),
        None => format!("; `toolwharf {list}` lists the {what}s"),
    }
}

/// Completes an error if it is about a missing object. Other errors are returned unchanged.
pub(super) async fn completed(context: &Context, mut error: anyhow::Error) -> anyhow::Error {
    if let Some(server_files::Error::NoServer { name, files }) = error.downcast_ref() {
        let entries = files
            .iter()
            .filter_map(|file| ServerFile::entries_of(file).ok());
        let names: Vec<String> = entries.flatten().map(|(name, _)| name).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let hint = hint(name.as_str(), &names, "server", "ls");
        return anyhow::anyhow!("{error}{hint}");
    }
    let Some(refused) = error.downcast_mut::<Refused>() else {
        return error;
    };
    let has_hint = ["`toolwharf ", "did you mean"]
        .iter()
        .any(|hint| refused.detail.contains(hint));
    if refused.status != 404 || has_hint {
        return error;
    }
    let detail = refused.detail.clone();
    let Some(found) = found(&detail) else {
        return error;
    };
    let names = match context.place().await {
        Ok(Place::Gateway(api)) => names(&api, &found).await.unwrap_or_default(),
        _ => Vec::new(),
    };
    // The name itself may exist, but be invisible to this key or project. It would not help as a suggestion.
    let names = names.iter().map(String::as_str);
    let names: Vec<&str> = names.filter(|name| *name != found.name).collect();
    let of = |project: &str| format!(" --project {project}");
    let of = found.project.map(of).unwrap_or_default();
    let hint = match (found.what, nearest(found.name, &names)) {
        (_, Some(near)) => format!("; did you mean `{near}`?"),
        ("sign-in to", None) => "; `toolwharf login` lists the sign-ins".to_owned(),
        (what, None) => format!("; `toolwharf {}{of}` lists the {what}s", found.list),
    };
    refused.detail.push_str(&hint);
    error
}

/// A missing object.
#[derive(Debug, PartialEq, Eq)]
struct Missing<'t> {
    what: &'static str,
    list: &'static str,
    name: &'t str,
    /// The project of the search, if the error names it.
    project: Option<&'t str>,
}

/// Finds the missing object in an error's text: the name in backticks after ``no server``.
fn found(detail: &str) -> Option<Missing<'_>> {
    let parts: Vec<&str> = detail.split('`').collect();
    let names = parts.iter().copied().skip(1);
    let pairs = parts.iter().copied().zip(names).step_by(2);
    let mut project = None;
    for (before, name) in pairs {
        let before = before.trim_end();
        let kind = KINDS.iter().find(|(what, _)| {
            let words = before.strip_suffix(what);
            words.is_some_and(|words| words.trim_end().ends_with(" no") || words == "no ")
        });
        if let Some(&(what, list)) = kind {
            return Some(Missing {
                what,
                list,
                name,
                project,
            });
        }
        if before.ends_with("project") {
            project = Some(name);
        }
    }
    None
}

/// Returns the names that the object might have.
async fn names(api: &Api, missing: &Missing<'_>) -> anyhow::Result<Vec<String>> {
    let project = missing.project.and_then(|id| ProjectId::parse(id).ok());
    Ok(match missing.what {
        "server" => {
            let all = all_servers(api, project.as_ref()).await?;
            all.into_iter().map(|server| server.name).collect()
        }
        "project" => {
            let all = pages::all::<api::Project>(api, &path(&["projects"]), &()).await?;
            all.rows.into_iter().map(|project| project.id).collect()
        }
        _ => Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_missing_object_is_found_in_the_text() {
        for (text, expect) in [
            ("there is no server `a`", Some(("server", "a", None))),
            (
                "there is no server `a`, or the project does not see it",
                Some(("server", "a", None)),
            ),
            (
                "project `p` sees no server `a`",
                Some(("server", "a", Some("p"))),
            ),
            ("there is no project `p`", Some(("project", "p", None))),
            ("there is no key `k`", Some(("key", "k", None))),
            (
                "there is no sign-in to `a`",
                Some(("sign-in to", "a", None)),
            ),
            ("server `a` is stopped", None),
            ("unknown route; `GET /api/v1` lists the routes", None),
            ("", None),
        ] {
            let found = found(text);
            let found = found.map(|found| (found.what, found.name, found.project));
            assert_eq!(found, expect, "{text}");
        }
    }

    #[test]
    fn a_close_name_is_suggested() {
        let known = ["time", "files"];
        let text = |name: &str| missing("server", name, &known, "ls");
        assert_eq!(
            text("tmie"),
            "there is no server `tmie`; did you mean `time`?"
        );
        assert_eq!(
            text("weather"),
            "there is no server `weather`; `toolwharf ls` lists the servers"
        );
    }
}
