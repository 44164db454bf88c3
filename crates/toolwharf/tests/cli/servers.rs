//! Server commands on a running gateway, for a server in bubblewrap.

use std::process::Stdio;

use crate::common::{
    Gateway, Setup, cli,
    shell::{at, fails, json_of, ok, transcript},
    with_one,
};
use serde_json::Value;
use testkit::{Bin, DEADLINE, wait_for, within};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
};

/// The command line of a scripted server.
fn scripted(options: &str) -> String {
    format!("-- {} {options}", Bin::path("testkit-scripted").display())
}

#[tokio::test]
async fn each_verb_once() {
    let gateway = Setup::new().serve().await;
    ok(&gateway, "ls", "there are no servers yet").await;
    let add = format!(
        "add one --env CANARY --env PLAIN=x --volume /data --memory 64M --cpu 0.25 --restart on-failure \
         --max-concurrency 3 --timeout 20 {}",
        scripted("--name one --stderr-at-start hello")
    );
    let mut added = at(&gateway, &add);
    added.env("CANARY", "kept-out-of-sight");
    let said = cli::said(added, "").await.code(0).says("under process");
    assert_eq!(said.out, "", "only JSON output goes to stdout");

    // The value came from the environment and is passed only to the server.
    transcript(
        &gateway,
        "
        $ ls
        | NAME
        | one
        | running
        ! PROJECT
        $ get one
        | state            running
        | sandbox          process
        | limits           0.25 cores, 64 MiB of memory
        | volumes          /data
        | variables        CANARY, PLAIN
        | network          none
        ! kept-out-of-sight
        $ get one -o json
        ! kept-out-of-sight
        ",
    )
    .await;
    let listed = json_of(&gateway, "ls").await;
    let listed = listed["servers"].as_array();
    assert_eq!(listed.map(Vec::len), Some(1), "{listed:?}");
    let shown = json_of(&gateway, "get one").await;
    assert_eq!(shown["declared"], "file", "{shown}");
    assert_eq!(shown["restart_policy"], "on-failure", "{shown}");
    assert_eq!(shown["resource_limits"]["memory"], 64 << 20, "{shown}");
    assert_eq!(shown["resource_limits"]["cpu"], 0.25, "{shown}");
    assert_eq!(shown["max_concurrency"], 3, "{shown}");
    assert_eq!(shown["call_timeout_ms"], 20_000, "{shown}");
    let tools = json_of(&gateway, "call one tools/list").await;
    let tools = tools["tools"].as_array();
    assert!(tools.is_some_and(|tools| tools.len() > 1), "{tools:?}");
    transcript(
        &gateway,
        r#"
        $ call one tools/call {"name":"echo","arguments":{"n":12345678901234567890}} --timeout 10 -o json
        | 12345678901234567890
        1$ call one no/such # -32601
        2$ call one tools/list [] # not a JSON object
        2$ call one tools/list { # JSON
        1$ call none tools/list # no server `none`
        $ logs one --lines 5
        | hello
        $ stop one # `toolwharf start one`
        1$ call one tools/list # stopped
        $ start one # connected:
        $ restart one # connected:
        "#,
    )
    .await;
    let events = ok(&gateway, "events one", "").await;
    assert!(events.starts_with("TIME"), "{events}");
    assert!(events.contains("stopped"), "{events}");
    let events = json_of(&gateway, "events one -n 1").await;
    assert_eq!(events.as_array().map(Vec::len), Some(1), "{events}");

    let line = scripted("--name one --stderr-at-start anew");
    let again = format!("--memory 96M --heartbeat 7 --volume /data {line}");
    let text = format!("1$ add one {again} # --force\n$ add one --force {again} # added `one`");
    transcript(&gateway, &text).await;
    let replaced = json_of(&gateway, "get one").await;
    assert_eq!(replaced["resource_limits"]["memory"], 96 << 20);
    assert_eq!(replaced["restart_policy"], Value::Null, "{replaced}");
    assert_eq!(replaced["environment"].as_array().map(Vec::len), Some(0));
    transcript(
        &gateway,
        "
        $ logs one
        | anew
        $ disable one # disabled `one`
        1$ start one # `toolwharf enable one`
        $ enable one # connected:
        $ rm one # removed `one` from
        1$ get one # no server `one`
        1$ rm one # no server `one`
        ",
    )
    .await;
}

/// The same commands work with `--project`, and without it if only one server has the name.
#[tokio::test]
async fn each_verb_in_a_project() {
    let gateway = Setup::new().serve().await;
    let line = scripted("--stderr-at-start hello");
    // A name that exists in two projects is ambiguous unless the project is given.
    let text = format!(
        r#"
        $ project add shop
        $ project add lab
        $ add one --project shop --sandbox {line} # added `one` of project `shop`
        $ ls
        | PROJECT
        | shop
        $ start one --project shop
        $ stop one --project shop
        $ restart one --project shop
        $ get one
        $ call one tools/call {{"name":"echo","arguments":{{}}}} -o json
        $ logs one --project shop
        | hello
        $ events one --project shop
        $ get one --project shop
        1$ logs one --project lab # no server `one`
        1$ events one --project lab # no server `one`
        1$ get one --project lab # no server `one`
        $ add one --project lab --sandbox {line} # of project `lab`
        1$ get one # (shop)
        # (lab)
        "#
    );
    transcript(&gateway, &text).await;
    let shown = json_of(&gateway, "get one --project lab").await;
    let id = shown["id"].as_str().expect("an id");
    let text = format!(
        "
        $ rm {id} # removed `one` of project `lab`
        $ rm one # removed `one` of project `shop`
        $ ls # there are no servers yet
        "
    );
    transcript(&gateway, &text).await;
}

#[tokio::test]
async fn logs_are_followed_over_a_restart() {
    let gateway = Setup::new().serve().await;
    let line = scripted("--name one --stderr-at-start hello");
    let add = format!("add one --sandbox {line}");
    ok(&gateway, &add, "connected: ").await;
    let mut following = at(&gateway, "logs one -f")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let out = following.stdout.take().expect("asked for as a pipe");
    let mut lines = BufReader::new(out).lines();
    let mut line = async || {
        let line = within("a line", DEADLINE, lines.next_line()).await;
        line.expect("readable").expect("one more")
    };
    assert!(line().await.contains("hello"));
    ok(&gateway, "restart one", "connected: ").await;
    // Skips the output from before the restart. It does not contain the greeting.
    while !line().await.contains("hello") {}
    following.start_kill().expect("it still runs");
}

#[tokio::test]
async fn mistakes_are_told() {
    let gateway = Setup::new().serve().await;
    transcript(
        &gateway,
        "
        2$ add one # COMMAND
        2$ add a/b -- x # a/b
        2$ add one --env NOT_SET_HERE -- x # --env NOT_SET_HERE
        # export it
        2$ add one --env A=1 --env A=2 -- x # twice
        2$ add one --memory 1 --cpu 0 --pids 0 -- x # at least 1
        1$ add one --memory 1 --cpu 0 -- x # `sandbox.cpu`
        # `sandbox.memory`
        1$ add one --disk lots -- x # `sandbox.disk`
        # \"512MiB\"
        1$ add one --volume /data --volume /../etc -- x # `volumes.1`
        1$ add one --mount /root -- x # `mounts.0`
        # HOST:PATH
        1$ add one --network a_b/c -- x # `network.0`
        2$ add one --sandbox=docker -- x # gvisor, firecracker
        1$ add one --sandbox=process --image i # `sandbox`
        # run images
        1$ add one --sandbox=gvisor -- x # `sandbox`
        # run images
        2$ add one --restart sometimes -- x # on-failure
        2$ add one --port 0 -- x # --port
        2$ add one --port 8080:x -- x # --port
        # 8080:9000
        2$ add one --path /x -- x # --port
        2$ add one --max-concurrency 0 -- x # --max-concurrency
        2$ add one --timeout 0 -- x # --timeout
        1$ add one --project none -- x # no project `none`
        2$ add one --memory 1G https://x.test # --sandbox
        1$ get none # no server `none`
        1$ restart none # no server `none`
        1$ logs none # no server `none`
        1$ events none # no server `none`
        $ ls # there are no servers yet
        ",
    )
    .await;
}

#[tokio::test]
async fn one_that_does_not_come_up_says_why() {
    let gateway = Setup::new().serve().await;
    let says = "`no-such-program` not found";
    fails(&gateway, "add gone --sandbox -- no-such-program", 1, says).await;
    let crashing = scripted("--exit-at-start");
    ok(&gateway, &format!("add one --sandbox {crashing}"), "").await;
    wait_for("the reason", DEADLINE, async || {
        ok(&gateway, "ls", "").await.contains("exit code 5")
    })
    .await;
}

/// Returns bash's completions, using the script that `completions` prints.
async fn completed(gateway: &Gateway, words: &str) -> String {
    let toolwharf = Bin::path("toolwharf");
    let folder = toolwharf.parent().expect("a folder").display().to_string();
    let script = "source <(toolwharf completions bash); COMP_WORDS=($WORDS ''); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); \
                  _clap_complete_toolwharf toolwharf ''; echo \"${COMPREPLY[@]}\"";
    let path = std::env::var("PATH").unwrap_or_default();
    let mut bash = Command::new("bash");
    bash.args(["-c", script])
        .env_clear()
        .env("PATH", format!("{folder}:{path}"))
        .env("WORDS", format!("toolwharf {words}"))
        .env("HOME", gateway.folder())
        .env("TOOLWHARF_URL", &gateway.url)
        .env("TOOLWHARF_TOKEN", gateway.token());
    let said = within("bash", DEADLINE, bash.output()).await;
    String::from_utf8(said.expect("bash runs").stdout).expect("UTF-8")
}

#[tokio::test]
async fn shells_complete_names() {
    let gateway = with_one(&["--no-builtin", "--tools", "2"]).await;
    for (words, expect) in [
        ("get", "one"),
        ("restart", "one"),
        ("tools get", "tool_0 tool_1"),
        ("tools call", "tool_0 tool_1"),
    ] {
        let found = completed(&gateway, words).await;
        let found = found.split_whitespace();
        let names: Vec<&str> = found.filter(|word| !word.starts_with('-')).collect();
        assert_eq!(names.join(" "), expect, "{words}");
    }
}
