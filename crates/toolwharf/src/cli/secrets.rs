//! `secret`: sets, lists and removes secrets, of projects and of the configuration file. Values are read from standard
//! input or a prompt, and never shown.
//!
//! Secrets of the configuration file can be changed without a running gateway: then they are written to the database.

use std::{
    collections::BTreeSet,
    io::{self, IsTerminal as _},
};

use anyhow::bail;
use api::{MasterKey, Secret, Server};
use config::Sources;
use model::{ProjectId, Settings};
use serde_json::json;

use super::{
    Context, Usage,
    http::{Api, of_server, path},
    names, pages, print, prompt,
    reach::Place,
};
use backend::{
    config_secrets::{self, Vault},
    projects::check_secret_name,
    startup,
};

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// Set a secret. Its value is read from standard input or from a prompt. Servers use it at once.
    Set(NameArgs),
    /// List the secrets of the configuration file or of a project, without their values.
    #[command(alias = "list")]
    Ls(ListArgs),
    /// Remove a secret.
    #[command(alias = "remove")]
    Rm(NameArgs),
    /// Re-encrypt all secrets with a new master key.
    RotateMaster,
}

#[derive(clap::Args)]
pub(super) struct NameArgs {
    /// The name, as in `${NAME}`.
    name: String,
    /// The project of the secret. Without it, the secret is for the servers of mcp.json.
    #[arg(long, add = names::projects())]
    project: Option<ProjectId>,
}

#[derive(clap::Args)]
pub(super) struct ListArgs {
    /// The project of the secrets. Without it, the secrets are those for the servers of mcp.json.
    #[arg(long, add = names::projects())]
    project: Option<ProjectId>,
}

pub(super) async fn run(context: &Context, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Set(args) => set(context, args).await,
        Command::Ls(args) => list(context, args).await,
        Command::Rm(args) => remove(context, args).await,
        Command::RotateMaster => rotate(context).await,
    }
}

/// The API path of the secrets, or of one of them.
fn of_secrets(project: Option<&str>, name: Option<&str>) -> String {
    let mut parts = match project {
        Some(project) => vec!["projects", project, "secrets"],
        None => vec!["secrets"],
    };
    parts.extend(name);
    path(&parts)
}

fn said(name: &str, project: Option<&str>) -> String {
    match project {
        Some(project) => format!("`{name}` of project `{project}`"),
        None => format!("`{name}`"),
    }
}

fn check_name(name: &str) -> Result<(), Usage> {
    check_secret_name(name).map_err(|error| Usage(error.to_string()))
}

async fn set(context: &Context, args: NameArgs) -> anyhow::Result<()> {
    // Before the value is asked for.
    check_name(&args.name)?;
    let project = args.project.as_ref();
    let place = context.place_of(project).await?;
    let value = prompt::secret(&args.name)?;
    if value.is_empty() {
        eprintln!("warning: the value of `{}` is empty", args.name);
    }
    let secret = stored(
        context,
        &place,
        project.map(ProjectId::as_str),
        &args.name,
        &value,
    )
    .await?;
    context.print_json(&secret)
}

/// Stores a secret and says so.
async fn stored(
    context: &Context,
    place: &Place,
    project: Option<&str>,
    name: &str,
    value: &str,
) -> anyhow::Result<Secret> {
    let secret = match place {
        Place::Gateway(api) => {
            let body = json!({ "value": value });
            let secret: Secret = api.put(&of_secrets(project, Some(name)), &body).await?;
            eprintln!(
                "set {}, version {}",
                said(&secret.name, project),
                secret.version
            );
            secret
        }
        Place::Files(sources) => {
            let vault = Vault::open(&settings(context, sources)?).await?;
            let row = vault.set(name, value).await;
            vault.close().await;
            let row = row?;
            eprintln!(
                "no gateway is running: stored `{name}`, version {}, in the database",
                row.version
            );
            of_row(row)
        }
    };
    for notice in &secret.notices {
        eprintln!("warning: {}", print::printable(notice));
    }
    Ok(secret)
}

fn settings(context: &Context, sources: &Sources) -> anyhow::Result<Settings> {
    let mut settings = startup::settings(sources)?;
    if let Some(dir) = context.dir(Some(sources)) {
        settings.data_dir = Some(dir);
    }
    Ok(settings)
}

