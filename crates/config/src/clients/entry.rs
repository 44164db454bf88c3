//! The entry for a server in the format of each client.

use serde_json::{Map, Value, json};

use super::Client;

/// The format of a client's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// `command` and `args`, or `url` and `headers`.
    Plain,
    /// Like [`Style::Plain`], without URLs.
    CommandOnly,
    /// Like [`Style::Plain`], with a `type`: `stdio` or `http`.
    Typed,
    Cline,
    Codex,
    Continue,
    Gemini,
    Goose,
    Opencode,
    Windsurf,
}

/// How a client connects to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    Command {
        program: String,
        args: Vec<String>,
    },
    /// The token is sent in a header.
    Url {
        url: String,
        token: String,
    },
}

impl Client {
    /// The entry in this client's format, with this name.
    #[must_use]
    pub fn entry(&self, name: &str, way: &Way) -> Value {
        let mut entry = match way {
            Way::Command { program, args } => self.command(program, args),
            Way::Url { url, token } => {
                let headers = json!({"Authorization": format!("Bearer {token}")});
                self.url(url, headers)
            }
        };
        let Some(map) = entry.as_object_mut() else {
            return entry;
        };
        match self.style {
            Style::Continue => {
                let mut named = Map::from_iter([("name".to_owned(), name.into())]);
                named.append(map);
                return named.into();
            }
            Style::Goose => {
                let all = json!({"name": name, "enabled": true, "timeout": 300});
                map.extend(all.as_object().cloned().unwrap_or_default());
            }
            _ => {}
        }
        entry
    }

    fn command(&self, program: &str, args: &[String]) -> Value {
        match self.style {
            Style::Typed => json!({"type": "stdio", "command": program, "args": args}),
            Style::Goose => json!({"type": "stdio", "cmd": program, "args": args, "envs": {}}),
            Style::Opencode => {
                let words: Vec<&str> = [program]
                    .into_iter()
                    .chain(args.iter().map(String::as_str))
                    .collect();
                json!({"type": "local", "command": words, "enabled": true})
            }
            _ => json!({"command": program, "args": args}),
        }
    }

    fn url(&self, url: &str, headers: Value) -> Value {
        match self.style {
            Style::Plain | Style::CommandOnly => json!({"url": url, "headers": headers}),
            Style::Typed => json!({"type": "http", "url": url, "headers": headers}),
            Style::Cline => json!({"type": "streamableHttp", "url": url, "headers": headers}),
            Style::Codex => json!({"url": url, "http_headers": headers}),
            Style::Continue => {
                json!({"type": "streamable-http", "url": url, "requestOptions": {"headers": headers}})
            }
            Style::Gemini => json!({"httpUrl": url, "headers": headers}),
            Style::Goose => json!({"type": "streamable_http", "uri": url, "headers": headers}),
            // The header contains the token, so the client must not try to sign in.
            Style::Opencode => {
                json!({"type": "remote", "url": url, "headers": headers, "oauth": false, "enabled": true})
            }
            Style::Windsurf => json!({"serverUrl": url, "headers": headers}),
        }
    }
}
