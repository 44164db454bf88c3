//! `project`: adds, changes, shows and removes projects.

use api::{Project, ProjectConfig};
use model::{NamingPolicy, ProjectId, StartPolicy, ToolMode};

use super::{Context, http::path, pages, print, prompt::agreed};

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// List the projects.
    #[command(alias = "list")]
    Ls,
    /// Add or change a project.
    #[command(alias = "create")]
    Add(AddArgs),
    /// Show a project.
    #[command(aliases = ["show", "status"])]
    Get(NameArgs),
    /// Remove a project with its servers, secrets, products and keys.
    #[command(alias = "remove")]
    Rm(RemoveArgs),
    /// Enable a project.
    Enable(NameArgs),
    /// Disable a project. Nothing is deleted.
    Disable(NameArgs),
}

#[derive(clap::Args)]
pub(super) struct NameArgs {
    project: ProjectId,
}

#[derive(clap::Args)]
pub(super) struct RemoveArgs {
    project: ProjectId,
    /// Do not ask for confirmation.
    #[arg(long, short)]
    yes: bool,
}

#[derive(clap::Args)]
pub(super) struct AddArgs {
    project: ProjectId,
    /// The display name. The default is the id.
    #[arg(long)]
    name: Option<String>,
    /// The description.
    #[arg(long)]
    description: Option<String>,
    /// The naming policy for tools of several servers: preserve, prefix-on-conflict, always-prefix or last-wins.
    #[arg(long, value_name = "POLICY")]
    naming: Option<NamingPolicy>,
    /// The behaviour of a chat if a server of the configuration file does not start: fail (sequential), or continue
    /// without it (parallel).
    #[arg(long, value_name = "POLICY")]
    start: Option<StartPolicy>,
    /// The tools in the lists of clients: all, search (tools that find the others) or auto (search for long lists).
    #[arg(long, value_name = "MODE")]
    tools: Option<ToolMode>,
    /// A tool that lists contain in search mode, as SERVER/TOOL. Can be given several times. Replaces the previous ones.
    #[arg(long = "listed-tool", value_name = "TOOL")]
    listed_tools: Vec<String>,
    /// The tokens of a result above which clients get a preview. 0: no bound.
    #[arg(long, value_name = "TOKENS")]
    max_result_tokens: Option<usize>,
    /// true: write JSON in the texts of results in fewer tokens.
    #[arg(long, value_name = "BOOL")]
    compact_results: Option<bool>,
}

pub(super) async fn run(context: &Context, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Ls => list(context).await,
        Command::Add(args) => add(context, args).await,
        Command::Get(args) => show(context, args).await,
        Command::Rm(args) => remove(context, args).await,
        Command::Enable(args) => switch(context, args, true).await,
        Command::Disable(args) => switch(context, args, false).await,
    }
}

async fn list(context: &Context) -> anyhow::Result<()> {
    let api = context.gateway().await?;
    let listed = pages::all(&api, &path(&["projects"]), &()).await?;
    let none = "there are no projects yet; `toolwharf project add ID` adds one";
    let cells = |project: &Project| {
        [
            project.id.clone(),
            state(project).to_owned(),
            print::short(&project.name, 40),
            print::short(&project.description, 80),
        ]
    };
    listed.print(context, none, ["ID", "STATE", "NAME", "DESCRIPTION"], cells)
}

fn state(project: &Project) -> &'static str {
    if project.enabled {
        "enabled"
    } else {
        "disabled"
    }
}

async fn add(context: &Context, args: AddArgs) -> anyhow::Result<()> {
    let api = context.gateway().await?;
    let of_project = path(&["projects", args.project.as_str()]);
    // Omitted options keep their values.
    let before: Option<Project> = api.find(&of_project).await?;
    let is_new = before.is_none();
    let mut config = before.map(config).unwrap_or_default();
    if args.name.is_some() {
        config.name = args.name;
    }
    if let Some(description) = args.description {
        config.description = description;
    }
    config.naming = args.naming.or(config.naming);
    config.start = args.start.or(config.start);
    config.tools = args.tools.or(config.tools);
    config.max_result_tokens = args.max_result_tokens.or(config.max_result_tokens);
    config.compact_results = args.compact_results.or(config.compact_results);
    if !args.listed_tools.is_empty() {
        config.listed_tools = args.listed_tools;
    }
    let project: Project = api.put(&of_project, &config).await?;
    let id = &project.id;
    if is_new {
        eprintln!(
            "added the project `{id}`; `toolwharf add --project {id} NAME …` adds a server to it"
        );
    } else {
        eprintln!("changed the project `{id}`");
    }
    context.print_json(&project)
}

fn config(project: Project) -> ProjectConfig {
    ProjectConfig {
        name: Some(project.name),
        description: project.description,
        enabled: Some(project.enabled),
        naming: project.naming,
        start: project.start,
        tools: project.tools,
        listed_tools: project.listed_tools,
        max_result_tokens: project.max_result_tokens,
        compact_results: project.compact_results,
    }
}

async fn show(context: &Context, args: NameArgs) -> anyhow::Result<()> {
    let api = context.gateway().await?;
    let of_project = path(&["projects", args.project.as_str()]);
    let Some(project) = context.shown::<Project>(&api, &of_project).await? else {
        return Ok(());
    };
    let naming = project.naming.map(|naming| naming.to_string());
    let start = project.start.map(|start| start.to_string());
    let tools = project.tools.map(|tools| tools.to_string());
    let tokens = project.max_result_tokens.map(|tokens| tokens.to_string());
    let compact = project.compact_results.map(|compact| compact.to_string());
    print::data(&print::fields(&[
        ("id", project.id.clone()),
        ("name", project.name.clone()),
        ("description", project.description.clone()),
        ("state", state(&project).to_owned()),
        ("naming", naming.unwrap_or_default()),
        ("start", start.unwrap_or_default()),
        ("tools in lists", tools.unwrap_or_default()),
        ("listed tools", project.listed_tools.join(", ")),
        ("max result tokens", tokens.unwrap_or_default()),
        ("compact results", compact.unwrap_or_default()),
        ("made", print::time(project.created_at)),
        ("changed", print::time(project.updated_at)),
        ("endpoint", format!("{}/mcp/{}", api.url, project.id)),
    ]))
}

async fn remove(context: &Context, args: RemoveArgs) -> anyhow::Result<()> {
    let api = context.gateway().await?;
    let id = &args.project;
    // The question is asked only about a project that exists.
    api.get::<Project>(&path(&["projects", id.as_str()]))
        .await?;
    let question =
        format!("Remove the project `{id}` with its servers, secrets, products and keys?");
    agreed(&question, args.yes)?;
    api.delete::<()>(&path(&["projects", id.as_str()])).await?;
    eprintln!("removed the project `{id}`");
    Ok(())
}

async fn switch(context: &Context, args: NameArgs, enabled: bool) -> anyhow::Result<()> {
    let api = context.gateway().await?;
    let of_project = path(&["projects", args.project.as_str()]);
    let mut config = config(api.get(&of_project).await?);
    config.enabled = Some(enabled);
    let project: Project = api.put(&of_project, &config).await?;
    eprintln!("the project `{}` is {}", project.id, state(&project));
    context.print_json(&project)
}
