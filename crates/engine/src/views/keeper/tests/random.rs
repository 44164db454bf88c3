//! After any changes, each view equals a newly built one.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt::Write,
};

use mcp::{Era, client::ServerInfo};
use model::{
    CallerValues, ExposedName, HeaderPart, HeaderTemplate, Login, NamingPolicy, NativeName,
    Pinning, ProjectView, Remote, ToolChoice, ToolRef, ToolSetting,
};

use super::*;
use crate::server::State;

const SERVERS: [&str; 5] = [
    "a",
    "b",
    "c",
    "a__b",
    "a-name-that-leaves-little-room-for-tools",
];
const TOOLS: [&str; 8] = [
    "a",
    "b",
    "a__a",
    "c__a",
    "b__b",
    "x.y",
    "sign_in_to_a",
    "a-tool-whose-name-is-too-long-once-a-server-name-is-in-front-of-it",
];
const POLICIES: [NamingPolicy; 4] = [
    NamingPolicy::PrefixOnConflict,
    NamingPolicy::AlwaysPrefix,
    NamingPolicy::LastWins,
    NamingPolicy::Preserve,
];

/// Numbers that look random and are always the same ones.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        usize::try_from(self.0 >> 33).expect("31 bits") % bound
    }

    fn is(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }

    /// Some of the names, in any order.
    pub(crate) fn some(&mut self, names: &[&str]) -> Vec<String> {
        let mut chosen: Vec<String> = Vec::new();
        for &name in names {
            if self.is(2) {
                continue;
            }
            let at = self.below(chosen.len() + 1);
            chosen.insert(at, name.to_owned());
        }
        chosen
    }
}

fn project(id: &str) -> ProjectId {
    ProjectId::parse(id).expect("an id")
}

fn values(tenant: &str) -> CallerValues {
    let values = [("x-tenant".to_owned(), tenant.to_owned())];
    values.into_iter().collect()
}

/// A server at a URL. Each tenant gets another one.
fn for_tenants(name: &str) -> ServerSpec {
    let tenant = HeaderPart::Caller {
        name: "x-tenant".to_owned(),
        default: Some("none".to_owned()),
    };
    let header = HeaderTemplate(vec![tenant]);
    let remote = Remote {
        url: "http://localhost:1/mcp".to_owned(),
        headers: BTreeMap::new(),
        caller_headers: [("X-Tenant".to_owned(), header)].into(),
        sse: false,
        public_only: false,
        login: Login::default(),
    };
    ServerSpec::new(spec(name).name, Origin::Remote(Box::new(remote)))
}

/// Servers that change in any order of events, and the views of some scopes.
struct World {
    numbers: Numbers,
    fleet: Fleet,
    keeper: Keeper,
    scopes: Vec<Scope>,
}

impl World {
    fn new(seed: u64) -> Self {
        let of = |id: Option<&str>, server: Option<&str>| Scope {
            project: id.map(project),
            server: server.map(|name| spec(name).name),
            ..Scope::default()
        };
        let bare = Scope {
            is_bare: true,
            ..of(None, Some("b"))
        };
        let of_tenant = |tenant: &str, scope: Scope| Scope {
            values: values(tenant),
            ..scope
        };
        Self {
            numbers: Numbers(seed),
            fleet: Fleet::new(Settings::default()),
            keeper: Keeper::new(identity()),
            scopes: vec![
                of(None, None),
                of(Some("p"), None),
                of(Some("q"), None),
                of(None, Some("a")),
                of(Some("p"), Some("a")),
                bare,
                of_tenant("one", of(None, None)),
                of_tenant("two", of(Some("p"), None)),
            ],
        }
    }

