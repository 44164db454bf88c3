//! Renders the lists of a view as JSON text.

use std::borrow::Cow;

use bytes::{BufMut, Bytes, BytesMut};
use catalog::ListKind;
use mcp::{
    Era, headers,
    json::{self, Object, Splice, quote},
};

use crate::{
    uri,
    views::{
        entry::{Entry, PROJECT_KEY, SERVER_KEY},
        offers,
        view::View,
    },
};

/// The `_meta` key of tools that clients with their own search, such as Claude Code, show to the model from the beginning.
const ALWAYS_LOAD_KEY: &str = "anthropic/alwaysLoad";

/// The time for which a client may use a list. Clients that listen are notified of changes before. For the others, a
/// call of a tool that is gone says so.
const LIST_TTL_MS: u64 = 60_000;

impl View {
    /// A list as JSON text: the items for which `shows` returns true. A list of tools for clients has the gateway's tools in
    /// `own`.
    pub(super) fn render(
        &self,
        kind: ListKind,
        era: Era,
        own: Option<Vec<Bytes>>,
        shows: impl Fn(&Entry) -> bool,
    ) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(b'{');
        let meta = self.list_meta();
        if era == Era::Modern {
            // A list with tools of earlier runs is about to change, and so is a list that lacks those of a starting server.
            let is_current = self.settled && meta.is_none();
            let ttl_ms = if is_current { LIST_TTL_MS } else { 0 };
            out.put_slice(self.modern_members(ttl_ms, meta).as_bytes());
            out.put_u8(b',');
        } else if let Some(meta) = meta {
            out.put_slice(format!("\"_meta\":{{{meta}}},").as_bytes());
        }
        out.put_slice(format!("\"{}\":[", kind.key()).as_bytes());
        let shown = self.entries(kind).filter(|entry| shows(entry));
        let is_for_clients = own.is_some();
        let shown = shown.map(|entry| self.render_item(kind, entry, era, is_for_clients));
        let nameless = self.nameless[kind as usize].iter().cloned();
        let sign_ins = self.sign_ins().iter().filter(|_| kind == ListKind::Tools);
        let own = own.into_iter().flatten();
        let texts = own.chain(shown).chain(nameless).chain(sign_ins.cloned());
        for (at, text) in texts.enumerate() {
            if at > 0 {
                out.put_u8(b',');
            }
            out.put_slice(&text);
        }
        out.put_slice(b"]}");
        out.freeze()
    }

    /// The list of tools with the gateway's own. In search mode, most others are missing.
    pub(super) fn render_for_clients(&self, era: Era) -> Bytes {
        let is_whole = !self.is_search();
        self.render(ListKind::Tools, era, Some(self.finders()), |entry| {
            is_whole || self.is_listed(entry)
        })
    }

    pub(super) fn render_item(
        &self,
        kind: ListKind,
        entry: &Entry,
        era: Era,
        is_for_clients: bool,
    ) -> Bytes {
        let fit = match self.is_single() {
            true => &entry.item.raw,
            false => entry.item.fit(era).unwrap_or(&entry.item.raw),
        };
        // Clients drop a tool with an invalid header annotation, which means nothing to most servers.
        let usable = (kind == ListKind::Tools && era == Era::Modern)
            .then(|| headers::without_invalid_annotations(fit))
            .flatten();
        let raw = usable.as_ref().unwrap_or(fit);
        let Some(object) = Object::of(raw) else {
            return raw.clone();
        };
        let mut splice = Splice::new();
        let mut added: Vec<String> = Vec::new();
        let is_tool_for_clients = is_for_clients && kind == ListKind::Tools;
        let exposed: Cow<'_, str> = match is_tool_for_clients && self.has_own(&entry.exposed) {
            // The name belongs to a tool of the gateway. With its server's name, each tool can be called.
            true => format!("{}__{}", entry.server.label(&self.scope).0, entry.exposed).into(),
            false => (&*entry.exposed).into(),
        };
        if let Some(id) = object
            .find(kind.id_key())
            .filter(|_| *exposed != *entry.item.native)
        {
            splice.replace(id, quote(&exposed).into_bytes());
        }
        // A preview has no structured content, so the tool cannot promise any (0028).
        if is_tool_for_clients
            && self.max_result_tokens().is_some()
            && !entry.has_app()
            && let Some(schema) = object.find("outputSchema")
        {
            splice.remove(raw, &object.span(), &schema);
        }
        if let Some(description) = &entry.description {
            let text = quote(description);
            match object.find("description") {
                Some(theirs) => {
                    splice.replace(theirs, text.into_bytes());
                }
                None => added.push(format!("\"description\":{text}")),
            }
        }
        if kind == ListKind::Tools && era == Era::Legacy {
            added.extend(offers::marked_as_task(&entry.server, &object).map(str::to_owned));
        }
        if !self.is_single() {
            if kind == ListKind::Tools {
                uri::expose_tool(
                    raw,
                    &object,
                    entry.server.uri_prefix(&self.scope),
                    &mut splice,
                );
            }
            self.mark(kind, entry, raw, &object, &mut splice, &mut added);
        }
        if !added.is_empty() {
            splice.insert(raw, &object.span(), added.join(",").as_bytes());
        }
        let rendered = splice.apply(raw);
        if self.is_single() {
            return rendered;
        }
        // Some clients cannot read a lone surrogate. One definition must not make the whole list unreadable.
        match json::without_lone_surrogates(&rendered) {
            Cow::Borrowed(_) => rendered,
            Cow::Owned(whole) => whole.into(),
        }
    }

    /// Names the item's server in `_meta`. An existing value is replaced: a server, such as another gateway, may have
    /// set it.
    fn mark<'t>(
        &self,
        kind: ListKind,
        entry: &Entry,
        raw: &'t Bytes,
        object: &Object<'t>,
        splice: &mut Splice<'t>,
        added: &mut Vec<String>,
    ) {
        let mut members = vec![(SERVER_KEY, quote(entry.server.name().as_str()))];
        if let (None, Some(owner)) = (&self.scope.project, &entry.server.spec.owner) {
            members.push((PROJECT_KEY, quote(owner.as_str())));
        }
        if kind == ListKind::Tools && self.is_listed(entry) {
            members.push((ALWAYS_LOAD_KEY, "true".to_owned()));
        }
        let text = |members: &[(&str, String)]| -> String {
            let text: Vec<_> = members
                .iter()
                .map(|(key, value)| format!("{}:{value}", quote(key)))
                .collect();
            text.join(",")
        };
        match object.object("_meta") {
            Some(own) => {
                members.retain(|(key, value)| match own.find(key) {
                    Some(theirs) => {
                        splice.replace(theirs, value.clone().into_bytes());
                        false
                    }
                    None => true,
                });
                if !members.is_empty() {
                    splice.insert(raw, &own.span(), text(&members).as_bytes());
                }
            }
            None => {
                let own = format!("{{{}}}", text(&members));
                match object.find("_meta") {
                    Some(odd) => {
                        splice.replace(odd, own.into_bytes());
                    }
                    None => added.push(format!("\"_meta\":{own}")),
                }
            }
        }
    }
}
