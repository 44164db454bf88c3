//! Checks definitions (tools, prompts, resources, templates) against the schemas of the official SDKs, and repairs them.
//!
//! These clients reject a whole list because of one bad definition, so a view of several servers shows only definitions
//! that all of them accept. Pure functions from text to text. Sources: `types.ts` of the TypeScript SDK 1.32, its
//! schemas per version in 2.4, and the generated types of the Python SDK 2.3 for 2025-11-25 and 2026-07-28. Earlier
//! versions of the protocol have no stricter rules.
//!
//! - An optional member that is null or of a wrong type is dropped.
//! - A schema gets what the SDKs require: `"type": "object"`, and objects as `properties`.
//! - Up to 2025-11-25, an `outputSchema` has to describe an object, and the TypeScript client compiles it
//!   ([`crate::compile`]). One that does not fit is dropped for these clients: it only checks results.

use bytes::Bytes;
use mcp::{
    Era,
    json::{self, Object, Span, Splice, as_string, quote},
};

use crate::{
    compile::{self, shown},
    kind::ListKind,
};

/// The schema that accepts any arguments.
const ANY_ARGUMENTS: &str = "{\"type\":\"object\"}";

/// The type of a member.
enum Shape {
    Text,
    Word(&'static [&'static str]),
    Flag,
    Integer,
    /// A number from 0 to 1.
    Fraction,
    /// ISO 8601 with an offset.
    Time,
    Map,
    List(&'static Shape),
    /// An object that needs its `required` members. All of them are known members.
    Object {
        known: &'static [Field],
        required: &'static [&'static str],
    },
}

type Field = (&'static str, Shape);

const TITLE: Field = ("title", Shape::Text);
const DESCRIPTION: Field = ("description", Shape::Text);
const META: Field = ("_meta", Shape::Map);
const MIME_TYPE: Field = ("mimeType", Shape::Text);
const ICON: Shape = Shape::Object {
    known: &[
        ("src", Shape::Text),
        MIME_TYPE,
        ("sizes", Shape::List(&Shape::Text)),
        ("theme", Shape::Word(&["light", "dark"])),
    ],
    required: &["src"],
};
const ICONS: Field = ("icons", Shape::List(&ICON));
const fn optional(known: &'static [Field]) -> Shape {
    Shape::Object {
        known,
        required: &[],
    }
}
const HINTS: Shape = optional(&[
    TITLE,
    ("readOnlyHint", Shape::Flag),
    ("destructiveHint", Shape::Flag),
    ("idempotentHint", Shape::Flag),
    ("openWorldHint", Shape::Flag),
]);
const EXECUTION: Shape = optional(&[(
    "taskSupport",
    Shape::Word(&["required", "optional", "forbidden"]),
)]);
const ANNOTATIONS: Shape = optional(&[
    (
        "audience",
        Shape::List(&Shape::Word(&["user", "assistant"])),
    ),
    ("priority", Shape::Fraction),
    ("lastModified", Shape::Time),
]);
const ARGUMENT: Shape = Shape::Object {
    known: &[
        ("name", Shape::Text),
        TITLE,
        DESCRIPTION,
        ("required", Shape::Flag),
    ],
    required: &["name"],
};

/// The known members other than names, URIs and the schemas of a tool.
fn fields(kind: ListKind) -> &'static [Field] {
    match kind {
        ListKind::Tools => &[
            TITLE,
            DESCRIPTION,
            ICONS,
            META,
            ("annotations", HINTS),
            ("execution", EXECUTION),
        ],
        ListKind::Prompts => &[
            TITLE,
            DESCRIPTION,
            ICONS,
            META,
            ("arguments", Shape::List(&ARGUMENT)),
        ],
        ListKind::Resources => &[
            TITLE,
            DESCRIPTION,
            ICONS,
            META,
            MIME_TYPE,
            ("size", Shape::Integer),
            ("annotations", ANNOTATIONS),
        ],
        ListKind::Templates => &[
            TITLE,
            DESCRIPTION,
            ICONS,
            META,
            MIME_TYPE,
            ("annotations", ANNOTATIONS),
        ],
    }
}

