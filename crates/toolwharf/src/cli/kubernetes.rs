//! `kubernetes`: prints and converts `MCPServer` resources, for `kubectl`.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use operator::{convert, definition};
use serde_json::Value;

use super::{Context, Output, files, print, servers::warn};

/// Maximum size of a file, in bytes.
const MAX_FILE_BYTES: u64 = 16 << 20;

#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// Print the definition of the resource `MCPServer`: `toolwharf kubernetes crd | kubectl apply -f -`.
    Crd,
    /// Convert ToolHive's `MCPServer` resources to Toolwharf's. Fields without a counterpart are reported on standard
    /// error.
    Convert {
        /// A YAML or JSON file. `-` is standard input.
        file: PathBuf,
    },
}

pub(super) fn run(context: &Context, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Crd => write(context, &[definition()]),
        Command::Convert { file } => {
            let what = "a file with resources";
            let (file, text) = files::text_or_stdin(&file, what, MAX_FILE_BYTES)?;
            let objects = serde_saphyr::from_multiple::<Value>(&text);
            let objects = objects.with_context(|| format!("{file} is not valid YAML"))?;
            let (made, warnings) = convert(objects);
            warn(&warnings);
            if made.is_empty() {
                bail!(
                    "{file} contains no `MCPServer` of ToolHive; name a file with such resources"
                );
            }
            write(context, &made)
        }
    }
}

fn write(context: &Context, objects: &[Value]) -> anyhow::Result<()> {
    if context.output == Output::Json {
        return match objects {
            [object] => print::json(object),
            objects => print::json(
                &serde_json::json!({"apiVersion": "v1", "kind": "List", "items": objects}),
            ),
        };
    }
    let documents: Result<Vec<String>, _> = objects.iter().map(serde_saphyr::to_string).collect();
    print::data(&documents?.join("---\n"))
}
