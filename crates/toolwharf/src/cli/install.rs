//! `install`: installs a server from a registry.
//!
//! Invariant: the value of a secret is read from a prompt, a file or standard input, and never from an argument.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, IsTerminal as _},
    path::Path,
    time::Duration,
};

use anyhow::bail;
use api::{InstallOption, InstallRequest, Installed, RegistryServer, Removed, Server};
use model::{ProjectId, ServerName};
use serde_json::{Map, Value, json};

use super::{
    Context, Usage, clashes, files,
    http::{Api, path, query},
    names, print,
    prompt::{agreed, secret, typed},
    servers::{connected, usable},
    values,
};
use crate::cli::http::of_server;
use crate::cli::prompt::stdin;

/// Timeout for the installation with npm or uv and a start of the server.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(12 * 60);

/// Maximum size of the file with a secret, in bytes.
const MAX_SECRET_BYTES: u64 = 1 << 20;

#[derive(clap::Args)]
pub(super) struct Args {
    /// The name as in `toolwharf search`. The part after the `/` is enough if it is unique.
    #[arg(value_parser = values::name)]
    server: String,
    /// Use this registry: `built-in`, a name under `[registries]` in toolwharf.toml, or a URL.
    #[arg(long, value_name = "NAME|URL")]
    registry: Option<String>,
    /// The installation option, if there are several: npm, pypi, oci, mcpb or remote.
    #[arg(long, value_name = "KIND")]
    option: Option<String>,
    /// The server's name in Toolwharf. The default is the part after the `/`.
    #[arg(long)]
    name: Option<ServerName>,
    /// Add the server to this project instead of the configuration file.
    #[arg(long, add = names::projects())]
    project: Option<ProjectId>,
    /// An input value. May be given several times. Not for secrets.
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// A secret input value, from a file or standard input. May be given several times.
    #[arg(long, value_name = "NAME=FILE|-")]
    secret_from: Vec<String>,
    /// Allow the server to write to the path of this input. May be given several times.
    #[arg(long, value_name = "NAME")]
    writable: Vec<String>,
    /// Do not ask: use the given values and enable the server.
    #[arg(long, short)]
    yes: bool,
    /// Maximum time to wait until the enabled server connects, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 15, allow_hyphen_values = true, value_parser = values::wait)]
    wait: u64,
}

pub(super) async fn run(context: &Context, args: Args) -> anyhow::Result<()> {
    let is_asked = !args.yes && io::stdin().is_terminal();
    let api = context.gateway().await?.patient(INSTALL_TIMEOUT);
    let of = |more: &[&str]| {
        let conditions = [
            ("registry", args.registry.as_deref()),
            ("project", args.project.as_ref().map(ProjectId::as_str)),
        ];
        let at: Vec<&str> = ["registry", "servers", &args.server]
            .into_iter()
            .chain(more.iter().copied())
            .collect();
        path(&at) + &query(&conditions)
    };
    let found: RegistryServer = api.get(&of(&[])).await?;
    let option = chosen(&found, args.option.as_deref())?;
    if !args.yes && !is_asked {
        return Err(Usage("standard input is not a terminal: confirm with --yes".into()).into());
    }
    say(&described(&found, option));
    let values = inputs(&args, option, is_asked)?;
    let body = InstallRequest {
        option: Some(option.id.clone()),
        digest: Some(found.digest.clone()),
        name: args.name.as_ref().map(ToString::to_string),
        values,
        writable: args.writable.clone(),
    };
    eprintln!("trying it …");
    let installed: Installed = api.post(&of(&["install"]), &body).await?;
    let server = &installed.server;
    say(&tried(&installed));
    let project = server.project.as_ref();
    let project = project.map_or_else(String::new, |id| format!(" --project {id}"));
    let question = format!("Enable `{}`?", server.name);
    if let Err(no) = agreed(&question, args.yes) {
        undo(&api, &installed).await?;
        return Err(no);
    }
    let before = clashes::Names::read(&api, args.project.as_ref()).await;
    let enabled: Server = api
        .post(&of_server(&server.id, &["enable"]), &json!({}))
        .await?;
    match &enabled.file {
        Some(file) => eprintln!("installed `{}` into {file}", enabled.name),
        None => eprintln!("installed `{}`", enabled.name),
    }
    if installed.unseen.is_some() {
        eprintln!("`toolwharf login {}{project}` signs in", enabled.name);
    }
    let server = connected(&api, enabled, args.wait).await?;
    clashes::report(&api, args.project.as_ref(), &server, before).await;
    context.print_json(&server)?;
    usable(&server)
}

