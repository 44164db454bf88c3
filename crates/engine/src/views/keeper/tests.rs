//! The cost of a change of one server.

use std::time::Duration;

use bytes::Bytes;
use catalog::{Catalog, List, ListKind, Remembered};
use mcp::client::Identity;
use model::{Declared, Launch, Origin, Place, Program, ProjectId, ServerSpec, Settings};

use super::*;
use crate::{server::progress::Progress, views::fleet::Project};

pub(crate) fn identity() -> Identity {
    Identity {
        name: "toolwharf".to_owned(),
        version: "1".to_owned(),
        chain: None,
    }
}

pub(crate) fn list(kind: ListKind, names: &[String], description: &str) -> List {
    let raw = |name: &String| {
        let id = kind.id_key();
        Bytes::from(format!(
            r#"{{"{id}":"{name}","name":"{name}","description":"{description}","inputSchema":{{"type":"object"}}}}"#
        ))
    };
    List::of(kind, names.iter().map(raw), false)
}

pub(crate) fn server(name: &str) -> Arc<Server> {
    started(spec(name))
}

fn started(spec: ServerSpec) -> Arc<Server> {
    Server::new(spec, Remembered::default(), 1, false, Progress::default())
}

fn spec(name: &str) -> ServerSpec {
    let program = Program::Command {
        program: "none".to_owned(),
        args: Vec::new(),
    };
    let origin = Origin::Launch(Arc::new(Launch::new(program, Place::Host)));
    let name = ServerName::parse(name).expect("a name");
    ServerSpec::new(name, origin)
}

/// Replaces the tools of a server.
pub(crate) fn offer(server: &Server, tools: &[String], description: &str) {
    let tools = list(ListKind::Tools, tools, description);
    server.change(|catalog: &mut Catalog| catalog.set(ListKind::Tools, tools));
}

