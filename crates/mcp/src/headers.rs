//! `Mcp-Name` and `Mcp-Param-*`: parts of a request's body that are mirrored into its headers (2026-07-28
//! basic/transports/streamable-http "Request Metadata").
//!
//! A tool with invalid annotations has no [`ParamHeaders`] and must not be offered. All input here must have passed
//! [`crate::json::validate`].

use std::borrow::Cow;

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::json::{self, Object, Span, Splice};

/// Header names and values, ready to send.
pub type HeaderList = Vec<(HeaderName, HeaderValue)>;

/// Maximum annotated parameters of one tool. A request has no room for many more headers.
const MAX_PARAMS: usize = 64;
/// Maximum depth of a schema.
const MAX_SCHEMA_DEPTH: usize = 128;
/// The largest integer that every JSON reader keeps: 2^53 − 1.
const MAX_SAFE_INTEGER: i64 = (1 << 53) - 1;

const SENTINEL_START: &str = "=?base64?";
const SENTINEL_END: &str = "?=";
const ANNOTATION: &str = "x-mcp-header";

/// The value of `Mcp-Name` for a tool, a prompt or a resource.
#[must_use]
pub fn mcp_name(value: &str) -> HeaderValue {
    encode_header(value)
}

/// Encodes `value` for a header: unchanged if that is safe, otherwise Base64 between the sentinels ("Value Encoding").
#[must_use]
pub fn encode_header(value: &str) -> HeaderValue {
    let bytes = value.as_bytes();
    let safe = bytes.iter().all(|byte| matches!(byte, b' '..=b'~'))
        && bytes.first() != Some(&b' ')
        && bytes.last() != Some(&b' ')
        && !(value.starts_with(SENTINEL_START) && value.ends_with(SENTINEL_END));
    let plain = safe.then(|| HeaderValue::from_bytes(bytes).ok()).flatten();
    plain.unwrap_or_else(|| {
        let text = format!("{SENTINEL_START}{}{SENTINEL_END}", STANDARD.encode(bytes));
        HeaderValue::from_str(&text).expect("Base64 and the sentinels are plain ASCII")
    })
}

/// Decodes a header. `None` if the value has characters that are invalid in a header, or broken Base64.
#[must_use]
pub fn decode_header(value: &HeaderValue) -> Option<Cow<'_, str>> {
    let text = value.to_str().ok()?;
    let encoded = text
        .strip_prefix(SENTINEL_START)
        .and_then(|rest| rest.strip_suffix(SENTINEL_END));
    match encoded {
        None => Some(Cow::Borrowed(text)),
        Some(encoded) => {
            let bytes = STANDARD.decode(encoded).ok()?;
            String::from_utf8(bytes).ok().map(Cow::Owned)
        }
    }
}

/// The mapping from a tool's arguments to headers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ParamHeaders {
    params: Vec<Param>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Param {
    /// The chain of `properties` keys.
    path: Vec<String>,
    header: HeaderName,
}

impl ParamHeaders {
    /// Reads the annotations of a tool (its definition as JSON text).
    ///
    /// # Errors
    /// Why an annotation is invalid. The tool must not be offered then.
    pub fn from_tool(tool: &[u8]) -> Result<Self, String> {
        let mut reading = Reading {
            text: tool,
            found: Vec::new(),
        };
        // The usual case: searching the text is cheaper than walking the schema.
        if memchr::memmem::find(tool, ANNOTATION.as_bytes()).is_none()
            && memchr::memchr(b'\\', tool).is_none()
        {
            return Ok(Self::default());
        }
        if let Some(schema) = Object::of(tool).and_then(|tool| tool.find("inputSchema")) {
            reading.schema(schema, Some(&[]), 0)?;
        }
        Ok(Self {
            params: reading.found,
        })
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.params.is_empty()
    }