/// Removes the installed server and its secrets.
async fn undo(api: &Api, installed: &Installed) -> anyhow::Result<()> {
    let server = &installed.server;
    let _: Option<Removed> = api.delete(&of_server(&server.id, &[])).await?;
    for name in &installed.secrets {
        let secret = match &server.project {
            Some(project) => path(&["projects", project, "secrets", name]),
            None => path(&["secrets", name]),
        };
        let _: Option<Value> = api.delete(&secret).await?;
    }
    eprintln!("removed `{}`", server.name);
    Ok(())
}

fn chosen<'o>(
    found: &'o RegistryServer,
    wanted: Option<&str>,
) -> anyhow::Result<&'o InstallOption> {
    let is_it = |option: &&InstallOption| {
        wanted.is_none_or(|wanted| option.kind == wanted || option.id == wanted)
    };
    let option = found.options.iter().find(is_it);
    let Some(option) = option else {
        let kinds: BTreeSet<&str> = found
            .options
            .iter()
            .map(|option| option.kind.as_str())
            .collect();
        let kinds: Vec<&str> = kinds.into_iter().collect();
        let wanted = wanted.map_or_else(String::new, |wanted| format!(" `{wanted}`"));
        bail!(
            "`{}` has no installation option{wanted}; its options are: {}",
            found.entry.name,
            kinds.join(", ")
        );
    };
    if !option.refused.is_empty() {
        let wrong: Vec<String> = option.refused.iter().map(ToString::to_string).collect();
        bail!(
            "`{}` cannot be installed: {}",
            found.entry.name,
            wrong.join("; ")
        );
    }
    Ok(option)
}

/// Prints untrusted text to the terminal, without control characters.
fn say(text: &str) {
    eprint!("{}", print::printable(text));
}

fn described(found: &RegistryServer, option: &InstallOption) -> String {
    let entry = &found.entry;
    let version = option
        .version
        .as_deref()
        .unwrap_or("the newest version, which is then pinned");
    let list = |items: &[String], none: &str| match items {
        [] => none.to_owned(),
        items => items.join(", "),
    };
    let mut text = format!(
        "{} {} ({})\n  {}\n",
        entry.name,
        entry.version,
        entry.registry,
        entry.description.trim()
    );
    text.push_str(&format!(
        "  {}: {}, {version}\n",
        option.kind, option.target
    ));
    if let Some(source) = found.repository.as_ref().or(found.website.as_ref()) {
        let checked = found.checked.as_ref();
        let checked = checked.map(|date| format!(", checked on {date}"));
        let checked = checked.unwrap_or_default();
        text.push_str(&format!("  source: {source}{checked}\n"));
    }
    if option.sandbox {
        text.push_str("  it will run in a sandbox, without your files\n");
        let hosts = option.network["allow"].as_array();
        let hosts: Vec<String> = hosts
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect();
        let network = match option.network.as_str() {
            Some("open") => "all hosts, including this machine's own services".to_owned(),
            _ => list(&hosts, "none"),
        };
        text.push_str(&format!("  network: {network}\n"));
        text.push_str(&format!("  keeps: {}\n", list(&option.volumes, "nothing")));
    } else {
        text.push_str("  it runs elsewhere: everything sent to it leaves this machine\n");
    }
    for notice in &option.notices {
        text.push_str(&format!("  note: {notice}\n"));
    }
    text
}

fn tried(installed: &Installed) -> String {
    let mut text = String::new();
    if let Some(why) = &installed.unseen {
        text.push_str(&format!("its tools cannot be listed yet: {why}\n"));
    }
    if let Some(provider) = &installed.provider {
        let of = |holds: bool| {
            let rows = installed.enforced.iter().filter(|row| row.holds == holds);
            rows.map(|row| row.what.as_str())
                .collect::<Vec<_>>()
                .join(", ")
        };
        text.push_str(&format!(
            "it ran under {provider}; enforced: {}\n",
            of(true)
        ));
        if !of(false).is_empty() {
            text.push_str(&format!("not enforced: {}\n", of(false)));
        }
    }
    for mount in &installed.mounts {
        text.push_str(&format!("it sees: {mount}\n"));
    }
    let count = installed.tools.len();
    let s = if count == 1 { "" } else { "s" };
    text.push_str(&format!("it has {count} tool{s}:\n"));
    for tool in &installed.tools {
        let first = tool.description.lines().next().unwrap_or_default();
        let first: String = first.chars().take(100).collect();
        text.push_str(&format!(
            "  {}{}  {first}\n",
            tool.name,
            hints(tool.annotations.as_ref())
        ));
    }
    for notice in &installed.notices {
        text.push_str(&format!("note: {notice}\n"));
    }
    text
}

