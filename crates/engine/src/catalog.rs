//! The catalog of a server: the raw items of its lists, as the server sent them.

use std::{collections::HashSet, sync::Arc, time::Duration};

use bytes::Bytes;
use mcp::{
    Kind as FrameKind, RpcError,
    chain::Behind,
    client::{CallError, Client, ServerInfo},
    error::METHOD_NOT_FOUND,
    headers::ParamHeaders,
    json::{self, Object, quote},
    protocol::method,
};
use memchr::memmem::Finder;

/// Maximum number of items kept per list. The rest is left out, with a warning.
const MAX_ITEMS: usize = 20_000;
/// Bytes kept per list.
const MAX_BYTES: usize = 64 << 20;
/// Pages fetched per list.
const MAX_PAGES: usize = 2_000;
/// Characters of a name shown in logs.
const SHOWN_CHARS: usize = 100;
/// Wall time limit for one page.
const PAGE_TIMEOUT: Duration = Duration::from_secs(30);

/// The four lists of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ListKind {
    Tools,
    Prompts,
    Resources,
    Templates,
}

impl ListKind {
    pub const ALL: [Self; 4] = [Self::Tools, Self::Prompts, Self::Resources, Self::Templates];

    /// The method that lists these items.
    #[must_use]
    pub fn method(self) -> &'static str {
        match self {
            Self::Tools => method::TOOLS_LIST,
            Self::Prompts => method::PROMPTS_LIST,
            Self::Resources => method::RESOURCES_LIST,
            Self::Templates => method::TEMPLATES_LIST,
        }
    }

    #[must_use]
    pub fn from_method(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.method() == name)
    }

    /// The key of the items in a result.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources => "resources",
            Self::Templates => "resourceTemplates",
        }
    }

    /// The key that identifies an item.
    #[must_use]
    pub fn id_key(self) -> &'static str {
        match self {
            Self::Tools | Self::Prompts => "name",
            Self::Resources => "uri",
            Self::Templates => "uriTemplate",
        }
    }

    /// Returns whether items are called by name. Names are unique within a server.
    fn is_named(self) -> bool {
        matches!(self, Self::Tools | Self::Prompts)
    }

    /// The server capability that this list belongs to.
    #[must_use]
    pub fn capability(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources | Self::Templates => "resources",
        }
    }

    /// The notification for a change of this list.
    #[must_use]
    pub fn changed(self) -> &'static str {
        match self {
            Self::Tools => method::TOOLS_CHANGED,
            Self::Prompts => method::PROMPTS_CHANGED,
            Self::Resources | Self::Templates => method::RESOURCES_CHANGED,
        }
    }
}

/// One tool, prompt, resource or template.
#[derive(Debug, Clone)]
pub struct Item {
    /// Name or URI, as the server gave it.
    pub native: Arc<str>,
    /// JSON text.
    pub raw: Bytes,
    /// Parameters that modern HTTP requests mirror into headers (`x-mcp-header`).
    pub headers: Option<Arc<ParamHeaders>>,
}

/// Everything a server offers.
#[derive(Debug, Clone, Default)]
pub struct Catalog {
    pub info: Option<ServerInfo>,
    /// True if the server has sent a request that could belong to several sessions. If so, it gets the calls of one
    /// session at a time, so that its requests can be assigned to a client.
    pub takes_turns: bool,
    lists: [Arc<[Item]>; 4],
    /// Native names of tools that a legacy server runs only as tasks.
    only_tasks: Arc<HashSet<Arc<str>>>,
}

impl Catalog {
    #[must_use]
    pub fn list(&self, kind: ListKind) -> &Arc<[Item]> {
        &self.lists[kind as usize]
    }

    /// Returns whether a legacy server runs the tool only as a task.
    #[must_use]
    pub fn needs_task(&self, native: &str) -> bool {
        self.only_tasks.contains(native)
    }

    pub fn set(&mut self, kind: ListKind, items: Vec<Item>) {
        if kind == ListKind::Tools {
            let only =
                |item: &&Item| mcp::tasks::support(&item.raw) == mcp::tasks::Support::Required;
            let names = items.iter().filter(only).map(|item| item.native.clone());
            self.only_tasks = Arc::new(names.collect());
        }
        self.lists[kind as usize] = items.into();
    }
}

/// Why a list could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("the server answered with an error: {0}")]
    Rpc(RpcError),
    #[error("no answer within {} s", PAGE_TIMEOUT.as_secs())]
    Timeout,
    #[error("the answer has no array `{0}`")]
    Shape(&'static str),
}

