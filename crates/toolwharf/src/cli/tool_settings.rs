//! Tool settings of a project (`tools rename`, `tools describe`, `enable|disable SERVER/TOOL --project`).

use api::{Setting, Tool};
use model::{ProjectId, ToolRef};

use super::{
    Context, Output, Usage,
    http::{Api, of_project},
    names, print, tool_lookup,
};
use crate::cli::http::of_server;

#[derive(clap::Args)]
pub(super) struct SayArgs {
    /// The tool as SERVER/TOOL, by its native name.
    #[arg(value_name = "SERVER/TOOL")]
    tool: String,
    /// The new text. Without it, the server's text is restored.
    text: Option<String>,
    /// The project to change the tool for.
    #[arg(long, add = names::projects())]
    project: ProjectId,
}

fn parsed(tool: &str) -> Result<ToolRef, Usage> {
    ToolRef::parse(tool).map_err(|error| Usage(format!("`{tool}`: {error}; write SERVER/TOOL")))
}

pub(super) async fn rename(context: &Context, args: SayArgs) -> anyhow::Result<()> {
    say(context, args, |setting, text| setting.name = text).await
}

pub(super) async fn describe(context: &Context, args: SayArgs) -> anyhow::Result<()> {
    say(context, args, |setting, text| setting.description = text).await
}

async fn say(
    context: &Context,
    args: SayArgs,
    change: impl FnOnce(&mut Setting, Option<String>),
) -> anyhow::Result<()> {
    let tool = parsed(&args.tool)?;
    let api = context.gateway().await?;
    let text = args.text;
    set(context, &api, &args.project, &tool, |setting| {
        change(setting, text)
    })
    .await
}

/// Changes one setting of the project for a tool.
pub(super) async fn set(
    context: &Context,
    api: &Api,
    project: &ProjectId,
    tool: &ToolRef,
    change: impl FnOnce(&mut Setting),
) -> anyhow::Result<()> {
    let found = find(api, project, tool).await?;
    let before = found.and_then(|found| found.setting).unwrap_or_default();
    let mut setting = before.clone();
    change(&mut setting);
    let of_tool = of_server(tool.server.as_str(), &["tools", tool.tool.as_str()]);
    let of_tool = of_tool + &of_project(Some(project));
    if setting == Setting::default() && before != setting {
        api.delete::<()>(&of_tool).await?;
    } else {
        api.put::<Setting>(&of_tool, &setting).await?;
    }
    let name = format!("{}/{}", tool.server, tool.tool);
    eprintln!(
        "changed the tool `{}` for project `{project}`",
        print::printable(&name)
    );
    if context.output == Output::Json {
        print::json(&find(api, project, tool).await?)?;
    }
    Ok(())
}

async fn find(api: &Api, project: &ProjectId, tool: &ToolRef) -> anyhow::Result<Option<Tool>> {
    let tools = tool_lookup::of_server(api, Some(project), &tool.server).await?;
    let mut tools = tools.into_iter();
    Ok(tools.find(|found| found.native == tool.tool.as_str()))
}
