//! The reliability figures, one command each: `cargo xtask soak NAME`. docs/reliability.md says what they mean for a user.
//!
//! A figure is shown by tests. They run one after the other and at full length, so that nothing else is measured, and
//! print their figures. CI runs the short forms of the same tests.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::builder::{PossibleValue, PossibleValuesParser};

use crate::{
    checks, daemon, postgres, setup,
    shell::{Cmd, heading},
    workspace::Workspace,
};

/// Parts of the soak that need a private cluster. Their tests are not figures.
const CLUSTERS: [(&str, &str); 2] = [
    ("kubernetes", "hosting on Kubernetes, on a private cluster"),
    ("swarm", "hosting on Docker Swarm, on a private cluster"),
];

/// A property of Toolwharf under load.
struct Figure {
    name: &'static str,
    load: &'static str,
    bound: &'static str,
    /// The tests that show it: for each file, the names of the functions.
    tests: &'static [(&'static str, &'static [&'static str])],
    needs_postgres: bool,
}

const BENCH: &str = "crates/bench/tests/chaos.rs";
const BODIES: &str = "crates/toolwharf/tests/input_bytes.rs";
const CALLS: &str = "crates/toolwharf/tests/scenarios_load.rs";
const CLIENTS: &str = "crates/toolwharf/tests/faults_clients.rs";
const CROWDS: &str = "crates/toolwharf/tests/faults_crowds.rs";
const ESCAPES: &str = "crates/runtime/tests/sandbox/escapes.rs";
const FUZZ: &str = "crates/fuzz/tests/targets/main.rs";
const HOSTING: &str = "crates/toolwharf/tests/faults_hosting.rs";
const LEAKS: &str = "crates/toolwharf/tests/leaks.rs";
const LIMITS: &str = "crates/runtime/tests/sandbox/limits.rs";
const LIVES: &str = "crates/toolwharf/tests/lives.rs";
const MODEL: &str = "crates/lifecycle/src/tests/model.rs";
const PROCESS: &str = "crates/runtime/tests/process.rs";
const REQUESTS: &str = "crates/toolwharf/tests/input_http.rs";
const RIGHTS: &str = "crates/toolwharf/tests/rest/authorization.rs";
const RIGHTS_MCP: &str = "crates/toolwharf/tests/rest/mcp.rs";
const SANDBOX_ENDS: &str = "crates/runtime/tests/sandbox/end.rs";
const SCHEMATHESIS: &str = "crates/toolwharf/tests/rest/schemathesis.rs";
const SERVERS: &str = "crates/toolwharf/tests/faults_servers.rs";
const SLOW_DATABASE: &str = "crates/toolwharf/tests/scenarios_replicas/slow.rs";
const STORE: &str = "crates/toolwharf/tests/faults_store.rs";
const UPGRADES: &str = "crates/toolwharf/tests/scenarios_upgrade.rs";