    /// Makes one change. Returns what was changed.
    fn step(&mut self) -> &'static str {
        match self.numbers.below(16) {
            0 => {
                self.declare(None);
                "the shared servers"
            }
            1 => {
                let id = self.numbers.one(&["p", "q"]);
                self.declare(Some(project(id)));
                "a project"
            }
            2 if self.numbers.is(3) => {
                let id = project(self.numbers.one(&["p", "q"]));
                self.fleet.projects.remove_mut(&id);
                let is_its = |server: &Server| server.key().owner.as_ref() == Some(&id);
                self.fleet.replace(Some(&id), is_its, Vec::new());
                self.redeclare(Some(&id));
                "a removed project"
            }
            2 => {
                self.set();
                "the settings"
            }
            3 => {
                self.enter();
                "a new caller"
            }
            4 => {
                for scope in &self.scopes {
                    self.keeper.view_now(&self.fleet, scope);
                }
                "nothing, but views were requested"
            }
            _ => {
                let all: Vec<_> = self.fleet.all().cloned().collect();
                if all.is_empty() {
                    return "nothing";
                }
                let with_callers: Vec<_> = self.numbers.one(&all).with_callers().collect();
                let server = self.numbers.one(&with_callers);
                let what = self.change(&server);
                self.keeper.refresh(&self.fleet, &server);
                what
            }
        }
    }

    /// Changes the state of a server or what it offers.
    fn change(&mut self, server: &Arc<Server>) -> &'static str {
        let numbers = &mut self.numbers;
        match numbers.below(9) {
            0 => {
                let mut choice = ToolChoice::default();
                let off = numbers.some(&TOOLS).into_iter();
                choice.disabled.extend(off.map(NativeName::new));
                server.tool_choice.store(Arc::new(choice));
                "disabled tools"
            }
            1 => {
                let kind = ListKind::ALL[1 + numbers.below(3)];
                let list = list(kind, &numbers.some(&TOOLS), "first");
                server.change(|catalog| catalog.set(kind, list));
                "another list"
            }
            2 => {
                let pins = server.pins();
                let pending = pins
                    .iter()
                    .filter_map(|(tool, pin)| Some((tool.clone(), pin.pending.clone()?)));
                let pending: Vec<_> = pending.filter(|_| numbers.is(2)).collect();
                server.pinned.approve(&pending);
                "approved tools"
            }
            3 => {
                let down = |retry_at| State::Down {
                    reason: "it is broken".into(),
                    retry_at,
                };
                let states = [State::Idle, State::Starting, State::Stopped, down(None)];
                server.set_state(numbers.one(&states));
                server.known.status().needs_login = numbers.is(2);
                if numbers.is(2) {
                    server.settle();
                }
                "a state"
            }
            4 => {
                let result = r#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}"#;
                let info = ServerInfo::remembered(Era::Legacy, Bytes::from(result));
                let info = info.ok().filter(|_| numbers.is(2));
                server.change(|catalog| catalog.info = info);
                "a description"
            }
            5 => {
                offer(server, &[], "first");
                "no tools"
            }
            at => {
                let descriptions = [
                    "first",
                    "first",
                    r#"second","_meta":{"ui":{"resourceUri":"ui://x"}},"title":"t"#,
                ];
                let tools = list(ListKind::Tools, &numbers.some(&TOOLS), descriptions[at - 6]);
                server.pinned.compare(&tools.items, Pinning::Quarantine);
                server.change(|catalog| catalog.set(ListKind::Tools, tools));
                "tools"
            }
        }
    }

    /// Replaces the servers of an owner with some others, in any order. Some are kept.
    fn declare(&mut self, owner: Option<ProjectId>) {
        let known = self.fleet.of(owner.as_ref()).to_vec();
        let mut servers = Vec::new();
        for name in self.numbers.some(&SERVERS) {
            let mut own = known.iter().filter(|one| one.name().as_str() == name);
            if let Some(own) = own.next().filter(|_| !self.numbers.is(4)) {
                servers.push(own.clone());
                continue;
            }
            let mut spec = match self.numbers.is(3) {
                true => for_tenants(&name),
                false => spec(&name),
            };
            spec.enabled = !self.numbers.is(6);
            spec.declared = match (&owner, self.numbers.is(4)) {
                (_, true) => Declared::Registered,
                (None, false) => Declared::File,
                (Some(_), false) => Declared::Project,
            };
            if owner.is_none() && self.numbers.is(4) {
                spec.projects.insert(project("q"));
            }
            spec.owner.clone_from(&owner);
            let server = started(spec);
            if self.numbers.is(2) {
                self.change(&server);
            }
            servers.push(server);
        }
        let is_old = |server: &Server| server.key().owner == owner;
        self.fleet.replace(owner.as_ref(), is_old, servers);
        if let Some(id) = &owner {
            let settings = self.project_settings();
            self.fleet
                .projects
                .insert_mut(id.clone(), Arc::new(settings));
        }
        self.redeclare(owner.as_ref());
    }

    fn project_settings(&mut self) -> Project {
        let numbers = &mut self.numbers;
        let tool = |numbers: &mut Numbers| ToolRef {
            server: spec(numbers.one(&SERVERS)).name,
            tool: NativeName::new(numbers.one(&TOOLS)),
        };
        let setting = |numbers: &mut Numbers| ToolSetting {
            enabled: numbers.one(&[None, Some(true), Some(false)]),
            alias: numbers.is(2).then(|| ExposedName::new(numbers.one(&TOOLS))),
            description: numbers.is(2).then(|| "of the project".to_owned()),
        };
        let tools: HashMap<_, _> = (0..4).map(|_| (tool(numbers), setting(numbers))).collect();
        let listed = || SERVERS.into_iter().take(3).map(|name| spec(name).name);
        let view = ProjectView {
            servers: numbers.one(&[None, Some(BTreeSet::new()), Some(listed().collect())]),
            naming: numbers.is(2).then(|| numbers.one(&POLICIES)),
            disabled_tools: (0..2).map(|_| tool(numbers)).collect(),
            ..ProjectView::default()
        };
        Project { view, tools }
    }

    fn set(&mut self) {
        self.fleet.settings = Arc::new(Settings {
            naming: self.numbers.one(&POLICIES),
            max_name_len: self.numbers.one(&[40, 64, 100]),
            pinning: self.numbers.one(&[Pinning::Quarantine, Pinning::Off]),
            ..Settings::default()
        });
        self.redeclare(None);
    }

    fn redeclare(&mut self, only: Option<&ProjectId>) {
        self.keeper.redeclare(&self.fleet, |scope| {
            scope.project.is_none() || only.is_none() || scope.project.as_ref() == only
        });
    }

    /// A caller with header values arrives. Another one makes room.
    fn enter(&mut self) {
        for server in self.fleet.all() {
            let values = values(self.numbers.one(&["one", "two"]));
            let Some(own) = server.kept_apart_by(&values) else {
                continue;
            };
            let create = || Arc::new(server.for_values(&own));
            let entered = server.callers.enter(&own, 1, |_, _| false, create);
            let entered = entered.expect("no request is in progress");
            for gone in entered.evicted.iter().chain(&entered.created) {
                self.keeper.forget_views_of(gone.id());
            }
        }
    }

    /// Asserts that each view equals a newly built one.
    fn check(&mut self, what: &str) {
        for scope in &self.scopes {
            let kept = self.keeper.view(&self.fleet, scope);
            let anew = Keeper::new(identity()).view(&self.fleet, scope);
            let (Some(kept), Some(anew)) = (&kept, &anew) else {
                assert!(kept.is_none() && anew.is_none(), "{what}: {scope:?}");
                continue;
            };
            assert_eq!(seen(kept), seen(anew), "{what}: {scope:?}");
            for kind in ListKind::ALL {
                assert!(kept.has_same(anew, kind) && anew.has_same(kept, kind));
            }
        }
    }
}

