//! `import`: adds the servers of another file, or of a client with a known file.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use api::{Imported, Server};
use config::{CLIENTS, Client, Machine, Os, nearest};
use model::ServerName;

use super::{
    Context, No, Output, Usage, files,
    http::{of_server, path},
    print,
    reach::{Place, own},
    secrets,
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
    let place = context.place().await?;
    let report = added(&place, &from, &text).await?;
    if is_empty(&report) {
        bail!(
            "there are no servers in {}; name a file that contains some, as in \
             {{\"mcpServers\": {{\"time\": {{\"command\": \"uvx\", \"args\": [\"mcp-server-time\"]}}}}}}",
            from.display()
        );
    }
    context.print(&report, || table(&report))?;
    summarize(&report);
    complete(context, &place, &report).await?;
    if report.refused.is_empty() {
        Ok(())
    } else {
        Err(No.into())
    }
}

/// Returns the file of a client, and its contents.
pub(super) fn text_of(client: &Client) -> anyhow::Result<(PathBuf, String)> {
    read(Path::new(client.name))
}

/// Adds the servers of a client, and prints the result. Does not ask for secrets. `text`: the contents of `file`.
pub(super) async fn of_client(
    context: &Context,
    place: &Place,
    file: &Path,
    text: &str,
) -> anyhow::Result<Imported> {
    let report = added(place, file, text).await?;
    if context.output == Output::Table {
        print::data(&table(&report))?;
    }
    summarize(&report);
    for name in report.off.iter().flat_map(|off| &off.unset) {
        eprintln!(
            "`{name}` is not set; set it with `{}`",
            secrets::command(name, None)
        );
    }
    say_disabled(report.off.len());
    Ok(report)
}

/// Adds the servers in `text`, the contents of `from`.
async fn added(place: &Place, from: &Path, text: &str) -> anyhow::Result<Imported> {
    let report: Imported = match place {
        Place::Gateway(api) => {
            let body = serde_json::json!({"from": from, "text": text});
            api.post(&path(&["import"]), &body).await?
        }
        Place::Files(sources) => {
            let report = server_files::import(sources, &own(sources), from, text)?;
            let report = imported(report);
            match report.added.is_empty() {
                true => eprintln!("no gateway is running"),
                false => eprintln!("no gateway is running: edited {}", report.file),
            }
            report
        }
    };
    warn(&report.warnings);
    Ok(report)
}

fn summarize(report: &Imported) {
    eprintln!(
        "{} added to {}, {} unchanged, {} clashing, {} skipped, {} refused",
        report.added.len(),
        report.file,
        report.unchanged.len(),
        report.clashes.len(),
        report.skipped.len(),
        report.refused.len()
    );
}

/// Asks for the secrets that added servers lack, and enables servers that lack nothing else.
async fn complete(context: &Context, place: &Place, report: &Imported) -> anyhow::Result<()> {
    let unset: BTreeSet<&String> = report.off.iter().flat_map(|off| &off.unset).collect();
    let set = secrets::ask(context, place, None, unset).await?;
    let mut left = 0;
    for off in &report.off {
        let is_complete = !off.unset.is_empty() && off.unset.iter().all(|name| set.contains(name));
        if !is_complete {
            left += 1;
            continue;
        }
        match place {
            Place::Gateway(api) => {
                let enable = of_server(&off.name, &["enable"]);
                let _: Server = api.post(&enable, &serde_json::json!({})).await?;
            }
            Place::Files(sources) => {
                let name = ServerName::parse(&off.name)?;
                server_files::set_enabled(sources, &own(sources), &name, true)?;
            }
        }
        eprintln!("enabled `{}`", off.name);
    }
    say_disabled(left);
    Ok(())
}

fn say_disabled(count: usize) {
    if count > 0 {
        eprintln!(
            "disabled {count} of the added servers, because something that they need is missing; `toolwharf enable NAME` enables a server"
        );
    }
}

fn is_empty(report: &Imported) -> bool {
    let names = [&report.added, &report.unchanged, &report.clashes];
    names.iter().all(|names| names.is_empty())
        && report.skipped.is_empty()
        && report.refused.is_empty()
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

/// Returns whether a path could be the name of a client.
fn is_word(from: &Path) -> bool {
    let is_letter = |c: char| c.is_alphanumeric() || "-_ ".contains(c);
    from.to_str()
        .is_some_and(|word| word.chars().all(is_letter))
}

fn no_client(from: &Path) -> Usage {
    let word = from.display().to_string();
    let clients: Vec<&str> = CLIENTS.iter().map(|client| client.name).collect();
    Usage(match nearest(&word, &clients) {
        Some(near) => {
            format!("there is no file or client `{word}`; did you mean `{near}`?")
        }
        None => format!(
            "there is no file `{word}`, and no client of this name; the clients are: {}",
            clients.join(", ")
        ),
    })
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
        None if is_word(from) && !from.exists() => return Err(no_client(from).into()),
        None if from.to_str().is_some_and(|text| text.contains("://")) => {
            let url = model::url_for_display(&from.display().to_string());
            return Err(Usage(format!(
                "`{url}` is a URL, not a file: download the file and pass its path, or add a server at this URL with \
                 `toolwharf add NAME URL`"
            ))
            .into());
        }
        // The gateway may have another working directory.
        None => std::path::absolute(from).unwrap_or_else(|_| from.to_owned()),
    };
    let text = files::text(&file, "a file with servers", MAX_FILE_BYTES)?;
    Ok((file, text))
}
