//! `key`: create, list and revoke API keys, and recover administrator access.

use std::{fs, io::Write, os::unix::fs::OpenOptionsExt, path::Path};

use anyhow::{Context as _, bail};
use api::{Key, MadeKey};
use model::{ProjectId, ToolMode};
use serde::Serialize;
use serde_json::{Value, json};
use store::{Location, Store, Time};

use super::{
    Context, Usage,
    http::{of_project, path},
    names::{self, Named},
    pages, print,
    prompt::agreed,
};
use auth::admin_token::TOKEN_FILE;
use backend::startup::{self, CliOverrides};

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// Create a key. Its token is printed once, on standard output.
    #[command(alias = "add")]
    Create(CreateArgs),
    /// List the keys of a project, or all keys.
    #[command(alias = "list")]
    Ls(ListArgs),
    /// Revoke a key, by its id or its name. It stops working at once.
    #[command(aliases = ["rm", "remove"])]
    Revoke(Named),
    /// Create a new administrator's key directly in the database, if the old one is lost.
    Recover(RecoverArgs),
}

#[derive(clap::Args)]
pub(super) struct CreateArgs {
    /// A name that describes the use of the key. No other key has it.
    name: String,
    /// A project of the key. May be given several times. Without it, the key is valid for all projects.
    #[arg(long, value_delimiter = ',', add = names::projects())]
    project: Vec<ProjectId>,
    /// The role of the key. The default in a project is `call`.
    #[arg(long, value_enum, required_unless_present_any = ["project", "admin"])]
    role: Option<ProjectRole>,
    /// Create an administrator's key, which is allowed everything.
    #[arg(long, conflicts_with_all = ["project", "role"])]
    admin: bool,
    /// Lifetime of the key, such as 90d or 12h.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    expires: Option<String>,
    /// The tools in the lists of clients with this key: all, search (tools that find the others) or auto (search for
    /// long lists). The default is the setting of the project or of the gateway.
    #[arg(long, value_name = "MODE")]
    tools: Option<ToolMode>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
enum ProjectRole {
    /// List servers, tools and records.
    Read,
    /// Use tools.
    Call,
    /// Change servers, secrets and keys.
    Manage,
}

#[derive(clap::Args)]
pub(super) struct ListArgs {
    /// Only keys of this project.
    #[arg(long, add = names::projects())]
    project: Option<ProjectId>,
}

#[derive(clap::Args)]
pub(super) struct RecoverArgs {
    #[command(flatten)]
    overrides: CliOverrides,
    /// Do not ask for confirmation.
    #[arg(long, short)]
    yes: bool,
}

pub(super) async fn run(context: &Context, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Create(args) => create(context, args).await,
        Command::Ls(args) => list(context, args).await,
        Command::Revoke(args) => revoke(context, args).await,
        Command::Recover(args) => recover(context, args).await,
    }
}

async fn create(context: &Context, args: CreateArgs) -> anyhow::Result<()> {
    let mut wanted = json!({ "name": args.name });
    if let Some(text) = &args.expires {
        let wait = print::parse_duration(text).filter(|wait| !wait.is_zero());
        let wait = wait.ok_or_else(|| {
            Usage(format!(
                "invalid lifetime `{text}`: write a number from 1 to 36500 and a unit, such as 90d, 12h or 30m"
            ))
        })?;
        wanted["expires_at"] = json!(store::now() + wait);
    }
    if !args.admin {
        wanted["role"] = json!(args.role.unwrap_or(ProjectRole::Call));
    }
    if let Some(tools) = args.tools {
        wanted["tools"] = json!(tools);
    }
    if args.project.len() > 1 {
        wanted["projects"] = json!(args.project);
    }
    let keys = path(&["keys"]) + &of_project(args.project.first());
    let api = context.gateway().await?;
    let made: MadeKey = api.post(&keys, &wanted).await?;
    eprintln!(
        "created the key `{}` ({}); its token is not shown again",
        print::printable(&made.key.name),
        whose(&made.key)
    );
    context.print(&made, || format!("{}\n", made.token))
}

