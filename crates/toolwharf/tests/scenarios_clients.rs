//! `toolwharf connect` and `disconnect`: the files of six clients in a separate home directory.

mod common;

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, lchown, symlink},
    path::{Path, PathBuf},
};

use common::{
    Gateway, LEGACY, Setup, checks,
    cli::{self, Said},
    scripted, shell,
    steps::{accepted, admin},
    tools,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{Bin, DEADLINE, Peer, StdioClient, peer};
use tokio::process::Command;

/// Each client: name, file, content, and the location of our entry.
const FILES: &[(&str, &str, &str, &str)] = &[
    (
        "claude-code",
        ".claude.json",
        "{\n  \"numStartups\": 7,\n  \"oauthAccount\": {\"accessToken\": \"sk-ant-secret\"},\n  \"projects\": {\"/p\": {\"mcpServers\": {\"own\": {\"command\": \"x\"}}}}\n}",
        "mcpServers",
    ),
    (
        "codex",
        ".codex/config.toml",
        "# mine\nmodel = \"gpt\" # nice\n\n[mcp_servers.time]\ncommand = \"uvx\" # first\n\n[tui]\ntheme = \"dark\"\n",
        "[mcp_servers.toolwharf]",
    ),
    (
        "cursor",
        ".cursor/mcp.json",
        "{\r\n  // mine\r\n  \"mcpServers\": {\r\n    \"time\": { \"command\": \"uvx\", \"env\": { \"API_KEY\": \"sk-cursor-secret\" } }, // nice\r\n  },\r\n}\r\n",
        "mcpServers",
    ),
    (
        "goose",
        ".config/goose/config.yaml",
        "# mine\nGOOSE_MODEL: gpt\nextensions:\n  developer: # nice\n    type: builtin\n    enabled: true\n\n# last\nGOOSE_MODE: auto\n",
        "extensions:",
    ),
    (
        "vscode",
        ".config/Code/User/mcp.json",
        "\u{feff}{\n\t\"inputs\": [],\n\t\"servers\": {}\n}\n",
        "servers",
    ),
    (
        "zed",
        ".config/zed/settings.json",
        "// Zed settings\n//\n{\n  \"vim_mode\": true, // nice\n  \"context_servers\": {\n    /* here */\n  }\n}\n",
        "context_servers",
    ),
];

/// A user with the six clients.
struct Home(shell::Home);

impl Home {
    fn new() -> Self {
        let home = Self(shell::Home::new());
        for (_, file, text, _) in FILES {
            home.write(file, text);
        }
        home
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.path(file)
    }

    fn write(&self, file: &str, text: &str) {
        self.0.write(file, text);
    }

    fn text(&self, file: &str) -> String {
        fs::read_to_string(self.path(file)).expect("a file")
    }

    fn command(&self) -> Command {
        let mut command = cli::toolwharf();
        command
            .env("HOME", self.path(""))
            .env("PATH", "/usr/bin:/bin");
        for variable in ["CODEX_HOME", "CLAUDE_CONFIG_DIR", "TOOLWHARF_DATABASE_URL"] {
            command.env_remove(variable);
        }
        command
    }

    async fn run(&self, line: &str) -> Said {
        let mut command = self.command();
        command.args(line.split(' '));
        cli::said(command, "").await
    }

    /// Returns a line for each installed client, with its state.
    async fn states(&self) -> String {
        let listed = self.run("connect -o json").await.code(0).json();
        let clients = listed["clients"].as_array().expect("clients").iter();
        let lines = clients.map(|client| {
            let text = |key: &str| client[key].as_str().expect("a text");
            format!("{} {}\n", text("name"), text("state"))
        });
        lines.collect()
    }

    /// Asserts that all files of the clients are as they were at first.
    fn is_untouched(&self) {
        for (name, file, text, _) in FILES {
            assert_eq!(self.text(file), *text, "{name}");
        }
    }

    /// Returns the servers of Toolwharf's file.
    fn servers(&self) -> Value {
        let text = self.text(".config/toolwharf/mcp.json");
        serde_json::from_str::<Value>(&text).expect("JSON")["mcpServers"].clone()
    }

    /// Returns the files in the data directory's `clients` folder.
    fn kept(&self) -> Vec<PathBuf> {
        let folder = self.path(".local/share/toolwharf/clients");
        let entries = fs::read_dir(folder).expect("a folder");
        entries
            .map(|entry| entry.expect("an entry").path())
            .collect()
    }
}

fn mode(file: &Path) -> u32 {
    let there = fs::metadata(file).expect("a file");
    there.permissions().mode() & 0o777
}

#[tokio::test]
async fn c08_six_clients_are_connected_and_disconnected_to_the_byte() {
    let home = Home::new();
    let all = |state: &str| -> String {
        let names = FILES.iter().map(|(name, ..)| *name);
        names.map(|name| format!("{name} {state}\n")).collect()
    };
    assert_eq!(home.states().await, all("not_connected"));
    // Nothing is written before the user has agreed, and a dry run leaves nothing behind.
    home.run("connect --all").await.code(2).says("--yes");
    let seen = home.run("connect --all --dry-run").await.code(0).out;
    home.is_untouched();
    for (_, file, ..) in FILES {
        let new = format!("+++ {}", home.path(file).display());
        checks::contains(&seen, &[&new]);
    }
    checks::lacks(&seen, &["secret"]);
    let only_mine = fs::Permissions::from_mode(0o600);
    fs::set_permissions(home.path(".config/zed/settings.json"), only_mine).expect("a file");
    let modes: Vec<u32> = FILES.iter().map(|it| mode(&home.path(it.1))).collect();

    home.run("connect --all --yes").await.code(0);
    assert_eq!(home.states().await, all("connected"));
    for ((name, file, text, mark), before) in FILES.iter().zip(modes) {
        let new = home.text(file);
        checks::contains(&new, &[mark, "\"--client\""]);
        checks::lacks(&new, &["twh_"]);
        let is_comment = |line: &&str| line.contains("//") || line.contains('#');
        for line in text.lines().filter(is_comment) {
            let kept = new.lines().any(|new| new == line);
            assert!(kept, "{name}: {line:?} is not in {new:?}");
        }
        assert_eq!(new.contains("\r\n"), text.contains("\r\n"), "{name}");
        assert_eq!(mode(&home.path(file)), before, "{name}");
    }
    for path in home.kept() {
        assert_eq!(mode(&path) & 0o077, 0, "{}", path.display());
    }
    let again = home.run("connect zed").await.code(0);
    again.says("already connected");

    home.run("disconnect --all --yes").await.code(0);
    home.is_untouched();
    assert_eq!(home.states().await, all("not_connected"));
    assert_eq!(home.kept().len(), 0);
    let said = home.run("disconnect zed --yes").await.code(1);
    said.says("Zed is not connected");
}

#[tokio::test]
async fn c08_a_file_that_somebody_changed_loses_the_entry_only() {
    let home = Home::new();
    home.run("connect --all --move --yes").await.code(0);
    assert_eq!(home.servers()["time"]["command"], "uvx");
    for (name, file, ..) in FILES {
        let changed = match *name {
            "codex" => home.text(file) + "# theirs\n",
            "goose" => home.text(file) + "theirs: 1\n",
            _ => home.text(file).replacen('{', "{ \"theirs\": 1,", 1),
        };
        home.write(file, &changed);
    }
    let said = home.run("disconnect --all --yes -o json").await.code(0);
    for told in said.json().as_array().expect("a list") {
        assert_eq!(told["restored"], "entry", "{told}");
        // Cursor's server of that name is different and was left in place.
        let put_back = match told["name"].as_str() {
            Some("codex") => json!(["time"]),
            _ => json!([]),
        };
        assert_eq!(told["put_back"], put_back, "{told}");
    }
    for (_, file, ..) in FILES {
        let left = home.text(file);
        checks::contains(&left, &["theirs"]);
        checks::lacks(&left, &["toolwharf"]);
    }
    checks::contains(home.text(".cursor/mcp.json"), &["sk-cursor-secret"]);
    assert_eq!(home.servers(), json!({}));
}

#[tokio::test]
async fn c08_servers_are_moved_and_come_back() {
    let home = Home::new();
    let text = r#"{"mcpServers": {"dice": {"command": "dice", "alwaysAllow": ["roll"]}, "lacking": {"command": "x", "env": {"A": "${NOT_SET_ANYWHERE}"}},
        "taken": {"command": "theirs"}, "self": {"command": "toolwharf", "args": ["stdio"]}, "toolwharf": {"command": "by-hand"}}}"#;
    home.write(".cursor/mcp.json", text);
    let ours = r#"{"mcpServers": {"taken": {"command": "ours"}}}"#;
    home.write(".config/toolwharf/mcp.json", ours);
    checks::contains(home.states().await, &["cursor by_hand\n"]);
    let said = home.run("connect cursor --move --yes -o json").await;
    let told = &said.code(0).json()[0];
    assert_eq!(told["moved"], json!(["dice"]));
    let staying = told["staying"].as_array().expect("a list").iter();
    let staying: Vec<_> = staying.map(|one| one["name"].clone()).collect();
    assert_eq!(staying, ["taken", "lacking", "self"]);
    let left: Value = serde_json::from_str(&home.text(".cursor/mcp.json")).expect("JSON");
    let left = left["mcpServers"].as_object().expect("servers").keys();
    let names: Vec<_> = left.collect();
    assert_eq!(names, ["lacking", "taken", "self", "toolwharf"]);
    assert_eq!(home.servers()["dice"]["command"], "dice");
    // The backup is kept when Cursor is connected again after a change.
    let changed = home.text(".config/toolwharf/mcp.json");
    let changed = changed.replace("ours", "ours2");
    home.write(".config/toolwharf/mcp.json", &changed);
    home.run("connect cursor --yes").await.code(0);
    home.run("disconnect cursor --yes").await.code(0);
    assert_eq!(home.text(".cursor/mcp.json"), text);
    assert_eq!(home.servers(), json!({"taken": {"command": "ours2"}}));
}

