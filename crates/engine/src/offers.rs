//! What the gateway declares towards clients: the `capabilities` of a view.

use std::{collections::BTreeMap, sync::Arc};

use mcp::{
    Era,
    client::ServerInfo,
    extensions,
    json::{self, Object, Splice, quote},
    tasks::{self, CAPABILITY as TASKS},
};

use crate::{catalog::ListKind, server::Server};

/// `ServerCapabilities` of many servers: JSON text.
///
/// All that the gateway can carry is declared, for servers come and go; what only some have, if one of these does.
pub(crate) fn of_many(servers: &[Arc<Server>], era: Era) -> String {
    let mut members = String::new();
    let extensions = extensions_of(servers, era);
    if !extensions.is_empty() {
        members.push_str(&format!("\"extensions\":{{{}}},", extensions.join(",")));
    }
    if era == Era::Legacy && servers.iter().any(|server| makes_tasks(server)) {
        members.push_str(TASKS);
        members.push(',');
    }
    format!(
        "{{{members}\"logging\":{{}},\"completions\":{{}},\"prompts\":{{\"listChanged\":true}},\
         \"resources\":{{\"subscribe\":true,\"listChanged\":true}},\"tools\":{{\"listChanged\":true}}}}"
    )
}

/// `"name":settings` of every extension that a client of the era can use. The first server's word on one counts,
/// save for what the gateway itself answers.
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
    // 2025-11-25 has tasks of its own, and skills are for 2026-07-28 only.
    if era == Era::Modern {
        if servers.iter().any(|server| makes_tasks(server)) {
            members.push(format!("\"{}\":{{}}", extensions::TASKS));
        }
        members.extend(skills(servers));
    }
    members
}

/// `ServerCapabilities` of one server as it is: what it declares itself, and what the gateway adds to that.
pub(crate) fn of_one(server: &Server, info: &ServerInfo, era: Era) -> String {
    let raw = &info.capabilities;
    let Some(object) = Object::of(raw) else {
        return "{}".into();
    };
    let mut splice = Splice::new();
    // Tools are switched on and off here, whatever the server says of its lists.
    for capability in ["tools", "prompts", "resources"] {
        let Some(own) = object.object(capability) else {
            continue;
        };
        match own.find("listChanged") {
            Some(flag) => splice.replace(flag, &b"true"[..]),
            None => splice.insert(raw, &own.span(), b"\"listChanged\":true"),
        };
    }
    // Tasks of the other era are offered as those of the client's.
    if info.era != era && makes_tasks(server) {
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

/// Whether a server makes tasks of tool calls.
pub(crate) fn makes_tasks(server: &Server) -> bool {
    let catalog = server.catalog();
    let Some(info) = &catalog.info else {
        return false;
    };
    match info.era {
        Era::Modern => extensions::declares(&info.capabilities, extensions::TASKS),
        Era::Legacy => {
            info.has("tasks")
                && catalog
                    .list(ListKind::Tools)
                    .iter()
                    .any(|tool| tasks::support(&tool.raw) != tasks::Support::None)
        }
    }
}

/// A tool of a modern server that makes tasks, as a legacy client has to see it to call it as one.
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

/// Whether a server has skills.
pub(crate) fn has_skills(server: &Server) -> bool {
    skill_settings(server).is_some()
}

/// What is declared of skills towards modern clients: a member of `extensions`, if any server has some.
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
