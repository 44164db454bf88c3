//! The messages about invalid server files.

use insta::assert_snapshot;

use super::{Folder, errors, load};

#[test]
fn all_problems_of_a_file_at_once() {
    assert_snapshot!(errors("mcp.json", r#"{
  "mcpServers": {
    "one": { "type": "stdoi", "command": "npx" },
    "two": { "cmd": "npx", "args": ["--token", "S3CRET"] },
    "three": { "command": "npx", "env": { "KEY": "S3CRET${NOT_SET}${ALSO_NOT}" } },
    "four": { "url": "ftp://me:S3CRET@host/x" },
    "five": { "type": "http", "uri": "https://host" },
    "six": { "command": "npx", "args": "-y S3CRET", "timeout": -5 },
    "one": { "command": "other" },
    "seven": { "command": "x", "url": "https://host" },
    "eight": "npx S3CRET",
    "nine": null,
    "ten": {}
  }
}
"#), @r##"
error: unknown transport `stdoi` of server `one`
  --> mcp.json:3:22
   |
 3 | "one": { "type": "stdoi", "command": "…" },
   |                  ^^^^^^^
  help: did you mean `stdio`? Use `stdio`, `http` (also `streamable-http`) or `sse`

error: server `two` has no `command`
  --> mcp.json:4:14
   |
 4 | "two": { "cmd": "…", "args": ["…", "…"] },
   |          ^^^^^
  help: write `command` instead of `cmd`

error: the variable `NOT_SET` is not set (server `three`)
  --> mcp.json:5:50
   |
 5 | "three": { "command": "…", "env": { "KEY": "…" } },
   |                                            ^^^
  help: run `toolwharf secret set NOT_SET`, set NOT_SET in the environment of `toolwharf serve` and restart that, or write `${NOT_SET:-default}`

error: the variable `ALSO_NOT` is not set (server `three`)
  --> mcp.json:5:50
   |
 5 | "three": { "command": "…", "env": { "KEY": "…" } },
   |                                            ^^^
  help: run `toolwharf secret set ALSO_NOT`, set ALSO_NOT in the environment of `toolwharf serve` and restart that, or write `${ALSO_NOT:-default}`

error: the `url` of server `four` is neither http nor https
  --> mcp.json:6:22
   |
 6 | "four": { "url": "…" },
   |                  ^^^
  help: begin the URL with `https://` or `http://`

error: server `five` has no `url`
  --> mcp.json:7:31
   |
 7 | "five": { "type": "…", "uri": "…" },
   |                        ^^^^^
  help: write `url` instead of `uri`

error: `args` of server `six` is a string, not an array of strings
  --> mcp.json:8:40
   |
 8 | "six": { "command": "…", "args": "…", "timeout": … },
   |                                  ^^^
  help: write "args": ["one", "two"]

error: `timeout` of server `six` is invalid
  --> mcp.json:8:64
   |
 8 | "six": { "command": "…", "args": "…", "timeout": -5 },
   |                                                  ^^
  help: `timeout` must be a number of milliseconds from 1 to 86400000 (a day)

error: `one` is defined twice
  --> mcp.json:9:5
   |
 9 | "one": { "command": "…" },
   | ^^^^^
  first defined here: mcp.json:3:5
  help: rename or remove one of the two

error: server `seven` has both a `command` and a `url`
  --> mcp.json:10:16
    |
 10 | "seven": { "command": "…", "url": "…" },
    |            ^^^^^^^^^
  help: remove one, or choose one with `"type": "stdio"` or `"type": "http"`

error: server `eight` is a string, not an object
  --> mcp.json:11:14
    |
 11 | "eight": "…",
    |          ^^^
  help: write {"command": "…", "args": […]} or {"url": "…"}

error: server `nine` is null, not an object
  --> mcp.json:12:13
    |
 12 | "nine": null,
    |         ^^^^
  help: write {"command": "…", "args": […]} or {"url": "…"}

error: server `ten` has neither a `command` nor a `url`
  --> mcp.json:13:5
    |
 13 | "ten": {}
    | ^^^^^
  help: add "command": "npx", "args": ["-y", "…"], or "url": "https://…"
"##);
}

#[test]
fn wrong_types_and_options() {
    assert_snapshot!(errors("mcp.json", r#"{
  "mcpServers": {
    "a": { "command": 5, "args": ["ok", 8080], "env": ["K=S3CRET"], "disabled": "yes" },
    "b": { "url": "https://h", "headers": { "X Y": "S3CRET", "Ok": ["S3CRET"] } },
    "c": { "command": "c", "toolwharf": { "maxConcurency": 2, "maxConcurrency": 0, "era": "old",
           "sharing": true, "callTimeoutMs": "5s", "projects": ["a b"] } },
    "d": { "command": "", "env": { "K": "S3CRET", "K": "S3CRET2" } },
    "e": { "url": "https://h/${input:api-key}?k=S3CRET" },
    "f": { "url": "example.com/mcp", "enabled": true, "disabled": true },
    "g": { "url": "wss://example.com/mcp" },
    "h": { "type": "remoet", "url": "https://h" }
  }
}
"#), @r##"
error: `command` of server `a` is a number, not a string
  --> mcp.json:3:23
   |
 3 | "a": { "command": …, "args": ["…", …], "env": ["…"], "disabled": "…" },
   |                   ^
  help: write "command": "npx", and the rest into "args"

error: an argument of server `a` is a number, not a string
  --> mcp.json:3:41
   |
 3 | "a": { "command": …, "args": ["…", …], "env": ["…"], "disabled": "…" },
   |                                    ^
  help: put the argument in double quotes

error: `env` of server `a` is an array, not an object
  --> mcp.json:3:55
   |
 3 | "a": { "command": …, "args": ["…", …], "env": ["…"], "disabled": "…" },
   |                                               ^^^^^
  help: write "env": {"NAME": "value"}

error: `disabled` of server `a` is invalid
  --> mcp.json:3:81
   |
 3 | "a": { "command": …, "args": ["…", …], "env": ["…"], "disabled": "yes" },
   |                                                                  ^^^^^
  help: `disabled` must be `true` or `false`, without quotes

error: header name `X Y` of server `b` is not allowed in HTTP
  --> mcp.json:4:45
   |
 4 | "b": { "url": "…", "headers": { "X Y": "…", "Ok": ["…"] } },
   |                                 ^^^^^
  help: use letters, digits and `-`

error: `headers.Ok` of server `b` is an array, not a string
  --> mcp.json:4:68
   |
 4 | "b": { "url": "…", "headers": { "X Y": "…", "Ok": ["…"] } },
   |                                                   ^^^^^
  help: write a string

error: `toolwharf.maxConcurency` of server `c` is not a known option
  --> mcp.json:5:43
   |
 5 | "c": { "command": "…", "toolwharf": { "maxConcurency": …, "maxConcurrency": …, "era": "…",
   |                                       ^^^^^^^^^^^^^^^
  help: did you mean `maxConcurrency`?

error: `maxConcurrency` of server `c` is invalid
  --> mcp.json:5:81
   |
 5 | …oncurency": …, "maxConcurrency": 0, "era": "…",
   |                                   ^
  help: `maxConcurrency` must be a whole number from 1 to 10000

error: `era` of server `c` is invalid
  --> mcp.json:5:91
   |
 5 | …: …, "maxConcurrency": …, "era": "old",
   |                                   ^^^^^
  help: `era` must be one of auto, legacy, modern

error: `sharing` of server `c` is invalid
  --> mcp.json:6:23
   |
 6 | "sharing": true, "callTimeoutMs": "…", "projects": ["…"] } },
   |            ^^^^
  help: `sharing` must be one of shared, session

error: `callTimeoutMs` of server `c` is invalid
  --> mcp.json:6:46
   |
 6 | "sharing": true, "callTimeoutMs": "5s", "projects": ["…"] } },
   |                                   ^^^^
  help: `callTimeoutMs` must be a number of milliseconds from 1 to 86400000 (a day)

error: a project id consists of letters A-Z and a-z, digits, `_` and `-`
  --> mcp.json:6:65
   |
 6 | "sharing": true, "callTimeoutMs": "…", "projects": ["a b"] } },
   |                                                     ^^^^^
  help: rename the project

