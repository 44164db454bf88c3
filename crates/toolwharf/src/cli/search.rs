//! `search`: searches registries for servers. Without a gateway, this process queries the registries.

use api::{RegistryEntry, RegistryServers};

use super::{
    Context, Output,
    http::{path, query},
    print,
    reach::Place,
    servers::warn,
    values,
};
use backend::startup;
use install::Catalogue;

/// Maximum length of a description in the table, in characters.
const MAX_DESCRIPTION_CHARS: usize = 100;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Words in the name or the description. Without any, all servers are listed.
    words: Vec<String>,
    /// Only this registry: `built-in`, a name under `[registries]` in toolwharf.toml, or a URL.
    #[arg(long, value_name = "NAME|URL")]
    registry: Option<String>,
    /// The maximum number of servers.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 100, allow_negative_numbers = true, value_parser = |text: &str| values::lines_in(text, 1..=1000))]
    lines: u32,
}

pub(super) async fn run(context: &Context, args: Args) -> anyhow::Result<()> {
    let words = args.words.join(" ");
    let registry = args.registry.as_deref();
    let found = match context.place().await? {
        Place::Gateway(api) => {
            let limit = args.lines.to_string();
            let filter = [
                ("search", Some(&*words)),
                ("registry", registry),
                ("limit", Some(&*limit)),
            ];
            api.get(&(path(&["registry", "servers"]) + &query(&filter)))
                .await?
        }
        Place::Files(sources) => {
            let mut settings = startup::settings(&sources)?;
            settings.data_dir = context.reach.data_dir.clone().or(settings.data_dir);
            let data_dir = config::data_dir(&settings, &startup::env)?;
            let catalogue = Catalogue::new(&data_dir);
            let (mut servers, mut notices) = catalogue
                .search(&settings.registries, registry, &words)
                .await?;
            if servers.len() > args.lines as usize {
                servers.truncate(args.lines as usize);
                notices.push("there are more servers; a larger --lines shows them".to_owned());
            }
            RegistryServers {
                servers,
                next: None,
                notices,
            }
        }
    };
    if found.servers.is_empty() {
        eprintln!("no matching server found");
    }
    warn(&found.notices);
    if found.next.is_some() {
        eprintln!("there are more servers; a larger --lines shows them");
    }
    if context.output == Output::Json {
        return print::json(&found.servers);
    }
    if found.servers.is_empty() {
        return Ok(());
    }
    let head = ["NAME", "RUNS", "REGISTRY", "DESCRIPTION"];
    print::foreign(&print::table(head, found.servers.iter().map(cells)))
}

fn cells(server: &RegistryEntry) -> [String; 4] {
    let one_line = server
        .description
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    [
        server.name.clone(),
        server.runs.join(", "),
        server.registry.clone(),
        one_line.chars().take(MAX_DESCRIPTION_CHARS).collect(),
    ]
}
