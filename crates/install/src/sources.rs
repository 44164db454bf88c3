//! The registries and their entries: the built-in catalogue, the official API (v0.1), and files in ToolHive's format.
//!
//! Invariant: only registries named in the settings or by an administrator are contacted. The built-in catalogue comes
//! first; entries found there are not searched elsewhere.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
    time::Duration,
};

use api::{RegistryEntry, RegistryServer, Wrong};
use futures_util::future::join_all;
use model::url_for_display;
use serde_json::Value;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    task::spawn_blocking,
};
use url::Url;

use super::{
    bundle,
    document::{self, Document, MAX_ENTRY_BYTES},
    fetch::{Fetcher, is_local},
    plan::{self, Kind, Plan},
};

/// The registry that is part of the binary.
const BUILT_IN: &str = "built-in";
/// The registry of the MCP project. It is contacted only if the settings name it.
const OFFICIAL_URL: &str = "https://registry.modelcontextprotocol.io";
/// Rows of a page, and maximum pages of one search.
const PAGE_ROWS: usize = 100;
const MAX_PAGES: usize = 10;
/// Maximum entries of a registry that is one file.
const MAX_ENTRIES: usize = 20_000;
/// Timeout for all pages of one registry.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum characters of a search word.
const MAX_WORD_CHARS: usize = 100;
/// Unused bundles to keep, since a user may be looking at their forms.
const MAX_UNUSED_BUNDLES: usize = 8;
/// Maximum concurrent installations. Each runs npm or uv, and a server.
const MAX_INSTALLATIONS: usize = 2;
/// Maximum bundles that are downloaded or inspected concurrently, over all callers. Each download takes up to 128 MiB
/// on disk.
const MAX_INSPECTIONS: usize = 16;
/// Maximum time that a downloaded bundle waits for its inspection. One inspection runs at a time, because it reads the
/// whole file into memory.
const INSPECTION_WAIT: Duration = Duration::from_secs(60);

static CATALOGUE: LazyLock<Vec<Value>> = LazyLock::new(|| {
    let text = include_str!("catalogue.json");
    serde_json::from_str(text).expect("catalogue.json is a list, as its test says")
});

/// The registries, and the bundles unpacked from them.
pub struct Catalogue {
    fetcher: Fetcher,
    bundles: PathBuf,
    turns: Semaphore,
    /// Limits the bundles that are downloaded or inspected.
    inspections: Semaphore,
    /// Held by the running inspection.
    inspector: Arc<Semaphore>,
}

/// A validated registry entry.
pub struct Listing {
    pub document: Document,
    pub digest: String,
    registry: String,
    /// The URL of its registry; `None` for the built-in catalogue.
    url: Option<Url>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "there is no registry `{0}`: use a name from `[registries]` in toolwharf.toml, `built-in`, or a URL"
    )]
    NoRegistry(String),
    #[error(
        "`{0}` is not a valid registry URL: use `https://…` (or `http://…` on this machine) without credentials or a query"
    )]
    Url(String),
    #[error("no registry lists `{0}`; find names with `toolwharf search WORD`{1}")]
    NotFound(String, String),
    #[error(
        "several registries or publishers have `{0}`: {1}; give the full name, and the registry with `--registry`"
    )]
    Ambiguous(String, String),
    #[error("{0}")]
    Down(String),
    #[error("the entry `{0}` is refused")]
    Unfit(String, Vec<Wrong>),
}

#[derive(Clone)]
enum Source {
    BuiltIn,
    Elsewhere { name: String, url: Url },
}

/// Entries that were found, with notices for the user.
#[derive(Default)]
struct Found {
    listings: Vec<Listing>,
    notices: Vec<String>,
}

impl Catalogue {
    pub fn new(data_dir: &Path) -> Self {
        Self {
            fetcher: Fetcher::new(data_dir.join("registries")),
            bundles: data_dir.join("bundles"),
            turns: Semaphore::new(MAX_INSTALLATIONS),
            inspections: Semaphore::new(MAX_INSPECTIONS),
            inspector: Arc::new(Semaphore::new(1)),
        }
    }

    #[cfg(test)]
    pub(super) fn never_fresh(data_dir: &Path) -> Self {
        let new = Self::new(data_dir);
        Self {
            fetcher: new.fetcher.never_fresh(),
            ..new
        }
    }