const FIGURES: &[Figure] = &[
    Figure {
        name: "orphans",
        load: "200 servers, each with a child process in a separate session; 100 × `kill -9` of the gateway, half of them beside 30 busy processes",
        bound: "no process is left after 500 ms",
        tests: &[(HOSTING, &["nothing_survives_a_kill_of_the_product"])],
        needs_postgres: false,
    },
    Figure {
        name: "churn",
        load: "10,000 launches as processes and 10,000 in sandboxes; then 60 minutes of calls to ten servers, one of which is killed every two seconds",
        bound: "private memory grows by less than 1 MB per hour, and the number of descriptors stays the same",
        tests: &[
            (
                PROCESS,
                &["many_launches_leave_no_zombie_and_no_descriptor"],
            ),
            (
                SANDBOX_ENDS,
                &["many_leave_no_zombie_no_descriptor_and_no_group"],
            ),
            (LIVES, &["servers_that_are_killed_cost_few_calls"]),
        ],
        needs_postgres: false,
    },
    Figure {
        name: "restart",
        load: "1,000 × `kill -9` of a server",
        bound: "99 % of the next responses come within 1 s of the kill",
        tests: &[(
            LIVES,
            &["a_healthy_server_that_is_killed_is_there_for_the_next_call"],
        )],
        needs_postgres: false,
    },
    Figure {
        name: "crash-traces",
        load: "10,000 random sequences of crashes, starts, stops and missed heartbeats, on a simulated monotonic clock",
        bound: "the restarts are those of a second implementation, to the millisecond",
        tests: &[(MODEL, &["h10_backoff_is_the_models_on_paused_time"])],
        needs_postgres: false,
    },
    Figure {
        name: "stop",
        load: "SIGTERM with 200 servers, half of which ignore SIGTERM and the end of their input",
        bound: "the gateway and all servers have exited after 30.5 s",
        tests: &[(HOSTING, &["servers_that_ignore_sigterm_delay_no_stop"])],
        needs_postgres: false,
    },
    Figure {
        name: "hogs",
        load: "sandboxed servers that take memory, fork, compute or fill their volumes without end; servers that write without end",
        bound: "out of memory and fork bombs end within 1 s, CPU and disk stay within their limits, and 99 % of the calls to another server take at most 1.5 times as long",
        tests: &[
            (
                LIMITS,
                &[
                    "h17_a_memory_hog_is_killed_and_that_is_what_is_said",
                    "h17_a_fork_bomb_is_ended_and_that_is_what_is_said",
                    "a_fork_bomb_stays_small",
                    "a_burner_has_its_share_of_the_processors",
                    "a_disk_filler_gets_an_error_on_its_volumes_and_scratch_together",
                ],
            ),
            (
                SERVERS,
                &[
                    "a_flood_without_a_newline_costs_bounded_memory",
                    "a_flood_of_stderr_costs_bounded_memory",
                ],
            ),
            (CALLS, &["h17_hogs_delay_their_neighbours_little"]),
        ],
        needs_postgres: false,
    },
    Figure {
        name: "conservation",
        load: "8 clients call 8 sandboxed servers for 40 minutes; four times per second a server is killed (about 1,000 kills in total), hung, starved or restarted",
        bound: "the client, the server and the call records account for every call once",
        tests: &[(
            BENCH,
            &["servers_are_harmed_under_load_and_no_call_is_lost_or_made_twice"],
        )],
        needs_postgres: false,
    },
    Figure {
        name: "cross-talk",
        load: "9 million calls of 100 clients with the same request ids to five kinds of servers, and 1 million pipelined calls over stdio",
        bound: "every response reaches its own request, once",
        tests: &[(
            CALLS,
            &[
                "g13_every_answer_reaches_its_own_caller",
                "g13_pipelined_answers_reach_their_requests",
            ],
        )],
        needs_postgres: false,
    },
    Figure {
        name: "fidelity",
        load: "a million random payloads and frames between both eras, over stdio, HTTP and HTTP+SSE",
        bound: "the bytes are identical",
        tests: &[(
            BODIES,
            &[
                "whole_frames_pass_unchanged_between_legacy_ends",
                "whole_frames_pass_unchanged_between_modern_ends",
                "payloads_pass_unchanged_through_every_kind_of_server",
                "payloads_pass_unchanged_over_http",
            ],
        )],
        needs_postgres: false,
    },
    Figure {
        name: "long-line",
        load: "lines of 1 GiB, and lines and HTTP responses without end",
        bound: "memory grows by at most 24 MiB, and the call fails within 1 s",
        tests: &[(
            SERVERS,
            &[
                "a_line_that_is_too_long_ends_its_call_at_once",
                "an_answer_over_http_that_is_too_long_ends_its_call_at_once",
            ],
        )],
        needs_postgres: false,
    },
    Figure {
        name: "fuzz",
        load: "ten fuzz targets for a minute each, guided by coverage: frames, JSON, event streams, headers, configuration, manifests, URIs, OAuth, registry entries and MCPB files",
        bound: "no input breaks a promise of its parser, takes more than 1 s, needs more than 16 MiB or leaves memory behind",
        tests: &[(
            FUZZ,
            &[
                "fuzz_frames",
                "fuzz_json",
                "fuzz_sse",
                "fuzz_headers",
                "fuzz_configuration",
                "fuzz_manifests",
                "fuzz_uris",
                "fuzz_oauth",
                "fuzz_registry",
                "fuzz_mcpb",
            ],
        )],
        needs_postgres: false,
    },
    Figure {
        name: "idle",
        load: "18,000 idle streams: 6,000 of modern clients, then 6,000 of sessions, then 6,000 over HTTP+SSE",
        bound: "at most 10 KiB of memory each",
        tests: &[(
            CLIENTS,
            &[
                "an_idle_subscription_of_a_modern_client_costs_little",
                "idle_streams_of_legacy_clients_cost_little",
            ],
        )],
        needs_postgres: false,
    },
    Figure {
        name: "slow",
        load: "5,000 slow clients: silent, with half a request, or one byte per second of a head or a body",
        bound: "closed at most 10 s after their last progress, and 95 % of other requests are answered",
        tests: &[(CROWDS, &["slow_connections_are_closed_and_harm_no_one"])],
        needs_postgres: false,
    },
    Figure {
        name: "stalled",
        load: "1,000 clients that do not read a response of 20 MB each",
        bound: "at most 256 MiB of memory",
        tests: &[(
            CROWDS,
            &["unread_answers_of_many_clients_take_bounded_memory"],
        )],
        needs_postgres: false,
    },
    Figure {
        name: "overload",
        load: "10 and 50 times the calls that a server can handle",
        bound: "the server answers at least 90 % of the calls that it answers without overload, and 99 % of the refusals take at most 50 ms",
        tests: &[(CALLS, &["o09_an_overload_costs_no_goodput"])],
        needs_postgres: false,
    },
    Figure {
        name: "upgrade",
        load: "100 upgrades of the running gateway at 1,000 calls per second",
        bound: "no connection is refused, no call fails, and 99 % of the calls around an upgrade take at most 250 ms",
        tests: &[(
            UPGRADES,
            &["o06_upgrades_at_1000_calls_per_second_drop_nothing"],
        )],
        needs_postgres: false,
    },
    Figure {
        name: "kill-loop",
        load: "`kill -9` of the gateway during writes: 10,000 times on SQLite, 1,000 times on Postgres",
        bound: "no acknowledged write is lost",
        tests: &[(
            STORE,
            &[
                "kill_9_loses_nothing_that_was_acknowledged_on_sqlite",
                "kill_9_loses_nothing_that_was_acknowledged_on_postgres",
            ],
        )],
        needs_postgres: true,
    },
    Figure {
        name: "database",
        load: "the database is locked, full or unreachable for 60 s, or slow",
        bound: "no call is made without a record, and calls are accepted at most 5 s after the end",
        tests: &[
            (
                STORE,
                &[
                    "a_locked_database_refuses_changes_and_no_calls",
                    "a_postgres_that_is_gone_refuses_calls_and_nothing_else",
                    "a_full_disk_refuses_calls_and_nothing_else",
                ],
            ),
            (
                SLOW_DATABASE,
                &[
                    "d04_a_slow_database_takes_time_and_then_leases",
                    "d04_a_full_database_refuses_calls_until_there_is_room",
                ],
            ),
        ],
        needs_postgres: true,
    },
    Figure {
        name: "attacks",
        load: "every route and method with every identity over every transport, foreign origins, malformed requests, and views of the host from every sandbox layout",
        bound: "nothing is bypassed",
        tests: &[
            (
                RIGHTS,
                &[
                    "every_route_with_every_key",
                    "a_key_is_wanted_in_one_place_only_and_for_everything",
                    "the_key_of_a_project_means_that_project_with_or_without_its_name",
                    "a_key_for_all_projects_does_what_its_role_permits_in_each",
                    "foreign_pages_are_refused_with_the_right_token_too",
                ],
            ),
            (RIGHTS_MCP, &["every_method_with_every_key"]),
            (
                REQUESTS,
                &[
                    "frames_that_parsers_disagree_about_are_refused",
                    "headers_that_contradict_the_body_are_refused",
                    "foreign_hosts_and_origins_are_refused",
                    "sessions_are_bound_and_end",
                ],
            ),
            (SCHEMATHESIS, &["an_administrator_finds_no_fault"]),
            (
                ESCAPES,
                &["u12_no_layout_shows_toolwharfs_own_files_or_a_persons_secrets"],
            ),
        ],
        needs_postgres: false,
    },
    Figure {
        name: "leaks",
        load: "10,000 unique secrets, with all logs and full call records on, on SQLite and Postgres",
        bound: "none is in a log, the database, a response, an error, an argument list or another process's environment",
        tests: &[(
            LEAKS,
            &[
                "no_secret_leaks_with_sqlite",
                "no_secret_leaks_with_postgres",
                "nothing_that_people_sign_in_with_leaks",
            ],
        )],
        needs_postgres: true,
    },
];

