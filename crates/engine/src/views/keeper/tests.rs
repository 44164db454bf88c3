//! The cost of a change of one server, and its result, compared with a newly built view.

use std::{fmt::Write, time::Duration};

use bytes::Bytes;
use mcp::{Era, client::Identity};
use model::{
    Launch, NamingPolicy, NativeName, Origin, Pinning, Place, Program, ServerSpec, Settings,
    ToolChoice,
};

use super::*;
use crate::{
    catalog::{Catalog, List, ListKind},
    records::server_cache::Remembered,
    server::progress::Progress,
};

fn identity() -> Identity {
    Identity {
        name: "toolwharf".to_owned(),
        version: "1".to_owned(),
        chain: None,
    }
}

fn list(kind: ListKind, names: &[String], description: &str) -> List {
    let raw = |name: &String| {
        let id = kind.id_key();
        Bytes::from(format!(
            r#"{{"{id}":"{name}","name":"{name}","description":"{description}","inputSchema":{{"type":"object"}}}}"#
        ))
    };
    List::of(kind, names.iter().map(raw), false)
}

fn server(name: &str) -> Arc<Server> {
    let program = Program::Command {
        program: "none".to_owned(),
        args: Vec::new(),
    };
    let origin = Origin::Launch(Arc::new(Launch::new(program, Place::Host)));
    let name = ServerName::parse(name).expect("a name");
    let spec = ServerSpec::new(name, origin);
    Server::new(spec, Remembered::default(), 1, false, Progress::default())
}

/// Replaces the tools of a server.
fn offer(server: &Server, tools: &[String], description: &str) {
    let tools = list(ListKind::Tools, tools, description);
    server.change(|catalog: &mut Catalog| catalog.set(ListKind::Tools, tools));
}

/// Like [`offer`], after the definitions were compared with the approved ones.
fn offer_pinned(server: &Server, tools: &[String], description: &str) {
    let list = list(ListKind::Tools, tools, description);
    server.pinned.compare(&list.items, Pinning::Quarantine);
    offer(server, tools, description);
}

fn fleet(settings: Settings, servers: &[Arc<Server>]) -> Fleet {
    let mut fleet = Fleet::new(settings);
    fleet.replace(|_| false, servers.to_vec());
    fleet
}

fn everything() -> Scope {
    Scope::default()
}

/// CPU time of this thread.
fn cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(
        now.tv_sec.unsigned_abs(),
        u32::try_from(now.tv_nsec).expect("nanoseconds"),
    )
}

/// The cost of connecting one server after another, and of one changed tool, with this many servers.
struct Cost {
    /// Tools that the change named.
    visited: u64,
    per_server: Duration,
    per_change: Duration,
    /// Parts of the view that the change replaced.
    parts: usize,
    anew: Duration,
}

/// Half of the tools of each server have the same names as those of all others.
fn cost(count: usize) -> Cost {
    let servers: Vec<_> = (0..count).map(|n| server(&format!("server-{n}"))).collect();
    let fleet = fleet(Settings::default(), &servers);
    let mut keeper = Keeper::new(identity());
    let scope = everything();
    keeper.view(&fleet, &scope).expect("a view");
    let tools = |n: usize| -> Vec<String> {
        let tools = (0..10).flat_map(|tool| [format!("shared_{tool}"), format!("own_{n}_{tool}")]);
        tools.collect()
    };
    let mut per_server = Duration::ZERO;
    for (n, server) in servers.iter().enumerate() {
        offer(server, &tools(n), "first");
        let begin = cpu();
        keeper.refresh(&fleet, server);
        per_server += cpu() - begin;
    }
    let mut per_change = Duration::MAX;
    let (mut visited, mut parts) = (0, 0);
    for round in 0..20 {
        let (n, server) = (count / 2, &servers[count / 2]);
        let mut tools = tools(n);
        tools[1] = format!("changed_{round}");
        offer(server, &tools, "first");
        let before = keeper.view(&fleet, &scope).expect("a view");
        let visited_before = keeper.merged[&scope].visited();
        let begin = cpu();
        keeper.refresh(&fleet, server);
        per_change = per_change.min(cpu() - begin);
        visited = keeper.merged[&scope].visited() - visited_before;
        let now = keeper.view(&fleet, &scope).expect("a view");
        parts = now.parts_not_in(&before);
        assert!(!before.has_same(&now, ListKind::Tools));
        assert!(before.has_same(&now, ListKind::Prompts));
        assert_eq!(now.len(ListKind::Tools), count * 20);
    }
    let begin = cpu();
    Keeper::new(identity())
        .view(&fleet, &scope)
        .expect("a view");
    let anew = cpu() - begin;
    Cost {
        anew,
        visited,
        per_server: per_server / u32::try_from(count).expect("a few"),
        per_change,
        parts,
    }
}