#[tokio::test]
async fn c08_what_is_wrong_in_a_file_is_told_and_nothing_is_written() {
    let home = Home::new();
    let wrong = "{\n  \"mcpServers\": {\n    \"a\": \"sk-secret\" 1\n}}";
    home.write(".cursor/mcp.json", wrong);
    fs::remove_file(home.path(".codex/config.toml")).expect("removed");
    fs::create_dir(home.path(".codex/config.toml")).expect("a folder");
    home.write("theirs", "{}");
    std::os::unix::fs::chown(home.path("theirs"), Some(65_534), None).expect("run this as root");
    fs::remove_file(home.path(".config/zed/settings.json")).expect("removed");
    symlink(home.path("theirs"), home.path(".config/zed/settings.json")).expect("a link");
    let inline = "extensions: {a: {type: builtin}}\n";
    home.write(".config/goose/config.yaml", inline);
    let owner = "belongs to the user with id 65534";
    let windsurf = "Windsurf is not installed";
    for (client, parts) in [
        ("cursor", &["mcp.json:3:", "help:"][..]),
        ("codex", &["is a directory", "config.toml", "help:"]),
        ("zed", &[owner, "as that user"]),
        ("goose", &["config.yaml", "by hand"]),
        ("windsurf", &[windsurf, "mcp_config.json", "start it once"]),
        ("claude-desktop", &["Claude Desktop is not installed"]),
    ] {
        let line = format!("connect {client} --yes");
        let said = home.run(&line).await.ends(&line, 1, parts);
        checks::lacks(said.err, &["sk-secret"]);
    }
    let unusable = ["cursor unusable\n", "codex unusable\n", "zed unusable\n"];
    checks::contains(home.states().await, &unusable);
    assert_eq!(home.text("theirs"), "{}");
    // No key was created for a failed connection.
    let folder = home.path(".local/share/toolwharf/clients");
    assert!(!folder.exists() || home.kept().is_empty());
    let said = home.run("connect netscape").await.code(2);
    said.says("there is no client `netscape`").says("cursor");
}

