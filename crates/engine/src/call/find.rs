//! Calls of the tools that find, describe and call other tools (X01).
//!
//! `call_tool` is not answered here: the call is rewritten into one of the tool itself ([`inner`]), so that it is checked,
//! relayed and recorded like any other call of that tool.
//!
//! A wrong argument is a result with `isError`, not a JSON-RPC error, because only the former reaches the model.
//! Deliberately absent: records of searches, which touch no server.

use std::{fmt::Write as _, sync::Arc};

use catalog::is_for_models;
use mcp::{
    Era, Frame,
    frame::Param,
    json::{self, Object, Splice},
    protocol::method,
};

use crate::{
    call::past,
    exchange::{Answer, Caller},
    shared::Shared,
    views::{
        find::{Found, Hints},
        finders::{Finder, MAX_DESCRIBED, MAX_FOUND, USUAL_FOUND},
        view::View,
    },
};

/// Tokens of a result. A search shows fewer tools, and a description is cut off, beyond it.
const MAX_FOUND_TOKENS: usize = 2_000;
const MAX_DESCRIBED_TOKENS: usize = 20_000;
/// Characters of a name repeated in a message.
const SHOWN_CHARS: usize = 100;

/// The finder that a request calls. In a complete list, a server's tool of that name has precedence.
pub(crate) fn asked(view: &View, frame: &Frame) -> Option<Finder> {
    if frame.method() != method::TOOLS_CALL || view.is_single() || view.scope.is_bare {
        return None;
    }
    let finder = Finder::named(&frame.param_string(Param::Name)?)?;
    let is_listed = match finder {
        Finder::Code => view.runs_code(),
        Finder::Read => {
            view.max_result_tokens()?;
            true
        }
        _ => view.is_search(),
    };
    (is_listed || !view.has_tool(finder.name())).then_some(finder)
}

/// Returns the call that is inside a call of `call_tool` ([`Finder::Call`]).
///
/// # Errors
/// An argument is missing or wrong.
pub(crate) fn inner(view: &View, frame: &Frame, max_depth: usize) -> Result<Frame, String> {
    let text = frame.text();
    let (outer, own) = (frame.param(Param::Name), frame.param(Param::Arguments));
    let usage = "call_tool needs `name`, the name of a tool, and `arguments`, an object";
    let (Some(outer), Some(own)) = (outer, own) else {
        return Err(usage.to_owned());
    };
    let arguments = Object::at(text, own.clone()).ok_or_else(|| usage.to_owned())?;
    let [name, inner] = arguments.find_all(["name", "arguments"]);
    let name = name.filter(|at| text[at.start] == b'"');
    let name = name.ok_or_else(|| usage.to_owned())?;
    let inner: &[u8] = match &inner {
        None => b"{}",
        Some(at) if text[at.start] == b'{' => &text[at.clone()],
        Some(at) if text[at.clone()] == *b"null" => b"{}",
        Some(_) => return Err(usage.to_owned()),
    };
    let called = json::as_string(&text[name.clone()]).unwrap_or_default();
    let is_there = |finder: &Finder| *finder != Finder::Read || view.max_result_tokens().is_some();
    if let Some(finder) = Finder::named(&called).filter(is_there) {
        let name = finder.name();
        return Err(format!("call_tool cannot call `{name}`: call it directly"));
    }
    let mut splice = Splice::new();
    splice.replace(outer, &text[name]);
    splice.replace(own, inner);
    let rewritten = Frame::parse(splice.apply(text), max_depth);
    rewritten.map_err(|invalid| format!("the arguments are invalid: {invalid}"))
}

/// Answers a call of [`Finder::Search`] or [`Finder::Describe`].
pub(crate) async fn answer(
    shared: &Arc<Shared>,
    view: Arc<View>,
    caller: &Caller,
    frame: &Frame,
    finder: Finder,
) -> Answer {
    let arguments = frame.param(Param::Arguments);
    let arguments = arguments
        .map(|at| frame.text().slice(at))
        .unwrap_or_default();
    let era = caller.era;
    let query = match finder {
        Finder::Search => Object::of(&arguments).and_then(|arguments| arguments.string("query")),
        _ => None,
    };
    let hints = match query {
        Some(query) => hints(shared, &view, &query).await,
        None => Hints::default(),
    };
    let (learning, who) = (shared.clone(), past::searcher(caller));
    // The first search of a view indexes its tools, which takes milliseconds if there are thousands.
    let answering = tokio::task::spawn_blocking(move || {
        let arguments = Object::of(&arguments);
        match finder {
            Finder::Describe => describe(&view, arguments, era),
            _ => search(&view, arguments, &hints, |query, found| {
                if view.learns() {
                    past::searched(&learning, who, query, found);
                }
            }),
        }
    });
    match answering.await {
        Ok(Ok(text)) => Answer::of_tool(frame, era, &text, false),
        Ok(Err(why)) => failed(caller, frame, &why),
        Err(_) => failed(caller, frame, "the search failed"),
    }
}

