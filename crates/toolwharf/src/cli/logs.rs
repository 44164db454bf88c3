//! `logs`: what a server writes to stderr.

use std::{io::Write, time::Duration};

use anyhow::bail;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::Method;
use mcp::sse::Parser;
use tokio::time::timeout;

use super::{Context, print, servers::NameArgs};
use crate::rest::NOTICE;

/// Longer than any line.
const LARGEST_EVENT: usize = 1 << 20;
/// The gateway says something at least twice as often; a stream that is silent for longer is dead.
const SILENCE: Duration = Duration::from_secs(90);

#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    named: NameArgs,
    /// Go on with what it writes from now on, over its restarts.
    #[arg(long, short)]
    follow: bool,
    /// How many lines of what it wrote before.
    #[arg(long = "lines", short = 'n', value_name = "N", default_value_t = 200)]
    lines: usize,
}

pub(super) async fn run(context: &Context, args: Args) -> anyhow::Result<()> {
    let Args {
        named,
        follow,
        lines,
    } = args;
    let api = context.gateway().await?;
    let (lines, follows) = (lines.to_string(), follow.to_string());
    let query = [("tail", Some(&*lines)), ("follow", Some(&*follows))];
    let path = named.path_with(&["logs"], &query);
    if !follow {
        return print::foreign(&api.text(&path).await?);
    }
    let mut answer = api.open(Method::GET, &path, Bytes::new(), &[]).await?;
    let mut parser = Parser::new(LARGEST_EVENT);
    loop {
        let Ok(frame) = timeout(SILENCE, answer.body.frame()).await else {
            bail!("the gateway has said nothing for {} s", SILENCE.as_secs());
        };
        // The end of the gateway: whether it said goodbye makes no difference.
        let Some(Ok(frame)) = frame else {
            eprintln!("the gateway has ended");
            return Ok(());
        };
        let Ok(chunk) = frame.into_data() else {
            continue;
        };
        parser.push(chunk);
        while let Some(event) = parser.next_event()? {
            let text = String::from_utf8_lossy(&event.data);
            if event.event == NOTICE {
                eprintln!("-- {}", print::printable(&text));
            } else if print_line(&text).is_err() {
                // Whoever read it has seen enough.
                return Ok(());
            }
        }
    }
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