    /// Waits until another installation may start.
    pub async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        self.turns.acquire().await.ok()
    }

    /// Searches for entries that contain the words of `word`, sorted by name. Also returns notices about registries
    /// that failed. `asked`: the name of one registry, or a URL.
    ///
    /// # Errors
    /// If the registry is unknown.
    pub async fn search(
        &self,
        known: &BTreeMap<String, String>,
        asked: Option<&str>,
        word: &str,
    ) -> Result<(Vec<RegistryEntry>, Vec<String>), Error> {
        let word: String = word.trim().chars().take(MAX_WORD_CHARS).collect();
        let sources = chosen(known, asked)?;
        let looks = sources.iter().map(|source| self.list(source, &word));
        let mut servers = Vec::new();
        let mut notices = Vec::new();
        for found in join_all(looks).await {
            servers.extend(found.listings.iter().map(Listing::entry));
            notices.extend(found.notices);
        }
        servers.sort_by(|one: &RegistryEntry, other| {
            (&one.name, &one.registry).cmp(&(&other.name, &other.registry))
        });
        if servers.is_empty() {
            notices.extend(official_hint(known));
        }
        Ok((servers, notices))
    }

    /// Finds an entry by name. The part after the `/` suffices if only one entry has it.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn get(
        &self,
        known: &BTreeMap<String, String>,
        asked: Option<&str>,
        name: &str,
    ) -> Result<Listing, Error> {
        let shown: String = name.chars().take(MAX_WORD_CHARS).collect();
        if !document::is_name(name) && !document::is_name(&format!("a/{name}")) {
            return Err(Error::NotFound(shown, String::new()));
        }
        let mut found: Vec<Listing> = Vec::new();
        let mut down = None;
        for source in chosen(known, asked)? {
            match self.look(&source, name).await {
                Ok(mut listings) => found.append(&mut listings),
                Err(Error::Down(why)) => down = Some(why),
                Err(error) => return Err(error),
            }
            if matches!(source, Source::BuiltIn) && !found.is_empty() {
                break;
            }
        }
        match (found.len(), down) {
            (0, Some(why)) => Err(Error::Down(why)),
            (0, None) => {
                let hint = official_hint(known).map(|hint| format!(". {hint}"));
                Err(Error::NotFound(shown, hint.unwrap_or_default()))
            }
            (1, _) => Ok(found.remove(0)),
            _ => {
                let names: Vec<String> = found
                    .iter()
                    .take(10)
                    .map(|it| format!("{} ({})", it.document.name, it.registry))
                    .collect();
                Err(Error::Ambiguous(shown, names.join(", ")))
            }
        }
    }

    async fn look(&self, source: &Source, name: &str) -> Result<Vec<Listing>, Error> {
        let Source::Elsewhere {
            name: registry,
            url,
        } = source
        else {
            return matching(CATALOGUE.iter(), source, name);
        };
        if is_file(url) {
            let answer = self.fetcher.json(url).await.map_err(Error::Down)?;
            let items = answer.map(|answer| items(&answer.json)).unwrap_or_default();
            return matching(items.iter(), source, name);
        }
        if !name.contains('/') {
            let found = self.list(source, name).await;
            let is_it = |listing: &Listing| listing.document.name.split('/').nth(1) == Some(name);
            return Ok(found.listings.into_iter().filter(is_it).collect());
        }
        let of_name = below(url, &["servers", name, "versions", "latest"]);
        let answer = self.fetcher.json(&of_name).await.map_err(Error::Down)?;
        let Some(answer) = answer else {
            return Ok(Vec::new());
        };
        let (entry, is_there) = unwrapped(&answer.json);
        if !is_there {
            return Ok(Vec::new());
        }
        let listing = Listing::read(entry, source)?;
        if listing.document.name != name {
            return Err(Error::Down(format!(
                "registry `{registry}` returned another entry instead of `{name}`"
            )));
        }
        Ok(vec![listing])
    }

    async fn list(&self, source: &Source, word: &str) -> Found {
        let Source::Elsewhere { name, url } = source else {
            return readable(CATALOGUE.iter(), source, word);
        };
        let pages = async {
            let mut found = Found::default();
            if is_file(url) {
                match self.fetcher.json(url).await {
                    Ok(Some(answer)) => {
                        found = readable(items(&answer.json).iter(), source, word);
                        found.notices.extend(answer.stale);
                    }
                    Ok(None) => found
                        .notices
                        .push(format!("registry `{name}`: its URL returned HTTP 404")),
                    Err(why) => found.notices.push(format!("registry `{name}`: {why}")),
                }
                return found;
            }
            let mut cursor: Option<String> = None;
            for page in 1.. {
                let mut at = below(url, &["servers"]);
                at.query_pairs_mut()
                    .append_pair("version", "latest")
                    .append_pair("limit", &PAGE_ROWS.to_string());
                for (key, value) in [
                    ("search", (!word.is_empty()).then_some(word)),
                    ("cursor", cursor.as_deref()),
                ] {
                    if let Some(value) = value {
                        at.query_pairs_mut().append_pair(key, value);
                    }
                }
                let answer = match self.fetcher.json(&at).await {
                    Ok(Some(answer)) => answer,
                    Ok(None) => {
                        found.notices.push(format!(
                            "registry `{name}`: its URL does not serve the registry API (HTTP 404)"
                        ));
                        break;
                    }
                    Err(why) => {
                        found.notices.push(format!("registry `{name}`: {why}"));
                        break;
                    }
                };
                // The registry's own search has matched these entries, perhaps in fields that are not checked here.
                let more = readable(items(&answer.json).iter().take(PAGE_ROWS), source, "");
                found.listings.extend(more.listings);
                found.notices.extend(more.notices);
                found
                    .notices
                    .extend(answer.stale.map(|why| format!("registry `{name}`: {why}")));
                let next = answer.json["metadata"]["nextCursor"]
                    .as_str()
                    .filter(|next| !next.is_empty() && next.len() <= 1000);
                if next.is_none() || next == cursor.as_deref() {
                    break;
                }
                cursor = next.map(str::to_owned);
                if page == MAX_PAGES {
                    found.notices.push(format!(
                        "registry `{name}` has more matches than these {} entries; narrow the search",
                        found.listings.len()
                    ));
                    break;
                }
            }
            found
        };
        tokio::time::timeout(SEARCH_TIMEOUT, pages)
            .await
            .unwrap_or_else(|_| Found {
                notices: vec![format!(
                    "registry `{name}` did not return all pages within {} s",
                    SEARCH_TIMEOUT.as_secs()
                )],
                ..Found::default()
            })
    }

    /// The installation plans of an entry. Downloads and unpacks bundles if necessary.
    pub async fn plans(&self, listing: &Listing) -> Vec<Plan> {
        let mut plans = plan::plans(&listing.document);
        for plan in &mut plans {
            plan.listed_by(listing.url.as_ref());
            if plan.kind == Kind::Mcpb && plan.refused.is_empty() {
                match self.bundle(plan, listing.url.as_ref()).await {
                    Ok(folder) => plan.unpacked(folder),
                    Err(why) => plan.refused.push(Wrong::new("/packages/identifier", why)),
                }
            }
        }
        plans.sort_by_key(|plan| !plan.refused.is_empty());
        plans
    }

    /// Removes unused bundles: the bundle `only`, or all except the most recently used ones.
    pub async fn prune_bundles(&self, used: String, only: Option<String>) {
        let bundles = self.bundles.clone();
        let pruned = spawn_blocking(move || match only {
            Some(only) => bundle::prune(&bundles, |name| name != only || used.contains(name), 0),
            None => bundle::prune(&bundles, |name| used.contains(name), MAX_UNUSED_BUNDLES),
        });
        let _ = pruned.await;
    }

    async fn bundle(&self, plan: &Plan, home: Option<&Url>) -> Result<PathBuf, String> {
        let sha256 = plan.sha256.clone().unwrap_or_default();
        let folder = bundle::folder(&self.bundles, &sha256);
        if bundle::is_there(&folder) {
            return Ok(folder);
        }
        let room = self.inspections.try_acquire();
        let _room = room.map_err(|_| {
            format!("the bundle cannot be inspected now: {MAX_INSPECTIONS} other bundles are being inspected; try again later")
        })?;
        let bundles = self.bundles.clone();
        let shown = self.bundles.display();
        let disk = |error: io::Error| format!("the bundle cannot be written to {shown}: {error}");
        let file = spawn_blocking(move || bundle::download_file(&bundles));
        let file = file.await.map_err(|error| disk(error.into()))?;
        let mut file = tokio::fs::File::from_std(file.map_err(disk)?);
        let (url, max) = (&plan.target, bundle::MAX_FILE_BYTES);
        self.fetcher.download(url, home, max, &mut file).await?;
        let file = file.into_std().await;
        // The permit is taken after the download, so that a slow source does not delay other bundles.
        let turn = tokio::time::timeout(INSPECTION_WAIT, self.inspector.clone().acquire_owned());
        let Ok(Ok(turn)) = turn.await else {
            let waited = INSPECTION_WAIT.as_secs();
            return Err(format!(
                "the bundle cannot be inspected now: other bundles took longer than {waited} s; try again later"
            ));
        };
        let bundles = self.bundles.clone();
        let unpacked = spawn_blocking(move || {
            // The permit is moved into this closure, because unpacking continues even if the caller is gone.
            let _turn = turn;
            bundle::unpack_file(&bundles, &sha256, file)
        });
        unpacked
            .await
            .unwrap_or_else(|_| Err("unpacking the bundle was interrupted; try again".to_owned()))
    }
}