    /// The headers for a call with `arguments` (JSON text). Arguments that are absent, null, or of a type that a header
    /// cannot carry are skipped.
    #[must_use]
    pub fn extract(&self, arguments: Option<&[u8]>) -> HeaderList {
        let Some(arguments) = arguments else {
            return HeaderList::new();
        };
        let mut headers = HeaderList::with_capacity(self.params.len());
        for param in &self.params {
            let value = param.value(arguments).and_then(printed);
            if let Some(value) = value {
                headers.push((param.header.clone(), encode_header(&value)));
            }
        }
        headers
    }

    /// Checks that the headers of a call match its `arguments` (JSON text).
    ///
    /// # Errors
    /// The mismatch, as text for a `HeaderMismatch` error.
    pub fn validate(&self, arguments: Option<&[u8]>, headers: &HeaderMap) -> Result<(), String> {
        for param in &self.params {
            let name = &param.header;
            let value = arguments.and_then(|arguments| param.value(arguments));
            let mut given = headers.get_all(name).iter();
            match (value, given.next(), given.next()) {
                (None, None, _) => {}
                (None, Some(_), _) => {
                    return Err(format!(
                        "header {name} was sent, but the arguments have no value for it"
                    ));
                }
                (Some(_), None, _) => return Err(format!("header {name} is missing")),
                (Some(_), Some(_), Some(_)) => {
                    return Err(format!("header {name} is given more than once"));
                }
                (Some(value), Some(given), None) => {
                    let given = decode_header(given)
                        .ok_or_else(|| format!("header {name} has invalid characters"))?;
                    if !same(value, &given) {
                        return Err(format!("header {name} does not match the arguments"));
                    }
                }
            }
        }
        Ok(())
    }
}

/// The `Mcp-Param-*` headers of a request that its tool does not declare, to be forwarded unchanged.
#[must_use]
pub fn undeclared_params(headers: &HeaderMap, declared: Option<&ParamHeaders>) -> HeaderList {
    let is_declared = |name: &HeaderName| {
        declared.is_some_and(|declared| declared.params.iter().any(|one| one.header == name))
    };
    let others = headers
        .iter()
        .filter(|(name, _)| name.as_str().starts_with("mcp-param-") && !is_declared(name));
    others
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// The tool (its definition as JSON text) without its `x-mcp-header` annotations, if one of them is invalid. A client
/// drops such a tool.
#[must_use]
pub fn without_invalid_annotations(tool: &Bytes) -> Option<Bytes> {
    ParamHeaders::from_tool(tool).err()?;
    let schema = Object::of(tool)?.find("inputSchema")?;
    let mut splice = Splice::new();
    strip(tool, schema, 0, &mut splice);
    Some(splice.apply(tool))
}

/// Removes the annotations from a schema and the schemas in it.
fn strip<'t>(text: &'t [u8], at: Span, depth: usize, splice: &mut Splice<'t>) {
    if depth > MAX_SCHEMA_DEPTH {
        return;
    }
    let Some(object) = Object::at(text, at.clone()) else {
        for element in json::elements(text, at) {
            strip(text, element, depth + 1, splice);
        }
        return;
    };
    for member in object.members() {
        match &*json::unescape(&text[member.key]) {
            ANNOTATION => {
                splice.remove(text, &object.span(), &member.value);
            }
            key if key == "properties" || NAMED_SCHEMA_KEYWORDS.contains(&key) => {
                for named in json::members(text, member.value) {
                    strip(text, named.value, depth + 1, splice);
                }
            }
            key if DATA_KEYWORDS.contains(&key) => {}
            _ => strip(text, member.value, depth + 1, splice),
        }
    }
}

impl Param {
    /// The argument's JSON text. `None` if the argument is absent or null.
    fn value<'a>(&self, arguments: &'a [u8]) -> Option<&'a [u8]> {
        let (last, parents) = self.path.split_last()?;
        let mut object = Object::of(arguments)?;
        for key in parents {
            object = object.object(key)?;
        }
        object.raw(last).filter(|value| *value != b"null")
    }
}

