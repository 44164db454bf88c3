//! `cargo xtask recipes`: the recipe vault, from a clone to a page in the browser.
//!
//! It runs the files of `examples/recipe-vault` unchanged: this command only builds the two binaries, makes `uvx`
//! available, and starts Toolwharf with those files and a suitable `PATH`. Recipes, conversations and the
//! administrator's key are in the example's `data` folder. The model key is checked before anything is built or
//! started, since most users lack it.

use std::{
    env,
    ffi::OsString,
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use crate::{
    gateway::Gateway,
    python::{self, folder, install_fetch},
    setup,
    shell::{Cmd, heading, is_executable, which},
    workspace::Workspace,
};

const KEY_VARIABLE: &str = "ANTHROPIC_API_KEY";

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Build the release profile, which takes several minutes longer
    #[arg(long)]
    release: bool,
    /// Where to listen
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:6280")]
    listen: SocketAddr,
    /// A copy of `examples/recipe-vault` with your own files
    #[arg(long, value_name = "DIR")]
    example: Option<PathBuf>,
}

/// Builds and serves, until it is stopped.
///
/// # Errors
///
/// Without a key for the model, or if a part cannot be installed, built or started.
pub(crate) fn run(workspace: &Workspace, options: Options) -> Result<()> {
    let Options {
        release,
        listen,
        example,
    } = options;
    let example = match example {
        Some(copy) => copy
            .canonicalize()
            .with_context(|| format!("cannot open the folder {}", copy.display()))?,
        None => workspace.root().join("examples/recipe-vault"),
    };
    let settings = example.join("toolwharf.toml");
    key_is_there(&settings)?;

    heading("building toolwharf and the recipe server");
    let bin = workspace.build_to_run(&["toolwharf", "recipe-vault"], release)?;

    heading("the fetch server");
    let uvx = uvx(workspace)?;
    let own = workspace.venv().join("bin");
    let python = uvx.starts_with(&own).then(|| own.join("python"));
    install_fetch(&uvx, &example.join("tools"), python.as_deref())?;

    heading("serving");
    let data = example.join("data");
    let serve = Cmd::new(bin.join("toolwharf")).shown_as("toolwharf");
    let serve = serve.arg("--config").arg(example.join("mcp.json"));
    let serve = serve.arg("--config").arg(&settings).arg("serve");
    let serve = serve.arg("--data-dir").arg(&data);
    let serve = serve.args(["--listen", &listen.to_string()]);
    let serve = serve.env("PATH", path(&[&bin, folder(&uvx)])?);
    let mut gateway = Gateway::start(serve)?;
    gateway.wait_until_ready(listen)?;
    let token = data.join("admin-token");
    let token =
        fs::read_to_string(&token).with_context(|| format!("cannot read {}", token.display()))?;
    let here = match listen.ip().is_unspecified() {
        true => SocketAddr::from((Ipv4Addr::LOCALHOST, listen.port())),
        false => listen,
    };
    eprintln!(
        "\nThe recipe vault is ready. Open this page; the link opens it with your key, so keep it to yourself:\n\n  \
         http://{here}/chat#key={}\n\nCtrl-C here stops it.\n",
        token.trim()
    );
    gateway.wait()
}

/// Checks that a model is configured, as far as this is possible without a request.
fn key_is_there(settings: &Path) -> Result<()> {
    let text = fs::read_to_string(settings);
    let text = text.with_context(|| format!("cannot read {}", settings.display()))?;
    if env::var(KEY_VARIABLE).is_ok_and(|key| !key.trim().is_empty()) || has_its_own(&text) {
        return Ok(());
    }
    bail!(
        "the key for the model is missing, so nothing was started. Get one at https://console.anthropic.com, and run\n\n  \
         export {KEY_VARIABLE}=sk-ant-…\n  cargo xtask recipes\n\nYour own model server needs no key: {} says how to \
         configure it.",
        settings.display()
    )
}

/// Returns whether the settings configure a model without the variable.
fn has_its_own(settings: &str) -> bool {
    settings.lines().any(|line| {
        let Some((key, value)) = line.split_once('=') else {
            return false;
        };
        match key.trim() {
            "api_key" => true,
            "api" => value.trim().starts_with("\"openai\""),
            _ => false,
        }
    })
}

/// The machine's `uvx`, otherwise one in `.work`, which is installed if needed.
fn uvx(workspace: &Workspace) -> Result<PathBuf> {
    let own = workspace.venv().join("bin/uvx");
    if let Some(uvx) = which("uvx") {
        return Ok(uvx);
    }
    if !is_executable(&own) {
        eprintln!("    uvx is not on the PATH: installing uv into .work");
        let python = setup::python()?;
        fs::create_dir_all(workspace.work())?;
        python::install_uv(workspace, &python)?;
    }
    Ok(own)
}

/// The `PATH` with these folders first.
fn path(first: &[&Path]) -> Result<OsString> {
    let others = env::var_os("PATH").unwrap_or_default();
    let others = env::split_paths(&others).collect::<Vec<_>>();
    let all = first.iter().map(|path| path.to_path_buf()).chain(others);
    env::join_paths(all).context("a folder of the PATH has a colon in its name")
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn settings_may_bring_their_own_key() {
        for (text, is) in [
            ("model = \"claude-sonnet-4-5\"", false),
            ("# api = \"openai\"", false),
            ("api = \"anthropic\"", false),
            ("api = \"openai\"", true),
            ("api_key = \"${MY_KEY}\"", true),
        ] {
            assert_eq!(has_its_own(text), is, "{text}");
        }
    }

    #[test]
    fn the_examples_fetch_server_is_the_one_that_tests_use() {
        let servers = include_str!("../../examples/recipe-vault/mcp.json");
        let servers: Value = serde_json::from_str(servers).unwrap();
        let package = servers["mcpServers"]["fetch"]["args"][0].as_str().unwrap();
        let pinned = python::pinned("mcp-server-fetch").unwrap();
        assert_eq!(package.replace('@', "=="), pinned);
        let image = include_str!("../../examples/recipe-vault/Dockerfile");
        assert!(
            image.contains(package),
            "the Dockerfile fetches another one"
        );
        assert!(image.contains(python::pinned("uv").unwrap()));
    }
}
