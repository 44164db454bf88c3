//! Requests to registries, limited in size and time. Only downloads follow redirects. A cache on disk makes known
//! entries available while their registry is unreachable.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_client::{Client, Options};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::{
    fs,
    sync::{OwnedSemaphorePermit, Semaphore},
};
use url::{Host, Url};

/// Maximum bytes of a response. A whole registry in one file takes several megabytes.
const MAX_RESPONSE_BYTES: usize = 16 << 20;
const MAX_DEPTH: usize = 64;
/// Maximum values in a response. Each takes about a hundred bytes of memory, and as few as two in the response.
const MAX_VALUES: usize = 1_000_000;
/// Maximum parsed responses in memory, over all callers.
const MAX_PARSED_RESPONSES: usize = 2;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
const DOWNLOAD_TIMEOUT: Duration = Duration::from_secs(300);
/// Cached files younger than this are used without a request.
const CACHE_TTL: Duration = Duration::from_secs(60);
/// Maximum total bytes of the cache.
const MAX_CACHE_BYTES: u64 = 128 << 20;
/// Maximum redirects of a download. Release files are often on another host than their URL.
const MAX_REDIRECTS: usize = 5;

pub(super) struct Fetcher {
    http: Client,
    public_http: Client,
    cache: PathBuf,
    fresh: Duration,
    parsing: Arc<Semaphore>,
}

/// A response. `stale`: why an old response was taken from the cache; `None` if the response is current.
pub(super) struct Answer {
    pub(super) json: Value,
    pub(super) stale: Option<String>,
    /// The permit for a parsed response in memory. Its holder must not wait for another permit, because then all
    /// holders could block each other.
    _turn: Option<OwnedSemaphorePermit>,
}

/// The first line of a cache file. The rest is the response.
#[derive(Serialize, Deserialize)]
struct Head {
    url: String,
    etag: Option<String>,
}

struct Cached {
    etag: Option<String>,
    body: Bytes,
    age: Duration,
}

/// Returns true for URLs of this machine.
pub(super) fn is_local(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        None => false,
    }
}

impl Fetcher {
    pub(super) fn new(cache: PathBuf) -> Self {
        Self {
            http: Client::new(Options::guarded(false)),
            public_http: Client::new(Options::guarded(true)),
            cache,
            fresh: CACHE_TTL,
            parsing: Arc::new(Semaphore::new(MAX_PARSED_RESPONSES)),
        }
    }

    #[cfg(test)]
    pub(super) fn never_fresh(mut self) -> Self {
        self.fresh = Duration::ZERO;
        self
    }

    /// Fetches a JSON document; `None` if the registry returned 404.
    ///
    /// # Errors
    /// Why it is neither available from the registry nor in the cache.
    pub(super) async fn json(&self, url: &Url) -> Result<Option<Answer>, String> {
        let file = self.cache.join(model::sha256_hex(url.as_str()));
        let cached = read(&file, url).await;
        if let Some(cached) = cached.as_ref().filter(|cached| cached.age < self.fresh) {
            return self.answer(&cached.body, None).await.map(Some);
        }
        let shown = model::url_for_display(url.as_str());
        let etag = cached.as_ref().and_then(|cached| cached.etag.as_deref());
        let failed = match self.ask(url, etag).await {
            Ok((StatusCode::NOT_MODIFIED, ..)) if cached.is_some() => None,
            Ok((StatusCode::NOT_FOUND, ..)) => return Ok(None),
            Ok((StatusCode::OK, etag, body)) => match self.answer(&body, None).await {
                Ok(answer) => {
                    if let Err(error) = self.keep(&file, url, etag, &body).await {
                        tracing::warn!("cannot cache the response of {shown}: {error}");
                    }
                    return Ok(Some(answer));
                }
                Err(why) => Some(why),
            },
            Ok((status, ..)) => Some(format!("it answered {status}")),
            Err(why) => Some(why),
        };
        let Some(cached) = cached else {
            return Err(format!("{shown}: {}", failed.unwrap_or_default()));
        };
        if failed.is_none() {
            // The registry answered that the document is unchanged.
            let _ = self.keep(&file, url, cached.etag, &cached.body).await;
        }
        let stale = failed.map(|why| {
            format!(
                "{shown}: {why}; this is its cached response from {}",
                ago(cached.age)
            )
        });
        self.answer(&cached.body, stale).await.map(Some)
    }

    /// Parses a response, after waiting until fewer than [`MAX_PARSED_RESPONSES`] are in memory.
    async fn answer(&self, body: &[u8], stale: Option<String>) -> Result<Answer, String> {
        let turn = self.parsing.clone().acquire_owned().await.ok();
        Ok(Answer {
            json: parsed(body)?,
            stale,
            _turn: turn,
        })
    }

    async fn ask(
        &self,
        url: &Url,
        etag: Option<&str>,
    ) -> Result<(StatusCode, Option<String>, Bytes), String> {
        let mut request = Request::builder()
            .uri(url.as_str())
            .header(header::ACCEPT, "application/json")
            .header(
                header::USER_AGENT,
                concat!("toolwharf/", env!("CARGO_PKG_VERSION")),
            );
        if let Some(etag) = etag {
            request = request.header(header::IF_NONE_MATCH, etag);
        }
        let request = request.body(Bytes::new()).map_err(|_| "invalid URL")?;
        let answer = self
            .http
            .fetch(request, MAX_RESPONSE_BYTES, REQUEST_TIMEOUT)
            .await?;
        let etag = answer.headers().get(header::ETAG);
        let etag = etag.and_then(|etag| etag.to_str().ok()).map(str::to_owned);
        Ok((answer.status(), etag, answer.into_body()))
    }

