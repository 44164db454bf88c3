//! Exposed names through the public interface: a table of cases, then the invariants on arbitrary input.

#![expect(clippy::unwrap_used, reason = "a test helper may fail, as a test may")]

use std::collections::{BTreeMap, BTreeSet};

use model::naming::{self, Assignment, Clashes, MAX_LEN, NameTable, Named, Renamed};
use model::{NamingPolicy, NativeName, ServerName};
use proptest::prelude::*;

type Input = Vec<(ServerName, Vec<NativeName>)>;

fn input(servers: &[(&str, &[&str])]) -> Input {
    servers
        .iter()
        .map(|(server, tools)| {
            let tools = tools.iter().map(|t| NativeName::new(*t)).collect();
            (ServerName::parse(server).unwrap(), tools)
        })
        .collect()
}

/// Assigns names without regard to the prefixes of clients.
fn assign(servers: &Input, policy: NamingPolicy) -> Result<Assignment, Clashes> {
    naming::assign(servers, policy, MAX_LEN)
}

fn exposed(names: &Assignment) -> Vec<&str> {
    names.names.iter().map(|n| n.exposed.as_str()).collect()
}

fn check(policy: NamingPolicy, servers: &[(&str, &[&str])], expect: &[&str]) {
    let names = assign(&input(servers), policy).unwrap();
    assert_eq!(exposed(&names), expect);
}

use NamingPolicy::{AlwaysPrefix, LastWins, PrefixOnConflict, Preserve};

#[test]
fn names_are_prefixed_on_conflict() {
    check(
        PrefixOnConflict,
        &[("a", &["read", "only_a"]), ("b", &["read", "only-b"])],
        &["a__read", "only_a", "b__read", "only-b"],
    );
    // `AlwaysPrefix` also applies to a single server.
    check(AlwaysPrefix, &[("a", &["x", "y"])], &["a__x", "a__y"]);
    // A name that one server lists twice counts once.
    for policy in [PrefixOnConflict, LastWins, Preserve] {
        check(policy, &[("a", &["x", "x"])], &["x"]);
    }
}

#[test]
fn illegal_characters_are_replaced_and_marked() {
    check(
        PrefixOnConflict,
        &[("a", &["get.weather", "get/weather", ""])],
        &["get_weather_5052bc33", "get_weather_1af9ba9f", "_af5570f5"],
    );
    // If two servers list the same illegal name, the names clash.
    check(
        PrefixOnConflict,
        &[("a", &["x.y"]), ("b", &["x.y"])],
        &["a__x_y_fb8e155c", "b__x_y_c45e29cb"],
    );
}

#[test]
fn a_name_with_a_prefix_belongs_to_the_server_of_that_name() {
    check(
        PrefixOnConflict,
        &[("a", &["x"]), ("b", &["x"]), ("c", &["a__x"])],
        &["a__x", "b__x", "c__a__x"],
    );
    // This holds even if the owner has no such tool, or if its names are not prefixed.
    for policy in [PrefixOnConflict, LastWins] {
        check(
            policy,
            &[("a", &["y"]), ("c", &["a__x", "c__z"])],
            &["y", "c__a__x", "c__z"],
        );
    }
    // A server keeps a name with its own prefix, unless another of its tools may need it.
    check(
        PrefixOnConflict,
        &[("c", &["c__z", "z"])],
        &["c__c__z", "z"],
    );
}

/// A name with another server's prefix is given to no other server. Otherwise the name would lead to another tool as
/// soon as its owner needs it.
#[test]
fn preserve_gives_no_server_what_belongs_to_another() {
    check(Preserve, &[("b", &[]), ("bx", &["b__y"])], &["bx__b__y"]);
    // The owner `b` needs the name, because two tools are called `y`, or because its own tool is called `b__y`.
    for tool in ["y", "b__y"] {
        let servers = input(&[("a", &["y"]), ("b", &[tool]), ("bx", &["b__y"])]);
        assign(&servers, Preserve).unwrap_err();
        let names = naming::assign_apart(&servers, MAX_LEN);
        assert_eq!(exposed(&names).last(), Some(&"bx__b__y"));
    }
    // Another tool of the same server may need it, too.
    check(Preserve, &[("b", &["b__y", "y"])], &["b__b__y", "y"]);
}