/// CPU seconds of this test's children that have ended.
fn children_cpu() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").expect("this process");
    let (_, rest) = stat.rsplit_once(") ").expect("the name of this process");
    // `cutime` and `cstime` of proc_pid_stat(5), in ticks of 10 ms; the rest begins with the third field.
    let ticks = rest.split(' ').skip(13).take(2);
    let ticks = ticks.map(|it| it.parse::<f64>().expect("a number"));
    ticks.sum::<f64>() / 100.0
}

/// This test measures all children of its process, so it relies on nextest, which runs each test in a separate process.
#[tokio::test]
async fn c08_large_files_take_time_in_proportion_to_their_size() {
    // `connect` may take 2 s for 100,000 servers. An unoptimised build takes about five times as long.
    let bound = if cfg!(debug_assertions) { 10.0 } else { 2.0 };
    let mut took: Vec<Vec<f64>> = Vec::new();
    for count in [2_000, 20_000] {
        let home = Home::new();
        let servers = (0..count).map(|at| format!("    \"s{at}\": {{\"command\": \"x\"}}"));
        let servers = servers.collect::<Vec<_>>().join(",\n");
        let text = format!("{{\n  \"mcpServers\": {{\n{servers}\n  }}\n}}\n");
        home.write(".cursor/mcp.json", &text);
        let mut each = Vec::new();
        let import = format!("import {}", home.path(".cursor/mcp.json").display());
        for line in [
            "connect cursor --yes",
            "disconnect cursor --yes",
            "connect cursor --yes --move",
            "disconnect cursor --yes",
            &import,
        ] {
            let before = children_cpu();
            let said = home.run(line).await.code(0);
            each.push(children_cpu() - before);
            if line == "connect cursor --yes" {
                said.says("s9 and").says("more");
            }
            if line.starts_with("disconnect") {
                assert_eq!(home.text(".cursor/mcp.json"), text);
            }
            if line.ends_with("--move") || line == import {
                assert_eq!(home.servers().as_object().expect("servers").len(), count);
            }
        }
        took.push(each);
    }
    println!("CPU seconds: {took:.2?}");
    for (small, large) in took[0].iter().zip(&took[1]) {
        // The large file is ten times the small one; a quadratic algorithm would take a hundred times as long. The minimum of 0.1 s
        // covers the start of the program.
        assert!(*large < 25.0 * small.max(0.1), "{took:.2?}");
    }
    assert!(5.0 * took[1][0] < bound, "{took:.2?}");
}