    /// Downloads a file of at most `max` bytes to `into`. `at_home`: an origin whose addresses may be private; all
    /// other hosts must be public and use https.
    ///
    /// # Errors
    /// Why the download failed.
    pub(super) async fn download(
        &self,
        url: &str,
        at_home: Option<&Url>,
        max: usize,
        into: &mut fs::File,
    ) -> Result<(), String> {
        let first = model::url_for_display(url);
        let mut url = Url::parse(url).map_err(|_| format!("{first} is not a valid URL"))?;
        for _ in 0..=MAX_REDIRECTS {
            let is_home = at_home.is_some_and(|home| home.origin() == url.origin());
            let shown = model::url_for_display(url.as_str());
            if !is_home && url.scheme() != "https" {
                return Err(format!("{shown} does not use https"));
            }
            let request = Request::builder().uri(url.as_str()).body(Bytes::new());
            let request = request.map_err(|_| format!("{shown} is not a valid URL"))?;
            let http = match is_home {
                true => &self.http,
                false => &self.public_http,
            };
            let answer = http.fetch_into(request, max, DOWNLOAD_TIMEOUT, into).await;
            let answer = answer.map_err(|why| format!("{shown}: {why}"))?;
            let next = answer
                .headers()
                .get(header::LOCATION)
                .filter(|_| answer.status().is_redirection());
            let Some(next) = next.and_then(|next| next.to_str().ok()) else {
                return match answer.status() {
                    StatusCode::OK => Ok(()),
                    status => Err(format!("{shown} answered {status}")),
                };
            };
            url = url
                .join(next)
                .map_err(|_| format!("{shown} redirects to an invalid URL"))?;
        }
        Err(format!(
            "{first} is redirected more than {MAX_REDIRECTS} times"
        ))
    }

    async fn keep(
        &self,
        file: &Path,
        url: &Url,
        etag: Option<String>,
        body: &[u8],
    ) -> io::Result<()> {
        fs::create_dir_all(&self.cache).await?;
        let head = Head {
            url: url.to_string(),
            etag,
        };
        let mut text = serde_json::to_vec(&head)?;
        text.push(b'\n');
        text.extend_from_slice(body);
        let random: [u8; 8] = rand::random();
        let stage = file.with_extension(hex::encode(random));
        fs::write(&stage, text).await?;
        fs::rename(&stage, file).await?;
        self.prune(file).await
    }

    /// Removes the oldest files until the cache is within its limit.
    async fn prune(&self, kept: &Path) -> io::Result<()> {
        let mut all = Vec::new();
        let mut entries = fs::read_dir(&self.cache).await?;
        while let Some(entry) = entries.next_entry().await? {
            if let Ok(meta) = entry.metadata().await {
                all.push((meta.modified()?, meta.len(), entry.path()));
            }
        }
        let mut total: u64 = all.iter().map(|(_, size, _)| size).sum();
        all.sort();
        for (_, size, path) in all.into_iter().filter(|(.., path)| path != kept) {
            if total <= MAX_CACHE_BYTES {
                break;
            }
            fs::remove_file(path).await?;
            total -= size;
        }
        Ok(())
    }
}

async fn read(file: &Path, url: &Url) -> Option<Cached> {
    let text = fs::read(file).await.ok()?;
    let age = fs::metadata(file).await.ok()?.modified().ok()?;
    let end = text.iter().position(|&byte| byte == b'\n')?;
    let head: Head = serde_json::from_slice(&text[..end]).ok()?;
    (head.url == url.as_str()).then(|| Cached {
        etag: head.etag,
        body: Bytes::from(text).slice(end + 1..),
        age: SystemTime::now().duration_since(age).unwrap_or_default(),
    })
}

fn parsed(body: &[u8]) -> Result<Value, String> {
    let valid = mcp::json::validate(body, MAX_DEPTH);
    valid.map_err(|fault| format!("its response is not valid JSON: {fault}"))?;
    if values(body) > MAX_VALUES {
        return Err(format!("its JSON has more than {MAX_VALUES} values"));
    }
    serde_json::from_slice(body).map_err(|error| format!("its response is not valid JSON: {error}"))
}

/// An upper bound for the number of values in a JSON text: each value except the first follows one of these characters.
fn values(body: &[u8]) -> usize {
    let (mut count, mut in_text, mut is_escaped) = (1, false, false);
    for byte in body {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_text => is_escaped = true,
            b'"' => in_text = !in_text,
            b',' | b'[' | b'{' if !in_text => count += 1,
            _ => {}
        }
    }
    count
}

fn ago(age: Duration) -> String {
    match age.as_secs() {
        seconds @ 0..120 => format!("{seconds} s ago"),
        seconds @ 120..7200 => format!("{} min ago", seconds / 60),
        seconds => format!("{} h ago", seconds / 3600),
    }
}