/// Begins to compute the meanings of a view's tools, which a later search uses.
pub(crate) fn prepare(shared: &Arc<Shared>, view: &Arc<View>) {
    let meanings = shared.meanings.get();
    let Some(meanings) = meanings.filter(|meanings| meanings.is_available()) else {
        return;
    };
    let claims = view.claim_meanings();
    if claims.is_empty() {
        return;
    }
    let (meanings, over) = (meanings.clone(), shared.over.clone());
    shared.spawn(async move {
        let embedding = async {
            for claim in claims {
                if !claim.embed(&meanings).await {
                    break;
                }
            }
        };
        over.run_until_cancelled(embedding).await;
    });
}

/// The hints for a search. Begins to compute the meanings of tools that are not known yet.
pub(crate) async fn hints(shared: &Arc<Shared>, view: &Arc<View>, query: &str) -> Hints {
    prepare(shared, view);
    let vectors = match shared.meanings.get().filter(|_| view.has_meanings()) {
        Some(meanings) => meanings.of_query(query).await,
        None => Vec::new(),
    };
    if !shared.fleet().settings.search_past_calls {
        // It may have been on before.
        shared.past.clear();
    }
    let past = view.learns().then(|| shared.past.clone());
    Hints { vectors, past }
}

fn search(
    view: &View,
    arguments: Option<Object<'_>>,
    hints: &Hints,
    note: impl FnOnce(&str, &[Found<'_>]),
) -> Result<String, String> {
    let arguments = arguments.ok_or("search_tools needs `query`, a string")?;
    let query = arguments.string("query");
    let query = query.ok_or("search_tools needs `query`, a string")?;
    let server = arguments.string("server");
    if let Some(server) = &server
        && view.part_of(server).is_none()
    {
        return Err(format!("there is no server `{}`", shown(server)));
    }
    let limit = match arguments.raw("limit") {
        None | Some(b"null") => USUAL_FOUND,
        Some(raw) => std::str::from_utf8(raw)
            .ok()
            .and_then(|text| text.parse().ok())
            .filter(|limit| (1..=MAX_FOUND).contains(limit))
            .ok_or_else(|| format!("`limit` must be a whole number from 1 to {MAX_FOUND}"))?,
    };
    let found = view.find(&query, server.as_deref(), limit, hints);
    if found.is_empty() {
        return Ok(format!(
            "No tool fits `{}`. Try other words, or fewer.",
            shown(&query)
        ));
    }
    note(&query, &found);
    let (mut text, mut room) = (String::new(), MAX_FOUND_TOKENS);
    for (at, tool) in found.iter().enumerate() {
        let line = view.signature(tool);
        let tokens = discovery::tokens(line.as_bytes());
        if at > 0 && tokens > room {
            let left = found.len() - at;
            let _ = writeln!(text, "({left} more: narrow the query)");
            break;
        }
        room = room.saturating_sub(tokens);
        text.push_str(&line);
        text.push('\n');
    }
    Ok(text)
}

fn describe(view: &View, arguments: Option<Object<'_>>, era: Era) -> Result<String, String> {
    let usage =
        || format!("describe_tools needs `names`, a list of 1 to {MAX_DESCRIBED} tool names");
    let arguments = arguments.ok_or_else(usage)?;
    let names = arguments.raw("names").ok_or_else(usage)?;
    let names: Vec<String> = serde_json::from_slice(names).map_err(|_| usage())?;
    if names.is_empty() || names.len() > MAX_DESCRIBED {
        return Err(usage());
    }
    let is_typescript = arguments.string("format").as_deref() == Some("typescript");
    let (mut text, mut room) = (String::new(), MAX_DESCRIBED_TOKENS);
    let mut unknown = Vec::new();
    for name in &names {
        let shown_tool = view.shown_tool(name);
        let Some(entry) = shown_tool.filter(|entry| is_for_models(&entry.item.raw)) else {
            unknown.push(format!("`{}`", shown(name)));
            continue;
        };
        let definition = match is_typescript {
            true => view.declarations(&[entry]).into(),
            false => view.described(entry, era),
        };
        let tokens = discovery::tokens(&definition);
        if tokens > room {
            let _ = writeln!(
                text,
                "(`{}` is left out, because the answer would have more than {MAX_DESCRIBED_TOKENS} tokens)",
                entry.exposed
            );
            continue;
        }
        room -= tokens;
        text.push_str(&String::from_utf8_lossy(&definition));
        text.push('\n');
    }
    if !unknown.is_empty() {
        let _ = writeln!(
            text,
            "Unknown: {}. search_tools finds names.",
            unknown.join(", ")
        );
    }
    match unknown.len() == names.len() {
        true => Err(text),
        false => Ok(text),
    }
}

fn shown(text: &str) -> String {
    text.chars().take(SHOWN_CHARS).collect()
}

/// A result that tells the model what is wrong.
pub(crate) fn failed(caller: &Caller, frame: &Frame, why: &str) -> Answer {
    Answer::of_tool(frame, caller.era, why, true)
}