/// Converts an argument to its header value ("Type conversion").
fn printed(value: &[u8]) -> Option<Cow<'_, str>> {
    match value.first()? {
        b'"' => json::as_string(value),
        b't' => Some("true".into()),
        b'f' => Some("false".into()),
        b'-' | b'0'..=b'9' => integer(std::str::from_utf8(value).ok()?)
            .filter(|number| (-MAX_SAFE_INTEGER..=MAX_SAFE_INTEGER).contains(number))
            .map(|number| number.to_string().into()),
        _ => None,
    }
}

/// The integer value of a number, even if it is written as `42.0` or `4.2e1`.
fn integer(text: &str) -> Option<i64> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "only whole numbers within 2^53 are cast"
    )]
    text.parse::<i64>().ok().or_else(|| {
        let number: f64 = text.parse().ok()?;
        (number.fract() == 0.0 && number.abs() <= MAX_SAFE_INTEGER as f64).then_some(number as i64)
    })
}

fn same(value: &[u8], given: &str) -> bool {
    match value.first() {
        Some(b'"') => json::as_string(value).is_some_and(|value| value == given),
        Some(b't') => given == "true",
        Some(b'f') => given == "false",
        Some(b'-' | b'0'..=b'9') => {
            // A header is not JSON: Rust's parser would also accept `inf` or `+1`.
            let digits = |text: &str| {
                text.bytes()
                    .all(|b| matches!(b, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E'))
            };
            let value = std::str::from_utf8(value).unwrap_or_default();
            value == given
                || (digits(given)
                    && !given.starts_with('+')
                    && integer(value).is_some_and(|value| integer(given) == Some(value)))
        }
        // An object or array where the schema has another type. No header can match it.
        _ => false,
    }
}

/// Keywords whose value maps names to schemas.
const NAMED_SCHEMA_KEYWORDS: [&str; 4] = [
    "$defs",
    "definitions",
    "patternProperties",
    "dependentSchemas",
];
/// Keywords that hold data, not schemas.
const DATA_KEYWORDS: [&str; 4] = ["default", "const", "enum", "examples"];

struct Reading<'a> {
    text: &'a [u8],
    found: Vec<Param>,
}

impl Reading<'_> {
    /// Walks a schema. `path`: the `properties` keys that lead to it; `None` if it is reached in any other way.
    fn schema(&mut self, at: Span, path: Option<&[String]>, depth: usize) -> Result<(), String> {
        if depth > MAX_SCHEMA_DEPTH {
            return Err(format!("the schema has over {MAX_SCHEMA_DEPTH} levels"));
        }
        let text = self.text;
        let Some(object) = Object::at(text, at.clone()) else {
            for element in json::elements(text, at) {
                self.schema(element, None, depth + 1)?;
            }
            return Ok(());
        };
        for member in object.members() {
            let key = json::unescape(&text[member.key]);
            match &*key {
                ANNOTATION => {
                    let param = annotation(object, &text[member.value], path)?;
                    if self.found.iter().any(|other| other.header == param.header) {
                        return Err(format!("`{ANNOTATION}` {} appears twice", param.header));
                    }
                    if self.found.len() == MAX_PARAMS {
                        return Err(format!("more than {MAX_PARAMS} `{ANNOTATION}` annotations"));
                    }
                    self.found.push(param);
                }
                "properties" => {
                    for property in json::members(text, member.value) {
                        let key = json::decode(&text[property.key]);
                        let path = path.zip(key).map(|(path, key)| {
                            let mut path = path.to_vec();
                            path.push(key.into_owned());
                            path
                        });
                        self.schema(property.value, path.as_deref(), depth + 1)?;
                    }
                }
                key if NAMED_SCHEMA_KEYWORDS.contains(&key) => {
                    for named in json::members(text, member.value) {
                        self.schema(named.value, None, depth + 1)?;
                    }
                }
                key if DATA_KEYWORDS.contains(&key) => {}
                _ => self.schema(member.value, None, depth + 1)?,
            }
        }
        Ok(())
    }
}