#[tokio::test]
async fn c08_root_follows_no_link_of_another_user() {
    const THEIRS: u32 = 65_533;
    let victim = TempDir::new().expect("a folder");
    let target = victim.path().join("target.json");
    fs::write(&target, "{}").expect("a file");
    for (file, leads_to) in [
        // Symbolic links to the file, to a file that does not exist yet, and to the directory.
        (".cursor/mcp.json", target.clone()),
        (".cursor/mcp.json", victim.path().join("new.json")),
        (".cursor", victim.path().to_owned()),
    ] {
        let home = Home::new();
        match home.path(file).is_dir() {
            true => fs::remove_dir_all(home.path(file)),
            false => fs::remove_file(home.path(file)),
        }
        .expect("removed");
        symlink(leads_to, home.path(file)).expect("a link");
        lchown(home.path(file), Some(THEIRS), None).expect("run this as root");
        let link = home.path(file).display().to_string();
        for line in ["connect cursor --yes", "connect cursor --yes --move"] {
            let help = "help: run the command as the owner of the file";
            let parts = [&*link, "the user with id 65533", help];
            let said = home.run(line).await.ends(line, 1, &parts);
            assert_eq!(said.err.matches("the symbolic link").count(), 1, "{said:?}");
        }
        // A directory owned by the other user is refused as well.
        home.write(".codex/config.toml", "");
        lchown(home.path(".codex"), Some(THEIRS), None).expect("run this as root");
        let said = home.run("connect codex --yes").await.code(1);
        said.says("user with id 65533");
        assert_eq!(home.text(".codex/config.toml"), "");
        // `add` and `import` also refuse to write to a servers file that the other user's link leads to.
        fs::create_dir_all(home.path(".config/toolwharf")).expect("a folder");
        let servers = home.path(".config/toolwharf/mcp.json");
        symlink(&target, &servers).expect("a link");
        lchown(&servers, Some(THEIRS), None).expect("run this as root");
        let import = format!("import {link}");
        for line in ["add time -- uvx mcp-server-time", &import] {
            let said = home.run(line).await;
            assert_ne!(said.code, Some(0), "{said:?}");
        }
        let left = fs::read_dir(victim.path()).expect("a folder").count();
        assert_eq!(left, 1);
        assert_eq!(fs::read_to_string(&target).expect("a file"), "{}");
    }
}

/// The command of an entry in a client's file.
fn command_of(home: &Path, entry: &Value) -> Command {
    let mut command = Command::new(entry["command"].as_str().expect("a command"));
    let args = entry["args"].as_array().expect("arguments").iter();
    command.args(args.map(|arg| arg.as_str().expect("a text")));
    command.env_clear().env("HOME", home);
    command
}

