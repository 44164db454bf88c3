//! `service`: the gateway as a user's service, with a fake systemd.

use std::{fs, path::PathBuf};

use serde_json::{Value, json};
use testkit::{Bin, DEADLINE, RawClient, wait_for};

use super::support::{read, scripted};
use crate::common::{
    body,
    cli::{Said, said},
    holds,
    real::free_port,
    shell::Home,
    systemd::Systemd,
    terminal::typed,
};

const UNIT: &str = "toolwharf.service";

/// A user of a machine with systemd.
pub(super) struct User {
    // Dropped before the home, to which its gateway writes.
    pub(super) systemd: Systemd,
    pub(super) home: Home,
    /// The address of the gateway.
    url: String,
}

impl User {
    pub(super) async fn new() -> Self {
        let home = Home::new();
        let address = format!("127.0.0.1:{}", free_port().await);
        let settings = format!("listen = \"{address}\"\n[limits]\nstop_grace = \"2s\"\n");
        home.write(".config/toolwharf/toolwharf.toml", &settings);
        Self {
            home,
            systemd: Systemd::new(),
            url: format!("http://{address}"),
        }
    }

    /// The search path, with `systemctl` first.
    pub(super) fn path(&self) -> String {
        let path = std::env::var("PATH").expect("PATH");
        format!("{}:{path}", self.systemd.programs().display())
    }

    pub(super) async fn run(&self, line: &str) -> Said {
        let mut command = self.home.command(line);
        command.env("PATH", self.path());
        said(command, "").await
    }

    /// Starts the machine: the user logs in, and systemd starts what is enabled.
    async fn boot(&self) {
        let mut command = tokio::process::Command::new(self.systemd.programs().join("systemctl"));
        command.arg("boot").env("HOME", self.home.path(""));
        let booted = said(command, "").await;
        assert_eq!(
            booted.code,
            Some(0),
            "{booted:?}\n{}",
            self.systemd.log(UNIT)
        );
    }

    pub(super) fn unit(&self) -> PathBuf {
        self.home.path(".config/systemd/user").join(UNIT)
    }

    fn data(&self, file: &str) -> PathBuf {
        self.home.path(".local/share/toolwharf").join(file)
    }

    /// A client of the REST API with the administrator's key.
    fn admin(&self, path: &str) -> RawClient {
        let token = read(&self.data("admin-token"));
        RawClient::new(&format!("{}/api/v1{path}", self.url))
            .with("authorization", &format!("Bearer {}", token.trim()))
    }

    /// The states of all servers, by their names.
    async fn states(&self) -> Vec<(String, String)> {
        let listed = self.run("ls -o json").await.code(0).json();
        let servers = listed["servers"].as_array().expect("servers").iter();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let states = servers.map(|server| (text(&server["name"]), text(&server["status"])));
        states.collect()
    }

    async fn all_run(&self, names: &[&str]) {
        wait_for("all servers to run", DEADLINE, async || {
            let states = self.states().await;
            let runs = |name: &&str| states.contains(&((*name).to_owned(), "running".to_owned()));
            names.iter().all(runs)
        })
        .await;
    }
}

