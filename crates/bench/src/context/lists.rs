//! The length of the list of tools in each mode, as a client gets it.
//!
//! Tokens are estimated by [`discovery::tokens`], the rule that the gateway itself uses.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::value::RawValue;

use super::data::{Catalog, SIZES, Server};
use super::tables::Table;
use super::{MODES, SETTINGS, entries};
use crate::echo::Era;
use crate::run::client::{Client, result_of};
use crate::run::part::{Home, Part};
use crate::run::ready;

#[derive(serde::Deserialize)]
struct List<'a> {
    #[serde(borrow)]
    tools: &'a RawValue,
}

/// A gateway with the servers of a catalogue.
pub(super) struct Gateway {
    pub(super) part: Part,
    /// Owns the files of the servers.
    _folder: tempfile::TempDir,
}

impl Gateway {
    /// Starts a gateway with servers and the number of their tools, and waits until all are listed. `results`: the texts
    /// of results, by server and tool. `settings`: in addition to the usual ones.
    pub(super) async fn start(
        program: &Path,
        servers: &[(&Server, usize)],
        mut results: BTreeMap<String, BTreeMap<String, String>>,
        settings: &str,
    ) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut files = Vec::new();
        for (server, tools) in servers {
            let results = results.remove(&server.name).unwrap_or_default();
            files.push(server.write(*tools, results, folder.path())?);
        }
        let home = Home::new(&entries(&files)?, &format!("{SETTINGS}{settings}"))?;
        let count = servers.iter().map(|(_, tools)| tools).sum();
        let part = ready::gateway(program, &home, count).await?;
        Ok(Self {
            part,
            _folder: folder,
        })
    }

    /// Connects a client to a project of the settings.
    pub(super) async fn client(&self, mode: &str) -> anyhow::Result<Client> {
        Client::connect(&format!("{}/{mode}", self.part.url), Era::Legacy).await
    }

    /// Stops the gateway. Adds the end of its log to an error.
    pub(super) async fn finish<T>(self, done: anyhow::Result<T>) -> anyhow::Result<T> {
        self.part.finish(done).await
    }
}

/// The tokens of the list that a client gets.
pub(super) async fn listed(client: &mut Client) -> anyhow::Result<usize> {
    let answer = client.list(None).await?;
    let list: List = serde_json::from_str(result_of(&answer)?.get())?;
    Ok(discovery::tokens(list.tools.get().as_bytes()))
}

/// The lists of catalogues of several sizes.
pub(super) async fn measure(program: &Path, catalog: &Catalog) -> anyhow::Result<Table> {
    let mut table = Table::new(
        "lists",
        "Tokens of the list of tools (estimated: words, digits and marks are counted as byte pair encodings divide them; \
         within 1 % of o200k_base and cl100k_base over these definitions)",
        &[
            "tools",
            "servers",
            "`all`",
            "`search`",
            "`search` with `code`",
        ],
    );
    let sizes = SIZES.into_iter().filter(|size| *size < catalog.len());
    for size in sizes.chain([catalog.len()]) {
        eprintln!("lists of {size} tools …");
        let servers = catalog.taken(&BTreeSet::new(), size);
        let gateway = Gateway::start(program, &servers, BTreeMap::new(), "").await?;
        let measured = async {
            let mut cells = vec![size.to_string(), servers.len().to_string()];
            for mode in MODES {
                let mut client = gateway.client(mode).await?;
                cells.push(listed(&mut client).await?.to_string());
            }
            anyhow::Ok(cells)
        };
        let measured = measured.await;
        table.add(gateway.finish(measured).await?);
    }
    Ok(table)
}
