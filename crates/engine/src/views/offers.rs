//! The `capabilities` that a view declares to clients.

use std::{collections::BTreeMap, sync::Arc};

use catalog::ListKind;
use mcp::{
    Era,
    client::ServerInfo,
    extensions,
    json::{self, Object, Splice, quote},
    protocol::method,
    tasks::{self, CAPABILITY as TASKS},
};

use crate::server::Server;

/// The `ServerCapabilities` of several servers, as JSON text.
///
/// Since servers start and stop, everything that the gateway can relay is declared. Extensions and tasks are declared
/// only if one of these servers has them.
pub(crate) fn of_many(servers: &[Arc<Server>], era: Era) -> String {
    let mut members = String::new();
    let extensions = extensions_of(servers, era);
    if !extensions.is_empty() {
        members.push_str(&format!("\"extensions\":{{{}}},", extensions.join(",")));
    }
    if era == Era::Legacy && servers.iter().any(|server| makes_tasks(server, era)) {
        members.push_str(TASKS);
        members.push(',');
    }
    format!(
        "{{{members}\"logging\":{{}},\"completions\":{{}},\"prompts\":{{\"listChanged\":true}},\
         \"resources\":{{\"subscribe\":true,\"listChanged\":true}},\"tools\":{{\"listChanged\":true}}}}"
    )
}

/// `"name":settings` of each extension that a client of the era can use. If several servers declare one, the first
/// declaration is used, except for extensions that the gateway implements itself.
fn extensions_of(servers: &[Arc<Server>], era: Era) -> Vec<String> {
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    for server in servers {
        let catalog = server.catalog();
        let Some(info) = &catalog.info else { continue };
        let declared = Object::of(&info.capabilities).and_then(|own| own.object("extensions"));
        for member in declared.iter().flat_map(Object::members) {
            let name = json::unescape(&info.capabilities[member.key]).into_owned();
            if name == extensions::TASKS || name == extensions::SKILLS {
                continue;
            }
            let settings =
                || String::from_utf8_lossy(&info.capabilities[member.value]).into_owned();
            found.entry(name).or_insert_with(settings);
        }
    }
    let mut members: Vec<String> = found
        .iter()
        .map(|(name, settings)| format!("{}:{settings}", quote(name)))
        .collect();
    // 2025-11-25 has its own form of tasks, and skills exist only in 2026-07-28.
    if era == Era::Modern {
        if servers.iter().any(|server| makes_tasks(server, era)) {
            members.push(format!("\"{}\":{{}}", extensions::TASKS));
        }
        members.extend(skills(servers));
    }
    members
}

/// The `ServerCapabilities` of a single server: what it declares, plus what the gateway adds.
pub(crate) fn of_one(server: &Server, info: &ServerInfo, era: Era) -> String {
    let raw = &info.capabilities;
    let Some(object) = Object::of(raw) else {
        return "{}".into();
    };
    let mut splice = Splice::new();
    // Lists can change even if the server does not declare it, since the gateway enables and disables tools.
    for capability in ["tools", "prompts", "resources"] {
        let Some(own) = object.object(capability) else {
            continue;
        };
        match own.find("listChanged") {
            Some(flag) => splice.replace(flag, &b"true"[..]),
            None => splice.insert(raw, &own.span(), b"\"listChanged\":true"),
        };
    }
    // Tasks of the other era are translated.
    if server.era() != Some(era) && makes_tasks(server, era) {
        match era {
            Era::Legacy if object.find("tasks").is_none() => {
                splice.insert(raw, &object.span(), TASKS);
            }
            Era::Modern => {
                let text = splice.apply(raw);
                let with = extensions::with(&text, extensions::TASKS, "{}");
                return String::from_utf8_lossy(&with).into_owned();
            }
            Era::Legacy => {}
        }
    }
    String::from_utf8_lossy(&splice.apply(raw)).into_owned()
}

/// Returns whether a server does not offer a method that the gateway would answer in its place.
pub(crate) fn lacks(server: &Server, asked: &str, era: Era) -> bool {
    let list = match asked {
        method::PROMPTS_GET => Some(ListKind::Prompts),
        method::RESOURCES_SUBSCRIBE | method::RESOURCES_UNSUBSCRIBE => Some(ListKind::Resources),
        _ => ListKind::from_method(asked),
    };
    let capability = match (list, asked) {
        (Some(kind), _) => kind.capability(),
        (None, method::COMPLETE) => "completions",
        (None, method::SET_LEVEL) => "logging",
        (None, _) => return false,
    };
    let catalog = server.catalog();
    // Some servers have lists that they do not declare.
    let is_listed = list.is_some_and(|kind| !catalog.list(kind).is_empty());
    !is_listed && server.info(era).is_some_and(|info| !info.has(capability))
}

/// Returns whether a server runs tool calls of clients of this era as tasks.
pub(crate) fn makes_tasks(server: &Server, era: Era) -> bool {
    let catalog = server.catalog();
    let Some(info) = &catalog.info else {
        return false;
    };
    match info.era {
        Era::Modern => {
            let second = || server.info(era).is_some_and(|info| info.has("tasks"));
            extensions::declares(&info.capabilities, extensions::TASKS)
                || era == Era::Legacy && second()
        }
        Era::Legacy => {
            info.has("tasks")
                && catalog
                    .list(ListKind::Tools)
                    .iter()
                    .any(|tool| tasks::support(&tool.raw) != tasks::Support::None)
        }
    }
}

/// The member that marks a tool of a modern server as callable as a task, for legacy clients.
pub(crate) fn marked_as_task(server: &Server, tool: &Object<'_>) -> Option<&'static str> {
    let catalog = server.catalog();
    let info = catalog.info.as_ref()?;
    let marks = info.era == Era::Modern
        && tool.find("execution").is_none()
        && extensions::declares(&info.capabilities, extensions::TASKS);
    marks.then_some("\"execution\":{\"taskSupport\":\"optional\"}")
}

fn skill_settings(server: &Server) -> Option<Vec<u8>> {
    let catalog = server.catalog();
    let info = catalog.info.as_ref()?;
    extensions::settings(&info.capabilities, extensions::SKILLS).map(<[u8]>::to_vec)
}

/// Returns whether a server has skills.
pub(crate) fn has_skills(server: &Server) -> bool {
    skill_settings(server).is_some()
}

/// The member of `extensions` that declares skills to modern clients, if any server has skills.
fn skills(servers: &[Arc<Server>]) -> Option<String> {
    let all: Vec<Vec<u8>> = servers
        .iter()
        .filter_map(|server| skill_settings(server))
        .collect();
    if all.is_empty() {
        return None;
    }
    let reads = all
        .iter()
        .any(|own| Object::of(own).is_some_and(|own| own.raw("directoryRead") == Some(b"true")));
    let settings = if reads {
        "{\"directoryRead\":true}"
    } else {
        "{}"
    };
    Some(format!("\"{}\":{settings}", extensions::SKILLS))
}