/// Validates one annotation ("Schema Extension").
fn annotation(schema: Object<'_>, value: &[u8], path: Option<&[String]>) -> Result<Param, String> {
    let name = json::as_string(value).ok_or_else(|| format!("`{ANNOTATION}` must be a string"))?;
    let path = path.filter(|path| !path.is_empty()).ok_or_else(|| {
        format!("`{ANNOTATION}` {name:?} is not on a property reached through `properties` alone")
    })?;
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(token) {
        return Err(format!(
            "`{ANNOTATION}` {name:?} is not a valid header name"
        ));
    }
    let header = HeaderName::from_bytes(format!("mcp-param-{name}").as_bytes())
        .map_err(|_| format!("`{ANNOTATION}` {name:?} is too long"))?;
    let kind = schema.find("type");
    let raw = schema.raw("type").unwrap_or_default();
    let primitive = |raw: &[u8]| {
        matches!(
            json::as_string(raw).as_deref(),
            Some("string" | "integer" | "boolean")
        )
    };
    // `["string", "null"]` declares a primitive that may be null. Null has no header.
    let nullable = || {
        let kinds = kind.map(|span| (json::elements(raw, 0..span.len())).collect::<Vec<_>>());
        let kinds = kinds.unwrap_or_default();
        let is_null = |span: &Span| json::as_string(&raw[span.clone()]).as_deref() == Some("null");
        kinds.len() == 2
            && kinds.iter().filter(|span| is_null(span)).count() == 1
            && kinds.iter().any(|span| primitive(&raw[span.clone()]))
    };
    if primitive(raw) || nullable() {
        Ok(Param {
            path: path.to_vec(),
            header,
        })
    } else {
        Err(format!(
            "`{ANNOTATION}` {name:?} is on a parameter that is not a string, integer or boolean"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_the_examples_of_the_specification() {
        for (value, expect) in [
            ("us-west1", "us-west1"),
            ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
            (" padded ", "=?base64?IHBhZGRlZCA=?="),
            ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
            ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
            ("a b", "a b"),
            ("", ""),
            ("tab\there", "=?base64?dGFiCWhlcmU=?="),
            ("file:///a?b=c", "file:///a?b=c"),
            ("=?base64?open", "=?base64?open"),
        ] {
            let header = encode_header(value);
            assert_eq!(header.to_str().ok(), Some(expect), "{value:?}");
            assert_eq!(decode_header(&header).as_deref(), Some(value), "{value:?}");
        }
    }

    #[test]
    fn refuses_broken_headers() {
        for raw in [
            &b"=?base64?SGVsbG8?="[..],
            b"=?base64?SGVs bG8=?=",
            b"=?base64?/w==?=",
            b"caf\xe9",
        ] {
            let value = HeaderValue::from_bytes(raw).expect("a header value");
            assert_eq!(decode_header(&value), None, "{value:?}");
        }
    }

    fn tool(schema: &str) -> Result<ParamHeaders, String> {
        ParamHeaders::from_tool(format!("{{\"name\":\"t\",\"inputSchema\":{schema}}}").as_bytes())
    }

    #[test]
    fn reads_annotations_and_refuses_invalid_ones() {
        let check = |schema: &str, expect: Result<usize, &str>| {
            let found = tool(schema).map(|found| found.params.len());
            match (&found, expect) {
                (Ok(found), Ok(expect)) => assert_eq!(*found, expect, "{schema}"),
                (Err(found), Err(expect)) => assert!(found.contains(expect), "{schema}: {found}"),
                _ => panic!("{schema}: {found:?}, not {expect:?}"),
            }
        };
        let one = |inner: &str| format!("{{\"properties\":{{\"a\":{inner}}}}}");
        check("{}", Ok(0));
        for inner in [
            r#"{"type":"string","x-mcp-header":"Region"}"#,
            r#"{"type":"integer","x-mcp-header":"!#$%&'*+-.^_`|~"}"#,
            r#"{"type":["boolean","null"],"x-mcp-header":"R"}"#,
            r#"{"type":"object","properties":{"b":{"type":"string","x-mcp-header":"R"}}}"#,
        ] {
            check(&one(inner), Ok(1));
        }
        let property = r#"{"properties":{"x-mcp-header":{"type":"object"}}}"#;
        check(property, Ok(0));
        let default = r#"{"type":"string","default":{"x-mcp-header":1}}"#;
        check(&one(default), Ok(0));
        let escaped = r#"{"type":"string","x-mcp\u002dheader":"A b"}"#;
        check(&one(escaped), Err("not a valid header name"));
        for bad in ["", "A b", "A:b", "Ä", "a\\r\\nb", "a/b"] {
            let inner = format!("{{\"type\":\"string\",\"x-mcp-header\":\"{bad}\"}}");
            check(&one(&inner), Err("not a valid header name"));
        }
        let number = r#"{"type":"string","x-mcp-header":7}"#;
        check(&one(number), Err("must be a string"));
        for kind in [
            r#""number""#,
            r#""object""#,
            r#""null""#,
            r#"["string","integer"]"#,
            r#"["string"]"#,
        ] {
            let schema = one(&format!("{{\"type\":{kind},\"x-mcp-header\":\"R\"}}"));
            check(&schema, Err("not a string, integer or boolean"));
        }
        let untyped = one(r#"{"x-mcp-header":"R"}"#);
        check(&untyped, Err("not a string, integer or boolean"));
        check(
            r#"{"properties":{"a":{"type":"string","x-mcp-header":"R"},"b":{"type":"string","x-mcp-header":"r"}}}"#,
            Err("twice"),
        );
        let mark = r#"{"type":"string","x-mcp-header":"R"}"#;
        for elsewhere in [
            format!("{{\"type\":\"array\",\"items\":{mark}}}"),
            format!("{{\"anyOf\":[{mark}]}}"),
            format!("{{\"type\":\"object\",\"additionalProperties\":{mark}}}"),
            format!("{{\"if\":{{\"properties\":{{\"b\":{mark}}}}}}}"),
            format!("{{\"$defs\":{{\"b\":{mark}}}}}"),
        ] {
            check(&one(&elsewhere), Err("`properties` alone"));
        }
        check(mark, Err("`properties` alone"));
    }

    #[test]
    fn invalid_annotations_are_removed() {
        let check = |tool: &str, expect: Option<&str>| {
            let found = without_invalid_annotations(&Bytes::copy_from_slice(tool.as_bytes()));
            assert_eq!(
                found,
                expect.map(|text| Bytes::copy_from_slice(text.as_bytes()))
            );
        };
        check(r#"{"name":"a"}"#, None);
        check(
            r#"{"inputSchema":{"properties":{"a":{"type":"string","x-mcp-header":"A"}}}}"#,
            None,
        );
        check(
            r#"{"x-mcp-header":"kept","inputSchema":{"x-mcp-header":"B","properties":{"a":{"type":"string","x-mcp-header":"A b"},"x-mcp-header":{"default":{"x-mcp-header":1}}},"anyOf":[{ "x-mcp-header" : "R" }]}}"#,
            Some(
                r#"{"x-mcp-header":"kept","inputSchema":{"properties":{"a":{"type":"string"},"x-mcp-header":{"default":{"x-mcp-header":1}}},"anyOf":[{  }]}}"#,
            ),
        );
    }

    #[test]
    fn headers_that_no_tool_declares_are_forwarded() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("mcp-param-s", "declared"),
            ("mcp-param-other", "=?base64?w6k=?="),
            ("mcp-param-other", "twice"),
            ("mcp-name", "x"),
            ("authorization", "Bearer x"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        let check = |declared: Option<&ParamHeaders>, expect: &[(&str, &str)]| {
            let found = undeclared_params(&headers, declared);
            let found: Vec<_> = found
                .iter()
                .map(|(name, value)| (name.as_str(), value.to_str().expect("ASCII")))
                .collect();
            assert_eq!(found, expect);
        };
        let others = [
            ("mcp-param-other", "=?base64?w6k=?="),
            ("mcp-param-other", "twice"),
        ];
        check(Some(&sample()), &others);
        check(None, &[("mcp-param-s", "declared"), others[0], others[1]]);
    }

    fn sample() -> ParamHeaders {
        tool(
            r#"{"properties":{"s":{"type":"string","x-mcp-header":"S"},"n":{"type":"integer","x-mcp-header":"N"},
            "o":{"type":"object","properties":{"b":{"type":"boolean","x-mcp-header":"B"}}}}}"#,
        )
        .expect("a valid tool")
    }

    #[test]
    fn extracts_values() {
        let check = |arguments: &str, expect: &[(&str, &str)]| {
            let headers = sample().extract(Some(arguments.as_bytes()));
            let headers: Vec<_> = headers
                .iter()
                .map(|(name, value)| (name.as_str(), value.to_str().expect("ASCII")))
                .collect();
            assert_eq!(headers, expect, "{arguments}");
        };
        check("{}", &[]);
        check(r#"{"s":null,"o":{},"n":null}"#, &[]);
        check(
            r#"{"s":"é","n":-7,"o":{"b":true}}"#,
            &[
                ("mcp-param-s", "=?base64?w6k=?="),
                ("mcp-param-n", "-7"),
                ("mcp-param-b", "true"),
            ],
        );
        check(r#"{"n":42.0}"#, &[("mcp-param-n", "42")]);
        check(
            r#"{"n":9007199254740991}"#,
            &[("mcp-param-n", "9007199254740991")],
        );
        check(r#"{"n":9007199254740992,"s":[1],"o":1}"#, &[]);
        assert!(sample().extract(None).is_empty());
    }

    #[test]
    fn validates_headers() {
        let check =
            |arguments: &str, headers: &[(&'static str, &'static str)], expect: Option<&str>| {
                let map: HeaderMap = headers
                    .iter()
                    .map(|(name, value)| {
                        (
                            HeaderName::from_static(name),
                            HeaderValue::from_static(value),
                        )
                    })
                    .collect();
                let found = sample().validate(Some(arguments.as_bytes()), &map);
                match expect {
                    None => assert_eq!(found, Ok(()), "{arguments}"),
                    Some(why) => assert!(
                        found.as_ref().is_err_and(|found| found.contains(why)),
                        "{arguments}: {found:?}"
                    ),
                }
            };
        check("{}", &[], None);
        check(r#"{"s":"x"}"#, &[], Some("missing"));
        let differs = Some("does not match");
        for (arguments, name, value, expect) in [
            (r#"{"s":"x"}"#, "mcp-param-s", "x", None),
            (r#"{"s":"é"}"#, "mcp-param-s", "=?base64?w6k=?=", None),
            (r#"{"s":"x"}"#, "mcp-param-s", "y", differs),
            (r#"{"s":null}"#, "mcp-param-s", "y", Some("no value")),
            (
                r#"{"s":"x"}"#,
                "mcp-param-s",
                "=?base64?eA?=",
                Some("invalid"),
            ),
            (r#"{"n":42}"#, "mcp-param-n", "42.0", None),
            (r#"{"n":42}"#, "mcp-param-n", "+42", differs),
            (r#"{"n":42}"#, "mcp-param-n", "43", differs),
            (r#"{"o":{"b":false}}"#, "mcp-param-b", "False", differs),
        ] {
            check(arguments, &[(name, value)], expect);
        }
        check(
            r#"{"s":"x"}"#,
            &[("mcp-param-s", "x"), ("mcp-param-s", "x")],
            Some("more than once"),
        );
    }
}