fn of_row(row: store::SecretRow) -> Secret {
    Secret {
        name: row.name,
        version: row.version,
        created_at: row.created_at,
        updated_at: row.updated_at,
        overridden: false,
        notices: Vec::new(),
    }
}

async fn list(context: &Context, args: ListArgs) -> anyhow::Result<()> {
    let project = args.project.as_ref();
    let listed = match context.place_of(project).await? {
        Place::Gateway(api) => {
            let secrets = of_secrets(project.map(ProjectId::as_str), None);
            pages::all(&api, &secrets, &()).await?
        }
        Place::Files(sources) => {
            eprintln!("no gateway is running: reading the database");
            let rows = config_secrets::list(&settings(context, &sources)?).await?;
            pages::Listed::whole(rows.into_iter().map(of_row).collect())
        }
    };
    let of = project.map_or_else(String::new, |project| format!(" --project {project}"));
    let none = format!("there are no secrets yet; `toolwharf secret set NAME{of}` sets one");
    let cells = |secret: &Secret| {
        let version = secret.version.to_string();
        let note = match secret.overridden {
            true => "not used: the environment of the gateway sets it".to_owned(),
            false => String::new(),
        };
        [
            secret.name.clone(),
            version,
            print::time(secret.updated_at),
            note,
        ]
    };
    listed.print(context, &none, ["NAME", "VERSION", "SET", "NOTE"], cells)
}

async fn remove(context: &Context, args: NameArgs) -> anyhow::Result<()> {
    check_name(&args.name)?;
    let project = args.project.as_ref();
    let name = args.name.as_str();
    match context.place_of(project).await? {
        Place::Gateway(api) => {
            let project = project.map(ProjectId::as_str);
            api.delete::<()>(&of_secrets(project, Some(name))).await?;
            eprintln!("removed {}", said(name, project));
        }
        Place::Files(sources) => {
            let vault = Vault::open(&settings(context, &sources)?).await?;
            let removed = vault.remove(name).await;
            vault.close().await;
            if let Err(store::Error::NotFound { .. }) = removed {
                bail!("there is no secret `{name}`; `toolwharf secret ls` lists the secrets");
            }
            removed?;
            eprintln!("no gateway is running: removed `{name}` from the database");
        }
    }
    Ok(())
}

async fn rotate(context: &Context) -> anyhow::Result<()> {
    let api = context.gateway().await?;
    let key: MasterKey = api
        .post(&path(&["master-key", "rotate"]), &json!({}))
        .await?;
    eprintln!(
        "re-encrypted all secrets with the new master key {}; back up `master.key` in the data directory",
        key.key_id
    );
    context.print_json(&key)
}

/// The command that sets a secret.
pub(super) fn command(name: &str, project: Option<&str>) -> String {
    let of = project.map_or_else(String::new, |project| format!(" --project {project}"));
    format!("toolwharf secret set {name}{of}")
}

/// Asks for secrets that a server lacks, and stores them. Without a terminal, prints the commands instead. Returns the
/// names of those that were set.
pub(super) async fn ask(
    context: &Context,
    place: &Place,
    project: Option<&str>,
    names: impl IntoIterator<Item = &String>,
) -> anyhow::Result<BTreeSet<String>> {
    let mut set = BTreeSet::new();
    for name in names {
        if !io::stdin().is_terminal() {
            let command = command(name, project);
            eprintln!("`{name}` is not set; set it with `{command}`");
            continue;
        }
        let value = prompt::secret(&format!(
            "`{name}` is not set. Enter its value, which is stored encrypted, or nothing to skip it"
        ))?;
        if value.is_empty() {
            eprintln!("skipped; `{}` sets it later", command(name, project));
            continue;
        }
        stored(context, place, project, name, &value).await?;
        set.insert(name.clone());
    }
    Ok(set)
}

/// Asks for the secrets that a new server lacks. Returns the server with what was changed.
pub(super) async fn complete(
    context: &Context,
    place: &Place,
    api: &Api,
    server: Server,
) -> anyhow::Result<Server> {
    if server.unset.is_empty() || !server.enabled {
        return Ok(server);
    }
    let project = server.project.as_deref();
    let set = ask(context, place, project, &server.unset).await?;
    match set.is_empty() {
        true => Ok(server),
        false => api.get(&of_server(&server.id, &[])).await,
    }
}
