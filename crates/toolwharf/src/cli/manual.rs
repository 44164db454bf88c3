//! `man`: the manual pages, made from the grammar of the command line.

use std::{fs, path::Path};

use anyhow::Context as _;

use super::help;

/// Writes a page for each command to the folder: `toolwharf.1`, `toolwharf-serve.1`, `toolwharf-tools-call.1`.
pub(super) fn write(folder: &Path) -> anyhow::Result<()> {
    let written = fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(help::command(true), folder));
    written.with_context(|| {
        format!(
            "cannot write the manual pages to {}: name a folder that you may write to",
            folder.display()
        )
    })
}