/// Starts an entry as its client does.
async fn started(home: &Path, entry: &Value) -> Peer {
    let client = StdioClient::spawn(command_of(home, entry));
    Peer::stdio(client, LEGACY, json!({})).await
}

fn entry(file: &Path) -> Value {
    let text = fs::read_to_string(file).expect("a file");
    let all: Value = serde_json::from_str(&text).expect("JSON");
    all["mcpServers"]["toolwharf"].clone()
}

/// Runs a command with the gateway's files and data directory, from another directory.
async fn beside(gateway: &Gateway, line: &str) -> Said {
    let mut command = cli::toolwharf();
    command
        .args(line.split(' '))
        .arg("--data-dir")
        .arg(gateway.folder().join("data"))
        .env("HOME", gateway.folder())
        .env("PATH", "/usr/bin:/bin");
    cli::said(command, "").await
}

#[tokio::test]
async fn c08_calls_of_connected_clients_are_told_apart_and_end_with_their_keys() {
    let setup = Setup::new().scripted("dice", &[]);
    for folder in [".cursor", ".junie/mcp"] {
        fs::create_dir_all(setup.folder().join(folder)).expect("a folder");
    }
    let gateway = setup.connected().await;
    let home = gateway.folder();
    beside(&gateway, "connect --all --yes").await.code(0);
    for file in [".cursor/mcp.json", ".junie/mcp/mcp.json"] {
        let mut client = started(home, &entry(&home.join(file))).await;
        client.tool("echo", json!({"text": "x"})).await.result();
    }
    let table = beside(&gateway, "calls ls").await.code(0).out;
    checks::contains(table, &["client:cursor", "client:jetbrains"]);
    // The key may only call tools.
    let key = fs::read_to_string(home.join("data/clients/cursor.key")).expect("a key");
    let client = gateway
        .at("/api/v1/servers")
        .with("authorization", &format!("Bearer {key}"));
    let wanted = json!({"name": "k", "role": "call"}).to_string();
    assert_eq!(client.at("/api/v1/keys").post(wanted).await.status, 403);
    // A revoked key is replaced.
    let keys = beside(&gateway, "key ls -o json").await.code(0).json();
    let mut keys = keys.as_array().expect("keys").iter();
    let own = keys.find(|key| key["name"] == "client:cursor");
    let id = own.expect("a key")["id"].as_str().expect("an id");
    let revoke = format!("key revoke {id}");
    beside(&gateway, &revoke).await.code(0);
    let said = beside(&gateway, "connect cursor --yes").await.code(0);
    said.says("connected Cursor");
    started(home, &entry(&home.join(".cursor/mcp.json"))).await;

    let left = entry(&home.join(".junie/mcp/mcp.json"));
    beside(&gateway, "disconnect jetbrains --yes").await.code(0);
    assert!(!home.join(".junie/mcp/mcp.json").exists());
    let said = cli::said(command_of(home, &left), "").await;
    said.code(1).says("toolwharf connect");
    let gone = gateway
        .client()
        .with("authorization", &format!("Bearer {key}"));
    assert_eq!(gone.post("{}").await.status, 401);
}

#[tokio::test]
async fn c08_without_a_gateway_a_client_has_a_key_all_the_same() {
    let home = Home::new();
    let servers = json!({"mcpServers": {"dice": scripted("dice", &[])}});
    home.write(".config/toolwharf/mcp.json", &servers.to_string());
    home.run("connect cursor --yes").await.code(0);
    let arguments = "[\"stdio\", \"--client\", \"cursor\"]";
    checks::contains(home.text(".cursor/mcp.json"), &[arguments]);
    let entry = json!({"command": Bin::path("toolwharf"), "args": ["stdio", "--client", "cursor"]});
    let mut client = started(&home.path(""), &entry).await;
    client.tool("echo", json!({"text": "x"})).await.result();
    drop(client);
    home.run("disconnect cursor --yes").await.code(0);
    let said = home.run("stdio --client cursor").await.code(1);
    said.says("the client `cursor` has no valid key: run `toolwharf connect cursor`");
}

