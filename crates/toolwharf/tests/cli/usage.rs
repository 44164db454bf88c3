//! How commands are written: groups and examples in the help texts, aliases, suggestions for mistyped names, arguments
//! of tools, and advice that can be copied.

use std::time::Duration;

use serde_json::json;
use testkit::{Bin, DEADLINE, wait_for, within};

use super::support::scripted;
use crate::common::{
    Setup,
    checks::contains,
    cli,
    shell::{Home, at, json_of, ok, on, transcript},
};

/// Half of the time for which the first list of tools waits for servers that start.
const HALF_FIRST_WAIT: Duration = Duration::from_secs(10);

#[tokio::test]
async fn the_help_has_groups_and_examples() {
    let home = Home::new();
    let help = home.run("--help").await.code(0).out;
    for part in [
        "Add servers:",
        "Use tools:",
        "toolwharf add time -- uvx mcp-server-time",
        "--config",
    ] {
        contains(&help, &[part]);
    }
    home.transcript(
        "
        $ add --help
        | Example:
        | toolwharf add docs https://example.com/mcp
        $ tools call --help
        | toolwharf tools call get_current_time timezone=Europe/Berlin
        ",
    )
    .await;
}

#[tokio::test]
async fn aliases_that_people_type_work() {
    let gateway = Setup::new()
        .scripted("one", &[])
        .scripted("two", &[])
        .connected()
        .await;
    transcript(
        &gateway,
        "
        $ list
        | two
        $ ls one
        | one
        ! two
        $ list one two
        | two
        $ status
        | two
        $ status one
        | state            running
        $ show one
        | state            running
        $ project create shop
        $ project list
        | shop
        $ projects ls
        | shop
        $ project status shop
        | shop
        $ project show shop
        | shop
        $ tools list
        | one/echo
        $ tool show one/echo
        | server/tool      one/echo
        $ key add ci --project shop
        $ keys list
        | ci
        $ calls list
        $ runs list
        $ conversation list
        $ secret list --project shop
        $ product list --project shop
        $ remove two # removed `two`
        $ project remove shop --yes # removed the project `shop`
        ",
    )
    .await;
    let key = json_of(&gateway, "key create second --admin").await;
    let id = key["id"].as_str().expect("an id");
    ok(&gateway, &format!("key rm {id}"), "revoked the key").await;
}

#[tokio::test]
async fn mistyped_names_get_a_suggestion() {
    let gateway = Setup::new().scripted("weather", &[]).connected().await;
    let server = "did you mean `weather`?";
    let text = format!(
        "
        $ project add shop
        1$ get waether # {server}
        1$ ls waether # {server}
        1$ status waether # {server}
        1$ rm waether # {server}
        1$ restart waether # {server}
        1$ logs waether # {server}
        1$ events waether # {server}
        1$ enable waether # {server}
        1$ call waether tools/list # {server}
        1$ tools ls --server waether # {server}
        1$ tools changes waether # {server}
        1$ update waether # {server}
        1$ login waether # {server}
        1$ project get shpo # did you mean `shop`?
        1$ ls --project shpo # did you mean `shop`?
        1$ secret ls --project shpo # did you mean `shop`?
        1$ tools get ehco # did you mean `echo`?
        1$ tools call weather/ehco # did you mean `weather/echo`?
        1$ tools call ehco # did you mean `echo`?
        1$ tools call ehco --server weather # did you mean `echo`?
        1$ get nothing-like-it # `toolwharf ls` lists the servers
        1$ key revoke none # `toolwharf key ls` lists the keys
        1$ calls get none # `toolwharf calls ls` lists the calls
        "
    );
    transcript(&gateway, &text).await;
}

/// The tool may be one of a server that is down, so the error names these servers.
#[tokio::test]
async fn a_missing_tool_may_be_one_of_a_server_that_is_down() {
    let gateway = Setup::new()
        .scripted("one", &[])
        .server("gone", json!({ "command": "surely-not-there" }))
        .serve()
        .await;
    gateway.up("one").await;
    wait_for("the server to be blocked", DEADLINE, async || {
        json_of(&gateway, "get gone").await["status"] == "blocked"
    })
    .await;
    transcript(
        &gateway,
        "
        1$ tools get something # there is no tool `something`
        # `gone` (blocked)
        1$ tools call something # `gone` (blocked)
        1$ tools call gone/something # Server `gone` is not running (blocked)
        # `toolwharf get gone` shows why
        ",
    )
    .await;
}

