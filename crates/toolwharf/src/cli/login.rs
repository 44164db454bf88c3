//! `login` and `logout`: sign-ins to servers.

use std::{
    io::{self, Write},
    time::Duration,
};

use anyhow::{Context as _, bail};
use api::{Login, LoginBegun, LoginRedirect, LoginRequest, LoginWay, Logins};
use model::{ProjectId, ServerName};
use tokio::time::Instant;

use super::{
    Context, Output,
    http::{Api, of_project, path},
    names,
    open::opened,
    print,
    prompt::typed,
};
use crate::cli::http::of_server;

/// Interval between checks whether the sign-in is complete.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

#[derive(clap::Args)]
pub(super) struct Args {
    /// The server to sign in to. Without it, list the sign-ins.
    #[arg(add = names::servers())]
    name: Option<ServerName>,
    /// The project of the server.
    #[arg(long, add = names::projects())]
    project: Option<ProjectId>,
    /// Show a code to enter on another device.
    #[arg(long, conflicts_with = "no_browser", requires = "name")]
    device: bool,
    /// Print the issuer's URL, and read the URL that the browser is redirected to.
    #[arg(long, requires = "name")]
    no_browser: bool,
}

#[derive(clap::Args)]
pub(super) struct OutArgs {
    /// The server to sign out of.
    #[arg(add = names::servers())]
    name: ServerName,
    /// The project of the server.
    #[arg(long, add = names::projects())]
    project: Option<ProjectId>,
}

pub(super) async fn run(context: &Context, args: Args) -> anyhow::Result<()> {
    let api = context.gateway().await?;
    let of = of_project(args.project.as_ref());
    let Some(name) = &args.name else {
        return list(context, &api, &of).await;
    };
    let place = of_server(name.as_str(), &["login"]) + &of;
    let before: Login = api.get(&place).await?;
    let way = match (args.device, args.no_browser) {
        (true, _) => LoginWay::Device,
        (false, true) => LoginWay::Paste,
        (false, false) => LoginWay::Browser,
    };
    let begun: LoginBegun = api.post(&place, &LoginRequest { way }).await?;
    // The page that leads to the link must exist until the sign-in is complete.
    let folder =
        tempfile::tempdir().context("cannot create a temporary folder for the sign-in page")?;
    if let Some(link) = &begun.link {
        opened(folder.path(), link).await;
        eprintln!(
            "open this link in a browser if none opens (valid once, for ten minutes):\n{link}"
        );
    }
    if let Some(url) = &begun.authorize_url {
        let end = of_server(name.as_str(), &["login", "finish"]) + &of;
        let redirect = pasted(url)?;
        api.post::<()>(&end, &LoginRedirect { redirect }).await?;
    }
    if let (Some(code), Some(place)) = (&begun.user_code, &begun.verification_uri) {
        eprintln!(
            "open {} and enter the code {}",
            print::printable(place),
            print::printable(code)
        );
    }
    let login = signed_in(&api, &place, &before, begun.expires_in).await?;
    match context.output {
        Output::Json => print::json(&login),
        Output::Table => {
            let issuer = login.issuer.as_deref().unwrap_or("the issuer");
            eprintln!("signed in to `{name}` at {}", print::printable(issuer));
            Ok(())
        }
    }
}

async fn list(context: &Context, api: &Api, of: &str) -> anyhow::Result<()> {
    let Logins { logins } = api.get(&(path(&["logins"]) + of)).await?;
    let cells = |login: &Login| {
        let name = match &login.project {
            Some(project) => format!("{project}/{}", login.server),
            None => login.server.clone(),
        };
        let updated = login.updated_at.map_or_else(String::new, print::time);
        let issuer = login.issuer.clone().unwrap_or_default();
        [
            name,
            login.mode.clone(),
            login.state.clone(),
            issuer,
            updated,
        ]
    };
    let head = ["SERVER", "MODE", "STATE", "ISSUER", "SINCE"];
    context.print(&logins, || print::table(head, logins.iter().map(cells)))
}

pub(super) async fn out(context: &Context, args: OutArgs) -> anyhow::Result<()> {
    let api = context.gateway().await?;
    let place = of_server(args.name.as_str(), &["login"]) + &of_project(args.project.as_ref());
    // Fails for a server that needs no sign-in. `DELETE` accepts such a server.
    let _: Login = api.get(&place).await?;
    api.delete::<()>(&place).await?;
    eprintln!("signed out of `{}`", args.name);
    Ok(())
}

/// Waits until a sign-in has completed that is newer than `before`.
async fn signed_in(api: &Api, place: &str, before: &Login, seconds: u64) -> anyhow::Result<Login> {
    let give_up = Instant::now() + Duration::from_secs(seconds);
    loop {
        let login: Login = api.get(place).await?;
        if login.state == "signed_in" && login.updated_at != before.updated_at {
            return Ok(login);
        }
        if Instant::now() >= give_up {
            bail!(
                "no sign-in within {} minutes; run the command again for a new link",
                seconds / 60
            );
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Reads the URL that the browser was redirected to.
fn pasted(url: &str) -> anyhow::Result<String> {
    eprintln!(
        "open this page in any browser and sign in:\n{}",
        print::printable(url)
    );
    eprint!(
        "the browser is then redirected to an address that it may not be able to show. Paste that address here: "
    );
    io::stderr().flush().ok();
    match typed("the address")?.trim() {
        "" => bail!("no address was pasted, so the sign-in is not complete"),
        address => Ok(address.to_owned()),
    }
}
