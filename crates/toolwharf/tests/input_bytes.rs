//! The gateway changes no byte that it does not have to: random payloads through servers of both eras and transports.
//!
//! Whole frames are compared as text. What the server received must equal what the client sent, except for the id and
//! the tool name; what the client received must equal what the server sent, except for the id. The generator produces
//! unknown members everywhere, any order of keys, numbers of any length and form, escapes, odd unicode and white space.
//! The seed is printed on failure, and `TOOLWHARF_SEED` sets it.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

mod common;

use std::{collections::HashMap, fmt::Write, path::Path, time::Duration};

use common::{
    KINDS, Setup,
    rpc::{self, greet},
};
use serde_json::{Value, json};
use testkit::{Bin, DEADLINE, Process, StdioClient, soak, wait_for_some};

const QUIET: &str = "naming = \"always-prefix\"\n[log]\nlevel = \"error\"\n";
/// Calls in flight at a time.
const CALLS_PER_BLOCK: usize = 100;

/// A small random generator with the same output on every machine.
struct Random(u64);

impl Random {
    fn seeded() -> (u64, Self) {
        let given = std::env::var("TOOLWHARF_SEED").ok();
        let given = given.and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(rand::random);
        (seed, Self(seed | 1))
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(bound).unwrap()).unwrap()
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }

    /// White space that is allowed within a line.
    fn space(&mut self) -> &'static str {
        self.pick(&["", "", "", "", " ", "\t", "  ", " \t "])
    }

    fn string(&mut self) -> String {
        let mut text = String::from("\"");
        for _ in 0..self.below(12) {
            let part = self.pick(&[
                "a",
                "Z",
                "0",
                " ",
                "/",
                "\\/",
                "\\\\",
                "\\\"",
                "\\n",
                "\\r\\n",
                "\\t",
                "\\b\\f",
                "\\u0000",
                "\\u001f",
                "\\u00e9",
                "é",
                "e\u{301}",
                "\\ud83d\\ude00",
                "😀",
                "👩‍👩‍👧",
                "\u{200b}",
                "\u{2028}",
                "\u{feff}",
                "\u{fffd}",
                "\u{ffff}",
                "\u{10ffff}",
                "\\uFFFF",
                "日本",
                "\u{202e}",
                "{",
                "}",
                "[",
                "]",
                ":",
                ",",
                "\\\"id\\\":1",
                "data: ",
                "</script>",
            ]);
            text.push_str(part);
        }
        text.push('"');
        text
    }

    fn number(&mut self) -> String {
        match self.below(6) {
            0 => self
                .pick(&[
                    "0",
                    "-0",
                    "-0.0",
                    "1.0",
                    "1e400",
                    "-1E-400",
                    "1e+2",
                    "0.10",
                    "9007199254740993",
                    "18446744073709551616",
                ])
                .to_owned(),
            1 => format!("{}{}", self.next() | 1, self.next()),
            2 => format!("-{}.{}e{}", self.next(), self.next(), self.below(400)),
            _ => self.below(1000).to_string(),
        }
    }

    fn value(&mut self, depth: usize) -> String {
        match self.below(if depth == 0 { 4 } else { 6 }) {
            0 => self.string(),
            1 => self.number(),
            2 => self.pick(&["true", "false", "null"]).to_owned(),
            3 => self.pick(&["{}", "[]", "{ }", "[\t]", "\"\""]).to_owned(),
            4 => {
                let mut text = String::from("[");
                for at in 0..self.below(5) {
                    let comma = if at == 0 { "" } else { "," };
                    let _ = write!(
                        text,
                        "{comma}{}{}{}",
                        self.space(),
                        self.value(depth - 1),
                        self.space()
                    );
                }
                text + "]"
            }
            _ => self.any_object(depth - 1),
        }
    }

    /// Members with distinct keys that are unknown to the protocol.
    fn members(&mut self, depth: usize) -> Vec<(String, String)> {
        (0..self.below(5))
            .map(|at| {
                let odd = self.pick(&[
                    "", "é", "\\u00e9", "\\/", " ", "Ünknown", "😀", ".", "a/b", "$ref", "\\\\",
                ]);
                (format!("\"x{at}{odd}\""), self.value(depth))
            })
            .collect()
    }

    /// An object of members that are unknown to the protocol.
    fn any_object(&mut self, depth: usize) -> String {
        let members = self.members(depth);
        self.object(members)
    }

    /// Formats an object of these members, in random order.
    fn object(&mut self, mut members: Vec<(String, String)>) -> String {
        let mut text = String::from("{");
        while !members.is_empty() {
            let (key, value) = members.swap_remove(self.below(members.len()));
            let comma = if members.is_empty() { "" } else { "," };
            let _ = write!(
                text,
                "{}{key}{}:{}{value}{}{comma}",
                self.space(),
                self.space(),
                self.space(),
                self.space()
            );
        }
        text + self.space() + "}"
    }
}