#[tokio::test]
async fn o02_an_enabled_service_is_back_after_a_restart_of_the_machine() {
    let user = User::new().await;
    let add = format!("add one -- {} --name one", scripted());
    user.run(&add).await.code(0);
    let installed = user.run("service install").await.code(0);
    let unit = user.unit().display().to_string();
    holds(
        &installed.out,
        &[&unit, "Type=notify", "WantedBy=default.target"],
    );
    let started = format!("started it: {}/mcp", user.url);
    holds(
        &installed.err,
        &[&format!("wrote {unit}"), "enabled it", &started],
    );
    let hosted = json!({
        "name": "hosted",
        "command": Bin::path("testkit-scripted"),
        "args": ["--name", "hosted"],
    });
    let reply = user.admin("/mcp/servers").post(hosted.to_string()).await;
    assert_eq!(reply.status, 201, "{}", reply.text());
    let id = body(&reply)["id"].clone();
    user.all_run(&["one", "hosted"]).await;
    let before = user.systemd.pid(UNIT);
    let key = read(&user.data("admin-token"));

    user.systemd.kill(UNIT);
    let gone = async || user.run("service status").await.code == Some(1);
    wait_for("the end of the gateway", DEADLINE, gone).await;
    user.boot().await;
    assert_ne!(user.systemd.pid(UNIT), before);
    user.all_run(&["one", "hosted"]).await;
    // The same server, at the same address, with the same key.
    assert_eq!(read(&user.data("admin-token")), key);
    let hosted = format!("/mcp/servers/{}", id.as_str().expect("an id"));
    let reply = user.admin(&hosted).get(&[]).await.collect(DEADLINE).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let status = user.run("service status").await.code(0);
    holds(&status.out, &["active", "starts", &user.url, &unit]);
    user.run("service uninstall").await.code(0);
}

#[tokio::test]
async fn install_can_be_repeated_and_uninstall_leaves_nothing() {
    let user = User::new().await;
    let nothing = user.run("service uninstall").await.code(0);
    nothing.says("the service is not installed");
    user.run("service status").await.code(1);
    let shown = user.run("service install --dry-run").await.code(0);
    holds(&shown.out, &["ExecStart="]);
    assert!(!user.unit().exists(), "a dry run wrote the unit");

    user.run("service install").await.code(0);
    let (pid, text) = (user.systemd.pid(UNIT), read(&user.unit()));
    assert!(pid.is_some());
    let path = format!("PATH={}:", user.systemd.programs().display());
    holds(&text, &["# Written by `toolwharf service install`", &path]);
    // The unit contains the variables for the network, without passwords.
    let mut command = user.home.command("service install --dry-run");
    command
        .env("PATH", user.path())
        .env("SSL_CERT_FILE", "/etc/corp-ca.pem")
        .env("HTTPS_PROXY", "http://me:hunter2@proxy:3128");
    let network = said(command, "").await.code(0);
    holds(
        &network.out,
        &["Environment=\"SSL_CERT_FILE=/etc/corp-ca.pem\"\n"],
    );
    holds(&network.err, &["note: `HTTPS_PROXY`"]);
    assert!(!format!("{network:?}").contains("hunter2"), "{network:?}");
    let again = user.run("service install").await.code(0);
    assert!(!again.err.contains("wrote"), "{again:?}");
    assert_eq!((user.systemd.pid(UNIT), read(&user.unit())), (pid, text));
    // A change of the command line restarts the service.
    let more = user
        .run("service install --data-dir elsewhere")
        .await
        .code(0);
    holds(&more.err, &["wrote", "restarted it"]);
    assert_ne!(user.systemd.pid(UNIT), pid);
    holds(&read(&user.unit()), &["--data-dir", "/elsewhere"]);

    let removed = user
        .run("service uninstall --data-dir elsewhere")
        .await
        .code(0);
    holds(
        &removed.err,
        &["removes", "default.target.wants", "elsewhere"],
    );
    assert!(!user.home.path(".config/systemd").exists());
    assert!(user.home.path("elsewhere/admin-token").exists());
    let calls = user.systemd.calls();
    holds(
        &calls,
        &["disable --now toolwharf.service\n", "daemon-reload\n"],
    );
    user.run("service uninstall")
        .await
        .code(0)
        .says("not installed");
}

