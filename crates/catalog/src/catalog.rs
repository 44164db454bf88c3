//! The catalog of a server: the raw items of its lists, as the server sent them, and in the form for views of several
//! servers.

use std::{collections::HashSet, fmt, sync::Arc};

use bytes::Bytes;
use mcp::{
    Era,
    client::ServerInfo,
    headers::ParamHeaders,
    json::{Object, as_string, elements},
};
use memchr::memmem::Finder;

use crate::{compile, definition, kind::ListKind};

/// Characters of a name shown in messages.
const SHOWN_CHARS: usize = 100;

/// One tool, prompt, resource or template.
#[derive(Debug, Clone)]
pub struct Item {
    /// Name or URI, as the server gave it.
    pub native: Arc<str>,
    /// JSON text, as the server sent it.
    pub raw: Bytes,
    /// Parameters that modern HTTP requests mirror into headers (`x-mcp-header`).
    pub headers: Option<Arc<ParamHeaders>>,
    /// The text for views of several servers, by era. `None`: these views leave it out, because clients would reject
    /// the whole list.
    fit: Option<[Bytes; 2]>,
}

impl Item {
    /// The text for views of several servers, if they show it.
    #[must_use]
    pub fn fit(&self, era: Era) -> Option<&Bytes> {
        let fit = self.fit.as_ref()?;
        Some(&fit[usize::from(era == Era::Modern)])
    }
}

/// A definition that is not offered as the server sent it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flaw {
    pub kind: ListKind,
    /// The item's name or URI, if it has one.
    pub native: Option<Arc<str>>,
    /// What is wrong with it.
    pub what: String,
    pub fate: Fate,
}

/// What happens to a definition with a flaw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Views of several servers show the definition in a repaired form.
    Repaired,
    /// Only the view of the server alone shows the definition.
    LeftOut,
    /// No view shows the definition.
    Refused,
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, .. } = self;
        f.write_str(self.kind.noun())?;
        if let Some(native) = &self.native {
            let shown = native.chars().take(SHOWN_CHARS);
            let shown: String = shown.flat_map(char::escape_debug).collect();
            write!(f, " `{shown}`")?;
        }
        match self.fate {
            Fate::Repaired => write!(f, " is offered in a repaired form: {what}"),
            Fate::LeftOut => write!(f, " is left out of views of several servers: {what}"),
            Fate::Refused => write!(f, " is left out: {what}"),
        }
    }
}

/// One list of a server.
#[derive(Debug, Clone, Default)]
pub struct List {
    pub items: Arc<[Item]>,
    /// What was not offered as it was sent.
    pub flaws: Arc<[Flaw]>,
    /// Items without a name or URI. Only the view of their server shows them.
    pub nameless: Arc<[Bytes]>,
    /// Why the list may be incomplete.
    pub cut: Option<Arc<str>>,
}

impl List {
    /// Checks the items of a list. `needs_headers`: a tool with an invalid `x-mcp-header` must not be offered.
    pub fn of(kind: ListKind, raws: impl IntoIterator<Item = Bytes>, needs_headers: bool) -> Self {
        let (mut items, mut flaws, mut nameless) = (Vec::new(), Vec::new(), Vec::new());
        // If a name were listed twice, one definition could be approved and the other one offered.
        let mut known: HashSet<Arc<str>> = HashSet::new();
        for raw in raws {
            let object = Object::of(&raw);
            let id = object.and_then(|object| Some(Arc::from(&*object.string(kind.id_key())?)));
            let Some(native): Option<Arc<str>> = id else {
                let why = match object.and_then(|object| object.raw(kind.id_key())) {
                    Some(odd) => format!("its `{}` is {}", kind.id_key(), compile::shown(odd)),
                    None if object.is_some() => format!("it has no `{}`", kind.id_key()),
                    None => format!("it is {}, not an object", compile::shown(&raw)),
                };
                flaws.push(Flaw {
                    kind,
                    native: None,
                    what: why,
                    fate: Fate::LeftOut,
                });
                nameless.push(raw);
                continue;
            };
            let mut flaw = |what: String, fate| {
                flaws.push(Flaw {
                    kind,
                    native: Some(native.clone()),
                    what,
                    fate,
                });
            };
            // Users could not tell such names apart on a screen, and Postgres cannot store a NUL.
            if kind.is_named() && native.chars().any(char::is_control) {
                flaw("its name has control characters".to_owned(), Fate::Refused);
                continue;
            }
            let mut headers = None;
            if kind == ListKind::Tools {
                match ParamHeaders::from_tool(&raw) {
                    Ok(found) if found.is_empty() => {}
                    // Kept for servers of any kind: a modern HTTP client sends these headers for every tool that
                    // declares them, and the receiver has to check them.
                    Ok(found) => headers = Some(Arc::new(found)),
                    // 2026-07-28 basic/transports/streamable-http: such a tool must not be offered.
                    Err(why) if needs_headers => {
                        flaw(
                            format!("its `x-mcp-header` is invalid: {why}"),
                            Fate::Refused,
                        );
                        continue;
                    }
                    // The annotation has no meaning for other servers.
                    Err(_) => {}
                }
            }
            if kind.is_named() && !known.insert(native.clone()) {
                let why = "it is listed more than once, and the first one counts";
                flaw(why.to_owned(), Fate::LeftOut);
                continue;
            }
            let legacy = definition::fit(kind, &raw, &native, Era::Legacy);
            let modern = definition::fit(kind, &raw, &native, Era::Modern);
            let fit = match (legacy, modern) {
                (Ok(legacy), Ok(modern)) => {
                    let mut repairs = legacy.repairs;
                    let more = modern.repairs.into_iter();
                    repairs.extend(
                        more.filter(|one| !repairs.contains(one))
                            .collect::<Vec<_>>(),
                    );
                    if !repairs.is_empty() {
                        flaw(repairs.join(", "), Fate::Repaired);
                    }
                    Some([legacy.text, modern.text])
                }
                (Err(why), _) | (_, Err(why)) => {
                    flaw(why, Fate::LeftOut);
                    None
                }
            };
            items.push(Item {
                native,
                raw,
                headers,
                fit,
            });
        }
        Self {
            items: items.into(),
            flaws: flaws.into(),
            nameless: nameless.into(),
            cut: None,
        }
    }

