//! `upgrade`: asks the running gateway to hand over to another program. It uses a socket in the data directory and not the
//! API: the request names a program of this machine.

use std::path::PathBuf;

use anyhow::{Context as _, anyhow, bail};
use config::Sources;

use super::{Context, Usage, print};
use crate::upgrade::control::{self, Reply, Request};
use backend::{lock, startup};

#[derive(clap::Args)]
pub(super) struct Args {
    /// The new program. The default is the file of the running one, which a package manager may have replaced.
    #[arg(value_hint = clap::ValueHint::FilePath)]
    binary: Option<PathBuf>,
}

pub(super) async fn run(context: &Context, args: Args) -> anyhow::Result<()> {
    if context.reach.url.is_some() {
        let what = "`upgrade` works on the gateway of this machine: leave out --url and TOOLWHARF_URL, and name its data directory with --data-dir";
        return Err(Usage(what.to_owned()).into());
    }
    let program = args.binary.map(absolute).transpose()?;
    let sources = Sources::locate(&context.config, &startup::env)?;
    let data_dir = context.dir(Some(&sources));
    let data_dir = data_dir.filter(|dir| lock::holder(dir).is_some());
    let data_dir = data_dir.ok_or_else(|| anyhow!("{}", context.no_gateway(&sources)))?;
    let mut stream = control::connect(&data_dir).await.with_context(|| {
        format!(
            "cannot reach the running gateway through {}: it may be starting or stopping, or be of a version without `upgrade`",
            data_dir.display()
        )
    })?;
    control::send(&mut stream, &Request { program }).await?;
    let reply = control::receive(&mut stream).await;
    let reply = reply.context(
        "the gateway ended during the upgrade: `toolwharf ls` shows whether one is running, and its log shows why",
    )?;
    match &reply {
        Reply::Failed { why } => bail!("{why}. The running gateway serves on"),
        Reply::Upgraded { pid, program } => {
            let program = program.display().to_string();
            eprintln!(
                "process {pid} serves now ({}). The old process finishes its calls and exits",
                print::printable(&program)
            );
        }
    }
    context.print_json(&reply)
}

/// The path of an existing file, independent of the folder of the gateway.
fn absolute(binary: PathBuf) -> anyhow::Result<PathBuf> {
    binary.canonicalize().with_context(|| {
        format!(
            "cannot find the program {}: name an existing file",
            binary.display()
        )
    })
}