#[test]
fn always_prefix_cannot_be_captured() {
    let servers: [(&str, &[&str]); 2] = [("a", &["b__env", "x"]), ("a__b", &["env"])];
    check(
        AlwaysPrefix,
        &servers,
        &["a_b_env_d1644340891ed72b", "a__x", "a__b__env"],
    );
    // A server that is added later cannot capture a name, nor can a name that is equal only after replacement.
    for env in [&["env"][..], &[]] {
        let names = input(&[("a", &["b__env", "b__e.nv"]), ("a__b", env), ("a_", &["b"])]);
        let names = assign(&names, AlwaysPrefix).unwrap();
        let theirs = exposed(&names);
        assert!(
            theirs[..2].iter().all(|name| !name.contains("__")),
            "{theirs:?}"
        );
        assert_eq!(theirs.last(), Some(&"a___b"));
    }
}

#[test]
fn a_clash_of_two_leaves_what_others_are_called() {
    let servers = input(&[("a", &["x", "get.it"]), ("b", &["x"]), ("c", &["a__x"])]);
    let clashes = assign(&servers, Preserve).unwrap_err();
    assert_eq!(clashes.0.len(), 2, "{clashes}");
    let names = naming::assign_apart(&servers, MAX_LEN);
    assert_eq!(exposed(&names), ["a__x", "get.it", "b__x", "c__a__x"]);
}

#[test]
fn long_names_are_cut_to_64() {
    let long = "t".repeat(70);
    let names = assign(&input(&[("server", &[long.as_str()])]), PrefixOnConflict).unwrap();
    let name = names.names[0].exposed.as_str();
    assert_eq!(name.len(), 64);
    assert!(name.starts_with(&"t".repeat(55)));
}

/// Clients add a prefix to each name. Names that fit are the same within any limit. Others are shortened, and their
/// former names are known.
#[test]
fn g02_names_leave_room_for_a_prefix() {
    let tools: &[&str] = &[
        "create_issue",
        "create_pull_request_review_comment_with_suggestion",
        "create_pull_request_review_comment_with_suggestions",
        "create.a.pull.request.review.with.one.comment",
    ];
    let forge = "a-forge-with-quite-a-long-name";
    let servers = input(&[("github", tools), (forge, tools), ("time", &["now"])]);
    let expect = [
        ("github__create_issue", None),
        (
            "github__create_pull_request_review_comm_72a97d67",
            Some("github__create_pull_request_review_comment_with_suggestion"),
        ),
    ];
    let names = naming::assign(&servers, PrefixOnConflict, 48).unwrap();
    for (named, (name, former)) in names.names.iter().zip(expect) {
        assert_eq!(named.exposed.as_str(), name);
        let known = named.former.as_ref().map(|former| former.as_str());
        assert_eq!(known, former);
    }
    let before = mapping(&assign(&servers, PrefixOnConflict).unwrap());
    for named in &names.names {
        let key = (named.server.to_string(), named.native.to_string());
        let name = named.exposed.as_str();
        assert!(naming::is_legal(name, 48), "{name}");
        // The tool can be recognised.
        assert!(name.contains(&named.native.as_str()[..3]), "{name}");
        match &named.former {
            None => assert_eq!(before[&key], name),
            Some(former) => assert_eq!(before[&key], former.as_str()),
        }
    }
    let shortened = names.names.iter().filter(|named| named.former.is_some());
    assert_eq!(shortened.count(), 6);
}

#[test]
fn last_wins_tells_what_was_replaced() {
    let servers = input(&[("a", &["x", "y"]), ("b", &["x"]), ("c", &["x"])]);
    let names = assign(&servers, LastWins).unwrap();
    assert_eq!(exposed(&names), ["y", "x"]);
    let replaced = names.replaced.iter();
    let replaced = replaced.map(|r| (r.native.as_str(), r.loser.as_str(), r.winner.as_str()));
    assert!(replaced.eq([("x", "a", "c"), ("x", "b", "c")]));
}

#[test]
fn preserve_keeps_illegal_names_and_reports_clashes() {
    check(Preserve, &[("a", &["x.y"]), ("b", &["z"])], &["x.y", "z"]);
    let servers = input(&[("a", &["x", "y"]), ("b", &["x"]), ("c", &["y"])]);
    let clashes = assign(&servers, Preserve).unwrap_err();
    let expected = "servers `a` and `b` both offer `x`; servers `a` and `c` both offer `y`";
    assert_eq!(clashes.to_string(), expected);
}

fn mapping(names: &Assignment) -> BTreeMap<(String, String), String> {
    names
        .names
        .iter()
        .map(|n| {
            let key = (n.server.to_string(), n.native.to_string());
            (key, n.exposed.to_string())
        })
        .collect()
}