fn member(key: &str, value: impl Into<String>) -> (String, String) {
    (format!("\"{key}\""), value.into())
}

/// Placeholders for the id and the tool name.
const ID_PLACEHOLDER: &str = "@ID@";
const NAME_PLACEHOLDER: &str = "@NAME@";

/// Replaces the placeholders of a frame.
fn filled(frame: &str, id: u64, name: &str) -> String {
    let frame = frame.replace(ID_PLACEHOLDER, &id.to_string());
    frame.replace(NAME_PLACEHOLDER, name)
}

/// Asserts that an answer of `echo` has these arguments unchanged.
fn has_content(answer: &str, arguments: &str, what: &str) {
    let found = answer.contains(&format!("\"structuredContent\":{arguments}"));
    assert!(found, "{what}: {answer} does not hold {arguments}");
}

/// A tool call with these arguments, with placeholders for the id and the name.
fn request(random: &mut Random, arguments: &str, is_modern: bool) -> String {
    let mut params = random.members(2);
    params.push(member("name", format!("\"{NAME_PLACEHOLDER}\"")));
    params.push(member("arguments", arguments));
    let mut meta = random.members(2);
    if is_modern {
        let all = rpc::meta();
        let all = all.as_object().unwrap().iter();
        meta.extend(all.map(|(key, value)| member(key, value.to_string())));
    }
    if is_modern || random.below(2) == 0 {
        let meta = random.object(meta);
        params.push(member("_meta", meta));
    }
    let params = random.object(params);
    let mut frame = random.members(1);
    frame.push(member("jsonrpc", "\"2.0\""));
    frame.push(member("method", "\"tools/call\""));
    frame.push(member("id", ID_PLACEHOLDER));
    frame.push(member("params", params));
    random.object(frame)
}

/// A response with a placeholder for the id.
fn response(random: &mut Random, is_modern: bool) -> String {
    let mut result = random.members(4);
    let block = random.members(2);
    let text = random.string();
    let content = vec![member("type", "\"text\""), member("text", text)];
    let block = random.object([block, content].concat());
    result.push(member("content", format!("[{block}]")));
    if random.below(2) == 0 {
        let meta = random.any_object(2);
        result.push(member("_meta", meta));
    }
    if random.below(2) == 0 {
        let structured = random.any_object(3);
        result.push(member("structuredContent", structured));
    }
    if is_modern {
        result.push(member("resultType", "\"complete\""));
    }
    let result = random.object(result);
    let mut frame = random.members(1);
    frame.push(member("jsonrpc", "\"2.0\""));
    frame.push(member("id", ID_PLACEHOLDER));
    frame.push(member("result", result));
    random.object(frame)
}

