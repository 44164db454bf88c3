//! Wrong inputs. Each ends with an error that names the thing, the value and the way out, and with its exit code.
//!
//! A row is `CODE$ LINE # PART # …`: the exit code, the command line, and the parts that standard error must contain.

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
};

use serde_json::json;
use testkit::{Bin, DEADLINE, wait_for};

use super::support::scripted;
use crate::common::{
    Gateway, Setup,
    cli::Said,
    shell::{Home, json_of, ok, on},
};

/// The command line itself: commands, options, and values that can be checked without a gateway.
const USAGE: &str = "
2$ frobnicate # unrecognized subcommand 'frobnicate' # --help
2$ lst # unrecognized subcommand 'lst' # 'list'
2$ tols ls # unrecognized subcommand 'tols' # 'tools'
2$ tools cal echo # unrecognized subcommand 'cal' # 'call'
2$ project lss # unrecognized subcommand 'lss' # 'ls'
2$ approvals lst # unrecognized subcommand 'lst' # 'ls'
2$ ls --jsno # unexpected argument '--jsno' # --help
2$ ls -o yaml # 'yaml' # --output # table, json
2$ ls -o # --output # table, json
2$ get # <NAME> # Usage: toolwharf get
2$ get a b # unexpected argument 'b' # Usage: toolwharf get
2$ get a/b # 'a/b' # cannot contain `/` # --help
2$ rm # <NAME> # Usage: toolwharf rm
2$ enable time/ # `time/` # SERVER/TOOL
2$ enable /x # `/x` # SERVER/TOOL
2$ tools rename dice find --project shop # `dice` # SERVER/TOOL
2$ add # <NAME> # <COMMAND_OR_URL> # Usage: toolwharf add
2$ add x # <COMMAND_OR_URL> # Usage: toolwharf add
2$ add a/b npx # `a/b` # cannot contain `/` # choose a name
2$ add '' npx # cannot be empty # choose a name
2$ add n http//example.com/mcp # `http//example.com/mcp` # write http://example.com/mcp
2$ add n https:/example.com # `https:/example.com` # write https://example.com
2$ add n htp://example.com/mcp # `htp://example.com/mcp` # write http://example.com/mcp
2$ add n ws://example.com/mcp # `ws://example.com/mcp` # write http://example.com/mcp
2$ add n localhost:3000/mcp # `localhost:3000/mcp` # write http://localhost:3000/mcp
2$ add n example.com/mcp # `example.com/mcp` # write https://example.com/mcp
2$ add n http:// # `http://` # empty host # https://HOST/PATH
2$ add n HTTP:// # `HTTP://` # empty host # https://HOST/PATH
2$ add n htp:// # `htp://` # write http://HOST/PATH
2$ add n ' http://example.com' # ` http://example.com` # write http://example.com
2$ add n localhost # `localhost` # write http://localhost
2$ add n file:///srv/server # `file:///srv/server` is a file # write its path: /srv/server
2$ add n 'http://exa mple.com' # `http://exa mple.com` # https://HOST/PATH
2$ add n https://example.com extra # https://example.com # only options # leave out
2$ add n https://example.com --hedaer X # `--hedaer` is unknown # `--header`
2$ add --transport ftp n npx # 'ftp' # --transport # stdio, http, sse
2$ add --transport http n npx # `npx` is not a URL # leave --transport out
2$ add --transport stdio n https://example.com # `https://example.com` # --transport stdio # leave the option out
2$ add -e KEY n npx # `KEY` is not set # KEY=VALUE
2$ add -e secret n npx # --env number 1 # KEY=VALUE
2$ add -e '' n npx # --env number 1 # KEY=VALUE
2$ add -e A=1 -e A=2 n npx # --env A # twice # leave one out
2$ add -H 'X: y' n npx # --header is for a URL # --env
2$ add -H 'X: 1' -H 'x: 2' n https://example.com # --header x # twice # leave one out
2$ add -H nocolon n https://example.com # --header number 1 # Name: value
2$ add -e A=1 n https://example.com # --env is for a command # --header
2$ add --sandbox n https://example.com # --sandbox # does not apply to a URL
2$ add --sandbox=chroot n npx # 'chroot' # --sandbox # gvisor
2$ add --pids none n npx # 'none' # --pids # at least 1
2$ add --port 99999 n npx # '99999' # --port # from 1 to 65535
2$ add --path mcp n npx # --port # Usage
2$ add --restart sometimes n npx # 'sometimes' # --restart # on-failure
2$ add --start later n npx # 'later' # --start # boot, demand
2$ add --heartbeat 0 n npx # '0' # --heartbeat # from 1 to 86400
2$ add --timeout soon n npx # 'soon' # --timeout # such as 30, 30s or 5m
2$ add --timeout -5s n npx # '-5s' # --timeout # such as 30, 30s or 5m
2$ add --wait -1 n npx # '-1' # --wait # from 0 to 86400
2$ add --max-concurrency 0 n npx # '0' # --max-concurrency # at least 1
2$ add --project 'no such' n npx # 'no such' # --project # letters
2$ add --json n { # invalid entry # not JSON # write {
2$ add --json n [] # invalid entry # expected a JSON object # write {
2$ add --json '{\"command\":\"x\"}' n # the name comes before the entry # add --json NAME
2$ add --json n '{\"mcpServers\":{\"a\":{}}}' # `mcpServers` contains several servers # `toolwharf import -`
2$ import # <FILE_OR_CLIENT> # Usage
2$ import nonsense # `nonsense` # the clients are: claude-code
2$ import cursr # `cursr` # did you mean `cursor`?
2$ import http://example.com/mcp.json # `http://example.com/mcp.json` is a URL # download
2$ connect curser # `curser` # did you mean `cursor`?
2$ disconnect nonsense # `nonsense` # Toolwharf knows claude-code
2$ search --lines 0 # '0' # --lines # from 1 to 1000
2$ search --lines many # 'many' # --lines # from 1 to 1000
2$ install '' # '' # <SERVER> # cannot be empty
2$ install time --name a/b # 'a/b' # --name # cannot contain `/`
2$ tools call # <NAME> # Usage: toolwharf tools call
2$ tools call echo text # `text` # KEY=VALUE
2$ tools call echo { # `{` # not valid JSON # KEY=VALUE
2$ tools call echo - # the arguments on standard input are not valid JSON # KEY=VALUE
2$ tools call echo [] # `[]` # not a JSON object # KEY=VALUE
2$ tools call echo {} extra # `{}` # KEY=VALUE
2$ tools call echo {} --arg a=1 # both as JSON and with --arg # use one
2$ tools call echo --arg a # `a` # KEY=VALUE
2$ tools call echo --timeout soon # 'soon' # --timeout # from 1 to 86400
2$ call one # <METHOD> # Usage: toolwharf call
2$ call one tools/list [] # `[]` # not a JSON object # write
2$ call one tools/list - # the parameters on standard input are not valid JSON # write
2$ call one tools/list { # `{` # not valid JSON # write
2$ call one tools/list --timeout 0 # '0' # --timeout # from 1 to 3600
2$ logs one --lines many # 'many' # --lines # from 0 to
2$ calls ls --status broken # 'broken' # --status # tool_error
2$ calls ls --since yesterday # 'yesterday' # --since # 30m, 12h or 7d
2$ calls ls --until 2026-13-01 # '2026-13-01' # --until # 2026-01-31T12:00:00Z
2$ calls ls --since -1h # '-1h' # --since # 30m, 12h or 7d
2$ calls ls --since 1h --until 2h # --since # is not before --until # swap
2$ calls get '' # '' # <ID> # cannot be empty
2$ tools top --sort size # 'size' # --sort # p95
2$ tools top --since -1h # '-1h' # --since # 30m, 12h or 7d
2$ calls ls --lines 0 # '0' # --lines # from 1 to
2$ runs ls --status ok # 'ok' # --status # interrupted
2$ project add 'no such' # 'no such' # letters
2$ project add p --naming random # 'random' # --naming # prefix-on-conflict
2$ project add p --start sometimes # 'sometimes' # --start # sequential
2$ key create # <NAME> # Usage: toolwharf key create
2$ key create ci --project shop --role owner # 'owner' # --role # read, call, manage
2$ key create ci --project shop --tools some # 'some' # --tools # all, search, auto
2$ key create ci --project shop --expires soon # `soon` # 90d, 12h or 30m
2$ key create ci --project shop --expires 0d # `0d` # 90d, 12h or 30m
2$ key create ci --project shop --expires -5d # `-5d` # 90d, 12h or 30m
2$ key revoke '' # '' # <ID> # cannot be empty
2$ product rm '' --project shop # '' # <NAME> # cannot be empty
2$ secret set A-B # `A-B` # letters, digits and `_`
2$ secret set '' # `` cannot be the name of a secret # letters, digits and `_`
2$ secret rm 1A # `1A` # no digit at the beginning
2$ chat --conversation '' hi # '' # --conversation # cannot be empty
2$ completions tcsh # 'tcsh' # bash, elvish, fish
2$ init # --import, --sandbox, --start # --yes
2$ init --import nonsense # `nonsense` # Toolwharf knows claude-code
2$ init --import cursr # `cursr` # did you mean `cursor`?
2$ init --sandbox maybe # 'maybe' # --sandbox # yes, no
2$ init --start later # 'later' # --start # now, service, no
2$ init --yes --url http://127.0.0.1:1 # http://127.0.0.1:1 # leave out --url
2$ service # Usage: toolwharf service
2$ service instal # 'instal' # 'install'
2$ service install --url http://127.0.0.1:1 # http://127.0.0.1:1 # leave out --url
2$ serve extra # unexpected argument 'extra' # Usage: toolwharf serve
2$ stdio --client nonsense # `nonsense` # Toolwharf knows claude-code
2$ stdio --project 'no such' # 'no such' # --project # letters
";

/// Files, directories and addresses, without a gateway.
const FILES: &str = "
1$ get none # `none` # `toolwharf ls`
1$ get tmie # `tmie` # did you mean `time`?
1$ ls tmie # `tmie` # did you mean `time`?
1$ status tmie # `tmie` # did you mean `time`?
1$ rm none # `none` # `toolwharf ls`
1$ rm tmie # `tmie` # did you mean `time`?
1$ enable tmie # `tmie` # did you mean `time`?
1$ disable tmie/x # `tmie` # did you mean `time`?
1$ add time npx # `time` # --force
1$ add --memory lots n npx # --memory lots # a size from 8MiB # 512MiB
1$ add --cpu many n npx # --cpu many # a number of cores # 0.5
1$ add --cpu -1 n npx # --cpu -1 # a number of cores # 0.5
1$ add --disk 5X n npx # --disk 5X # a size from 1MiB # 512MiB
1$ add --volume data n npx # --volume data # an absolute path
1$ add --mount /nowhere n npx # --mount /nowhere # HOST:PATH
1$ add --network a/b/c n npx # --network a/b/c # host:port
1$ add --network '' n npx # --network '' # host:port
1$ add --image '' n # --image '' # must name a container image
1$ add --image 'no image' n # --image no image # must name a container image
1$ add --json n {} # `n` # command # url
1$ add --json n '{\"command\":1}' # `n` # `command` # is a number # write
1$ add --json n '{\"url\":\"ftp://x\"}' # `n` # `url` # begin the URL with `https://`
1$ add --json n '{\"command\":\"x\",\"type\":\"pigeon\"}' # `n` # pigeon # stdio
1$ add --project shop n npx # no gateway is running # `toolwharf serve`
1$ import cursor # cursor # .cursor/mcp.json # pass the path
1$ import none.json # none.json # there is no file # a file with servers
1$ import folder # folder # is a directory # a file with servers
1$ import bytes.json # bytes.json # UTF-8 # a file with servers
1$ import broken.json # broken.json:1:17 # unterminated object # add the missing
1$ import list.json # list.json # not a JSON object # mcpServers
1$ import empty.json # empty.json # there are no servers # mcpServers
1$ import noservers.json # noservers.json # there are no servers # mcpServers
1$ connect cursor # Cursor is not installed # .cursor/mcp.json # Install it
1$ disconnect cursor # Cursor is not connected # `toolwharf connect`
1$ search --registry nowhere x # `nowhere` # toolwharf.toml # built-in
1$ search --registry ftp://x y # `ftp://x` # https://
1$ tools ls # no gateway is running # `toolwharf serve` # --url
1$ secret rm NONE # no secret `NONE` # `toolwharf secret ls`
1$ key recover --data-dir none # none/toolwharf.db # --data-dir
1$ product install none.yaml --project shop # none.yaml # there is no file # a manifest
1$ product install folder --project shop # folder # is a directory # a manifest
1$ product install bytes.json --project shop # bytes.json # UTF-8 # a manifest
1$ product install broken.yaml --project shop # broken.yaml # not a valid manifest # line 1
1$ product install badname.yaml --project shop # `a/b` in badname.yaml # cannot contain `/` # choose another
1$ product install noname.yaml --project shop # noname.yaml # no `name` # a manifest begins
1$ kubernetes convert none.yaml # none.yaml # there is no file # resources
1$ kubernetes convert folder # folder # is a directory # resources
1$ kubernetes convert broken.yaml # broken.yaml # not valid YAML # line 1
1$ kubernetes convert empty.json # empty.json # no `MCPServer` # name a file
1$ --config none.json ls # none.json # does not exist # toolwharf add
1$ --config folder ls # folder # directory # check the path
1$ --config broken.json ls # broken.json:1:17 # unterminated object # add the missing
1$ -o json --config broken.json ls # \"error\":\"invalid JSON # broken.json:1:17 # add the missing
1$ --config slip.json ls # slip.json # write `mcpServers` instead of `mcpservers`
1$ --config bytes.json ls # bytes.json # not UTF-8 # save the file as UTF-8
1$ --config empty.json ls # empty.json # is empty # mcpServers
1$ --config list.json ls # list.json:1:1 # not a JSON object # mcpServers
1$ --config bad.toml ls # bad.toml:1:10 # invalid TOML # key = value
1$ --config twice.toml ls # twice.toml:2:1 # duplicate key # remove one of the two
1$ --config unknown.toml ls # unknown.toml:1:1 # `lisen` # did you mean `listen`?
1$ --config wrong.toml ls # wrong.toml:1:10 # `listen` is not a string # double quotes
1$ --config nested.toml ls # nested.toml:2:7 # `env` is not a table # [defaults.env]
1$ --config a.toml --config b.toml ls # a.toml # b.toml # name only
1$ ls --url foo # `foo` # http://127.0.0.1:6280
1$ ls --url localhost:1 # `localhost:1` # http://127.0.0.1:6280 # --url
1$ ls --url ftp://example.com # `ftp://example.com` # use http:// or https://
1$ ls --url http:// # `http://` # empty host # http://127.0.0.1:6280
1$ ls --url http://127.0.0.1:99999 # `http://127.0.0.1:99999` # invalid port # http://127.0.0.1:6280
1$ ls --url http://127.0.0.1:1 # http://127.0.0.1:1 # refused # --url
1$ ls --url {other} # {other} # broke # --url
1$ ls --url {html} # {html} # not a Toolwharf gateway # --url
1$ tools ls --data-dir none # data directory none # no gateway is running # `toolwharf serve`
1$ tools ls --data-dir list.json # data directory list.json # cannot read # --data-dir
1$ serve --listen foo # foo # invalid socket address # ADDR:PORT
1$ serve --listen 127.0.0.1:99999 # 127.0.0.1:99999 # invalid port # ADDR:PORT
1$ serve --listen '' # cannot listen on `` # ADDR:PORT
1$ serve --data-dir list.json # list.json # cannot create # --data-dir
1$ serve --database-url nonsense # `nonsense` # --database-url postgres://
1$ serve --database-url mysql://x # mysql://x # postgres://
";

/// Objects of a running gateway, as its administrator.
const GATEWAY: &str = "
1$ get weather # `weather` # `toolwharf ls` lists the servers
1$ get dcie # `dcie` # did you mean `dice`?
1$ start weather # `weather` # `toolwharf ls` lists the servers
1$ logs dcie # `dcie` # did you mean `dice`?
1$ enable dice/FLIP # `dice` has no tool `FLIP` # did you mean `flip`?
1$ enable dice/flp # `dice` has no tool `flp` # did you mean `flip`?
1$ disable dice/none # `dice` has no tool `none` # `toolwharf tools ls --server dice`
1$ get dice --project shpo # `shpo` # did you mean `shop`?
1$ ls --project none # `none` # `toolwharf project ls`
1$ call dcie tools/list # `dcie` # did you mean `dice`?
1$ call bad tools/list # server `bad` is unavailable # `surely-not-there` not found in PATH # `toolwharf get bad`
1$ call dice no/such # `dice` refused `no/such` # -32601 # tools/list
1$ call dice tools/call # `dice` refused `tools/call` # -32601 # the parameters are wrong
1$ call dice tools/call '{\"name\":\"flp\"}' # `dice` refused `tools/call` # tool not found # `toolwharf tools ls --server dice`
1$ tools get none # no tool `none` # `toolwharf tools ls` # `bad` (blocked)
1$ tools get rol # no tool `rol` # did you mean `roll`?
1$ tools call none # Unknown tool: none # `toolwharf tools ls` # `bad` (blocked)
1$ tools call dice/rol # `dice/rol` # did you mean `dice/roll`?
1$ tools call off/x # `off/x` # `off` is not running (disabled) # `toolwharf get off`
1$ tools call bad/x # `bad/x` # `bad` is not running (blocked) # `toolwharf get bad`
1$ tools call roll # the tool reports an error # `toolwharf tools get roll`
2$ tools call roll dcie=2d6 # `roll` has no argument `dcie` # did you mean `dice`?
2$ tools call roll dice=2d6 dice=1d6 # `dice` is given twice
2$ tools call roll dice:=2d6 # `dice` # `2d6` # not valid JSON # write dice=2d6
2$ tools call slow ms=soon # `ms` must be a whole number, not `soon` # write ms=3
2$ tools call slow ms=1.5 # `ms` must be a whole number, not `1.5` # write ms=3
1$ tools call roll --server dcie # `dcie` # did you mean `dice`?
1$ tools call rol --server dice # no tool `rol` # did you mean `roll`?
1$ tools call roll --project shpo # `shpo` # did you mean `shop`?
1$ tools ls --server dcie # `dcie` # did you mean `dice`?
1$ tools approve off # `off` # not enabled # `toolwharf get off`
1$ tools approve dcie # `dcie` # did you mean `dice`?
1$ tools approve dice/flp # `dice/flp` # `toolwharf tools ls`
1$ tools changes dcie # `dcie` # did you mean `dice`?
1$ project get shpo # `shpo` # did you mean `shop`?
1$ project rm none # `none` # `toolwharf project ls`
1$ secret rm NONE --project shop # no secret `NONE` # `toolwharf secret ls
1$ product rm none --project shop # no product `none` # `toolwharf product ls
1$ product install badproduct.yaml --project shop # manifest is invalid # `/mcp/servers` # required
1$ key create '' --admin # `name` # must not be empty
1$ key revoke none # no key `none` # `toolwharf key ls` lists the keys
1$ calls get none # no call `none` # `toolwharf calls ls`
1$ runs get none # no run `none` # `toolwharf runs ls`
1$ conversation get none # no conversation `none` # `toolwharf conversation ls`
1$ chat hi # no model # model = # toolwharf.toml
1$ install surely-not-there --yes # `surely-not-there` # toolwharf search
2$ install time # --yes
1$ install time --yes --option rust # `rust` # pypi
2$ install time --yes --set nothing # --set nothing # NAME=VALUE
2$ install time --yes --set x=1 # `x` is not an input # local-timezone
2$ install filesystem --yes # needs the input `folder` # --set folder=VALUE
1$ install time --yes --registry nowhere # `nowhere` # toolwharf.toml # built-in
1$ update dice # `dice` # pinned package # npx
1$ logout dice # `dice` needs no sign-in
1$ login dice # `dice` needs no sign-in
1$ import empty.json # empty.json # there are no servers # mcpServers
1$ add dice npx # `dice` # --force
1$ add gone surely-not-there # `gone` is not connected (blocked) # `surely-not-there` not found in PATH # install it
1$ enable bad # `bad` is not connected (blocked) # `surely-not-there` not found in PATH # install it
1$ start off # `off` is not enabled # `toolwharf enable off`
1$ logs dice --config other.json # other configuration files # --config # mcp.json
1$ connect cursor --http # no fixed address # `listen` # without --http
";

/// Keys that are missing, invalid, or allow too little.
const KEYS: &str = "
1$ ls # {url} # rejected the token # --token-file
1$ ls --token-file none # none # cannot read # --token-file
1$ ls --token-file folder # folder # cannot read # --token-file
1$ ls --token-file empty.json # empty.json is empty # --token-file
1$ ls --token-file bytes.json # bytes.json # cannot read # --token-file
1$ ls --token-file twokeys # in twokeys # a line break # --token-file
1$ ls --token-file wrongkey # {url} # in wrongkey # --token-file
1$ project ls --token-file callkey # needs an administrator's key # in callkey # --token-file
1$ key ls --token-file callkey # role `manage` # in callkey # --token-file
1$ rm dice --token-file callkey # `dice` # `toolwharf
";

/// Splits a row.
fn row(text: &str) -> (i32, &str, Vec<&str>) {
    let (code, rest) = text.split_once("$ ").expect("`$ ` before each line");
    let mut parts = rest.split(" # ");
    let line = parts.next().unwrap_or_default();
    (code.parse().expect("an exit code"), line, parts.collect())
}

fn rows(table: &str) -> impl Iterator<Item = (i32, &str, Vec<&str>)> {
    let lines = table.lines().map(str::trim);
    lines.filter(|line| !line.is_empty()).map(row)
}

/// Runs all rows and reports all that differ. `known` replaces placeholders.
async fn check(table: &str, known: &[(&str, &str)], run: impl AsyncFn(&str) -> Said) {
    let replaced = |text: &str| {
        let mut text = text.to_owned();
        for (name, value) in known {
            text = text.replace(name, value);
        }
        text
    };
    let mut wrong = Vec::new();
    for (code, line, parts) in rows(table) {
        let said = run(&replaced(line)).await;
        let missing: Vec<String> = parts
            .iter()
            .map(|part| replaced(part))
            .filter(|part| !said.err.contains(part.as_str()))
            .collect();
        if said.code != Some(code) || !missing.is_empty() || said.err.contains("panicked") {
            wrong.push(format!("{line}\n  missing: {missing:?}\n  {said:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Writes the files of the rows.
fn prepare(write: impl Fn(&str, &[u8])) {
    write("folder/file", b"");
    write("bytes.json", b"\xff\xfe\x00");
    write("empty.json", b"");
    write("broken.json", b"{ \"mcpServers\": {");
    write("list.json", b"[]");
    write("noservers.json", b"{\"theme\": \"dark\"}");
    write("other.json", b"{\"mcpServers\": {}}");
    write("slip.json", b"{\"mcpservers\": {}}");
    write("twokeys", b"twh_a\ntwh_b\n");
    write("nested.toml", b"[defaults]\nenv = 5\n");
    write("broken.yaml", b"a: [b");
    write("noname.yaml", b"version: 1\n");
    write("badproduct.yaml", b"name: search\nversion: 1.0.0\nmcp: 5\n");
    write("bad.toml", b"listen = ");
    write(
        "twice.toml",
        b"listen = \"127.0.0.1:1\"\nlisten = \"127.0.0.1:2\"\n",
    );
    write("badname.yaml", b"name: a/b\nversion: 1.0.0\n");
    write("unknown.toml", b"lisen = \"127.0.0.1:1\"\n");
    write("wrong.toml", b"listen = 5\n");
    write("a.toml", b"");
    write("b.toml", b"");
}

fn home() -> Home {
    let home = Home::new();
    prepare(|file, bytes| {
        let path = home.write(file, "");
        std::fs::write(path, bytes).expect("a file");
    });
    let entry = r#"{"mcpServers": {"time": {"command": "uvx", "args": ["mcp-server-time"]}}}"#;
    home.write(".config/toolwharf/mcp.json", entry);
    home
}

/// Returns the address of a program that is not a gateway. It sends `answer` on each connection.
fn stranger(answer: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(answer);
        }
    });
    format!("http://{address}")
}

async fn gateway() -> Gateway {
    let dice = json!({ "command": Bin::path("toolwharf-example-dice") });
    let off = json!({ "command": scripted(), "disabled": true });
    let gateway = Setup::new()
        .scripted("one", &[])
        .server("dice", dice)
        .server("off", off)
        .server("bad", json!({ "command": "surely-not-there" }))
        .serve()
        .await;
    prepare(|file, bytes| {
        let path = gateway.folder().join(file);
        let folder = path.parent().expect("a file has a folder");
        std::fs::create_dir_all(folder).expect("a folder");
        std::fs::write(path, bytes).expect("a file");
    });
    std::fs::create_dir_all(gateway.folder().join(".cursor")).expect("a folder");
    for name in ["one", "dice"] {
        gateway.up(name).await;
    }
    wait_for("the server to be blocked", DEADLINE, async || {
        json_of(&gateway, "get bad").await["status"] == "blocked"
    })
    .await;
    ok(&gateway, "project add shop", "").await;
    gateway
}

#[test]
fn the_tables_have_at_least_200_rows_that_name_something() {
    let mut count = 0;
    for table in [USAGE, FILES, GATEWAY, KEYS] {
        for (code, line, parts) in rows(table) {
            assert!(code != 0 && !parts.is_empty(), "{line}");
            count += 1;
        }
    }
    assert!(count >= 200, "{count}");
}

#[tokio::test]
async fn u13_wrong_usage_is_explained() {
    let home = home();
    check(USAGE, &[], async |line| home.run(line).await).await;
    let text = std::fs::read_to_string(home.servers()).expect("a file");
    assert!(!text.contains("npx"), "nothing was added: {text}");
}

#[tokio::test]
async fn u13_wrong_files_and_addresses_are_explained() {
    let home = home();
    let other = stranger(b"SSH-2.0-example\r\n");
    let html = stranger(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 6\r\nconnection: close\r\n\r\n<html>",
    );
    let known = [("{other}", other.as_str()), ("{html}", html.as_str())];
    check(FILES, &known, async |line| home.run(line).await).await;
}

#[tokio::test]
async fn u13_wrong_objects_of_a_gateway_are_explained() {
    let gateway = gateway().await;
    check(GATEWAY, &[], async |line| on(&gateway, line).await).await;
}

#[tokio::test]
async fn u13_wrong_keys_are_explained() {
    let gateway = gateway().await;
    let home = home();
    let key = json_of(&gateway, "key create ci --project shop").await;
    home.write("callkey", key["token"].as_str().expect("a token"));
    home.write("wrongkey", "twh_wrong");
    let known = [("{url}", gateway.url.as_str())];
    check(KEYS, &known, async |line| {
        home.run(&format!("{line} --url {}", gateway.url)).await
    })
    .await;
}