/// Few letters, so that clashes and near clashes are frequent.
fn any_tool() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ab_]{0,6}",
        "(a|b|a__b)__[ab.]{1,3}",
        ".{0,80}",
        Just("ab".repeat(40)),
        // The second name is the exposed name of the first.
        Just("get.weather".to_owned()),
        Just("get_weather_5052bc33".to_owned()),
    ]
}

fn any_input() -> impl Strategy<Value = Input> {
    let server = prop_oneof!["[ab]{1,2}", "a__b", "[ab.]{1,3}x", "s{60}"];
    prop::collection::btree_map(server, prop::collection::vec(any_tool(), 0..8), 0..6).prop_map(
        |servers| {
            servers
                .into_iter()
                .map(|(name, tools)| {
                    let tools = tools.into_iter().map(NativeName::new).collect();
                    (ServerName::parse(&name).unwrap(), tools)
                })
                .collect()
        },
    )
}

/// Most often the bounds with a meaning.
fn any_len() -> impl Strategy<Value = usize> {
    prop_oneof![Just(MAX_LEN), Just(48), naming::BOUNDS]
}

/// The exposed name of each tool (by server and native name), and the reverse.
type Held = (
    BTreeMap<(String, String), String>,
    BTreeMap<String, (String, String)>,
);

fn held(servers: &Input, policy: NamingPolicy, max_len: usize) -> Held {
    let names = naming::assign(servers, policy, max_len);
    let names = names.unwrap_or_else(|_| naming::assign_apart(servers, max_len));
    let by_tool = mapping(&names);
    let by_name = by_tool
        .iter()
        .map(|(tool, name)| (name.clone(), tool.clone()));
    (by_tool.clone(), by_name.collect())
}

/// The exposed name of a tool without clashes.
fn alone(tool: &str, policy: NamingPolicy, max_len: usize) -> String {
    let (by_tool, _) = held(&input(&[("other", &[tool])]), policy, max_len);
    by_tool.into_values().next().unwrap()
}

