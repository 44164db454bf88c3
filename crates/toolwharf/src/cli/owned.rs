//! The verbs for servers, on those of a project (`--project`).

use http::header;
use hyper::Method;
use model::{ProjectId, ServerName};
use serde_json::{Value, json};

use super::{
    Context, Output,
    add::already,
    http::{Api, path},
    print,
    servers::{HEAD, cells, fields},
};
use crate::rest::{OwnedServer, OwnedServers};

fn of_server<'n>(project: &'n ProjectId, name: &'n ServerName) -> [&'n str; 4] {
    ["projects", project.as_str(), "servers", name.as_str()]
}

pub(super) async fn list(context: &Context, api: &Api, project: &ProjectId) -> anyhow::Result<()> {
    let of_servers = path(&["projects", project.as_str(), "servers"]);
    let list = |page: OwnedServers| (page.servers, page.next);
    let servers: Vec<OwnedServer> = api.pages(&of_servers, list).await?;
    if context.output == Output::Json {
        return print::json(&servers);
    }
    if servers.is_empty() {
        eprintln!(
            "project `{project}` has no servers; `toolwharf add --project {project} NAME …` adds one"
        );
    }
    let rows: Vec<[String; 9]> = servers
        .iter()
        .map(|server| cells(&server.server.row))
        .collect();
    print::data(&print::table(HEAD, &rows))
}

pub(super) async fn show(
    context: &Context,
    api: &Api,
    project: &ProjectId,
    name: &ServerName,
) -> anyhow::Result<()> {
    let path = path(&of_server(project, name));
    if context.output == Output::Json {
        return print::json(&api.get::<Value>(&path).await?);
    }
    let server: OwnedServer = api.get(&path).await?;
    let more = print::fields(&[
        ("project", project.to_string()),
        ("description", server.description.clone()),
        ("product", server.product.clone().unwrap_or_default()),
        (
            "registered by",
            server.registered_by.clone().unwrap_or_default(),
        ),
    ]);
    print::data(&(fields(&server.server) + &more))
}

pub(super) async fn add(
    context: &Context,
    api: &Api,
    project: &ProjectId,
    name: &ServerName,
    entry: &Value,
    replace: bool,
) -> anyhow::Result<()> {
    let only_new = [(header::IF_NONE_MATCH, "*")];
    let headers = if replace { &[][..] } else { &only_new[..] };
    let body = serde_json::to_vec(entry)?.into();
    let added = api
        .ask(Method::PUT, &path(&of_server(project, name)), body, headers)
        .await;
    let server: OwnedServer = added.map_err(|error| already(error, replace))?;
    eprintln!("added `{name}` to project `{project}`");
    said(context, &server)
}

pub(super) async fn remove(
    api: &Api,
    project: &ProjectId,
    name: &ServerName,
) -> anyhow::Result<()> {
    api.delete::<()>(&path(&of_server(project, name))).await?;
    eprintln!("removed `{name}` from project `{project}`");
    Ok(())
}

pub(super) async fn switch(
    context: &Context,
    api: &Api,
    project: &ProjectId,
    name: &ServerName,
    word: &str,
) -> anyhow::Result<()> {
    let [projects, project_id, servers, server] = of_server(project, name);
    let verb = path(&[projects, project_id, servers, server, word]);
    let server: OwnedServer = api.post(&verb, &json!({})).await?;
    eprintln!("{word}d `{name}` of project `{project}`");
    said(context, &server)
}

/// How it is now.
fn said(context: &Context, server: &OwnedServer) -> anyhow::Result<()> {
    let row = &server.server.row;
    match (row.state.as_str(), &row.reason) {
        (_, Some(reason)) => eprintln!("not usable yet: {}", print::printable(reason)),
        ("idle", None) => eprintln!("it starts at its first use"),
        _ => {}
    }
    if context.output == Output::Json {
        print::json(server)?;
    }
    Ok(())
}