/// The visible contents of a view, as text.
fn seen(view: &View) -> String {
    let mut seen = String::new();
    let mut add = |line: String| writeln!(seen, "{line}").expect("a string has room");
    for kind in ListKind::ALL {
        for era in [Era::Legacy, Era::Modern] {
            add(String::from_utf8_lossy(view.list(kind, era)).into_owned());
        }
        add(view.len(kind).to_string());
    }
    let marks = [view.is_settled(), view.has_views(), view.sleeps];
    add(format!("{marks:?}"));
    add(view.initialize(mcp::Version::V2025_06_18));
    add(view.discover());
    let named = view
        .names(ListKind::Tools)
        .map(|(name, ..)| name.to_owned());
    let others = [
        "a",
        "x.y",
        "sign_in_to_a",
        "a__a",
        "a__b__a",
        "c__x.y",
        "q/b__b",
    ];
    let names = named.chain(others.map(str::to_owned));
    for name in names {
        for route in [view.tool(&name), view.prompt(&name)] {
            add(match route {
                Ok(route) => format!("{name}: {} {}", route.server.key(), route.native),
                Err(error) => error.message,
            });
        }
        let signs_in = view.signs_in_to(&name).map(|server| server.key());
        add(format!("{} {signs_in:?}", view.has_view(&name)));
        add(match view.resource(&name, Era::Modern) {
            Ok((server, native)) => format!("{} {native}", server.key()),
            Err(error) => error.message,
        });
    }
    seen
}

#[test]
fn a_changed_view_equals_a_new_one() {
    for seed in 0..2 {
        let mut world = World::new(seed);
        for round in 0..60 {
            let what = world.step();
            world.check(&format!("seed {seed}, round {round}, {what}"));
        }
    }
}