proptest! {
    /// Whatever one server lists, the names of other servers still lead to the same tools or to nothing, and change
    /// only as the policy allows.
    #[test]
    fn no_server_takes_a_name_of_another(
        servers in any_input(),
        intruder: prop::sample::Index,
        tools in prop::collection::vec(any_tool(), 0..8),
        max_len in any_len(),
    ) {
        prop_assume!(!servers.is_empty());
        let intruder = intruder.index(servers.len());
        let mut changed = servers.clone();
        changed[intruder].1 = tools.iter().map(|tool| NativeName::new(tool.as_str())).collect();
        let intruder = servers[intruder].0.as_str();
        for policy in [PrefixOnConflict, AlwaysPrefix, LastWins, Preserve] {
            let (before, _) = held(&servers, policy, max_len);
            let (after, leads) = held(&changed, policy, max_len);
            let (prefixed, _) = held(&changed, AlwaysPrefix, max_len);
            for (tool, name) in before.iter().filter(|(tool, _)| tool.0 != intruder) {
                let offers_it = || tools.iter().any(|other| alone(other, LastWins, max_len) == alone(&tool.1, LastWins, max_len));
                if let Some(now) = leads.get(name) {
                    prop_assert!(now == tool || policy == LastWins && offers_it(), "{policy}: {name} of {tool:?} is {now:?}");
                }
                match (policy, after.get(tool)) {
                    (AlwaysPrefix, now) => prop_assert_eq!(now, Some(name)),
                    (LastWins, None) => prop_assert!(offers_it(), "{:?} is hidden", tool),
                    (_, None) => prop_assert!(false, "{policy}: {:?} is hidden", tool),
                    (_, Some(now)) => prop_assert!(
                        now == name || *now == prefixed[tool] || *now == alone(&tool.1, policy, max_len),
                        "{policy}: {tool:?} was {name}, is {now}"
                    ),
                }
            }
        }
    }

    /// `server__tool`, if it is a legal name, leads to that server or nowhere under every policy.
    #[test]
    fn what_begins_with_a_server_is_its_own(servers in any_input(), max_len in any_len()) {
        let labels = naming::Labels::new(servers.iter().map(|(name, _)| name));
        for policy in [PrefixOnConflict, AlwaysPrefix, LastWins] {
            for (name, (server, _)) in held(&servers, policy, max_len).1 {
                if let Some((owner, _)) = labels.owner(&name) {
                    prop_assert_eq!(owner, server, "{}: {}", policy, name);
                }
            }
        }
    }

    #[test]
    fn names_are_unique_legal_and_complete(servers in any_input(), max_len in any_len(), always: bool) {
        let policy = if always { AlwaysPrefix } else { PrefixOnConflict };
        let names = naming::assign(&servers, policy, max_len).unwrap();
        let unique: BTreeSet<_> = exposed(&names).into_iter().collect();
        prop_assert_eq!(unique.len(), names.names.len());
        prop_assert!(unique.iter().all(|name| naming::is_legal(name, max_len)));
        let pairs: BTreeSet<_> = servers
            .iter()
            .flat_map(|(s, tools)| tools.iter().map(move |t| (s.to_string(), t.to_string())))
            .collect();
        prop_assert_eq!(pairs, mapping(&names).into_keys().collect());
    }

    #[test]
    fn order_does_not_matter(servers in any_input(), max_len in any_len(), always: bool) {
        let policy = if always { AlwaysPrefix } else { PrefixOnConflict };
        let mut turned = servers.clone();
        turned.reverse();
        turned.iter_mut().for_each(|(_, tools)| tools.reverse());
        let a = naming::assign(&servers, policy, max_len).unwrap();
        let b = naming::assign(&turned, policy, max_len).unwrap();
        prop_assert_eq!(mapping(&a), mapping(&b));
    }

    #[test]
    fn legal_names_without_a_clash_are_unchanged(tools in prop::collection::btree_set("[a-z_-]{1,64}", 0..20)) {
        let tools: Vec<_> = tools.into_iter().map(NativeName::new).collect();
        // A name that begins with its own server's name and `__` may clash with another of its tools.
        let servers = vec![(ServerName::parse("S").unwrap(), tools)];
        for policy in [PrefixOnConflict, LastWins, Preserve] {
            for named in assign(&servers, policy).unwrap().names {
                prop_assert_eq!(named.exposed.as_str(), named.native.as_str());
            }
        }
    }

    #[test]
    fn last_wins_offers_each_name_once(servers in any_input(), max_len in any_len()) {
        let names = naming::assign(&servers, LastWins, max_len).unwrap();
        let unique: BTreeSet<_> = exposed(&names).into_iter().collect();
        prop_assert_eq!(unique.len(), names.names.len());
        prop_assert!(unique.iter().all(|name| naming::is_legal(name, max_len)));
        let natives: BTreeSet<_> = names.names.iter().map(|n| &n.native).collect();
        prop_assert_eq!(natives.len(), names.names.len());
    }

    /// Names from before there was a limit still lead to their tools, and no name leads to two tools. Names that fit are
    /// unchanged.
    #[test]
    fn former_names_lead_to_their_tools(servers in any_input(), max_len in any_len()) {
        for policy in [PrefixOnConflict, AlwaysPrefix] {
            let (before, _) = held(&servers, policy, MAX_LEN);
            let names = naming::assign(&servers, policy, max_len).unwrap().names;
            let mut leads = BTreeMap::new();
            for named in &names {
                let tool = (named.server.to_string(), named.native.to_string());
                let former = named.former.as_ref().map(|name| name.to_string());
                for name in [Some(named.exposed.to_string()), former].into_iter().flatten() {
                    prop_assert_eq!(leads.insert(name, tool.clone()), None);
                }
                let prefixed = format!("{}__{}", named.server, named.native);
                if prefixed.len() + 17 <= max_len.min(MAX_LEN) {
                    prop_assert_eq!(named.exposed.to_string(), before[&tool].clone());
                }
            }
            for (tool, name) in before {
                prop_assert_eq!(leads.get(&name), Some(&tool), "{}: {}", policy, name);
            }
        }
    }
}

/// Sets the lists of these servers in a table and in `lists`. Asserts that the table has the names of all lists, and
/// that it reports the servers whose names differ.
fn set(
    table: &mut NameTable,
    lists: &mut Input,
    changed: Vec<(usize, Vec<NativeName>)>,
    (policy, max_len): (NamingPolicy, usize),
) -> Renamed {
    let names = |table: &NameTable, lists: &Input| -> Vec<Vec<Named>> {
        let places = 0..lists.len();
        places.map(|at| table.names(at).to_vec()).collect()
    };
    let before = names(table, lists);
    for (at, list) in &changed {
        lists[*at].1.clone_from(list);
    }
    let renamed = table.set(changed);
    let now = names(table, lists);
    let expected = naming::assign(lists, policy, max_len);
    let expected = expected.unwrap_or_else(|_| naming::assign_apart(lists, max_len));
    let all: Vec<Named> = now.iter().flatten().cloned().collect();
    assert_eq!(all, expected.names, "{policy} {max_len}: {lists:?}");
    let differ = (0..lists.len()).filter(|at| before[*at] != now[*at]);
    assert_eq!(renamed.servers, differ.collect::<Vec<_>>());
    renamed
}