#[tokio::test]
async fn a_unit_of_somebody_else_is_changed_only_after_a_question() {
    let user = User::new().await;
    let theirs = "[Service]\nExecStart=/bin/true\nType=notify\n";
    user.home
        .write(".config/systemd/user/toolwharf.service", theirs);
    for line in ["service install", "service uninstall"] {
        let refused = user.run(line).await.code(2);
        holds(&refused.err, &["was not written by Toolwharf", "--yes"]);
        assert_eq!(read(&user.unit()), theirs, "{line}");
    }
    let path = user.path();
    let env = [("PATH", path.as_str())];
    let home = user.home.path("");
    let answers = [("Replace it? [y/N]", "n")];
    let refused = typed(&home, &env, "service install", &answers)
        .await
        .code(1);
    holds(&refused.out, &["nothing was changed"]);
    assert_eq!(read(&user.unit()), theirs);
    let answers = [("Replace it? [y/N]", "y")];
    let replaced = typed(&home, &env, "service install", &answers)
        .await
        .code(0);
    holds(&replaced.out, &["started it"]);

    // The same holds for a unit that was edited since.
    let edited = read(&user.unit()).replace("RestartSec=1", "RestartSec=9");
    fs::write(user.unit(), &edited).expect("a file");
    let refused = user.run("service uninstall").await.code(2);
    holds(&refused.err, &["was edited since Toolwharf wrote it"]);
    let status = user.run("service status").await.code(0);
    holds(&status.out, &["edited since"]);
    assert_eq!(read(&user.unit()), edited);
    user.run("service uninstall --yes").await.code(0);
    assert!(!user.unit().exists());
}

#[tokio::test]
async fn an_interrupted_install_is_completed() {
    let user = User::new().await;
    user.run("service install --no-start").await.code(0);
    assert_eq!(user.systemd.pid(UNIT), None);
    let text = read(&user.unit());
    // As if the run had ended before `enable`.
    fs::remove_dir_all(user.unit().with_file_name("default.target.wants")).expect("removed");
    let said = user.run("service install").await.code(0);
    holds(&said.err, &["enabled it", "started it"]);
    assert_eq!(read(&user.unit()), text);
    // Somebody removed the file by hand, but not the link to it.
    fs::remove_file(user.unit()).expect("removed");
    user.run("service uninstall").await.code(0);
    assert!(!user.home.path(".config/systemd").exists());
    assert_eq!(user.systemd.pid(UNIT), None, "it still runs");
}

#[tokio::test]
async fn a_gateway_that_runs_already_is_left_running() {
    let user = User::new().await;
    let mut serve = testkit::Process::spawn(user.home.command("serve"));
    serve.url().await;
    let said = user.run("service install").await.code(0);
    let kill = format!("`kill {}`", serve.pid());
    holds(
        &said.err,
        &[
            "enabled it",
            "not started",
            &kill,
            "systemctl --user start toolwharf",
        ],
    );
    assert_eq!(user.systemd.pid(UNIT), None);
    let status = user.run("service status").await.code(1);
    holds(&status.out, &["inactive"]);
    user.run("service uninstall").await.code(0);
    assert!(serve.is_running());
}

#[tokio::test]
async fn a_service_that_does_not_start_says_where_to_look() {
    let user = User::new().await;
    let settings = read(&user.home.path(".config/toolwharf/toolwharf.toml"));
    let taken = std::net::TcpListener::bind(user.url.trim_start_matches("http://"));
    let taken = taken.expect("the port is free");
    let said = user.run("service install").await.code(1);
    holds(
        &said.err,
        &[
            "does not start",
            "journalctl --user -u toolwharf",
            "systemctl",
        ],
    );
    holds(&user.systemd.log(UNIT), &["cannot listen on"]);
    drop(taken);
    user.run("service install").await.code(0).says("started it");
    user.run("service uninstall").await.code(0);

    user.home
        .write(".config/toolwharf/toolwharf.toml", "listen = 1\n");
    let said = user.run("service install").await.code(1);
    holds(&said.err, &["toolwharf.toml:1:"]);
    assert!(!user.unit().exists());
    user.home
        .write(".config/toolwharf/toolwharf.toml", &settings);
}