impl Listing {
    fn read(entry: &Value, source: &Source) -> Result<Self, Error> {
        let name = || {
            entry["name"]
                .as_str()
                .unwrap_or("?")
                .escape_debug()
                .take(MAX_WORD_CHARS)
                .collect::<String>()
        };
        let text = entry.to_string();
        if text.len() > MAX_ENTRY_BYTES {
            let wrong = Wrong::new("", format!("is over {} KiB", MAX_ENTRY_BYTES >> 10));
            return Err(Error::Unfit(name(), vec![wrong]));
        }
        let document = Document::read(entry).map_err(|wrong| Error::Unfit(name(), wrong))?;
        let (registry, url) = match source {
            Source::BuiltIn => (BUILT_IN.to_owned(), None),
            Source::Elsewhere { name, url } => (name.clone(), Some(url.clone())),
        };
        let digest = model::sha256_hex(text);
        Ok(Self {
            document,
            digest,
            registry,
            url,
        })
    }

    fn entry(&self) -> RegistryEntry {
        let document = &self.document;
        RegistryEntry {
            name: document.name.clone(),
            title: document.title.clone(),
            description: document.description.clone(),
            version: document.version.clone(),
            registry: self.registry.clone(),
            runs: plan::runs(document),
        }
    }

    /// The entry as returned by the API.
    pub fn to_api(&self, plans: &[Plan]) -> RegistryServer {
        let repository = self.document.repository.as_ref();
        RegistryServer {
            entry: self.entry(),
            website: self.document.website_url.clone().filter(|url| is_web(url)),
            repository: repository
                .and_then(|it| it.url.clone())
                .filter(|url| is_web(url)),
            checked: self.checked().map(str::to_owned),
            digest: self.digest.clone(),
            options: plans.iter().map(Plan::to_api).collect(),
        }
    }

