//! Fetches all pages of a list.

use std::{
    collections::HashSet,
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use bytes::Bytes;
use mcp::{
    Era, Kind as FrameKind, RpcError,
    chain::Behind,
    client::{CallError, Client},
    error::METHOD_NOT_FOUND,
    json::{self, Object, as_string},
};

use crate::{catalog::List, kind::ListKind};

/// Items kept per list. The rest is left out.
const MAX_ITEMS: usize = 20_000;
/// Bytes kept per list.
const MAX_BYTES: usize = 64 << 20;
/// Pages fetched per list.
const MAX_PAGES: usize = 1_000;
/// A list ends after this many pages in a row without a new item.
const MAX_STALE_PAGES: usize = 3;
/// Wall time limit for one page.
const PAGE_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a list could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("the server answered: {0}")]
    Rpc(RpcError),
    #[error("no answer within {} s", PAGE_TIMEOUT.as_secs())]
    Timeout,
    #[error("the answer has no array `{0}`")]
    Shape(&'static str),
}

/// Fetches all pages of a list. If the server is a gateway, also returns which gateways are behind it.
///
/// # Errors
/// [`FetchError`]; a server without the method has an empty list of prompts, resources or templates.
pub async fn fetch_list(
    client: &Client,
    kind: ListKind,
) -> Result<(List, Option<Behind>), FetchError> {
    let mut pages = Pages::new(kind, client.info().era);
    let mut behind = None;
    while let Some(members) = pages.request() {
        let asked = tokio::time::timeout(PAGE_TIMEOUT, client.ask(kind.method(), &members));
        let frame = asked.await.map_err(|_| FetchError::Timeout)??;
        if frame.kind() == FrameKind::Error {
            let error = RpcError::from_json(frame.body());
            // Some servers have resources but no templates.
            if error.code == METHOD_NOT_FOUND && kind != ListKind::Tools {
                break;
            }
            return Err(FetchError::Rpc(error));
        }
        let result = frame.object().ok_or(FetchError::Shape(kind.key()))?;
        behind = behind.or_else(|| Behind::of(&result));
        pages.take(frame.text(), &result)?;
    }
    let needs_headers = client.is_http() && client.info().era == Era::Modern;
    let mut list = List::of(kind, pages.raws, needs_headers);
    list.cut = pages.cut.map(Into::into);
    Ok((list, behind))
}

/// Collects the items of pages, and decides when a list ends.
struct Pages {
    kind: ListKind,
    era: Era,
    raws: Vec<Bytes>,
    bytes: usize,
    /// The cursor of the next page, as JSON text.
    cursor: Option<String>,
    is_over: bool,
    /// Hashes of the cursors followed so far, and of the items.
    followed: HashSet<u64>,
    known: HashSet<u64>,
    hasher: RandomState,
    count: usize,
    stale: usize,
    /// Why the list may be incomplete.
    cut: Option<String>,
}

impl Pages {
    fn new(kind: ListKind, era: Era) -> Self {
        Self {
            kind,
            era,
            raws: Vec::new(),
            bytes: 0,
            cursor: None,
            is_over: false,
            followed: HashSet::new(),
            known: HashSet::new(),
            hasher: RandomState::new(),
            count: 0,
            stale: 0,
            cut: None,
        }
    }

    /// The members of the `params` for the next page. `None` if the list has ended.
    fn request(&mut self) -> Option<String> {
        let cursor = self.cursor.take();
        let members = cursor.map(|cursor| format!("\"cursor\":{cursor}"));
        (!self.is_over).then(|| members.unwrap_or_default())
    }

    fn end(&mut self, why: String) {
        self.is_over = true;
        self.cut = Some(why);
    }

