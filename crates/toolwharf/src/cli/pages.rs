//! Lists that come in pages, newest first: as many rows as are asked for, whatever a page holds.

use model::ProjectId;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{Context, Output, http, names, print};

/// Rows of one page.
const PAGE: usize = 500;

#[derive(clap::Args)]
pub(super) struct Lines {
    /// How many.
    #[arg(long = "lines", short = 'n', value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    lines: u32,
}

/// One of a list.
#[derive(clap::Args)]
pub(super) struct Named {
    /// As `ls` shows it.
    pub(super) id: String,
    /// The project that it is of; only an administrator can do without.
    #[arg(long, add = names::projects())]
    pub(super) project: Option<ProjectId>,
}

/// Where all things of a kind are, or one of them; those of a project, if one is named.
pub(super) fn of(project: Option<&ProjectId>, kind: &str, id: Option<&str>) -> String {
    let project = project.map(|project| ["projects", project.as_str()]);
    let mut segments: Vec<&str> = project.into_iter().flatten().collect();
    segments.push(kind);
    segments.extend(id);
    http::path(&segments)
}

/// What the API answers when it is asked for a list.
#[derive(Deserialize)]
struct Page<T> {
    #[serde(
        alias = "calls",
        alias = "conversations",
        alias = "events",
        alias = "runs"
    )]
    rows: Vec<T>,
    /// Where the next one begins.
    next: Option<String>,
}

/// The newest rows of a list.
pub(super) struct Listed<T> {
    rows: Vec<T>,
    /// There are older ones.
    more: bool,
}

/// The rows of the list at `path` that meet all conditions of `query`.
pub(super) async fn list<T: DeserializeOwned>(
    api: &http::Api,
    path: &str,
    query: &[(&str, Option<&str>)],
    lines: &Lines,
) -> anyhow::Result<Listed<T>> {
    let asked: String = query
        .iter()
        .filter_map(|(key, value)| Some(format!("&{key}={}", http::escaped((*value)?))))
        .collect();
    let lines = lines.lines as usize;
    let mut rows: Vec<T> = Vec::new();
    let mut next = None;
    loop {
        let limit = (lines - rows.len()).min(PAGE);
        let after = next.map_or_else(String::new, |next: String| {
            format!("&after={}", http::escaped(&next))
        });
        let page = format!("{path}?limit={limit}{asked}{after}");
        let page: Page<T> = api.get(&page).await?;
        rows.extend(page.rows);
        next = page.next;
        if next.is_none() || rows.len() >= lines {
            let more = next.is_some();
            return Ok(Listed { rows, more });
        }
    }
}

impl<T: Serialize> Listed<T> {
    /// Prints them, a line for each; `none` is said if there are none.
    pub(super) fn print<const N: usize>(
        &self,
        context: &Context,
        none: &str,
        head: [&'static str; N],
        cells: impl Fn(&T) -> [String; N],
    ) -> anyhow::Result<()> {
        if context.output == Output::Json {
            return print::json(&self.rows);
        }
        if self.rows.is_empty() {
            eprintln!("{none}");
        }
        if self.more {
            eprintln!("there are older ones; --lines shows more");
        }
        let cells: Vec<[String; N]> = self.rows.iter().map(cells).collect();
        print::data(&print::table(head, &cells))
    }
}
