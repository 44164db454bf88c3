//! `cargo xtask demo`: Toolwharf in front of two servers, on a machine with only a Rust toolchain.
//!
//! One server is part of the repository (`examples/dice`). The other is a third-party server, started with `uvx` or
//! `npx` if available, otherwise with a `uvx` installed into `.work`. Toolwharf serves the generated file
//! `.work/demo/mcp.json`, with its data directory next to it. The user's own configuration is neither read nor changed,
//! and their command line still finds their own gateway.

use std::{
    env, fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::{
    gateway::Gateway,
    python, setup,
    shell::{Cmd, heading, is_executable, which},
    workspace::Workspace,
};

const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of polls until both servers are in the catalogue: 60 s, enough for a first start from a registry.
const MAX_LISTED_POLLS: u32 = 600;
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Variables that `uvx` and `npx` need in networks with a proxy, private certificates or a private registry. A server
/// gets only the variables named in its entry.
const PASSED_ON: [&str; 4] = ["SSL_CERT_", "UV_", "npm_config_", "NODE_EXTRA_CA_CERTS"];
const PROXIES: [&str; 3] = ["http_proxy", "https_proxy", "no_proxy"];

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Call a tool of each server, print the results and exit
    #[arg(long)]
    exit_after_check: bool,
    /// Where to listen
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:6280")]
    listen: SocketAddr,
}

/// A server in the configuration, and a call that shows that it works.
#[derive(Debug)]
struct Server {
    name: &'static str,
    entry: Value,
    tool: &'static str,
    arguments: Value,
}

/// Builds, configures and serves, until it is stopped.
///
/// # Errors
///
/// If a part cannot be installed or built, if Toolwharf does not become ready, or, with `exit_after_check`, if a call
/// fails.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    heading("building toolwharf and the example server (step 1 of 3)");
    let bin = workspace.build_to_run(&["toolwharf", "dice"], false)?;
    heading("fetching a third-party server, which takes a few seconds (step 2 of 3)");
    let servers = [dice(&bin), third_party(workspace)?];
    let dir = workspace.work().join("demo");
    let config = write_config(&dir, &servers)?;
    let data = dir.join("data");

    heading("serving (step 3 of 3)");
    let serve = Cmd::new(bin.join("toolwharf")).shown_as("toolwharf");
    let serve = serve.args(["serve", "--config"]).arg(&config);
    let serve = serve.arg("--data-dir").arg(&data);
    let mut serve = serve.args(["--listen", &options.listen.to_string()]);
    // Servers installed from the web page also need `uv`.
    let own = workspace.venv().join("bin");
    if which("uv").is_none() && is_executable(&own.join("uv")) {
        let path = env::var_os("PATH").unwrap_or_default();
        let all = env::split_paths(&path).chain([own]);
        serve = serve.env("PATH", env::join_paths(all)?);
    }
    let mut gateway = Gateway::start(serve)?;
    gateway.wait_until_ready(options.listen)?;
    eprintln!("\nToolwharf is ready: http://{}/mcp", options.listen);
    if options.exit_after_check {
        let tools = |args: &[&str]| {
            let tools = Cmd::new(bin.join("toolwharf")).shown_as("toolwharf");
            let tools = tools.arg("tools").args(args).arg("--token-file");
            let url = format!("http://{}", options.listen);
            tools.arg(data.join("admin-token")).args(["--url", &url])
        };
        let result = call_each(&gateway, tools, &servers);
        let stopped = gateway.stop();
        return result.and(stopped);
    }
    print_next_steps(&bin, &data, &servers);
    gateway.wait()
}

fn dice(bin: &Path) -> Server {
    Server {
        name: "dice",
        entry: json!({"command": bin.join("toolwharf-example-dice")}),
        tool: "roll",
        arguments: json!({"dice": "2d6"}),
    }
}

/// The third-party server. Its package is fetched in advance, so that the server starts quickly and registry problems
/// show here.
fn third_party(workspace: &Workspace) -> Result<Server> {
    let own_uvx = workspace.venv().join("bin/uvx");
    let own_python = workspace.venv().join("bin/python");
    let found = match which("uvx") {
        Some(uvx) => Some(through_uvx(&uvx, None)),
        None => is_executable(&own_uvx).then(|| through_uvx(&own_uvx, Some(&own_python))),
    };
    match found {
        Some(Ok(server)) => return Ok(server),
        Some(Err(error)) => eprintln!("    {error:#}"),
        None => {}
    }
    if let Some(npx) = which("npx") {
        match through_npx(&npx) {
            Ok(server) => return Ok(server),
            Err(error) => eprintln!("    {error:#}"),
        }
    }
    eprintln!("    no working uvx or npx: installing uv into .work");
    let python = setup::python()?;
    python::install_uv(workspace, &python)?;
    through_uvx(&own_uvx, Some(&own_python))
}