    fn take(&mut self, text: &Bytes, result: &Object<'_>) -> Result<(), FetchError> {
        let array = result
            .find(self.kind.key())
            .filter(|at| text[at.start] == b'[')
            .ok_or(FetchError::Shape(self.kind.key()))?;
        self.count += 1;
        let before = self.known.len();
        for span in json::elements(text, array) {
            self.bytes += span.len();
            if self.raws.len() >= MAX_ITEMS || self.bytes > MAX_BYTES {
                let kept = self.raws.len();
                self.end(format!(
                    "it is too long: only the first {kept} items are kept"
                ));
                return Ok(());
            }
            // Copied, so that one small item does not keep the whole page in memory.
            let raw = Bytes::copy_from_slice(&text[span]);
            let id = Object::of(&raw).and_then(|item| item.string(self.kind.id_key()));
            let identity = id.as_ref().map_or(&raw[..], |id| id.as_bytes());
            self.known.insert(self.hasher.hash_one(identity));
            self.raws.push(raw);
        }
        self.stale = match self.known.len() > before {
            true => 0,
            false => self.stale + 1,
        };
        let next = result.raw("nextCursor").filter(|cursor| *cursor != b"null");
        let Some(next) = next.map(|next| String::from_utf8_lossy(next).into_owned()) else {
            self.is_over = true;
            return Ok(());
        };
        let decoded = as_string(next.as_bytes());
        let is_empty = decoded.as_deref() == Some("");
        // A string and a number with the same text are different cursors.
        let key = (decoded.is_some(), decoded.as_deref().unwrap_or(&next));
        let is_new = self.followed.insert(self.hasher.hash_one(key));
        // In 2026-07-28, an empty string is a valid cursor. Before, it means that there is no next page.
        if is_empty && (self.era == Era::Legacy || !is_new) {
            self.is_over = true;
        } else if !is_new {
            self.end("its `nextCursor` leads back to a page that was fetched before".to_owned());
        } else if self.stale >= MAX_STALE_PAGES {
            self.end(format!("{MAX_STALE_PAGES} pages in a row had no new item"));
        } else if self.count >= MAX_PAGES {
            self.end(format!("it has more than {MAX_PAGES} pages"));
        } else {
            self.cursor = Some(next);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fetches a list whose pages come from `page`, which gets the cursor. Returns the requests, and the list.
    fn fetched(era: Era, page: impl Fn(&str) -> String) -> (Vec<String>, Pages) {
        let mut pages = Pages::new(ListKind::Tools, era);
        let mut asked = Vec::new();
        while let Some(members) = pages.request() {
            let text = Bytes::from(page(members.trim_start_matches("\"cursor\":")));
            asked.push(members);
            let result = Object::of(&text).expect("an object");
            pages.take(&text, &result).expect("a page");
        }
        (asked, pages)
    }

    fn page(names: &[usize], next: &str) -> String {
        let tools: Vec<String> = names
            .iter()
            .map(|n| format!("{{\"name\":\"t{n}\"}}"))
            .collect();
        format!("{{\"tools\":[{}]{next}}}", tools.join(","))
    }

    #[test]
    fn a_list_ends_where_it_says() {
        for next in ["", ",\"nextCursor\":null"] {
            let (asked, pages) = fetched(Era::Modern, |_| page(&[1], next));
            assert_eq!((asked, pages.raws.len()), (vec![String::new()], 1));
            assert_eq!(pages.cut, None);
        }
    }

    /// A server without `omitempty` ends every list with an empty cursor.
    #[test]
    fn an_empty_cursor_ends_a_list() {
        let of = |cursor: &str| match cursor {
            "" => page(&[1, 2], ",\"nextCursor\":\"a\""),
            "\"a\"" => page(&[3, 4], ",\"nextCursor\":\"b\""),
            "\"b\"" => page(&[5], ",\"nextCursor\":\"\""),
            _ => page(&[1], ",\"nextCursor\":\"\""),
        };
        let (asked, pages) = fetched(Era::Legacy, of);
        assert_eq!(asked, ["", "\"cursor\":\"a\"", "\"cursor\":\"b\""]);
        assert_eq!((pages.raws.len(), pages.cut), (5, None));
        // In 2026-07-28 it is followed, once.
        let (asked, pages) = fetched(Era::Modern, of);
        assert_eq!(asked.last().map(String::as_str), Some("\"cursor\":\"\""));
        assert_eq!((asked.len(), pages.cut), (4, None));
    }

    #[test]
    fn a_cursor_is_followed_once() {
        let (asked, pages) = fetched(Era::Modern, |cursor| match cursor {
            "" => page(&[1], ",\"nextCursor\":\"a\""),
            "\"a\"" => page(&[2], ",\"nextCursor\":\"b\""),
            _ => page(&[3], ",\"nextCursor\":\"\\u0061\""),
        });
        assert_eq!((asked.len(), pages.raws.len()), (3, 3));
        assert!(pages.cut.is_some_and(|why| why.contains("leads back")));
    }

    #[test]
    fn a_number_is_sent_back_as_it_came() {
        let (asked, pages) = fetched(Era::Legacy, |cursor| match cursor {
            "" => page(&[1], ",\"nextCursor\":10"),
            "10" => page(&[2], ",\"nextCursor\":\"10\""),
            "\"10\"" => page(&[3], ",\"nextCursor\":2.50"),
            "2.50" => page(&[4], ""),
            other => panic!("{other}"),
        });
        assert_eq!((asked.len(), pages.raws.len()), (4, 4));
    }

    #[test]
    fn a_server_that_never_ends_is_cut() {
        let count = std::cell::Cell::new(0);
        let next = || {
            count.set(count.get() + 1);
            format!(",\"nextCursor\":\"{}\"", count.get())
        };
        let (asked, pages) = fetched(Era::Legacy, |_| page(&[1], &next()));
        assert_eq!((asked.len(), pages.raws.len()), (4, 4));
        assert!(pages.cut.is_some_and(|why| why.contains("no new item")));
        count.set(0);
        let (asked, pages) = fetched(Era::Legacy, |_| page(&[count.get()], &next()));
        assert_eq!((asked.len(), pages.raws.len()), (MAX_PAGES, MAX_PAGES));
        assert!(
            pages
                .cut
                .is_some_and(|why| why.contains("more than 1000 pages"))
        );
    }
}