impl Figure {
    /// The nextest filter that selects exactly its tests.
    fn filter(&self) -> String {
        let of_files = self.tests.iter().map(|(file, tests)| {
            let package = file.split('/').nth(1).unwrap_or_default();
            format!(
                "(package({package}) & test(/(^|::)({})$/))",
                tests.join("|")
            )
        });
        of_files.collect::<Vec<_>>().join(" | ")
    }
}

/// The names that `cargo xtask soak` accepts, with their loads as help.
pub(crate) fn names() -> PossibleValuesParser {
    let figures = FIGURES.iter().map(|figure| (figure.name, figure.load));
    let all = figures.chain(CLUSTERS);
    PossibleValuesParser::new(all.map(|(name, load)| PossibleValue::new(name).help(load)))
}

/// Runs the tests of a figure at full length, one after the other, and shows what they print.
///
/// # Errors
///
/// If the name is unknown or a program is missing.
pub(crate) fn run(workspace: &Workspace, name: &str, nextest: &[String]) -> Result<ExitCode> {
    let figure = FIGURES.iter().find(|figure| figure.name == name);
    let figure = figure.with_context(|| format!("there is no figure `{name}`"))?;
    heading("set-up");
    setup::run(workspace)?;
    checks::build(workspace)?;
    heading(&format!("{}: {}", figure.name, figure.load));
    eprintln!("    Bound: {}", figure.bound);
    let ours = [
        "--profile=soak",
        "--test-threads=1",
        "--success-output=immediate",
    ];
    let selected = ["--filterset".to_owned(), figure.filter()];
    let tests = checks::run_nextest(workspace, &ours, &[&selected, nextest].concat());
    supervise(figure, tests.env("TOOLWHARF_SOAK", "1"))
}