    /// All items as the server sent them, except refused and repeated ones.
    pub fn raws(&self) -> impl Iterator<Item = &Bytes> {
        let items = self.items.iter().map(|item| &item.raw);
        items.chain(self.nameless.iter())
    }

    /// Returns whether both are the same for all clients.
    pub fn is_same(&self, other: &Self) -> bool {
        self.flaws == other.flaws && self.cut == other.cut && self.raws().eq(other.raws())
    }
}

/// Everything a server offers.
#[derive(Debug, Clone, Default)]
pub struct Catalog {
    pub info: Option<ServerInfo>,
    /// True if the server has sent a request that could belong to several sessions. If so, it gets the calls of one
    /// session at a time, so that its requests can be assigned to a client.
    pub takes_turns: bool,
    lists: [List; 4],
    /// Native names of tools that a legacy server runs only as tasks.
    only_tasks: Arc<HashSet<Arc<str>>>,
}

impl Catalog {
    #[must_use]
    pub fn list(&self, kind: ListKind) -> &Arc<[Item]> {
        &self.of(kind).items
    }

    /// A list, with its flaws.
    #[must_use]
    pub fn of(&self, kind: ListKind) -> &List {
        &self.lists[kind as usize]
    }

    /// The definitions of this name that are not offered as they were sent.
    pub fn flaws<'c>(&'c self, kind: ListKind, native: &'c str) -> impl Iterator<Item = &'c Flaw> {
        let flaws = self.of(kind).flaws.iter();
        flaws.filter(move |flaw| flaw.native.as_deref() == Some(native))
    }

    /// Returns whether a legacy server runs the tool only as a task.
    #[must_use]
    pub fn needs_task(&self, native: &str) -> bool {
        self.only_tasks.contains(native)
    }

    pub fn set(&mut self, kind: ListKind, list: List) {
        if kind == ListKind::Tools {
            let only =
                |item: &&Item| mcp::tasks::support(&item.raw) == mcp::tasks::Support::Required;
            let names = list.items.iter().filter(only);
            self.only_tasks = Arc::new(names.map(|item| item.native.clone()).collect());
        }
        self.lists[kind as usize] = list;
    }
}

/// Returns whether a tool (JSON text) has an App (MCP Apps).
pub fn has_view(tool: &[u8]) -> bool {
    Finder::new("esourceUri").find(tool).is_some()
        && Object::of(tool)
            .and_then(|tool| tool.object("_meta"))
            .is_some_and(|own| {
                own.find("ui/resourceUri").is_some()
                    || own
                        .object("ui")
                        .is_some_and(|ui| ui.find("resourceUri").is_some())
            })
}

/// Returns whether models may call a tool (JSON text). Some tools are only for Apps (MCP Apps, `_meta.ui.visibility`).
pub fn is_for_models(tool: &[u8]) -> bool {
    if Finder::new("visibility").find(tool).is_none() {
        return true;
    }
    let visibility = Object::of(tool)
        .and_then(|tool| tool.object("_meta"))
        .and_then(|own| own.object("ui"))
        .and_then(|ui| ui.raw("visibility"));
    let Some(list) = visibility.filter(|list| list.starts_with(b"[")) else {
        return true;
    };
    elements(list, 0..list.len()).any(|item| as_string(&list[item]).as_deref() == Some("model"))
}

#[cfg(test)]
mod tests;