/// A definition that the SDKs accept.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fit {
    pub(crate) text: Bytes,
    /// What was changed. Empty if the text is the original one.
    pub(crate) repairs: Vec<String>,
}

/// Returns the definition as clients of the era accept it. `raw` has a valid name or URI (`id`).
///
/// # Errors
/// Why it cannot be repaired.
pub(crate) fn fit(kind: ListKind, raw: &Bytes, id: &str, era: Era) -> Result<Fit, String> {
    let object = Object::of(raw).ok_or("it is not an object")?;
    let mut repair = Repair::new(raw);
    let mut added = None;
    let mut dropped = None;
    match kind {
        ListKind::Tools => {
            let [input, output] = object.find_all(["inputSchema", "outputSchema"]);
            match input {
                Some(input) => repair.schema("inputSchema", input, era)?,
                None => {
                    added = Some(format!("\"inputSchema\":{ANY_ARGUMENTS}"));
                    repair.note("`inputSchema` is missing");
                }
            }
            if let Some(output) = output
                && let Err(why) = repair.output(output.clone(), era)
            {
                repair.note(format!("`outputSchema` is left out: {why}"));
                dropped = Some(output);
            }
        }
        ListKind::Prompts => {}
        ListKind::Resources | ListKind::Templates => match object.find("name") {
            Some(name) if raw[name.start] == b'"' => {}
            Some(name) => repair.replace(name, quote(id), "`name` is not a string"),
            None => {
                added = Some(format!("\"name\":{}", quote(id)));
                repair.note("`name` is missing");
            }
        },
    }
    repair.members(&object, fields(kind), "", dropped);
    if let Some(added) = added {
        repair.splice.insert(raw, &object.span(), added);
    }
    let mut repairs = repair.notes;
    let mut text = repair.splice.apply(raw);
    if let Some(whole) = without_lone_surrogates(&text) {
        repairs.push("it has half of a surrogate pair".to_owned());
        text = whole;
    }
    Ok(Fit { text, repairs })
}

struct Repair<'t> {
    text: &'t Bytes,
    splice: Splice<'t>,
    notes: Vec<String>,
}

impl<'t> Repair<'t> {
    fn new(text: &'t Bytes) -> Self {
        Self {
            text,
            splice: Splice::new(),
            notes: Vec::new(),
        }
    }

    fn note(&mut self, what: impl Into<String>) {
        self.notes.push(what.into());
    }

    fn replace(&mut self, span: Span, with: impl Into<Vec<u8>>, what: impl Into<String>) {
        self.splice.replace(span, with.into());
        self.note(what);
    }

