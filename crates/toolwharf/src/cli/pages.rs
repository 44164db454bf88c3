//! Paged lists of the API, read up to the requested number of rows.

use anyhow::Context as _;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use super::{Context, Output, http, print, values};

const PAGE_ROWS: usize = 500;

#[derive(clap::Args)]
pub(super) struct Lines {
    /// The maximum number of rows.
    #[arg(long = "lines", short = 'n', value_name = "N", default_value_t = 50, allow_negative_numbers = true, value_parser = values::lines)]
    lines: u32,
}

/// The first rows of a list.
pub(super) struct Listed<T> {
    pub(super) rows: Vec<T>,
    /// Whether there are older rows.
    more: bool,
}

/// Returns the newest rows of the list at `path`. The fields of `filter` are the query parameters; fields without a
/// value are omitted.
pub(super) async fn list<T: DeserializeOwned>(
    api: &http::Api,
    path: &str,
    filter: &impl Serialize,
    lines: &Lines,
) -> anyhow::Result<Listed<T>> {
    rows(api, path, filter, lines.lines as usize).await
}

/// Returns all rows of the list at `path`.
pub(super) async fn all<T: DeserializeOwned>(
    api: &http::Api,
    path: &str,
    filter: &impl Serialize,
) -> anyhow::Result<Listed<T>> {
    rows(api, path, filter, usize::MAX).await
}

async fn rows<T: DeserializeOwned>(
    api: &http::Api,
    path: &str,
    filter: &impl Serialize,
    wanted: usize,
) -> anyhow::Result<Listed<T>> {
    let filter = serde_json::to_value(filter)?;
    let filter = filter.as_object().into_iter().flatten();
    let filter: Vec<_> = filter
        .map(|(key, value)| (&**key, value.as_str()))
        .collect();
    // The response has the list in a member that is named like the last segment of the path.
    let name = path.rsplit('/').next().unwrap_or_default();
    let mut rows: Vec<T> = Vec::new();
    let mut next: Option<String> = None;
    loop {
        let limit = (wanted - rows.len()).min(PAGE_ROWS).to_string();
        let page = [("limit", Some(limit.as_str())), ("after", next.as_deref())];
        let query = http::query(&[&page, &*filter].concat());
        let mut page: Map<String, Value> = api.get(&format!("{path}{query}")).await?;
        let more = page.remove(name).unwrap_or_default();
        let more: Vec<T> = serde_json::from_value(more).with_context(|| {
            format!("cannot read the list of {name}: the gateway may run another version")
        })?;
        rows.extend(more);
        next = page
            .remove("next")
            .and_then(|next| next.as_str().map(str::to_owned));
        if next.is_none() || rows.len() >= wanted {
            let more = next.is_some();
            return Ok(Listed { rows, more });
        }
    }
}

impl<T: Serialize> Listed<T> {
    /// A list that has no more rows than these.
    pub(super) fn whole(rows: Vec<T>) -> Self {
        Self { rows, more: false }
    }

    /// Prints a table of the rows. Prints `none` to stderr if there are no rows.
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
            eprintln!("there are older rows; a larger --lines shows them");
        }
        print::data(&print::table(head, self.rows.iter().map(cells)))
    }
}