/// A server whose input is also appended to `file`, which may be truncated at any time.
fn recorded(file: &Path, era: &str) -> Value {
    let script = "tee -a \"$0\" | exec \"$1\" --era \"$2\"";
    json!({"command": "sh", "args": ["-c", script, file, Bin::path("testkit-scripted"), era]})
}

/// Returns the next responses as text, by their numeric ids.
async fn responses(client: &mut StdioClient, count: usize) -> HashMap<u64, String> {
    let mut found = HashMap::new();
    while found.len() < count {
        let line = client.receive(DEADLINE).await.expect("a line");
        let text = String::from_utf8(line).expect("UTF-8");
        let frame = parsed(&text);
        if frame.get("method").is_none() {
            let id = frame["id"].as_u64().unwrap_or_else(|| panic!("{text}"));
            assert!(found.insert(id, text).is_none(), "{id} was answered twice");
        }
    }
    found
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| lenient(text, &error))
}

/// Extracts only the id from a frame whose numbers (`1e400`) are rejected by this test's parser.
fn lenient(text: &str, error: &serde_json::Error) -> Value {
    #[derive(serde::Deserialize)]
    struct Outside<'a> {
        id: u64,
        #[serde(borrow)]
        method: Option<&'a serde_json::value::RawValue>,
    }
    let outside: Outside<'_> =
        serde_json::from_str(text).unwrap_or_else(|_| panic!("{error}: {text}"));
    match outside.method {
        Some(_) => json!({"method": "", "id": outside.id}),
        None => json!({"id": outside.id}),
    }
}

/// Compares the whole frames of requests and responses, over stdio to a stdio server of the same era.
async fn frames_through(era: &str, count: usize) {
    let (seed, mut random) = Random::seeded();
    let is_modern = era == "modern";
    let setup = Setup::new().settings(QUIET);
    let file = setup.folder().join("recorded");
    let (mut client, _dir) = setup.server("one", recorded(&file, era)).stdio();
    greet(&mut client).await;
    let mut next = 0u64;
    // Returns the requests that the server received in the last block.
    let mut seen = 0;
    let mut recorded = async |wanted: usize| {
        wait_for_some("the recorded frames", DEADLINE, async || {
            let text = std::fs::read_to_string(&file).ok()?;
            let calls = text.lines().filter(|line| line.contains("tools/call"));
            let calls: Vec<String> = calls.map(str::to_owned).collect();
            (calls.len() >= seen + wanted).then(|| {
                let new = calls[seen..].to_vec();
                seen = calls.len();
                // The file is read from the start each time, so keep it short.
                if calls.len() > 20_000 {
                    let _ = std::fs::OpenOptions::new()
                        .write(true)
                        .open(&file)
                        .and_then(|file| file.set_len(0));
                    seen = 0;
                }
                new
            })
        })
        .await
    };
    for block in 0..count.div_ceil(2 * CALLS_PER_BLOCK) {
        let mut sent = Vec::new();
        for _ in 0..CALLS_PER_BLOCK {
            let arguments = random.any_object(4);
            let frame = request(&mut random, &arguments, is_modern);
            client.send(filled(&frame, next, "one__echo")).await;
            sent.push((next, frame, arguments));
            next += 1;
        }
        let answers = responses(&mut client, CALLS_PER_BLOCK).await;
        let at_server = recorded(CALLS_PER_BLOCK).await;
        let id_of = |text: &str| parsed(text)["id"].as_u64().unwrap();
        for (at, (id, frame, arguments)) in sent.iter().enumerate() {
            let what = format!("TOOLWHARF_SEED={seed}, block {block}, request {at} ({era})");
            let received = &at_server[at];
            let expected = filled(frame, id_of(received), "echo");
            assert_eq!(*received, expected, "{what}");
            has_content(&answers[id], arguments, &what);
        }
        // The next upstream id follows the last one.
        let upstream = id_of(at_server.last().expect("a block of frames")) + 1;
        let mut expected = Vec::new();
        for upstream in (upstream..).take(CALLS_PER_BLOCK) {
            let frame = response(&mut random, is_modern);
            let arguments = json!({"frame": frame.replace(ID_PLACEHOLDER, &upstream.to_string())});
            let call = match is_modern {
                true => rpc::modern_call(next, "one__raw", arguments).to_string(),
                false => rpc::call(next, "one__raw", arguments),
            };
            client.send(call).await;
            expected.push((next, frame));
            next += 1;
        }
        let answers = responses(&mut client, CALLS_PER_BLOCK).await;
        for (id, frame) in expected {
            let what = format!("TOOLWHARF_SEED={seed}, block {block} ({era})");
            assert_eq!(answers[&id], filled(&frame, id, ""), "{what}");
        }
        recorded(CALLS_PER_BLOCK).await;
    }
    eprintln!("fidelity: {next} frames of {era} ends are identical (bound: all)");
    client.finish(Duration::from_secs(20)).await;
}