#[tokio::test]
async fn c08_a_url_with_a_key_for_a_project() {
    let setup = Setup::new().scripted("dice", &[]);
    fs::create_dir_all(setup.folder().join(".cursor")).expect("a folder");
    let gateway = setup
        .settings("[projects.shop]\nservers = [\"dice\"]\n")
        .connected()
        .await;
    let said = beside(&gateway, "connect cursor --http --yes").await;
    said.code(1).says("no fixed address");
    let line = format!("connect cursor --url {} --project shop --yes", gateway.url);
    let said = beside(&gateway, &line).await.code(0).out;
    checks::lacks(&said, &["twh_0"]);
    checks::contains(&said, &["•••"]);
    let file = gateway.folder().join(".cursor/mcp.json");
    assert_eq!(mode(&file), 0o600);
    let entry = entry(&file);
    assert_eq!(entry["url"], format!("{}/mcp/shop", gateway.url));
    let bearer = entry["headers"]["Authorization"].as_str();
    let client = gateway.at("/mcp/shop");
    let client = client.with("authorization", bearer.expect("a header"));
    let mut client = Peer::http(client, peer::MODERN, json!({})).await;
    assert!(tools(&mut client).await.contains(&"echo".to_owned()));
    let again = beside(&gateway, &line).await.code(0);
    again.says("already connected");
    beside(&gateway, "disconnect cursor --yes").await.code(0);
    assert!(!file.exists());
}

#[tokio::test]
async fn c08_the_api_does_the_same() {
    let setup = Setup::new().scripted("dice", &[]);
    let (zed, text) = (setup.folder().join(".config/zed/settings.json"), FILES[5].2);
    fs::create_dir_all(zed.parent().expect("a folder")).expect("a folder");
    let own = r#"{"context_servers": {"own": {"command": "own-server", "env": {"KEY": "sk-zed-secret"}}}}"#;
    fs::write(&zed, own).expect("a file");
    let gateway = setup.env("PATH", "/usr/bin:/bin").connected().await;
    let listed = accepted(&gateway, "GET", "/clients", Value::Null).await;
    let client = &listed["clients"][0];
    assert_eq!(client["name"], "zed");
    assert_eq!(client["servers"], json!(["own"]));
    checks::contains(&client["diff"], &["--client"]);
    checks::lacks(&client["diff"], &["secret"]);
    let post = async |path: &str, body: Value, status: u16| {
        let client = admin(&gateway, &format!("/clients/{path}"));
        let reply = client.post(body.to_string()).await;
        assert_eq!(reply.status, status, "{path}: {}", reply.text());
        serde_json::from_slice::<Value>(&reply.body).expect("JSON")
    };
    let text_of = |file: &Path| fs::read_to_string(file).expect("a file");
    let told = post("zed/connect", json!({"dry_run": true, "move": true}), 200).await;
    assert_eq!(told["moved"], json!(["own"]), "{told}");
    assert_eq!(text_of(&zed), own);
    let told = post("zed/connect", json!({"move": true}), 200).await;
    assert_eq!(told["moved"], json!(["own"]), "{told}");
    checks::contains(text_of(&gateway.servers_file()), &["own-server"]);
    let told = post("zed/disconnect", json!({}), 200).await;
    let expected = json!({"name": "zed", "file": zed, "restored": "whole", "put_back": ["own"], "removed": ["own"]});
    assert_eq!(told, expected);
    assert_eq!(text_of(&zed), own);
    let moved = json!({"project": "none", "move": true});
    let http = json!({"http": true});
    for (path, body, status, part) in [
        ("zed/disconnect", json!({}), 409, "not connected"),
        ("netscape/connect", json!({}), 404, "netscape"),
        ("zed/connect", json!({"project": "none"}), 404, "none"),
        ("zed/connect", moved, 422, "without --project"),
        ("zed/connect", json!({"htp": true}), 400, "htp"),
        ("zed/connect", http, 409, "no fixed address"),
    ] {
        let problem = post(path, body, status).await;
        checks::contains(&problem["detail"], &[part]);
    }
    fs::write(&zed, text.replace('}', "")).expect("a file");
    let problem = post("zed/connect", json!({}), 409).await;
    checks::contains(&problem["detail"], &["settings.json:"]);
}

#[tokio::test]
async fn c08_a_gateway_that_others_can_reach_touches_no_files() {
    let setup = Setup::new();
    fs::create_dir_all(setup.folder().join(".cursor")).expect("a folder");
    let gateway = setup
        .settings("public_url = \"https://tools.example.com\"\n")
        .serve()
        .await;
    let reply = admin(&gateway, "/clients").get(&[]).await;
    let reply = reply.collect(DEADLINE).await;
    assert_eq!(reply.status, 409);
    checks::contains(reply.text(), &["toolwharf connect"]);
}
