//! Third-party clients from npm after `toolwharf connect`: their own `mcp list`, and a call by Claude Code.
//!
//! Each test runs in a separate network namespace with loopback only, so the clients cannot reach the internet. `cargo
//! xtask setup` installs the clients.

mod common;

use std::{env, fs, process::Stdio, time::Duration};

use common::{
    checks,
    cli::{self, Said},
    scripted,
    shell::Home as Files,
};
use serde_json::json;
use testkit::{
    Process,
    conformance::node_modules,
    llm::{Llm, asks, says, turns},
    within,
};
use tokio::process::Command;

/// This variable is set when the test runs inside the network namespace.
const OFFLINE_VARIABLE: &str = "TOOLWHARF_TEST_OFFLINE";
/// Timeout for one client. At its first start a client may unpack files.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(90);

/// Runs the test in a network namespace with loopback only: this program again, under bubblewrap.
fn offline(test: &str, body: impl Future<Output = ()>) {
    if env::var_os(OFFLINE_VARIABLE).is_some() {
        let interfaces = fs::read_to_string("/proc/net/dev").expect("a list");
        assert_eq!(interfaces.matches(':').count(), 1, "{interfaces}");
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().expect("a runtime");
        return runtime.block_on(body);
    }
    let status = std::process::Command::new("bwrap")
        .args(["--dev-bind", "/", "/", "--unshare-net", "--die-with-parent"])
        .arg(env::current_exe().expect("this program"))
        .args(["--exact", test, "--nocapture"])
        .env(OFFLINE_VARIABLE, "1")
        .status();
    assert!(status.expect("bwrap: run `cargo xtask setup`").success());
}

/// A home directory with the clients and Toolwharf's server `dice`.
struct Home(Files);

impl Home {
    fn new() -> Self {
        let home = Files::new();
        let servers = json!({"mcpServers": {"dice": scripted("dice", &[])}});
        home.write(".config/toolwharf/mcp.json", &servers.to_string());
        // Without this setting, Gemini starts servers in trusted directories only.
        let gemini = r#"{ "security": { "folderTrust": { "enabled": false } } } // mine"#;
        home.write(".gemini/settings.json", gemini);
        home.write(".codex/config.toml", "# mine\nmodel = \"gpt\"\n");
        let opencode = "{ \"autoupdate\": false }\n";
        home.write(".config/opencode/opencode.json", opencode);
        home.write(".claude.json", "{\"hasCompletedOnboarding\":true}");
        fs::create_dir(home.path("project")).expect("a folder");
        Self(home)
    }

    /// Removes the environment of the user who runs the tests.
    fn clean(&self, mut command: Command) -> Command {
        let node = node_modules().join("node/bin");
        let project = self.0.path("project");
        command
            .env_clear()
            .env("PATH", format!("{}:/usr/bin:/bin", node.display()))
            .envs([("NO_COLOR", "1"), ("DISABLE_AUTOUPDATER", "1")])
            .env("HOME", project.parent().expect("the home directory"))
            .current_dir(&project)
            .kill_on_drop(true);
        command
    }

    async fn toolwharf(&self, arguments: &[&str]) -> Said {
        let mut command = self.clean(cli::toolwharf());
        command.args(arguments);
        cli::said(command, "").await.code(0)
    }

    /// Runs a client and returns all its output.
    async fn client(&self, client: &str, arguments: &[&str], env: &[(&str, &str)]) -> String {
        let file = node_modules().join(client);
        assert!(
            file.exists(),
            "{} is missing; run: cargo xtask setup",
            file.display()
        );
        let mut command = if file.extension().is_some() {
            let mut node = Command::new(node_modules().join("node/bin/node"));
            node.arg(file);
            node
        } else {
            Command::new(file)
        };
        command.args(arguments);
        let mut command = self.clean(command);
        command.envs(env.iter().copied()).stdin(Stdio::null());
        let output = within(client, CLIENT_TIMEOUT, command.output()).await;
        let output = output.expect("the client starts");
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        let status = output.status;
        assert!(status.success(), "{client}: {status}\n{text}");
        text
    }
}

const CLAUDE_CODE_PATH: &str = "@anthropic-ai/claude-code/cli-wrapper.cjs";
/// Each client's program, its name, and its output for a server that it can use.
const LIST_COMMANDS: &[(&str, &str, &str)] = &[
    (CLAUDE_CODE_PATH, "claude-code", "Connected"),
    ("@openai/codex/bin/codex.js", "codex", "enabled"),
    ("@google/gemini-cli/bundle/gemini.js", "gemini", "Connected"),
    ("opencode-linux-x64/bin/opencode", "opencode", "connected"),
];

#[test]
fn real_clients_list_it() {
    offline("real_clients_list_it", async {
        let home = Home::new();
        home.toolwharf(&["connect", "--all", "--yes"]).await;
        for (client, name, usable) in LIST_COMMANDS {
            let text = home.client(client, &["mcp", "list"], &[]).await;
            let command = format!("stdio --client {name}");
            checks::contains(text, &["toolwharf", &command, usable]);
        }
        home.toolwharf(&["disconnect", "--all", "--yes"]).await;
        for (client, ..) in LIST_COMMANDS {
            let text = home.client(client, &["mcp", "list"], &[]).await;
            checks::lacks(text, &["toolwharf"]);
        }
    });
}

#[test]
fn claude_code_calls_a_tool_through_it() {
    offline("claude_code_calls_a_tool_through_it", async {
        let home = Home::new();
        let mut serve = home.clean(cli::toolwharf());
        serve.args(["serve", "--listen", "127.0.0.1:0"]);
        let mut serve = Process::spawn(serve);
        serve
            .announced(|line| line.starts_with("toolwharf is at ").then_some(()))
            .await;
        home.toolwharf(&["connect", "claude-code", "--yes"]).await;
        let tool = "mcp__toolwharf__echo";
        let call = asks(&[("call_1", tool, json!({"text": "through it"}))]);
        let mut script = turns(&[call, says("it is done")]);
        script["unchecked"] = true.into();
        let llm = Llm::start(&script).await;
        let env = [
            ("ANTHROPIC_BASE_URL", llm.url()),
            ("ANTHROPIC_API_KEY", "sk-test"),
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
        ];
        let asked = ["-p", "Call the tool.", "--allowedTools", tool];
        let arguments = [&asked[..], &["--output-format", "text"]].concat();
        let said = home.client(CLAUDE_CODE_PATH, &arguments, &env).await;
        let asked = llm.requests().await;
        assert!(said.contains("it is done"), "{said}\n{asked:#?}");
        let messages = &asked.last().expect("a request")["body"]["messages"];
        checks::contains(messages, &["tool_result", "through it"]);
        let calls = home.toolwharf(&["calls", "ls"]).await;
        checks::contains(calls.out, &["client:claude-code", "dice/echo"]);
    });
}
