//! `open`: signs a browser in to the running gateway, and opens it.
//!
//! Invariant: the link stands in no argument list, where other users of the machine could read it and be faster. A page in the data
//! directory, which only its user can read, leads there.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use api::BrowserLink;
use serde_json::json;
use tokio::process::Command;

use super::{Context, http::path, print};

const PAGE: &str = "open.html";
/// How long a browser may take to fail.
const STARTED: Duration = Duration::from_secs(2);

#[derive(clap::Args)]
pub(super) struct Args {
    /// Print the link instead of opening it.
    #[arg(long)]
    print: bool,
}

pub(super) async fn run(context: &Context, args: Args) -> anyhow::Result<()> {
    let api = context.gateway().await?;
    let link: BrowserLink = api.post(&path(&["browser-links"]), &json!({})).await?;
    if let Some(dir) = context.dir(None).filter(|_| !args.print)
        && opened(&dir, &link.url).await
    {
        eprintln!("opened in your browser");
        return Ok(());
    }
    let minutes = link.expires_in / 60;
    eprintln!("open this link in a browser, once and within {minutes} minutes:");
    print::data(&(link.url + "\n"))
}

/// Opens a link in the browser that `BROWSER` names, or else in the usual one, by a page in that folder; whether there is one.
pub(super) async fn opened(dir: &Path, url: &str) -> bool {
    match page(dir, url) {
        Ok(page) => opens(&page).await,
        Err(_) => false,
    }
}

/// Writes a page that leads to the link.
fn page(dir: &Path, url: &str) -> std::io::Result<PathBuf> {
    let path = dir.join(PAGE);
    let _ = fs::remove_file(&path);
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)?;
    write!(
        file,
        "<!doctype html><meta charset=\"utf-8\"><meta http-equiv=\"refresh\" content=\"0;url={url}\">"
    )?;
    Ok(path)
}

/// A browser may stay in the foreground for as long as it is open: one that has not failed by then is taken for open.
async fn opens(page: &Path) -> bool {
    let named = std::env::var_os("BROWSER").filter(|name| !name.is_empty());
    let usual = match cfg!(target_os = "macos") {
        true => "open",
        false => "xdg-open",
    };
    let mut opener = Command::new(named.unwrap_or_else(|| usual.into()));
    opener.arg(page);
    for stream in [Command::stdin, Command::stdout, Command::stderr] {
        stream(&mut opener, Stdio::null());
    }
    let Ok(mut opener) = opener.spawn() else {
        return false;
    };
    match tokio::time::timeout(STARTED, opener.wait()).await {
        Ok(status) => status.is_ok_and(|status| status.success()),
        Err(_) => true,
    }
}