/// Runs the tests with the services that they need.
fn supervise(figure: &Figure, tests: Cmd) -> Result<ExitCode> {
    let interrupted = daemon::interruption()?;
    if !figure.needs_postgres {
        return daemon::supervise(tests, &interrupted);
    }
    let postgres = postgres::Server::start(&interrupted)?;
    let tests = tests
        .env(postgres::VARIABLE, &postgres.url)
        .env(postgres::PROGRAMS, &postgres.programs);
    daemon::supervise(tests, &interrupted)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs};

    use super::*;

    #[test]
    fn every_test_of_a_figure_exists() {
        let workspace = Workspace::locate().expect("a checkout");
        for figure in FIGURES {
            assert!(!figure.tests.is_empty(), "{}", figure.name);
            for (file, tests) in figure.tests {
                let text = fs::read_to_string(workspace.root().join(file));
                let text = text.unwrap_or_else(|error| panic!("{file}: {error}"));
                assert!(!tests.is_empty(), "{}: {file}", figure.name);
                for test in *tests {
                    let declared = text.contains(&format!("fn {test}()"));
                    assert!(declared, "{}: {file} has no test {test}", figure.name);
                }
            }
        }
    }

    #[test]
    fn filters_are_well_formed() {
        for figure in FIGURES {
            let filter = figure.filter();
            let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            for (file, tests) in figure.tests {
                assert!(file.starts_with("crates/"), "{file}");
                for test in *tests {
                    assert!(test.chars().all(is_name), "{test}");
                    assert!(filter.contains(test), "{filter}");
                }
            }
            let count = |c: char| filter.matches(c).count();
            assert_eq!(count('('), count(')'), "{filter}");
        }
        let first = FIGURES[0].filter();
        let expected =
            "(package(toolwharf) & test(/(^|::)(nothing_survives_a_kill_of_the_product)$/))";
        assert_eq!(first, expected);
    }

    /// The documentation lists each figure with its command.
    #[test]
    fn every_figure_is_documented_once() {
        let workspace = Workspace::locate().expect("a checkout");
        let page = fs::read_to_string(workspace.root().join("docs/reliability.md"));
        let page = page.expect("the page");
        let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
        let documented: Vec<&str> = rows.filter_map(|row| row.split('`').next()).collect();
        let names: BTreeSet<&str> = FIGURES.iter().map(|figure| figure.name).collect();
        assert_eq!(documented.iter().copied().collect::<BTreeSet<_>>(), names);
        assert_eq!(documented.len(), FIGURES.len(), "{documented:?}");
        for figure in FIGURES {
            let row = page
                .lines()
                .find(|line| line.starts_with(&format!("| `{}`", figure.name)));
            let row = row.expect("a row");
            assert!(row.contains(figure.bound), "{row}\nlacks: {}", figure.bound);
        }
    }
}