error: `command` of server `d` is empty
  --> mcp.json:7:23
   |
 7 | "d": { "command": "…", "env": { "K": "…", "K": "…" } },
   |                   ^^^
  help: name the program to run

error: `K` is defined twice
  --> mcp.json:7:51
   |
 7 | "d": { "command": "…", "env": { "K": "…", "K": "…" } },
   |                                           ^^^
  first defined here: mcp.json:7:36
  help: rename or remove one of the two

error: `${input:api-key}` prompts the user, which a server in the background cannot do (server `e`)
  --> mcp.json:8:19
   |
 8 | "e": { "url": "…" },
   |               ^^^
  help: write `${API_KEY}` instead, and run `toolwharf secret set API_KEY`

error: `enabled` and `disabled` of server `f` contradict each other
  --> mcp.json:9:67
   |
 9 | "f": { "url": "…", "enabled": true, "disabled": true },
   |                                                 ^^^^
  help: keep one of the two

error: the `url` of server `g` is a WebSocket address, which is not an MCP transport
  --> mcp.json:10:19
    |
 10 | "g": { "url": "…" },
    |               ^^^
  help: use the server's http or https address

error: unknown transport `remoet` of server `h`
  --> mcp.json:11:20
    |
 11 | "h": { "type": "remoet", "url": "…" }
    |                ^^^^^^^^
  help: use `stdio`, `http` (also `streamable-http`) or `sse`
"##);
}

