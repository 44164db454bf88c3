//! Lists that come in pages: as many rows as are asked for, whatever a page holds.

use model::ProjectId;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{Context, Output, http, names, print};

/// Rows of one page.
const PAGE: usize = 500;

#[derive(clap::Args)]
pub(super) struct Lines {
    /// The number of rows.
    #[arg(long = "lines", short = 'n', value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    lines: u32,
}

/// One of a list.
#[derive(clap::Args)]
pub(super) struct Named {
    /// As `ls` shows it.
    pub(super) id: String,
    /// The project that it belongs to; optional for an administrator.
    #[arg(long, add = names::projects())]
    pub(super) project: Option<ProjectId>,
}

/// What the API answers when it is asked for a list.
#[derive(Deserialize)]
struct Page<T> {
    #[serde(
        alias = "calls",
        alias = "changes",
        alias = "conversations",
        alias = "events",
        alias = "keys",
        alias = "products",
        alias = "projects",
        alias = "runs",
        alias = "secrets",
        alias = "servers"
    )]
    rows: Vec<T>,
    /// Where the next one begins.
    next: Option<String>,
}

/// Rows of a list, from its beginning.
pub(super) struct Listed<T> {
    pub(super) rows: Vec<T>,
    /// There are older ones.
    more: bool,
}

/// The newest rows of the list at `path` that meet all conditions of `query`.
pub(super) async fn list<T: DeserializeOwned>(
    api: &http::Api,
    path: &str,
    query: &[(&str, Option<&str>)],
    lines: &Lines,
) -> anyhow::Result<Listed<T>> {
    rows(api, path, query, lines.lines as usize).await
}

/// All rows of the list at `path` that meet all conditions of `query`.
pub(super) async fn all<T: DeserializeOwned>(
    api: &http::Api,
    path: &str,
    query: &[(&str, Option<&str>)],
) -> anyhow::Result<Listed<T>> {
    rows(api, path, query, usize::MAX).await
}

async fn rows<T: DeserializeOwned>(
    api: &http::Api,
    path: &str,
    query: &[(&str, Option<&str>)],
    wanted: usize,
) -> anyhow::Result<Listed<T>> {
    let mut rows: Vec<T> = Vec::new();
    let mut next: Option<String> = None;
    loop {
        let limit = (wanted - rows.len()).min(PAGE).to_string();
        let page = [("limit", Some(limit.as_str())), ("after", next.as_deref())];
        let page: Page<T> = api
            .get(&(path.to_owned() + &http::query(&[&page, query].concat())))
            .await?;
        rows.extend(page.rows);
        next = page.next;
        if next.is_none() || rows.len() >= wanted {
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