/// Returns the hints of a tool, in brackets.
fn hints(annotations: Option<&Value>) -> String {
    let is = |key: &str| annotations.is_some_and(|all| all[key] == true);
    let words: Vec<&str> = [
        ("readOnlyHint", "reads only"),
        ("destructiveHint", "may destroy"),
        ("openWorldHint", "reaches out"),
    ]
    .into_iter()
    .filter(|(key, _)| is(key))
    .map(|(_, word)| word)
    .collect();
    if words.is_empty() {
        String::new()
    } else {
        format!(" [{}]", words.join(", "))
    }
}

/// Returns the given values, and asks for the missing ones.
fn inputs(
    args: &Args,
    option: &InstallOption,
    is_asked: bool,
) -> anyhow::Result<BTreeMap<String, Value>> {
    let none = Map::new();
    let properties = option.inputs["properties"].as_object().unwrap_or(&none);
    let required: BTreeSet<&str> = option.inputs["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let known = |name: &str| {
        let names: Vec<&str> = properties.keys().map(String::as_str).collect();
        let shown = if names.is_empty() {
            "it has no inputs".to_owned()
        } else {
            format!("its inputs are: {}", names.join(", "))
        };
        properties
            .get(name)
            .ok_or_else(|| Usage(format!("`{name}` is not an input of this server; {shown}")))
    };
    let mut values: BTreeMap<String, Value> = BTreeMap::new();
    for text in &args.set {
        let (name, value) = text
            .split_once('=')
            .ok_or_else(|| Usage(format!("--set {text}: write --set NAME=VALUE")))?;
        let schema = known(name)?;
        if is_secret(schema) {
            return Err(Usage(format!("`{name}` is a secret: pass it with --secret-from {name}=FILE, or enter it at the prompt")).into());
        }
        put(&mut values, name, value.to_owned(), schema)?;
    }
    for text in &args.secret_from {
        let (name, from) = text.split_once('=').ok_or_else(|| {
            Usage(format!(
                "--secret-from {text}: write --secret-from NAME=FILE, or NAME=- for standard input"
            ))
        })?;
        let schema = known(name)?;
        let value = match from {
            "-" => stdin()?,
            file => files::text(Path::new(file), "a file with the value", MAX_SECRET_BYTES)?,
        };
        put(
            &mut values,
            name,
            value.trim_end_matches(['\n', '\r']).to_owned(),
            schema,
        )?;
    }
    for (name, schema) in properties {
        if values.contains_key(name)
            || !is_asked
            || !required.contains(name.as_str()) && !is_secret(schema)
        {
            continue;
        }
        let about = schema["description"].as_str().unwrap_or_default();
        let label = print::printable(&match about.is_empty() {
            true => name.clone(),
            false => format!("{name} ({about})"),
        });
        let label = match option.set.contains(name) {
            true => format!("{label} [set already; Enter keeps it]"),
            false => label,
        };
        let value = match is_secret(schema) {
            true => secret(&label)?,
            false => line(&label)?,
        };
        if !value.is_empty() {
            put(&mut values, name, value, schema)?;
        }
    }
    let lacks = |name: &&str| {
        let is_plain = properties
            .get(*name)
            .is_some_and(|schema| !is_secret(schema));
        is_plain && !values.contains_key(*name) && properties[*name]["default"].is_null()
    };
    if let Some(name) = required.iter().copied().find(lacks) {
        let server = &args.server;
        return Err(Usage(format!(
            "`{server}` needs the input `{name}`: pass it with --set {name}=VALUE"
        ))
        .into());
    }
    Ok(values)
}

fn is_secret(schema: &Value) -> bool {
    schema["format"] == "password" || schema["items"]["format"] == "password"
}

/// Adds a value. Inputs with several values become lists.
fn put(
    values: &mut BTreeMap<String, Value>,
    name: &str,
    value: String,
    schema: &Value,
) -> Result<(), Usage> {
    let is_list = schema["type"] == "array";
    match values.get_mut(name) {
        Some(Value::Array(items)) => items.push(value.into()),
        Some(_) => {
            return Err(Usage(format!(
                "`{name}` is given twice but takes one value"
            )));
        }
        None => {
            let value = if is_list {
                json!([value])
            } else {
                value.into()
            };
            values.insert(name.to_owned(), value);
        }
    }
    Ok(())
}

fn line(label: &str) -> anyhow::Result<String> {
    eprint!("{label}: ");
    Ok(typed("the answer")?.trim().to_owned())
}