    /// Drops the known members that do not fit, and the one with the value `also`. Returns the names of those that stay.
    fn members(
        &mut self,
        object: &Object<'_>,
        known: &[Field],
        path: &str,
        also: Option<Span>,
    ) -> Vec<&'static str> {
        let mut kept = Vec::new();
        let mut parts = Vec::new();
        for member in object.members() {
            let key = json::unescape(&self.text[member.key.clone()]);
            let field = known.iter().find(|(name, _)| *name == key);
            let fits = match field {
                Some((name, shape)) => {
                    let fits = self.fits(&member.value, shape, &format!("{path}{name}"));
                    kept.extend(fits.then_some(*name));
                    fits
                }
                None => also.as_ref() != Some(&member.value),
            };
            parts.push((member.key.start - 1..member.value.end, fits));
        }
        self.cut(&parts);
        kept
    }

    /// Returns whether a value fits, possibly after repairs inside it. Records every value that does not fit.
    fn fits(&mut self, value: &Span, shape: &Shape, path: &str) -> bool {
        let text: &'t [u8] = &self.text[value.clone()];
        let string = || as_string(text);
        let number = || std::str::from_utf8(text).ok()?.parse::<f64>().ok();
        let fits = match shape {
            Shape::Text => text[0] == b'"',
            Shape::Word(words) => string().is_some_and(|word| words.contains(&&*word)),
            Shape::Flag => matches!(text, b"true" | b"false"),
            Shape::Integer => number().is_some_and(|number| number.fract() == 0.0),
            Shape::Fraction => number().is_some_and(|number| (0.0..=1.0).contains(&number)),
            Shape::Time => string().is_some_and(|text| is_time(&text)),
            Shape::Map => text[0] == b'{',
            Shape::List(shape) => {
                let elements = json::elements(self.text, value.clone());
                let parts: Vec<(Span, bool)> = elements
                    .map(|at| (at.clone(), self.fits(&at, shape, &format!("{path}[]"))))
                    .collect();
                self.cut(&parts);
                text[0] == b'['
            }
            Shape::Object { known, required } => match Object::at(self.text, value.clone()) {
                Some(object) => {
                    let kept = self.members(&object, known, &format!("{path}."), None);
                    required.iter().all(|key| kept.contains(key))
                }
                None => false,
            },
        };
        if !fits {
            self.note(format!("`{path}` is {}", shown(text)));
        }
        fits
    }

    /// Removes the parts of an object or array that are not to be kept, with their commas.
    fn cut(&mut self, parts: &[(Span, bool)]) {
        let kept = parts.iter().rposition(|(_, keeps)| *keeps);
        let tail = kept.map_or(0, |at| at + 1);
        for pair in parts[..tail].windows(2) {
            if let [(gone, false), (next, _)] = pair {
                self.splice.replace(gone.start..next.start, &b""[..]);
            }
        }
        if let Some((first, _)) = parts.get(tail) {
            let start = kept.map_or(first.start, |at| parts[at].0.end);
            let end = parts.last().map_or(start, |(last, _)| last.end);
            self.splice.replace(start..end, &b""[..]);
        }
    }

    /// Makes a schema describe an object.
    fn schema(&mut self, key: &str, value: Span, era: Era) -> Result<(), String> {
        let schema = self.text.slice(value.clone());
        let (fixed, notes) = object_schema(key, &schema, era)?;
        if !notes.is_empty() {
            self.notes.extend(notes);
            self.splice.replace(value, fixed.to_vec());
        }
        Ok(())
    }

    /// Makes a schema of results fit the era.
    fn output(&mut self, value: Span, era: Era) -> Result<(), String> {
        let schema = self.text.slice(value.clone());
        let Some(object) = Object::of(&schema) else {
            return Err(format!("it is {}", shown(&schema)));
        };
        if era == Era::Modern {
            return match object.raw("$schema") {
                Some(dialect) if dialect[0] != b'"' => {
                    Err(format!("its `$schema` is {}", shown(dialect)))
                }
                _ => Ok(()),
            };
        }
        let (fixed, notes) = object_schema("outputSchema", &schema, era)?;
        compile::check(&fixed)?;
        if !notes.is_empty() {
            self.notes.extend(notes);
            self.splice.replace(value, fixed.to_vec());
        }
        Ok(())
    }
}

