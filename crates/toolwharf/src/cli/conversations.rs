//! `conversation`: stored conversations.

use anyhow::anyhow;
use api::{ConversationInfo, WholeConversation};
use model::ProjectId;
use serde_json::{Value, json};

use super::{
    Context, Output,
    http::{Refused, of_project, path},
    names,
    pages::{self, Lines},
    print, screen,
};

/// Maximum length of the line for a call or its result, in characters.
const MAX_LINE_CHARS: usize = 200;

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// List conversations, newest first.
    #[command(alias = "list")]
    Ls(ListArgs),
    /// Show the messages of a conversation.
    #[command(aliases = ["show", "status"])]
    Get(NameArgs),
    /// Remove a conversation.
    #[command(alias = "remove")]
    Rm(NameArgs),
}

#[derive(clap::Args)]
pub(super) struct ListArgs {
    /// Only conversations of this project. The default is all conversations.
    #[arg(long, add = names::projects())]
    project: Option<ProjectId>,
    #[command(flatten)]
    lines: Lines,
}

#[derive(clap::Args)]
pub(super) struct NameArgs {
    /// The id, as in `conversation ls`.
    id: String,
    /// The project of the conversation.
    #[arg(long, add = names::projects())]
    project: Option<ProjectId>,
}

/// Returns the API path of a conversation.
pub(super) fn of(project: Option<&ProjectId>, id: &str) -> String {
    path(&["conversations", id]) + &of_project(project)
}

/// Adds a hint to the error for a missing conversation.
pub(super) fn explained(
    error: anyhow::Error,
    project: Option<&ProjectId>,
    id: &str,
) -> anyhow::Error {
    let is_missing = error.downcast_ref::<Refused>().is_some_and(|refused| {
        refused.status == 404
            && refused.detail.contains("conversation")
            && refused.detail.contains(id)
    });
    if !is_missing {
        return error;
    }
    match project {
        Some(project) => anyhow!(
            "{error} in project `{project}`; `toolwharf conversation ls --project {project}` lists the conversations"
        ),
        None => anyhow!(
            "{error} outside of projects; `toolwharf conversation ls` lists the conversations. For a conversation of a project, add --project"
        ),
    }
}

pub(super) async fn run(context: &Context, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Ls(args) => list(context, args).await,
        Command::Get(args) => show(context, args).await,
        Command::Rm(args) => remove(context, args).await,
    }
}

async fn list(context: &Context, args: ListArgs) -> anyhow::Result<()> {
    let api = context.gateway().await?;
    let cells = |one: &ConversationInfo| {
        [
            one.id.clone(),
            one.project.clone().unwrap_or_default(),
            print::time(one.created_at),
            print::time(one.updated_at),
            one.title.clone(),
        ]
    };
    let head = ["ID", "PROJECT", "BEGUN", "LAST", "TITLE"];
    let all = path(&["conversations"]);
    let filter = json!({ "project": args.project });
    let none = "there are no conversations yet; `toolwharf chat` starts one";
    let listed = pages::list(&api, &all, &filter, &args.lines).await?;
    listed.print(context, none, head, cells)
}

async fn show(context: &Context, args: NameArgs) -> anyhow::Result<()> {
    let api = context.gateway().await?;
    let path = of(args.project.as_ref(), &args.id);
    let whole = api.get::<WholeConversation>(&path).await;
    let whole = whole.map_err(|error| explained(error, args.project.as_ref(), &args.id))?;
    match context.output {
        Output::Json => print::json(&whole),
        Output::Table => print::foreign(&said(&whole.messages)),
    }
}

/// Returns the messages as `chat` shows them. Messages of the user have a prompt in front.
fn said(messages: &Value) -> String {
    let mut out = String::new();
    let mut names: Vec<(&str, &str)> = Vec::new();
    for message in messages.as_array().into_iter().flatten() {
        let is_user = message["role"] == "user";
        for block in message["content"].as_array().into_iter().flatten() {
            let text = |key: &str| block[key].as_str().unwrap_or_default();
            let line = match text("type") {
                "text" if is_user && text("text").starts_with(agent::SYSTEM_NOTE) => {
                    text("text").to_owned()
                }
                "text" if is_user => format!("> {}", text("text")),
                "text" => text("text").to_owned(),
                "image" => "> [picture]".to_owned(),
                "tool_use" => {
                    names.push((text("id"), text("name")));
                    print::short(&screen::call(text("name"), &block["input"]), MAX_LINE_CHARS)
                }
                "tool_result" => {
                    // A call's id may occur again in a later turn.
                    let mut names = names.iter().rev();
                    let name = names.find(|(id, _)| *id == text("tool_use_id"));
                    let name = name.map_or("", |(_, name)| *name);
                    let first = block["content"].as_array().into_iter().flatten();
                    let mut first = first.filter_map(|part| part["text"].as_str());
                    let first = first.next().unwrap_or("[picture]");
                    let line = screen::result(name, block["is_error"] == true, first);
                    print::short(&line, MAX_LINE_CHARS)
                }
                _ => continue,
            };
            out.push_str(line.trim_end());
            out.push('\n');
        }
    }
    out
}

async fn remove(context: &Context, args: NameArgs) -> anyhow::Result<()> {
    let api = context.gateway().await?;
    let path = of(args.project.as_ref(), &args.id);
    let removed = api.delete::<()>(&path).await;
    removed.map_err(|error| explained(error, args.project.as_ref(), &args.id))?;
    eprintln!("removed the conversation `{}`", args.id);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_reads_as_it_was_shown() {
        let messages = json!([
            { "role": "user", "content": [{ "type": "text", "text": "Which time is it?" }] },
            { "role": "assistant", "content": [
                { "type": "thinking", "thinking": "hm", "signature": "" },
                { "type": "text", "text": "Let me see.\n" },
                { "type": "tool_use", "id": "t", "name": "time", "input": { "zone": "UTC" } },
            ] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "t", "content": [{ "type": "text", "text": "9:12" }] },
            ] },
            { "role": "assistant", "content": [{ "type": "text", "text": "It is 9:12." }] },
        ]);
        let expect = "> Which time is it?\nLet me see.\n→ time {\"zone\":\"UTC\"}\n✓ time: 9:12\nIt is 9:12.\n";
        assert_eq!(said(&messages), expect);
    }
}