fn whose(key: &Key) -> String {
    let names: Vec<String> = key.projects.iter().map(|id| format!("`{id}`")).collect();
    match (names.as_slice(), key.role.as_str()) {
        ([], "admin") => "administrator".to_owned(),
        ([], role) => format!("{role} in all projects"),
        ([one], role) => format!("{role} in project {one}"),
        (_, role) => format!("{role} in projects {}", names.join(", ")),
    }
}

async fn list(context: &Context, args: ListArgs) -> anyhow::Result<()> {
    let api = context.gateway().await?;
    let filter = json!({ "project": args.project });
    let listed = pages::all(&api, &path(&["keys"]), &filter).await?;
    let now = store::now();
    let when = |time: Option<Time>| time.map(print::time).unwrap_or_default();
    let cells = |key: &Key| {
        let state = match (key.revoked_at, key.expires_at) {
            (Some(_), _) => "revoked",
            (None, Some(end)) if end <= now => "expired",
            _ => "active",
        };
        [
            key.id.clone(),
            print::short(&key.name, 40),
            key.projects.join(", "),
            key.role.clone(),
            state.to_owned(),
            format!("…{}", key.hint),
            when(key.last_used_at),
            when(key.expires_at),
        ]
    };
    let head = [
        "ID", "NAME", "PROJECTS", "ROLE", "STATE", "ENDS IN", "USED", "EXPIRES",
    ];
    listed.print(context, "no keys found", head, cells)
}

async fn revoke(context: &Context, args: Named) -> anyhow::Result<()> {
    let api = context.gateway().await?;
    let filter = json!({ "project": args.project });
    let all = pages::all::<Key>(&api, &path(&["keys"]), &filter).await?;
    let mut living = all.rows.iter().filter(|key| key.revoked_at.is_none());
    let named = living.find(|key| key.name == args.id);
    let id = named.map_or(args.id.as_str(), |key| key.id.as_str());
    let key = path(&["keys", id]) + &of_project(args.project.as_ref());
    api.delete::<Value>(&key).await?;
    eprintln!("revoked the key `{}`", print::printable(&args.id));
    Ok(())
}

/// Writes to the database directly. A user who can do that needs no other permission.
async fn recover(context: &Context, args: RecoverArgs) -> anyhow::Result<()> {
    let (_, mut settings) = startup::locate(&context.config)?;
    let mut overrides = args.overrides;
    overrides.data_dir.clone_from(&context.reach.data_dir);
    overrides.overrule(&mut settings);
    // The data directory of a gateway has a database. Otherwise its path is probably wrong.
    let database = startup::location(&settings, &config::data_dir(&settings, &startup::env)?);
    if let Location::Sqlite(file) = &database
        && !file.exists()
    {
        bail!(
            "there is no database {}: name the data directory of the gateway with --data-dir",
            file.display()
        );
    }
    let dir = startup::open_data_dir(&settings)?;
    let location = startup::location(&settings, &dir);
    let file = dir.join(TOKEN_FILE);
    let question = format!(
        "Create a new administrator's key in {location} and write it to {}?",
        file.display()
    );
    agreed(&question, args.yes)?;
    let store = Store::open(&location).await?;
    let token = auth::new_token();
    auth::register(&store, &token, "administrator (recovered)").await?;
    store.close().await;
    replace(&file, &token).with_context(|| format!("cannot write {}", file.display()))?;
    eprintln!(
        "wrote a new administrator's key to {}; `toolwharf key ls` lists the older ones, which you should revoke",
        file.display()
    );
    Ok(())
}

/// Replaces the file atomically, readable only by its owner.
fn replace(file: &Path, token: &str) -> std::io::Result<()> {
    let new = file.with_extension("new");
    let _ = fs::remove_file(&new);
    let mut out = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)?;
    writeln!(out, "{token}")?;
    out.sync_all()?;
    fs::rename(&new, file)
}