#[tokio::test]
async fn whole_frames_pass_unchanged_between_legacy_ends() {
    frames_through("legacy", if soak() { 350_000 } else { 800 }).await;
}

#[tokio::test]
async fn whole_frames_pass_unchanged_between_modern_ends() {
    frames_through("modern", if soak() { 350_000 } else { 800 }).await;
}

/// Compares arguments and structured content through every kind of server, from clients of both eras.
#[tokio::test]
async fn payloads_pass_unchanged_through_every_kind_of_server() {
    let (seed, mut random) = Random::seeded();
    let setup = Setup::new().settings(QUIET);
    let (setup, _remote) = setup.every_kind(&json!({"maxConcurrency": 16})).await;
    let (mut client, _dir) = setup.stdio();
    greet(&mut client).await;
    let blocks = if soak() { 3_000 } else { 10 };
    let mut next = 0u64;
    for block in 0..blocks {
        let mut sent = Vec::new();
        for at in 0..CALLS_PER_BLOCK {
            let arguments = random.any_object(5);
            let server = KINDS[at % KINDS.len()];
            let frame = request(&mut random, &arguments, at % 2 == 0);
            let name = format!("{server}__echo");
            client.send(filled(&frame, next, &name)).await;
            sent.push((next, server, arguments));
            next += 1;
        }
        let answers = responses(&mut client, CALLS_PER_BLOCK).await;
        for (id, server, arguments) in sent {
            let what = format!("TOOLWHARF_SEED={seed}, block {block}, {server}");
            has_content(&answers[&id], &arguments, &what);
        }
    }
    eprintln!("fidelity: {next} payloads are identical (bound: all)");
    client.finish(Duration::from_secs(20)).await;
}

/// The same comparison with HTTP clients, which may also send line breaks between tokens.
#[tokio::test]
async fn payloads_pass_unchanged_over_http() {
    let (seed, mut random) = Random::seeded();
    let mut new = Process::bin(
        "testkit-scripted",
        ["--http", "127.0.0.1:0", "--era", "modern"],
    );
    let url = new.url().await;
    let gateway = Setup::new()
        .settings("naming = \"always-prefix\"\n")
        .scripted("pipe", &[])
        .server("new", json!({ "url": url }))
        .connected()
        .await;
    for server in ["pipe", "new"] {
        let name = format!("{server}__echo");
        let headers = rpc::call_headers(&name);
        let cases = if soak() { 5_000 } else { 150 };
        for case in 0..cases {
            let arguments = random.any_object(5);
            let frame = request(&mut random, &arguments, true);
            let frame = filled(&frame, case, &name).replacen('{', "\r\n{\n", 1);
            let what = format!("TOOLWHARF_SEED={seed}, case {case}, {server}: {frame}");
            let reply = gateway.client().post_with(&headers, frame).await;
            has_content(&reply.text(), &arguments, &what);
        }
        eprintln!("fidelity: {cases} payloads over HTTP are identical (bound: all)");
    }
}
