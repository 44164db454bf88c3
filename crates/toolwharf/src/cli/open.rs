//! `open`: signs a browser in to the running gateway and opens it.
//!
//! Invariant: the link is not passed as an argument, where other users of the machine could read it and use it first.
//! Instead, a page in the data directory, readable only by its owner, redirects to it.

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

const PAGE_FILE: &str = "open.html";
/// Time limit for the browser command to fail.
const BROWSER_START_TIMEOUT: Duration = Duration::from_secs(2);

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
        eprintln!("opened the console in your browser");
        return Ok(());
    }
    let minutes = link.expires_in / 60;
    eprintln!("open this link in a browser (valid once, for {minutes} minutes):");
    print::data(&(link.url + "\n"))
}

/// Opens a link in the browser of `BROWSER` or in the default one, through a page in `dir`. Returns whether the browser
/// started.
pub(super) async fn opened(dir: &Path, url: &str) -> bool {
    match page(dir, url) {
        Ok(page) => opens(&page).await,
        Err(_) => false,
    }
}

/// Writes a page that redirects to the link.
fn page(dir: &Path, url: &str) -> std::io::Result<PathBuf> {
    // A browser that already runs has another working directory.
    let path = std::path::absolute(dir)?.join(PAGE_FILE);
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

/// Opens the page. The command may run for as long as the browser is open, so it counts as successful if it has not
/// failed in time.
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
    match tokio::time::timeout(BROWSER_START_TIMEOUT, opener.wait()).await {
        Ok(status) => status.is_ok_and(|status| status.success()),
        Err(_) => true,
    }
}