    /// The date on which the source was checked. Only the built-in catalogue says so.
    fn checked(&self) -> Option<&str> {
        let own = &self.document.meta[document::PUBLISHER]["dev.toolwharf"];
        own["checked"].as_str().filter(|_| self.url.is_none())
    }

    fn has(&self, word: &str) -> bool {
        let document = &self.document;
        let text = [
            &document.name,
            document.title.as_ref().unwrap_or(&document.name),
            &document.description,
        ];
        let text = text.map(|text| text.to_lowercase()).join("\n");
        word.to_lowercase()
            .split_whitespace()
            .all(|word| text.contains(word))
    }
}

/// Says how to search the official registry, unless it is searched already.
fn official_hint(known: &BTreeMap<String, String>) -> Option<String> {
    let is_known = known.values().any(|url| url.starts_with(OFFICIAL_URL));
    let hint = format!(
        "The official registry is not searched. To search it too, add this to toolwharf.toml: [registries.official] \
         and, on the next line, url = \"{OFFICIAL_URL}\""
    );
    (!is_known).then_some(hint)
}

/// Returns true for links that a page may show.
fn is_web(url: &str) -> bool {
    url.starts_with("https://")
}

fn chosen(known: &BTreeMap<String, String>, asked: Option<&str>) -> Result<Vec<Source>, Error> {
    let of = |name: &str, url: &str| {
        let bad = || Error::Url(url_for_display(url));
        let parsed = Url::parse(url).map_err(|_| bad())?;
        let is_fine = parsed.scheme() == "https" || parsed.scheme() == "http" && is_local(&parsed);
        let has_secret = !parsed.username().is_empty()
            || parsed.password().is_some()
            || parsed.query().is_some();
        if !is_fine || has_secret || parsed.host().is_none() {
            return Err(bad());
        }
        Ok(Source::Elsewhere {
            name: name.to_owned(),
            url: parsed,
        })
    };
    match asked.filter(|asked| !asked.is_empty()) {
        None => {
            let all = known.iter().map(|(name, url)| of(name, url));
            [Ok(Source::BuiltIn)].into_iter().chain(all).collect()
        }
        Some(BUILT_IN) => Ok(vec![Source::BuiltIn]),
        Some(url) if url.contains("://") => Ok(vec![of(&url_for_display(url), url)?]),
        Some(name) => match known.get(name) {
            Some(url) => Ok(vec![of(name, url)?]),
            None => Err(Error::NoRegistry(
                name.chars().take(MAX_WORD_CHARS).collect(),
            )),
        },
    }
}