#[tokio::test]
async fn variables_that_only_the_shell_has_are_named() {
    let user = User::new().await;
    let entry = json!({"mcpServers": {"one": {
        "command": scripted(),
        "env": {"KEY": "${FIRST_RUN_TOKEN}", "OTHER": "${FIRST_RUN_UNSET}"},
    }}});
    user.home
        .write(".config/toolwharf/mcp.json", &entry.to_string());
    let mut command = user.home.command("service install --dry-run");
    command
        .env("PATH", user.path())
        .env("FIRST_RUN_TOKEN", "canary")
        .env("TOOLWHARF_DATABASE_URL", "postgres://canary@host/db");
    let said = said(command, "").await.code(0);
    holds(
        &said.err,
        &[
            "`FIRST_RUN_TOKEN` is set here",
            "toolwharf secret set FIRST_RUN_TOKEN",
            "`database_url`",
        ],
    );
    for part in ["canary", "FIRST_RUN_UNSET"] {
        assert!(
            !said.err.contains(part) && !said.out.contains(part),
            "{said:?}"
        );
    }
}

#[tokio::test]
async fn without_systemd_the_command_says_what_to_do_instead() {
    let home = Home::new();
    let program = Bin::path("toolwharf").display().to_string();
    for line in [
        "service install",
        "service status",
        "init --yes --start service",
    ] {
        let mut command = home.command(line);
        command.env("PATH", "/nonexistent");
        let refused = said(command, "").await.code(1);
        let serve = format!("Start the gateway with `{program} serve`");
        holds(&refused.err, &["does not run systemd", &serve]);
    }
    assert!(!home.path(".config").exists(), "something was written");
    let mut command = home.command("service uninstall");
    command.env("PATH", "/nonexistent");
    said(command, "").await.code(0).says("not installed");

    // A unit that is left from another system is removed without systemd.
    home.write(".config/systemd/user/toolwharf.service", "[Service]\n");
    let mut command = home.command("service uninstall --yes");
    command.env("PATH", "/nonexistent");
    said(command, "")
        .await
        .code(0)
        .says("only the files are removed");
    assert!(!home.path(".config/systemd").exists());
}

#[tokio::test]
async fn the_state_is_json_for_programs() {
    let user = User::new().await;
    let installed = user.run("-o json service install").await.code(0).json();
    assert_eq!(installed["written_by"], "toolwharf");
    assert_eq!(installed["is_enabled"], true);
    assert_eq!(installed["url"], user.url);
    assert_eq!(installed["pid"], user.systemd.pid(UNIT).expect("a process"));
    let status = user.run("-o json service status").await.code(0).json();
    assert_eq!(status, installed);
    let removed = user.run("-o json service uninstall").await.code(0).json();
    assert_eq!(removed["removed"].as_array().map(Vec::len), Some(2));
    let gone = user.run("-o json service status").await.code(1).json();
    assert_eq!(gone["file"], Value::Null);
}

/// systemd accepts the unit, also with a path that needs quotes.
#[tokio::test]
async fn the_unit_is_valid() {
    let user = User::new().await;
    let line = "-o json service install --dry-run --data-dir";
    let data = user.home.path("50% of \"my\" $data");
    let mut command = user.home.command(line);
    command.arg(&data).env("PATH", user.path());
    let planned = said(command, "").await.code(0).json();
    let text = planned["text"].as_str().expect("a text");
    let file = user.home.write("units/toolwharf.service", text);
    let analyzed = tokio::process::Command::new("systemd-analyze")
        .args(["--user", "verify", "--man=no"])
        .arg(&file)
        .env("HOME", user.home.path(""))
        .env("XDG_RUNTIME_DIR", user.home.path(""))
        .output()
        .await;
    let analyzed = analyzed.expect("systemd-analyze is missing; run: cargo xtask setup");
    let said = String::from_utf8_lossy(&analyzed.stderr);
    assert!(
        analyzed.status.success() && said.is_empty(),
        "{said}\n{text}"
    );
}