/// A change of one server costs the same with 10 and with 1,000 servers of 20 tools each.
#[test]
fn a_change_touches_only_its_own_server() {
    let (few, many) = (cost(10), cost(1000));
    assert_eq!((few.parts, many.parts), (1, 1));
    assert_eq!(few.visited, many.visited);
    assert_eq!(many.visited, 20);
    let times = format!(
        "connecting {:?} and {:?} per server, changing {:?} and {:?}, building {:?} and {:?}",
        few.per_server, many.per_server, few.per_change, many.per_change, few.anew, many.anew
    );
    println!("{times}");
    // In proportion to the number of servers, both would be a hundred times as much.
    assert!(many.per_server < few.per_server * 8, "{times}");
    assert!(many.per_change < few.per_change * 8, "{times}");
}

/// The visible contents of a view, as text.
fn seen(view: &View) -> String {
    let mut seen = String::new();
    for kind in ListKind::ALL {
        for era in [Era::Legacy, Era::Modern] {
            let list = String::from_utf8_lossy(view.list(kind, era)).into_owned();
            writeln!(seen, "{list}").expect("a string has room");
        }
        writeln!(seen, "{}", view.len(kind)).expect("a string has room");
    }
    for name in ["a", "b", "a__a", "b__b", "c__a", "long__a", "a_a"] {
        let tool = match view.tool(name) {
            Ok(route) => format!("{}/{}", route.server.name(), route.native),
            Err(error) => error.message,
        };
        writeln!(seen, "{name}: {tool}, {}", view.is_settled()).expect("a string has room");
    }
    seen
}

/// A few numbers, always the same ones.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        usize::try_from(self.0 >> 33).expect("31 bits") % bound
    }

    /// Some of the names.
    fn some(&mut self, names: &[&str]) -> Vec<String> {
        let chosen = names.iter().filter(|_| self.below(2) == 0);
        chosen.map(|&name| name.to_owned()).collect()
    }
}

/// After any changes, a view equals a newly built one.
#[test]
fn a_changed_view_equals_a_new_one() {
    let long = "long_".repeat(11);
    let names = ["a", "b", "a__a", "c__a", "b__b", "x.y", long.as_str()];
    for policy in [
        NamingPolicy::PrefixOnConflict,
        NamingPolicy::AlwaysPrefix,
        NamingPolicy::LastWins,
        NamingPolicy::Preserve,
    ] {
        let settings = Settings {
            naming: policy,
            pinning: Pinning::Quarantine,
            ..Settings::default()
        };
        let servers = ["a", "b", "c", "a__b", &"long".repeat(12)].map(server);
        let fleet = fleet(settings, &servers);
        let (mut keeper, scope) = (Keeper::new(identity()), everything());
        keeper.view(&fleet, &scope).expect("a view");
        let mut numbers = Numbers(7);
        for round in 0..60 {
            let server = &servers[numbers.below(servers.len())];
            match numbers.below(6) {
                0 => {
                    let mut choice = ToolChoice::default();
                    choice
                        .disabled
                        .extend(numbers.some(&names).into_iter().map(NativeName::new));
                    server.tool_choice.store(Arc::new(choice));
                }
                1 => {
                    let kind = ListKind::ALL[1 + numbers.below(3)];
                    let list = list(kind, &numbers.some(&names), "first");
                    server.change(|catalog| catalog.set(kind, list));
                }
                2 => offer_pinned(server, &numbers.some(&names), "second"),
                3 => {
                    let pins = server.pins();
                    let pending = pins
                        .iter()
                        .filter_map(|(tool, pin)| Some((tool.clone(), pin.pending.clone()?)));
                    server.pinned.approve(&pending.collect::<Vec<_>>());
                }
                _ => offer_pinned(server, &numbers.some(&names), "first"),
            }
            keeper.refresh(&fleet, server);
            let changed = keeper.view(&fleet, &scope).expect("a view");
            let anew = Keeper::new(identity())
                .view(&fleet, &scope)
                .expect("a view");
            assert_eq!(seen(&changed), seen(&anew), "{policy}, round {round}");
            for kind in ListKind::ALL {
                assert!(changed.has_same(&anew, kind) && anew.has_same(&changed, kind));
            }
        }
    }
}
