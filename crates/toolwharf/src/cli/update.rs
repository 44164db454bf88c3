//! `update`: updates servers to newer versions of their packages.

use std::{collections::HashSet, time::Duration};

use anyhow::bail;
use api::{Update, UpdateRequest};
use model::{ProjectId, ServerName};

use super::{
    Context, No, Output,
    http::{Api, Refused, of_project},
    names, print,
    prompt::agreed,
};
use crate::cli::http::of_server;
use crate::cli::reach::all_servers;

/// Timeout of the gateway for one server: two installations and two starts.
const UPDATE_TIMEOUT: Duration = Duration::from_secs(15 * 60);

#[derive(clap::Args)]
pub(super) struct Args {
    /// Names or ids of servers. The default is all servers with pinned packages.
    names: Vec<ServerName>,
    /// The project that owns the servers.
    #[arg(long, add = names::projects())]
    project: Option<ProjectId>,
    /// Show the changes without making them. The exit code is 1 if there is a newer version.
    #[arg(long, conflicts_with = "yes")]
    check: bool,
    /// Do not ask for confirmation.
    #[arg(long, short)]
    yes: bool,
}

pub(super) async fn run(context: &Context, args: Args) -> anyhow::Result<()> {
    let api = context.gateway().await?.patient(UPDATE_TIMEOUT);
    // The id of each server, with the name under which `shared_with` lists the server.
    let names: Vec<(String, String)> = match args.names.is_empty() {
        true => {
            let all = all_servers(&api, args.project.as_ref()).await?;
            let enabled = all.into_iter().filter(|server| server.enabled);
            let named = enabled.map(|server| match &server.project {
                Some(project) => (server.id, format!("{project}/{}", server.name)),
                None => (server.id, server.name),
            });
            named.collect()
        }
        false => args
            .names
            .iter()
            .map(|name| (name.to_string(), name.to_string()))
            .collect(),
    };
    let of = of_project(args.project.as_ref());
    let is_table = context.output == Output::Table;
    let mut updates: Vec<Update> = Vec::new();
    let mut known = HashSet::new();
    for (name, key) in names {
        if known.contains(&key) {
            continue;
        }
        let check = UpdateRequest {
            check: true,
            ..UpdateRequest::default()
        };
        let mut update = match ask(&api, &name, &of, &check).await {
            // If the user named no servers, servers without pinned packages are skipped.
            Err(error) if args.names.is_empty() && status(&error) == Some(409) => continue,
            update => update?,
        };
        known.extend(update.shared_with.iter().cloned());
        if is_table {
            print::foreign(&text(&update))?;
        }
        if is_newer(&update) && !args.check {
            agreed(&question(&update), args.yes)?;
            let change = UpdateRequest {
                check: false,
                version: Some(update.to),
                digest: Some(update.digest),
            };
            update = ask(&api, &name, &of, &change).await?;
            if is_table {
                let (package, to) = (&update.package, &update.to);
                eprintln!("`{}` now uses {package} {to}", update.server);
            }
        }
        updates.push(update);
    }
    if updates.is_empty() {
        bail!(
            "no server uses a pinned package. The packages of `npx` and `uvx` are pinned in a sandbox, and outside \
             with `packages = \"pinned\"` under `[defaults]`"
        );
    }
    if !is_table {
        print::json(&updates)?;
    }
    match args.check && updates.iter().any(is_newer) {
        true => Err(No.into()),
        false => Ok(()),
    }
}

async fn ask(api: &Api, name: &str, of: &str, body: &UpdateRequest) -> anyhow::Result<Update> {
    let path = of_server(name, &["update"]) + of;
    api.post(&path, body).await
}

fn status(error: &anyhow::Error) -> Option<u16> {
    let refused = error.downcast_ref::<Refused>();
    refused.map(|refused| refused.status)
}

fn is_newer(update: &Update) -> bool {
    update.from.as_ref() != Some(&update.to)
}

fn question(update: &Update) -> String {
    let name = &update.server;
    let tools = match (&update.unseen, update.changed.len()) {
        (Some(_), _) => "; changed definitions will need approval",
        (None, 0) => "",
        (None, _) => " and approve these definitions",
    };
    format!("Update `{name}` to {}{tools}?", update.to)
}

fn text(update: &Update) -> String {
    let name = &update.server;
    let from = update.from.as_deref().unwrap_or("-");
    if !is_newer(update) {
        return format!("{name}  {from} is the newest version\n");
    }
    let mut text = format!("{name}  {from} -> {}\n", update.to);
    for (sign, tools) in [("+", &update.added), ("-", &update.removed)] {
        for tool in tools {
            text.push_str(&format!("  {sign} {tool}\n"));
        }
    }
    for changed in &update.changed {
        text.push_str(&format!("  ~ {}\n{}", changed.tool, changed.diff));
    }
    if let Some(why) = &update.unseen {
        text.push_str(&format!("  its tools could not be listed: {why}\n"));
    }
    if !update.shared_with.is_empty() {
        let others = update.shared_with.join(", ");
        text.push_str(&format!("  servers with the same package: {others}\n"));
    }
    text
}
