//! `logs`: shows a server's standard error.

use std::{io::Write, time::Duration};

use bytes::Bytes;
use hyper::Method;

use super::{Context, print, servers::NameArgs, values};
use rest::NOTICE;

/// The gateway sends data at least twice in this time, so a stream that is silent for longer is dead.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(90);

#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    named: NameArgs,
    /// Follow the log, even across restarts of the server.
    #[arg(long, short)]
    follow: bool,
    /// The number of lines to show from the end of the log.
    #[arg(long = "lines", short = 'n', value_name = "N", default_value_t = 200, allow_negative_numbers = true, value_parser = values::tail)]
    lines: usize,
    /// Show the time at which each line arrived (UTC).
    #[arg(long, short)]
    timestamps: bool,
}

pub(super) async fn run(context: &Context, args: Args) -> anyhow::Result<()> {
    let Args {
        named,
        follow,
        lines,
        timestamps,
    } = args;
    let api = context.gateway().await?;
    let [lines, follows, stamped] = [
        lines.to_string(),
        follow.to_string(),
        timestamps.to_string(),
    ];
    let query = [
        ("tail", Some(&*lines)),
        ("follow", Some(&*follows)),
        ("timestamps", timestamps.then_some(&*stamped)),
    ];
    let path = named.path_with(&["logs"], &query);
    if !follow {
        return print::foreign(&api.text(&path).await?);
    }
    let mut answer = api.open(Method::GET, &path, Bytes::new(), &[]).await?;
    // The gateway stopped, gracefully or not.
    while let Some(event) = answer.event(SILENCE_TIMEOUT).await? {
        let text = String::from_utf8_lossy(&event.data);
        if event.event == NOTICE {
            eprintln!("-- {}", print::printable(&text));
        } else if print_line(&text).is_err() {
            // The reader closed the pipe.
            return Ok(());
        }
    }
    eprintln!("the gateway has stopped");
    Ok(())
}

fn print_line(text: &str) -> std::io::Result<()> {
    use std::io::IsTerminal;
    let mut out = std::io::stdout().lock();
    if out.is_terminal() {
        writeln!(out, "{}", print::printable(text))?;
    } else {
        writeln!(out, "{text}")?;
    }
    out.flush()
}
