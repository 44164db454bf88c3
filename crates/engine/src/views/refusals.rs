//! Errors for names that do not resolve.

use catalog::{KeptBack, ListKind};
use mcp::{RpcError, error, json::quote};

use crate::{scope::Scope, server::Server, views::entry::Entry};

/// Characters of a name repeated in an error.
const SHOWN_CHARS: usize = 100;

/// The error for a name that is not offered. `same` are the entries that have this name without a prefix, `lacking`
/// is the text of [`missing::lacking`](super::missing::lacking).
pub(crate) fn unknown(kind: ListKind, name: &str, same: &[&Entry], lacking: &str) -> RpcError {
    let what = kind.noun();
    let shown: String = name.chars().take(SHOWN_CHARS).collect();
    let names: Vec<String> = same
        .iter()
        .map(|entry| format!("`{}`", entry.exposed))
        .collect();
    let hint = match names.as_slice() {
        [] => lacking.to_owned(),
        names => format!(
            ": several servers have a {what} of that name, call {}",
            names.join(" or ")
        ),
    };
    RpcError::new(
        error::INVALID_PARAMS,
        format!("Unknown {what}: {shown}{hint}"),
    )
}

/// The error for a tool that is kept back, with the reason and who can approve it.
pub(crate) fn kept_back(
    scope: &Scope,
    name: &str,
    server: &Server,
    native: &str,
    why: &KeptBack,
) -> RpcError {
    let shown = |text: &str| -> String { text.chars().take(SHOWN_CHARS).collect() };
    let (label, _) = server.label(scope);
    let is_for_callers = server.is_for_callers();
    let server = server.key();
    let text = match why {
        KeptBack::Changed if is_for_callers => format!(
            "server `{label}` has changed its definition since it was first seen with the header values of this caller; \
             an administrator can accept the current definitions: `toolwharf restart {}`",
            server.name
        ),
        KeptBack::Changed => {
            let (who, option) = match &server.owner {
                Some(project) => (
                    format!(
                        "an administrator, or a key of project `{project}` with the role `manage`"
                    ),
                    format!(" --project {project}"),
                ),
                None => ("an administrator".to_owned(), String::new()),
            };
            format!(
                "server `{label}` has changed its definition since it was approved; {who} can approve the change: \
                 `toolwharf tools approve {}/{}{option}`",
                server.name,
                shown(native)
            )
        }
        KeptBack::Unkept(why) => format!(
            "its definition cannot be saved ({why}), so a later change by server `{label}` would go unnoticed; \
             it cannot be approved until that is fixed"
        ),
    };
    let data = format!(
        "{{\"reason\":\"kept_back\",\"server\":{},\"tool\":{}}}",
        quote(label.as_str()),
        quote(native)
    );
    let text = format!("Tool {} is kept back: {text}", shown(name));
    RpcError::new(error::INVALID_PARAMS, text).with_data(data.into_bytes())
}