#[test]
fn invalid_json() {
    let mut all = String::new();
    for text in [
        "{\n  \"mcpServers\": {\n    \"a\": { \"command\": \"x\" \"args\": [\"S3CRET\"] }\n  }\n}",
        "{\n  \"mcpServers\": {\n    \"a\": { \"env\": { \"K\": \"S3CRET } }\n  }\n}",
        "{ mcpServers: {} }",
        "{ 'mcpServers': {} }",
        "{ \"mcpServers\": { ",
        "[1, 2]",
        "",
        "{\"mcpServers\": 5}",
        "{\"editor.fontSize\": 14}",
    ] {
        all.push_str(&errors("mcp.json", text));
        all.push_str("\n\n");
    }
    assert_snapshot!(all, @r##"
error: invalid JSON: expected comma
  --> mcp.json:3:26
   |
 3 | "…": { "command": "…" "…": ["…"] }
   |                      ^
  help: put a `,` between the two values

error: invalid JSON: unterminated string literal
  --> mcp.json:3:26
   |
 3 | "…": { "env": { "…": "…"
   |                      ^^^
  help: check the quotes and backslashes of this text

error: invalid JSON: expected string for object property
  --> mcp.json:1:3
   |
 1 | { …: {} }
   |   ^
  help: write keys and strings in double quotes

error: invalid JSON: single-quoted strings are not allowed
  --> mcp.json:1:3
   |
 1 | { …: {} }
   |   ^
  help: use double quotes

error: invalid JSON: unterminated object
  --> mcp.json:1:17
   |
 1 | { "mcpServers": {
   |                 ^
  help: add the missing `}`

error: the file is not a JSON object
  --> mcp.json:1:1
   |
 1 | […, …]
   | ^^^^^^
  help: write {"mcpServers": {"time": {"command": "uvx", "args": ["mcp-server-time"]}}}

error: the file is empty
  --> mcp.json
  help: write {"mcpServers": {"time": {"command": "uvx", "args": ["mcp-server-time"]}}}

error: `mcpServers` is a number, not an object
  --> mcp.json:1:16
   |
 1 | {"mcpServers": …}
   |                ^
  help: write {"mcpServers": {"time": {"command": "uvx", "args": ["mcp-server-time"]}}}

error: the file contains no servers
  --> mcp.json
  help: write {"mcpServers": {"time": {"command": "uvx", "args": ["mcp-server-time"]}}}
"##);
}

#[test]
fn a_name_in_two_files_or_containers() {
    let folder = Folder::new(&[
        (
            "1.json",
            "{\"mcpServers\": {\n  \"a\": {\"command\": \"x\"}\n}}",
        ),
        (
            "2.json",
            "{\"mcpServers\": {\n\n  \"a\": {\"command\": \"y\"}},\n  \"servers\": {\"b\": {\"url\": \"http://h\"}, \"c\": {\"command\": \"c\"}},\n  \"context_servers\": {\"c\": {\"command\": \"c\"}}}",
        ),
    ]);
    let error = folder.load(&["1.json", "2.json"]).unwrap_err();
    assert_snapshot!(folder.redact(&error), @r##"
error: server `a` is defined twice
  --> 2.json:3:3
   |
 3 | "a": {"command": "…"}},
   | ^^^
  first defined here: 1.json:2:3
  help: rename or remove one of the two

error: server `c` is defined twice
  --> 2.json:5:23
   |
 5 | "context_servers": {"c": {"command": "…"}}}
   |                     ^^^
  first defined here: 2.json:4:41
  help: rename or remove one of the two
"##);
}

#[test]
fn files_that_cannot_be_read() {
    let folder = Folder::new(&[("dir/x", "")]);
    std::fs::write(folder.path("latin.json"), b"{\n\"a\": \"\xe4\"}").unwrap();
    let error = folder
        .load(&["none.json", "dir", "latin.json"])
        .unwrap_err();
    assert_snapshot!(folder.redact(&error), @r##"
error: the file does not exist
  --> none.json
  help: check the path, or create the file with `toolwharf add`

error: the file cannot be read: is a directory
  --> dir
  help: check the path and its permissions

error: line 2 is not UTF-8 text
  --> latin.json
  help: save the file as UTF-8
"##);
}

#[test]
fn a_minified_file_is_shown_around_the_place() {
    let servers: Vec<_> = (0..30)
        .map(|i| format!(r#""s{i}":{{"command":"npx","env":{{"K":"S3CRET"}}}}"#))
        .collect();
    let text = format!(
        r#"{{"mcpServers":{{{},"bad":{{"type":"smoke","command":"x"}}}}}}"#,
        servers.join(",")
    );
    assert_snapshot!(errors("mcp.json", &text), @r##"
error: unknown transport `smoke` of server `bad`
  --> mcp.json:1:1370
   |
 1 | …","env":{"K":"…"}},"bad":{"type":"smoke","command":"…"}}}
   |                                   ^^^^^^^
  help: use `stdio`, `http` (also `streamable-http`) or `sse`
"##);
}

#[test]
fn typos_are_warnings() {
    let config = load(
        r#"{"mcpServers": {"a": {"command": "a", "arg": ["S3CRET"], "envFile": ".env", "description": "x"}}}"#,
    );
    let all: Vec<_> = config
        .warnings
        .iter()
        .map(|w| format!("{}; {}", w.what, w.help.as_deref().unwrap_or("-")))
        .collect();
    assert_snapshot!(all.join("\n"), @r##"
`arg` of server `a` is not a known key; did you mean `args`?
`envFile` of server `a` is ignored; list the variables in `env`, as `"NAME": "${NAME}"`
"##);
}