pub(crate) fn fleet(settings: Settings, servers: &[Arc<Server>]) -> Fleet {
    let mut fleet = Fleet::new(settings);
    fleet.replace(None, |_| false, servers.to_vec());
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

/// CPU time that a change takes.
fn time(change: impl FnOnce()) -> Duration {
    let begin = cpu();
    change();
    cpu() - begin
}

/// The median, which a busy machine hardly changes.
fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// The cost of connecting one server after another, and of one changed tool, with this many servers.
struct Cost {
    /// Tools that the change named.
    visited: u64,
    /// Parts of the view that the change replaced.
    parts: usize,
    /// The CPU time for one more server, on average, and for the last ones.
    per_server: Duration,
    last: Duration,
    /// The CPU time for the changed tool, until the view is changed, and to find that its list differs.
    per_change: Duration,
    per_comparison: Duration,
    /// The CPU time for the whole view.
    anew: Duration,
}

fn tools(n: usize) -> Vec<String> {
    let tools = (0..10).flat_map(|tool| [format!("shared_{tool}"), format!("own_{n}_{tool}")]);
    tools.collect()
}

/// Half of the tools of each server have the same names as those of all others.
fn cost(count: usize) -> Cost {
    let servers: Vec<_> = (0..count).map(|n| server(&format!("server-{n}"))).collect();
    let fleet = fleet(Settings::default(), &servers);
    let (mut keeper, scope) = (Keeper::new(identity()), everything());
    keeper.view(&fleet, &scope).expect("a view");
    let mut connecting = Vec::new();
    for (n, server) in servers.iter().enumerate() {
        offer(server, &tools(n), "first");
        connecting.push(time(|| keeper.refresh(&fleet, server)));
    }
    let (mut changing, mut comparing) = (Vec::new(), Vec::new());
    let (mut visited, mut parts) = (0, 0);
    for round in 0..20 {
        let (n, server) = (count / 2, &servers[count / 2]);
        let mut tools = tools(n);
        tools[1] = format!("changed_{round}");
        offer(server, &tools, "first");
        let before = keeper.view(&fleet, &scope).expect("a view");
        let visited_before = keeper.merged[&scope].visited();
        changing.push(time(|| keeper.refresh(&fleet, server)));
        visited = keeper.merged[&scope].visited() - visited_before;
        let now = keeper.view(&fleet, &scope).expect("a view");
        parts = now.parts_not_in(&before);
        comparing.push(time(|| assert!(!before.has_same(&now, ListKind::Tools))));
        assert!(before.has_same(&now, ListKind::Prompts));
        assert_eq!(now.len(ListKind::Tools), count * 20);
    }
    let per_server = connecting.iter().sum::<Duration>() / u32::try_from(count).expect("a few");
    Cost {
        visited,
        parts,
        per_server,
        last: median(connecting.split_off(count - 9)),
        per_change: median(changing),
        per_comparison: median(comparing),
        anew: time(|| {
            _ = Keeper::new(identity())
                .view(&fleet, &scope)
                .expect("a view")
        }),
    }
}

/// A change of one server costs the same with 10 and with 1,000 servers of 20 tools each.
#[test]
fn a_change_touches_only_its_own_server() {
    let (few, many) = (cost(10), cost(1000));
    for (count, cost) in [(10, &few), (1000, &many)] {
        println!(
            "{count} servers: connecting {:?} per server, the last ones {:?}, changing {:?}, comparing {:?}, building {:?}",
            cost.per_server, cost.last, cost.per_change, cost.per_comparison, cost.anew
        );
        assert_eq!((cost.parts, cost.visited), (1, 20), "{count}");
    }
    // In proportion to the number of servers, both would be a hundred times as much.
    assert!(many.last < few.last * 8);
    assert!(many.per_change < few.per_change * 8);
}

/// A project sees its own server, and not the shared one of the same name.
#[test]
fn a_server_of_a_project_hides_a_shared_one() {
    for declared in [Declared::Project, Declared::Registered] {
        let id = ProjectId::parse("shop").expect("an id");
        let (shared, mut own) = (server("till"), spec("till"));
        (own.owner, own.declared) = (Some(id.clone()), declared);
        let own = started(own);
        let mut fleet = fleet(Settings::default(), &[shared.clone(), own.clone()]);
        let project = Arc::new(Project::default());
        fleet.projects.insert_mut(id.clone(), project);
        let seen = |project: Option<&ProjectId>| {
            let scope = Scope {
                project: project.cloned(),
                ..Scope::default()
            };
            let view = Keeper::new(identity()).view(&fleet, &scope);
            let view = view.expect("a view");
            let keys = view.servers.iter().map(|server| server.key().clone());
            keys.collect::<Vec<_>>()
        };
        assert_eq!(seen(Some(&id)), [own.key().clone()], "{declared:?}");
        assert_eq!(seen(None), [shared.key().clone(), own.key().clone()]);
    }
}

/// One more project costs the same with 10 and with 1,000 others.
#[test]
fn a_loaded_project_costs_the_same_with_any_number_of_others() {
    let mut fleet = fleet(Settings::default(), &[]);
    let mut keeper = Keeper::new(identity());
    keeper.view(&fleet, &everything()).expect("a view");
    let mut times = Vec::new();
    for n in 0..1000 {
        let id = ProjectId::parse(&format!("p{n}")).expect("an id");
        let mut spec = spec("till");
        (spec.owner, spec.declared) = (Some(id.clone()), Declared::Project);
        let server = started(spec);
        times.push(time(|| {
            let mut changed = fleet.clone();
            changed
                .projects
                .insert_mut(id.clone(), Arc::new(Project::default()));
            changed.replace(Some(&id), |_| true, vec![server.clone()]);
            fleet = changed;
            keeper.redeclare(&fleet, |scope| {
                scope.project.as_ref().is_none_or(|own| *own == id)
            });
        }));
        assert_eq!(
            fleet.get(server.key()).map(|one| one.key()),
            Some(server.key())
        );
    }
    assert_eq!(fleet.all().count(), 1000);
    let last = median(times.split_off(990));
    let first = median(times[1..11].to_vec());
    println!("a loaded project: {first:?} with few others, {last:?} with 1,000");
    assert!(last < first * 8);
}

pub(crate) mod random;