/// Fetches all pages of a list. If the server is a gateway, also returns which gateways are behind it.
///
/// # Errors
/// [`FetchError`]; a server without the method has an empty list.
pub async fn fetch_list(
    client: &Client,
    kind: ListKind,
    label: &str,
) -> Result<(Vec<Item>, Option<Behind>), FetchError> {
    let mut items: Vec<Item> = Vec::new();
    let mut behind = None;
    let mut bytes = 0;
    let mut cursor: Option<String> = None;
    // Names listed so far. If a name were listed twice, one definition could be approved and the other one offered.
    let mut known: HashSet<Arc<str>> = HashSet::new();
    for _ in 0..MAX_PAGES {
        let members = cursor
            .as_deref()
            .map(|cursor| format!("\"cursor\":{}", quote(cursor)))
            .unwrap_or_default();
        let asked = tokio::time::timeout(PAGE_TIMEOUT, client.ask(kind.method(), &members));
        let frame = asked.await.map_err(|_| FetchError::Timeout)??;
        if frame.kind() == FrameKind::Error {
            let error = RpcError::from_json(frame.body());
            // Some servers have resources but no templates.
            return if error.code == METHOD_NOT_FOUND {
                Ok((items, behind))
            } else {
                Err(FetchError::Rpc(error))
            };
        }
        let text = frame.text();
        let result = frame.object().ok_or(FetchError::Shape(kind.key()))?;
        behind = behind.or_else(|| Behind::of(&result));
        let array = result
            .find(kind.key())
            .filter(|at| text[at.start] == b'[')
            .ok_or(FetchError::Shape(kind.key()))?;
        for span in json::elements(text, array) {
            bytes += span.len();
            if items.len() >= MAX_ITEMS || bytes > MAX_BYTES {
                tracing::warn!(
                    server = label,
                    "{} is too long: only the first {} items are kept",
                    kind.method(),
                    items.len()
                );
                return Ok((items, behind));
            }
            // Copied, so that one small item does not keep the whole page in memory.
            let raw = Bytes::copy_from_slice(&text[span]);
            let Some(item) = item(kind, raw, client, label) else {
                continue;
            };
            if kind.is_named() && !known.insert(item.native.clone()) {
                tracing::warn!(
                    server = label,
                    "{}: `{}` is listed more than once: only the first one is used",
                    kind.method(),
                    shown(&item.native)
                );
                continue;
            }
            items.push(item);
        }
        let next = result
            .string("nextCursor")
            .map(std::borrow::Cow::into_owned);
        match next {
            Some(next) if cursor.as_deref() != Some(&next) => cursor = Some(next),
            _ => return Ok((items, behind)),
        }
    }
    tracing::warn!(
        server = label,
        "{} has more than {MAX_PAGES} pages: the rest is left out",
        kind.method()
    );
    Ok((items, behind))
}

/// A native name, shortened and escaped for the log.
fn shown(native: &str) -> String {
    native
        .chars()
        .take(SHOWN_CHARS)
        .flat_map(char::escape_debug)
        .collect()
}

/// Restores an item from a snapshot. It passed all checks when it was saved.
pub(crate) fn remembered_item(kind: ListKind, raw: Bytes) -> Option<Item> {
    let native: Arc<str> = Object::of(&raw)?.string(kind.id_key())?.as_ref().into();
    // Earlier versions saved names with control characters.
    if kind.is_named() && native.chars().any(char::is_control) {
        return None;
    }
    let headers = match kind {
        ListKind::Tools => ParamHeaders::from_tool(&raw).ok(),
        _ => None,
    };
    Some(Item {
        native,
        raw,
        headers: headers.filter(|found| !found.is_empty()).map(Arc::new),
    })
}

fn item(kind: ListKind, raw: Bytes, client: &Client, label: &str) -> Option<Item> {
    let Some(native) = Object::of(&raw).and_then(|object| {
        object
            .string(kind.id_key())
            .map(|id| Arc::<str>::from(&*id))
    }) else {
        tracing::warn!(
            server = label,
            "{}: an item without `{}` is left out",
            kind.method(),
            kind.id_key()
        );
        return None;
    };
    // Users could not tell such names apart on a screen, and Postgres cannot store a NUL.
    if kind.is_named() && native.chars().any(char::is_control) {
        tracing::warn!(
            server = label,
            "{}: `{}` has control characters in its name and is left out",
            kind.method(),
            shown(&native)
        );
        return None;
    }
    let mut headers = None;
    if kind == ListKind::Tools {
        match ParamHeaders::from_tool(&raw) {
            Ok(found) if found.is_empty() => {}
            // Kept for servers of any kind: a modern HTTP client sends these headers for every tool that declares them,
            // and the receiver has to check them.
            Ok(found) => headers = Some(Arc::new(found)),
            // 2026-07-28 basic/transports/streamable-http: such a tool must not be offered.
            Err(why) if client.is_http() && client.info().era == mcp::Era::Modern => {
                tracing::warn!(server = label, tool = %native, "a tool with an invalid `x-mcp-header` is left out: {why}");
                return None;
            }
            // The annotation has no meaning for other servers.
            Err(_) => {}
        }
    }
    Some(Item {
        native,
        raw,
        headers,
    })
}

/// Returns whether a tool (JSON text) has a view (MCP Apps).
pub(crate) fn has_view(tool: &[u8]) -> bool {
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