#[tokio::test]
async fn arguments_get_the_types_of_the_schema() {
    let dice = json!({ "command": Bin::path("toolwharf-example-dice") });
    let gateway = Setup::new()
        .scripted("one", &["--tools", "1"])
        .server("dice", dice)
        .connected()
        .await;
    transcript(
        &gateway,
        r#"
        $ tools call roll dice=2d6
        | total
        $ tools call dice/roll dice=2d6
        $ tools call roll dice=2d6 --server dice
        $ tools call roll --arg dice=2d6
        $ tools call slow ms=1
        2$ tools call slow ms=soon # `ms` must be a whole number, not `soon`
        # ms=3
        2$ tools call slow sm=1 # `slow` has no argument `sm`; did you mean `ms`?
        2$ tools call slow ms=1 ms=2 # twice
        2$ tools call slow ms:=soon # not valid JSON
        2$ tools call slow {"ms":1} ms=1 # KEY=VALUE
        2$ tools call slow {"ms":1} --arg ms=1 # both
        2$ tools call slow ms # KEY=VALUE
        $ tools call tool_0 text=12 number=12
        "#,
    )
    .await;
    // A string stays a string, even if it looks like a number.
    let echoed = ok(
        &gateway,
        "tools call echo n=1 s=a=b j:={\"k\":[1]} -o json",
        "",
    )
    .await;
    contains(
        echoed.replace('\\', ""),
        &[r#"{"n":1,"s":"a=b","j":{"k":[1]}}"#],
    );
}

#[tokio::test]
async fn a_mistyped_url_is_not_taken_for_a_command() {
    let home = Home::new();
    home.transcript(
        "
        2$ add n http//example.com/mcp # write http://example.com/mcp
        2$ add n https:/example.com # write https://example.com
        2$ add n htp://example.com/mcp # write http://example.com/mcp
        2$ add n localhost:3000/mcp # write http://localhost:3000/mcp
        2$ add n http:// # not a valid URL
        ",
    )
    .await;
    assert!(!home.servers().exists(), "nothing was written");
}

/// Exit code 1: the server cannot work until a user changes something. A server that is restarted automatically gets 0.
#[tokio::test]
async fn a_blocked_server_is_a_failure() {
    let gateway = Setup::new().serve().await;
    let scripted = scripted();
    let text = format!(
        "
        1$ add gone surely-not-there # added `gone`
        # not connected (blocked)
        1$ restart gone # blocked
        1$ start gone # blocked
        1$ add -o json --force gone surely-not-there
        | \"status\": \"blocked\"
        $ disable gone
        1$ enable gone # blocked
        $ add bad -- {scripted} --exit-at-start # not connected (backoff)
        $ add fine -- {scripted} # connected
        $ restart fine # connected
        "
    );
    transcript(&gateway, &text).await;
}

#[tokio::test]
async fn a_clash_of_names_is_reported() {
    let gateway = Setup::new().scripted("one", &[]).connected().await;
    let scripted = scripted();
    let text = format!(
        "
        $ add two -- {scripted} # several servers have tools of the same name
        # `echo` of `one` is now called `one__echo`, not `echo`
        # `toolwharf tools ls` lists all names
        $ rm two
        $ add two -- {scripted} --no-builtin --also echo
        # `echo` of `two` is called `two__echo`
        "
    );
    transcript(&gateway, &text).await;
}

/// A command that adds a server compares the names of tools, for which it does not wait for other servers.
#[tokio::test]
async fn a_server_is_added_while_another_one_starts() {
    let silent = json!({"command": "sleep", "args": ["600"]});
    let gateway = Setup::new().server("silent", silent).serve().await;
    let text = format!("$ add quick -- {} # connected: ", scripted());
    let added = transcript(&gateway, &text);
    within("`add` beside a server that starts", HALF_FIRST_WAIT, added).await;
}

#[tokio::test]
async fn advice_repeats_the_given_address() {
    let gateway = Setup::new().scripted("one", &[]).connected().await;
    let home = Home::new();
    home.write("token", &gateway.token());
    let url = &gateway.url;
    let to = format!("--url {url} --token-file token");
    let text = format!(
        "
        $ stop one {to} # `toolwharf {to} start one`
        1$ get nothing-like-it {to} # `toolwharf {to} ls` lists the servers
        $ project add shop {to} # `toolwharf {to} add --project shop NAME …`
        $ secret ls --project shop {to} # `toolwharf {to} secret set NAME
        $ product ls --project shop {to} # `toolwharf {to} product install FILE
        "
    );
    home.transcript(&text).await;
    // A variable of the environment also holds for the next command.
    let mut stop = at(&gateway, "stop one");
    stop.env("TOOLWHARF_URL", url);
    cli::said(stop, "")
        .await
        .code(0)
        .says("`toolwharf start one`");
}

#[tokio::test]
async fn nothing_is_confirmed_about_an_object_that_does_not_exist() {
    let gateway = Setup::new().serve().await;
    transcript(
        &gateway,
        "
        1$ project rm none # there is no project `none`
        ! --yes
        1$ install surely-not-in-the-catalogue # surely-not-in-the-catalogue
        ! --yes
        $ project add shop
        2$ project rm shop # --yes
        ",
    )
    .await;
}

#[tokio::test]
async fn an_unreadable_data_directory_is_not_a_gateway_that_is_not_running() {
    let home = Home::new();
    home.write("file", "");
    home.transcript(
        "
        1$ tools ls --data-dir file # cannot read the data directory file
        # --data-dir
        ! no gateway is running
        1$ ls --data-dir file # cannot read the data directory file
        1$ tools ls --data-dir none # no gateway is running on the data directory none
        # `toolwharf serve`
        ",
    )
    .await;
}

#[tokio::test]
async fn import_of_an_unknown_word_lists_the_clients() {
    let home = Home::new();
    home.transcript(
        "
        2$ import nonsense # the clients are: claude-code, claude-desktop
        2$ import cursr # did you mean `cursor`?
        ",
    )
    .await;
}

#[tokio::test]
async fn filters_are_explained_in_words() {
    let gateway = Setup::new().serve().await;
    transcript(
        &gateway,
        "
        2$ calls ls --status broken # tool_error, error, timeout
        2$ calls ls --since yesterday # 30m, 12h or 7d
        2$ calls ls --until 2026-13-01 # 2026-01-31T12:00:00Z
        2$ calls ls --lines 0 # from 1 to
        2$ runs ls --status ok # running, done, failed
        2$ search --lines many x # from 1 to 1000
        2$ call one tools/list --timeout soon # seconds from 1 to 3600
        ",
    )
    .await;
}

/// A client that keeps its own servers shows the tools of those that Toolwharf has too twice.
#[tokio::test]
async fn connect_warns_about_tools_that_appear_twice() {
    let home = Home::new();
    let entry = r#"{"mcpServers": {
        "mine": {"command": "uvx", "args": ["mcp-server-time@latest"]},
        "other": {"command": "uvx", "args": ["mcp-server-git"]}
    }}"#;
    home.write(".cursor/mcp.json", entry);
    home.transcript(
        "
        $ add time uvx mcp-server-time
        $ connect cursor --dry-run # `mine` is in the file of Cursor and in Toolwharf
        # --move
        ! `other` is in the file
        $ connect cursor --yes # `mine` is in the file of Cursor
        $ disconnect cursor --yes
        $ connect cursor --dry-run --move
        ! appear twice
        ",
    )
    .await;
}

/// The package says what a server is. Its other arguments may be secrets.
#[tokio::test]
async fn targets_show_the_package() {
    let home = Home::new();
    home.transcript(
        "
        $ add memory -- npx -y @modelcontextprotocol/server-memory --key sesame
        $ add time -- uvx --from mcp-server-time time
        $ add image -- docker run -i --rm -e KEY=sesame ghcr.io/example/server:1
        $ ls
        | npx @modelcontextprotocol/server-memory
        | uvx --from mcp-server-time time
        | docker run ghcr.io/example/server:1
        ! sesame
        $ get memory
        | target           npx @modelcontextprotocol/server-memory
        ",
    )
    .await;
    let shown = home.run("get memory -o json").await.code(0).json();
    assert_eq!(shown["target"], "npx @modelcontextprotocol/server-memory");
    assert_eq!(shown["command"], "npx");
    let gateway = Setup::new()
        .server(
            "off",
            json!({ "command": "npx", "args": ["-y", "pkg"], "disabled": true }),
        )
        .serve()
        .await;
    let shown = json_of(&gateway, "get off").await;
    assert_eq!(shown["target"], "npx pkg");
    contains(on(&gateway, "ls").await.out, &["npx pkg"]);
}