/// Returns true if a registry is a single file, not an API.
fn is_file(url: &Url) -> bool {
    url.path().ends_with(".json")
}

/// The URL of an API resource.
fn below(url: &Url, parts: &[&str]) -> Url {
    let mut url = url.clone();
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().push("v0.1").extend(parts);
    }
    url
}

/// The entries of a page or a file.
fn items(answer: &Value) -> Vec<Value> {
    let lists = [&answer["servers"], &answer["data"]["servers"]];
    let all = lists.into_iter().filter_map(Value::as_array).flatten();
    let there = all
        .take(MAX_ENTRIES)
        .map(unwrapped)
        .filter(|(_, is_there)| *is_there);
    there.map(|(entry, _)| entry.clone()).collect()
}

/// Returns the entry itself, and true if the registry still lists it.
fn unwrapped(item: &Value) -> (&Value, bool) {
    let official = &item["_meta"]["io.modelcontextprotocol.registry/official"];
    let is_there = official["status"] != "deleted" && official["isLatest"] != false;
    match item.get("server") {
        Some(entry) => (entry, is_there),
        None => (item, is_there),
    }
}

/// The valid entries that contain the words. A notice reports the number of invalid ones.
fn readable<'e>(items: impl Iterator<Item = &'e Value>, source: &Source, word: &str) -> Found {
    let mut found = Found::default();
    let mut refused = Vec::new();
    for item in items {
        match Listing::read(item, source) {
            Ok(listing) if listing.has(word) => found.listings.push(listing),
            Ok(_) => {}
            Err(error) => refused.push(error),
        }
    }
    if let Some(Error::Unfit(name, wrong)) = refused.first() {
        let place = wrong
            .first()
            .map(|wrong| format!(": `{}` {}", wrong.pointer, wrong.detail));
        let place = place.unwrap_or_default();
        let count = refused.len();
        let registry = match source {
            Source::BuiltIn => BUILT_IN,
            Source::Elsewhere { name, .. } => name.as_str(),
        };
        found.notices.push(format!(
            "registry `{registry}`: {count} of its entries cannot be used; the first is `{name}`{place}"
        ));
    }
    found
}

/// Returns the entries with this name, or with this last part of a name.
fn matching<'e>(
    items: impl Iterator<Item = &'e Value>,
    source: &Source,
    name: &str,
) -> Result<Vec<Listing>, Error> {
    let is_it = |item: &&Value| {
        let own = item["name"].as_str().unwrap_or_default();
        own == name || own.split('/').nth(1) == Some(name)
    };
    items
        .filter(is_it)
        .map(|item| Listing::read(item, source))
        .collect()
}