fn through_uvx(uvx: &Path, own_python: Option<&Path>) -> Result<Server> {
    let package = python::pinned("mcp-server-time").context("mcp-server-time is not pinned")?;
    let package = package.replace("==", "@");
    let mut env = passed_on();
    env.insert("UV_PYTHON_DOWNLOADS".to_owned(), json!("never"));
    // A `uvx` in `.work` uses the Python it was installed for, whatever is on the `PATH`.
    if let Some(python) = own_python {
        env.insert("UV_PYTHON".to_owned(), json!(python));
    }
    let mut fetch = Cmd::new(uvx).shown_as("uvx").args([&package, "--help"]);
    fetch = fetch.env("UV_PYTHON_DOWNLOADS", "never");
    if let Some(python) = own_python {
        fetch = fetch.env("UV_PYTHON", python);
    }
    fetch.run_for_effect()?;
    Ok(Server {
        name: "time",
        entry: json!({"command": uvx, "args": [package], "env": env}),
        tool: "get_current_time",
        arguments: json!({"timezone": "Europe/Paris"}),
    })
}

fn through_npx(npx: &Path) -> Result<Server> {
    const PACKAGE: &str = "@modelcontextprotocol/server-everything";
    let package = setup::pinned_npm(PACKAGE).context("server-everything is not pinned")?;
    // Runs Node.js with an empty script. Before that, npx installs the package.
    let fetch = Cmd::new(npx).shown_as("npx");
    let fetch = fetch
        .arg("--yes")
        .arg(format!("--package={package}"))
        .args(["--", "node", "-e", "0"]);
    fetch.run_for_effect()?;
    Ok(Server {
        name: "everything",
        entry: json!({"command": npx, "args": ["--yes", package], "env": passed_on()}),
        tool: "get-sum",
        arguments: json!({"a": 19, "b": 23}),
    })
}

/// The variables of [`PASSED_ON`] and [`PROXIES`] that are set, as references: their values may be secrets and must not
/// be written to the file.
fn passed_on() -> serde_json::Map<String, Value> {
    env::vars_os()
        .filter_map(|(name, value)| name.into_string().ok().zip(value.into_string().ok()))
        .filter(|(name, _)| {
            PASSED_ON.iter().any(|start| name.starts_with(start))
                || PROXIES.contains(&name.to_ascii_lowercase().as_str())
        })
        .map(|(name, _)| {
            let reference = json!(format!("${{{name}}}"));
            (name, reference)
        })
        .collect()
}

fn write_config(dir: &Path, servers: &[Server]) -> Result<PathBuf> {
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let entries: serde_json::Map<String, Value> = servers
        .iter()
        .map(|server| (server.name.to_owned(), server.entry.clone()))
        .collect();
    let file = dir.join("mcp.json");
    let text = serde_json::to_string_pretty(&json!({"mcpServers": entries}))? + "\n";
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

fn print_next_steps(bin: &Path, data: &Path, servers: &[Server]) {
    let toolwharf = from_here(&bin.join("toolwharf")).display().to_string();
    let data = from_here(data).display().to_string();
    eprintln!(
        "\nTry tools, install servers and connect clients in the browser. The link above is valid once, for 10 minutes. From \
         another terminal, in this folder, get another link with\n\n  \
         {toolwharf} open --print --data-dir {data}\n\nOr call a tool of each server:\n"
    );
    for server in servers {
        eprintln!(
            "  {toolwharf} tools call {} '{}' --data-dir {data}",
            server.tool, server.arguments,
        );
    }
    eprintln!("\nCtrl-C here stops it.\n");
}

/// The path relative to the current directory.
fn from_here(path: &Path) -> PathBuf {
    let here = env::current_dir().unwrap_or_default();
    path.strip_prefix(&here).unwrap_or(path).to_owned()
}

/// Calls a tool of each server with the command line, as printed by [`print_next_steps`], and prints the results.
fn call_each(gateway: &Gateway, cli: impl Fn(&[&str]) -> Cmd, servers: &[Server]) -> Result<()> {
    // Waits for servers that are still starting. Their tools join the list when they are up.
    let mut polls = 0..MAX_LISTED_POLLS;
    for server in servers {
        while !cli(&["get", server.tool]).succeeds() {
            ensure!(!gateway.interrupted(), "interrupted");
            ensure!(polls.next().is_some(), "no tool {} after 60 s", server.tool);
            thread::sleep(POLL_INTERVAL);
        }
    }
    for server in servers {
        let arguments = server.arguments.to_string();
        let timeout = ANSWER_TIMEOUT.as_secs().to_string();
        let call = cli(&["call", server.tool, &arguments, "--timeout", &timeout]);
        let said = call.output()?;
        println!("{}: {} {arguments}", server.name, server.tool);
        println!("    {}", said.trim_end());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    /// Before xtask is built, only cargo can say what is happening.
    #[test]
    fn u13_the_first_build_shows_its_progress() {
        let config = include_str!("../../.cargo/config.toml");
        let alias = config.lines().find(|line| line.starts_with("xtask = "));
        let alias = alias.expect("an alias");
        assert!(
            !alias.contains("--quiet") && !alias.contains("-q "),
            "{alias}"
        );
    }
}