/// When one more server lists the same tools, only its tools are named, regardless of the number of servers.
#[test]
fn a_change_of_one_list_visits_no_other_servers() {
    for policy in [PrefixOnConflict, AlwaysPrefix, LastWins, Preserve] {
        let mut costs = Vec::new();
        for count in [10, 1000] {
            let name = |n: usize| ServerName::parse(&format!("server-{n}")).unwrap();
            let mut table = NameTable::new((0..count).map(name), policy, 48);
            let list = |n: usize| -> Vec<NativeName> {
                let tools = (0..10).flat_map(|at| [format!("t{at}"), format!("own-{n}-{at}")]);
                tools.map(NativeName::new).collect()
            };
            for n in 1..count {
                table.set([(n, list(n))]);
            }
            let before = table.visited();
            let renamed = table.set([(0, list(0))]);
            costs.push(table.visited() - before);
            assert!(renamed.servers.contains(&0), "{policy}");
        }
        assert_eq!(costs[0], costs[1], "{policy}");
        assert!(costs[1] <= 40, "{policy}: {costs:?}");
    }
}

#[test]
fn a_table_reports_what_is_hidden_and_what_clashes() {
    let check = |policy, expect: [&str; 3]| {
        let mut lists = input(&[("a", &[]), ("b", &[]), ("c", &[])]);
        let servers = lists.iter().map(|(name, _)| name.clone());
        let mut table = NameTable::new(servers, policy, MAX_LEN);
        // The third list has nothing new.
        for (at, expect) in [1, 0, 0].into_iter().zip(expect) {
            let tools = ["x", "b__x"].map(NativeName::new).to_vec();
            let changed = vec![(at, tools)];
            let Renamed {
                replaced, clashes, ..
            } = set(&mut table, &mut lists, changed, (policy, MAX_LEN));
            let replaced = replaced
                .iter()
                .map(|one| format!("{} hides {}", one.winner, one.native));
            let clashes = clashes.iter().map(ToString::to_string);
            let found: Vec<String> = replaced.chain(clashes).collect();
            assert_eq!(found.join(", "), expect, "{policy}");
        }
    };
    check(LastWins, ["", "b hides x, b hides b__x", ""]);
    check(
        Preserve,
        [
            "",
            "servers `b` and `a` both offer `x`, servers `b` and `a` both offer `b__x`",
            "",
        ],
    );
    check(PrefixOnConflict, ["", "", ""]);
}

proptest! {
    // Each case is many assignments.
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A table always has the names that all lists together would get, even if tools have names that were made for
    /// others.
    #[test]
    fn a_table_has_the_names_of_an_assignment(
        servers in any_input(),
        changes in prop::collection::vec(
            prop::collection::vec((
                any::<prop::sample::Index>(),
                prop::collection::vec(any_tool(), 0..6),
                prop::option::of(any::<prop::sample::Index>()),
            ), 1..3),
            1..6,
        ),
        max_len in any_len(),
    ) {
        prop_assume!(!servers.is_empty());
        for policy in [PrefixOnConflict, AlwaysPrefix, LastWins, Preserve] {
            let names = servers.iter().map(|(name, _)| name.clone());
            let mut table = NameTable::new(names, policy, max_len);
            let mut lists: Input = servers.iter().map(|(name, _)| (name.clone(), Vec::new())).collect();
            let all = servers.iter().map(|(_, tools)| tools.clone()).enumerate().collect();
            set(&mut table, &mut lists, all, (policy, max_len));
            for change in &changes {
                let mut changed: BTreeMap<usize, Vec<NativeName>> = BTreeMap::new();
                for (at, tools, taken) in change {
                    let mut tools: Vec<NativeName> = tools.iter().map(|tool| NativeName::new(tool.as_str())).collect();
                    let known = (0..lists.len()).flat_map(|at| table.names(at)).flat_map(|named| {
                        std::iter::once(&named.exposed).chain(&named.former)
                    });
                    let known: Vec<_> = known.collect();
                    if let Some(taken) = taken.filter(|_| !known.is_empty()) {
                        tools.push(NativeName::new(known[taken.index(known.len())].as_str()));
                    }
                    changed.insert(at.index(lists.len()), tools);
                }
                let changed = changed.into_iter().collect();
                set(&mut table, &mut lists, changed, (policy, max_len));
            }
        }
    }
}
