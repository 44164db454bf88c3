//! `secret`: sets, lists and removes project secrets. Values are read from standard input or a prompt, and never shown.

use api::{MasterKey, Secret};
use model::ProjectId;
use serde_json::json;

use super::{Context, http::path, names, pages, print, prompt};

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// Set a secret. Its value is read from standard input or from a prompt.
    Set(NameArgs),
    /// List the secrets of a project, without their values.
    Ls(ListArgs),
    /// Remove a secret.
    Rm(NameArgs),
    /// Re-encrypt all secrets with a new master key.
    RotateMaster,
}

#[derive(clap::Args)]
pub(super) struct NameArgs {
    /// The name, as in `${NAME}`.
    name: String,
    /// The project of the secret. Servers of mcp.json take `${NAME}` from the environment of `toolwharf serve`.
    #[arg(long, add = names::projects())]
    project: ProjectId,
}

#[derive(clap::Args)]
pub(super) struct ListArgs {
    /// The project of the secrets.
    #[arg(long, add = names::projects())]
    project: ProjectId,
}

pub(super) async fn run(context: &Context, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Set(args) => set(context, args).await,
        Command::Ls(args) => list(context, args).await,
        Command::Rm(args) => remove(context, args).await,
        Command::RotateMaster => rotate(context).await,
    }
}

async fn set(context: &Context, args: NameArgs) -> anyhow::Result<()> {
    let api = context.gateway().await?;
    let value = prompt::secret(&args.name)?;
    let of_secret = path(&["projects", args.project.as_str(), "secrets", &args.name]);
    let secret: Secret = api.put(&of_secret, &json!({ "value": value })).await?;
    eprintln!(
        "set `{}` of project `{}`, version {}",
        secret.name, args.project, secret.version
    );
    context.print_json(&secret)
}

async fn list(context: &Context, args: ListArgs) -> anyhow::Result<()> {
    let api = context.gateway().await?;
    let project = args.project.as_str();
    let secrets = path(&["projects", project, "secrets"]);
    let listed = pages::all(&api, &secrets, &()).await?;
    let none = format!(
        "there are no secrets yet; `toolwharf secret set NAME --project {project}` sets one"
    );
    let cells = |secret: &Secret| {
        let version = secret.version.to_string();
        [secret.name.clone(), version, print::time(secret.updated_at)]
    };
    listed.print(context, &none, ["NAME", "VERSION", "SET"], cells)
}

async fn remove(context: &Context, args: NameArgs) -> anyhow::Result<()> {
    let api = context.gateway().await?;
    let of_secret = path(&["projects", args.project.as_str(), "secrets", &args.name]);
    api.delete::<()>(&of_secret).await?;
    eprintln!("removed `{}` of project `{}`", args.name, args.project);
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
