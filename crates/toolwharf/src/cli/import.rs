//! `import`: adds the servers of another file, or of a client with a known file.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use api::Imported;
use config::{Client, Machine, Os};

use super::{
    Context, No,
    http::path,
    print,
    reach::{Place, own},
    servers::warn,
};
use crate::cli::prompt::stdin;
use backend::{server_files, startup};
use rest::imported;

/// Maximum size of a file, in bytes.
const MAX_FILE_BYTES: u64 = 8 << 20;

#[derive(clap::Args)]
pub(super) struct Args {
    /// A file in any format that clients use, `-` for standard input, or one of claude-code, claude-desktop, cline,
    /// codex, continue, cursor, gemini, goose, jetbrains, lmstudio, opencode, vscode, windsurf and zed.
    #[arg(value_name = "FILE_OR_CLIENT")]
    from: PathBuf,
}

pub(super) async fn run(context: &Context, args: Args) -> anyhow::Result<()> {
    let (from, text) = read(&args.from)?;
    let report: Imported = match context.place().await? {
        Place::Gateway(api) => {
            let body = serde_json::json!({"from": from, "text": text});
            api.post(&path(&["import"]), &body).await?
        }
        Place::Files(sources) => {
            let report = server_files::import(&sources, &own(&sources), &from, &text)?;
            let report = imported(report);
            eprintln!("no gateway is running: edited {}", report.file);
            report
        }
    };
    warn(&report.warnings);
    context.print(&report, || table(&report))?;
    eprintln!(
        "{} added to {}, {} unchanged, {} clashing, {} skipped, {} refused",
        report.added.len(),
        report.file,
        report.unchanged.len(),
        report.clashes.len(),
        report.skipped.len(),
        report.refused.len()
    );
    if !report.off.is_empty() {
        eprintln!(
            "disabled {} of the added servers, because something that they need is missing; `toolwharf enable NAME` enables a server",
            report.off.len()
        );
    }
    if report.refused.is_empty() {
        Ok(())
    } else {
        Err(No.into())
    }
}

fn table(report: &Imported) -> String {
    let mut rows = Vec::new();
    for name in &report.added {
        let lacks = report.off.iter().find(|one| one.name == *name);
        let (result, mut note) = match lacks {
            Some(lacks) => ("added, off", format!("missing: {}", lacks.why)),
            None => ("added", String::new()),
        };
        for more in report.notes.iter().filter(|one| one.name == *name) {
            if !note.is_empty() {
                note.push_str("; ");
            }
            note.push_str(&more.why);
        }
        rows.push([name.clone(), result.to_owned(), note]);
    }
    let mut all = |names: &[String], what: &str, note: &str| {
        for name in names {
            rows.push([name.clone(), what.to_owned(), note.to_owned()]);
        }
    };
    all(&report.unchanged, "unchanged", "");
    let left = "another server has this name and was not changed";
    all(&report.clashes, "clashing", left);
    for (what, all) in [("skipped", &report.skipped), ("refused", &report.refused)] {
        for one in all {
            rows.push([one.name.clone(), what.to_owned(), one.why.clone()]);
        }
    }
    print::table(["NAME", "RESULT", "NOTE"], &rows)
}

fn read(from: &Path) -> anyhow::Result<(PathBuf, String)> {
    if from == Path::new("-") {
        return Ok(("standard input".into(), stdin()?));
    }
    let known = from.to_str().and_then(Client::find);
    let file = match known {
        Some(client) => {
            let machine = Machine {
                os: Os::HERE,
                env: &startup::env,
            };
            let file = client
                .file(machine)
                .context("HOME is not set; pass the path of the client's file instead")?;
            if !file.is_file() {
                bail!(
                    "{} keeps its servers in {}, which does not exist; pass the path of its file instead",
                    from.display(),
                    file.display()
                );
            }
            file
        }
        // The gateway may have another working directory.
        None => std::path::absolute(from).unwrap_or_else(|_| from.to_owned()),
    };
    let cannot = || format!("cannot read {}", file.display());
    let mut text = String::new();
    fs::File::open(&file)
        .with_context(cannot)?
        .take(MAX_FILE_BYTES + 1)
        .read_to_string(&mut text)
        .with_context(cannot)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        bail!(
            "{} is larger than 8 MiB; name the file with the servers",
            file.display()
        );
    }
    Ok((file, text))
}