/// Repairs the schema of an object. Returns its text, and what was changed.
fn object_schema(key: &str, schema: &Bytes, era: Era) -> Result<(Bytes, Vec<String>), String> {
    let mut repair = Repair::new(schema);
    let Some(object) = Object::of(schema) else {
        // PHP writes an empty object as `[]`. The schema `true` accepts everything.
        let is_empty = schema[0] == b'[' && json::elements(schema, 0..schema.len()).count() == 0;
        if !is_empty && !matches!(&schema[..], b"null" | b"true") {
            return Err(format!("`{key}` is {}, not an object", shown(schema)));
        }
        let note = format!("`{key}` is {}", shown(schema));
        return Ok((Bytes::from_static(ANY_ARGUMENTS.as_bytes()), vec![note]));
    };
    let mut has_type = false;
    let mut parts = Vec::new();
    for member in object.members() {
        let name = json::unescape(&schema[member.key.clone()]);
        let value: &[u8] = &schema[member.value.clone()];
        let path = format!("{key}.{name}");
        let keeps = match &*name {
            "type" => {
                has_type = true;
                let of = |span: Span| as_string(&schema[span]).is_some_and(|one| one == "object");
                let mut several = json::elements(schema, member.value.clone());
                if !of(member.value.clone()) {
                    if value != b"null" && !several.any(of) {
                        return Err(format!("`{path}` is {}, not \"object\"", shown(value)));
                    }
                    let what = format!("`{path}` is {}", shown(value));
                    repair.replace(member.value.clone(), "\"object\"", what);
                }
                true
            }
            "$schema" => repair.fits(&member.value, &Shape::Text, &path),
            "required" => repair.fits(&member.value, &Shape::List(&Shape::Text), &path),
            "properties" => repair.properties(&member.value, &path, era),
            "default" | "const" => true,
            _ if value == b"null" => {
                repair.note(format!("`{path}` is null"));
                false
            }
            _ => true,
        };
        parts.push((member.key.start - 1..member.value.end, keeps));
    }
    if !parts.iter().any(|(_, keeps)| *keeps) {
        let mut notes = repair.notes;
        notes.push(format!("`{key}.type` is missing"));
        return Ok((Bytes::from_static(ANY_ARGUMENTS.as_bytes()), notes));
    }
    repair.cut(&parts);
    if !has_type {
        repair.note(format!("`{key}.type` is missing"));
        let whole = object.span();
        repair.splice.insert(schema, &whole, "\"type\":\"object\"");
    }
    Ok((repair.splice.apply(schema), repair.notes))
}

impl Repair<'_> {
    /// Makes every property's schema an object. Up to 2025-11-25 it may not be a boolean, either.
    fn properties(&mut self, value: &Span, path: &str, era: Era) -> bool {
        if !self.fits(value, &Shape::Map, path) {
            return false;
        }
        for member in json::members(self.text, value.clone()) {
            let schema: &[u8] = &self.text[member.value.clone()];
            let same = match schema {
                [b'{', ..] => continue,
                b"true" | b"false" if era == Era::Modern => continue,
                b"false" => "{\"not\":{}}",
                _ => "{}",
            };
            let name = json::unescape(&self.text[member.key.clone()]);
            let what = format!("`{path}.{name}` is {}", shown(schema));
            self.replace(member.value, same, what);
        }
        true
    }
}

/// Returns whether zod accepts the text as `z.iso.datetime({ offset: true })`.
fn is_time(text: &str) -> bool {
    let shape = |text: &str, shape: &str| {
        text.len() == shape.len()
            && text.bytes().zip(shape.bytes()).all(|(byte, of)| match of {
                b'0' => byte.is_ascii_digit(),
                of => byte == of,
            })
    };
    let Some((clock, rest)) = text.split_at_checked("0000-00-00T00:00:00".len()) else {
        return false;
    };
    let fraction = rest.strip_prefix('.').map_or(0, |rest| {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        if digits == 0 { 0 } else { digits + 1 }
    });
    let zone = &rest[fraction..];
    let is_zone = zone == "Z" || shape(zone, "+00:00") || shape(zone, "-00:00");
    is_zone
        && shape(clock, "0000-00-00T00:00:00")
        && !clock.ends_with(":60")
        && text.parse::<store::Time>().is_ok()
}

/// The text with U+FFFD in place of escapes of half a surrogate pair. JSON allows them, but the Python client does not.
/// `None` without any.
fn without_lone_surrogates(text: &Bytes) -> Option<Bytes> {
    let unit = |at: usize| {
        let escape = text.get(at..at + 6)?.strip_prefix(b"\\u")?;
        u16::from_str_radix(std::str::from_utf8(escape).ok()?, 16).ok()
    };
    let mut splice = Splice::new();
    let mut at = 0;
    while let Some(found) = memchr::memchr(b'\\', &text[at..]) {
        at += found;
        at += match (unit(at), unit(at + 6)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 12,
            (Some(0xd800..=0xdfff), _) => {
                splice.replace(at..at + 6, &b"\\ufffd"[..]);
                6
            }
            _ => 2,
        };
        at = at.min(text.len());
    }
    (!splice.is_empty()).then(|| splice.apply(text))
}

#[cfg(test)]
mod tests;
