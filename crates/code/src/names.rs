//! The identifiers by which code calls tools: `servers.github.create_issue`.
//!
//! - Letters, digits, `_` and `$` stay. Every other character becomes `_`: `list-files` is `list_files`.
//! - A name that begins with a digit gets a leading `_`. A word that JavaScript reserves, and a few that have a meaning
//!   for every object, get a trailing `_`: `delete` is `delete_`.
//! - If several names have the same identifier, the name that is equal to it keeps it, then the first in order. The
//!   others get `_2`, `_3` and so on.
//!
//! Invariant: the identifiers of tools depend on the set of tools, not on their order.

use std::collections::{BTreeMap, BTreeSet};

/// A tool as the gateway knows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ToolName {
    pub server: String,
    /// The server's own name of the tool.
    pub native: String,
    /// The name by which clients call it. No two tools have the same.
    pub exposed: String,
}

/// A tool as code knows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Declared {
    /// An identifier, as is `function`.
    pub server: String,
    pub function: String,
    pub exposed: String,
}

/// Words that cannot be the name of a function in a declaration, or that mean something for every object.
const RESERVED: [&str; 62] = [
    "__proto__",
    "abstract",
    "any",
    "arguments",
    "as",
    "async",
    "await",
    "boolean",
    "break",
    "case",
    "catch",
    "class",
    "const",
    "constructor",
    "continue",
    "debugger",
    "declare",
    "default",
    "delete",
    "do",
    "else",
    "enum",
    "eval",
    "export",
    "extends",
    "false",
    "finally",
    "for",
    "function",
    "if",
    "implements",
    "import",
    "in",
    "instanceof",
    "interface",
    "let",
    "namespace",
    "new",
    "null",
    "number",
    "package",
    "private",
    "protected",
    "prototype",
    "public",
    "return",
    "static",
    "string",
    "super",
    "switch",
    "then",
    "this",
    "throw",
    "toJSON",
    "true",
    "try",
    "typeof",
    "var",
    "void",
    "while",
    "with",
    "yield",
];
/// Longer identifiers are cut.
const MAX_CHARACTERS: usize = 100;

/// The identifiers of tools, in the order of `tools`.
#[must_use]
pub fn identifiers(tools: &[ToolName]) -> Vec<Declared> {
    let mut functions: BTreeMap<&str, BTreeSet<(&str, &str)>> = BTreeMap::new();
    for tool in tools {
        let of_server = functions.entry(&tool.server).or_default();
        of_server.insert((&tool.native, &tool.exposed));
    }
    let servers = distinct(functions.keys().map(|server| (*server, *server)));
    let functions: BTreeMap<&str, BTreeMap<&str, String>> = functions
        .into_iter()
        .map(|(server, names)| (server, distinct(names.into_iter())))
        .collect();
    let one = |tool: &ToolName| {
        let server = servers.get(tool.server.as_str())?.clone();
        let functions = functions.get(tool.server.as_str())?;
        let function = functions.get(tool.exposed.as_str())?.clone();
        let exposed = tool.exposed.clone();
        Some(Declared {
            server,
            function,
            exposed,
        })
    };
    tools.iter().filter_map(one).collect()
}

/// Key → a distinct identifier, from pairs of name and key in order.
fn distinct<'a>(names: impl Iterator<Item = (&'a str, &'a str)>) -> BTreeMap<&'a str, String> {
    let mut names: Vec<_> = names
        .map(|(name, key)| (identifier(name), name, key))
        .collect();
    // Names that need no change come first. The sort is stable.
    names.sort_by_key(|(identifier, name, _)| identifier != name);
    let mut taken = BTreeSet::new();
    let mut next: BTreeMap<String, usize> = BTreeMap::new();
    let mut found = BTreeMap::new();
    for (identifier, _, key) in names {
        let mut one = identifier.clone();
        while !taken.insert(one.clone()) {
            let number = next.entry(identifier.clone()).or_insert(1);
            *number += 1;
            one = format!("{identifier}_{number}");
        }
        found.insert(key, one);
    }
    found
}

/// The identifier of a name, before collisions are resolved.
fn identifier(name: &str) -> String {
    let fits = |char: char| is_letter(char) || char.is_ascii_digit() || char == '_' || char == '$';
    let mut identifier: String = name
        .chars()
        .take(MAX_CHARACTERS)
        .map(|char| if fits(char) { char } else { '_' })
        .collect();
    if !identifier.starts_with(|first: char| !first.is_ascii_digit()) {
        identifier.insert(0, '_');
    }
    if RESERVED.binary_search(&identifier.as_str()).is_ok() {
        identifier.push('_');
    }
    identifier
}

/// Returns whether an identifier may begin with this character. Combining marks and letters in circles are letters for
/// Unicode, but not for JavaScript.
fn is_letter(char: char) -> bool {
    match char {
        _ if char.is_ascii() => char.is_ascii_alphabetic(),
        // Latin, Greek, Cyrillic; Hangul, kana and Han without marks.
        '\u{c0}'..='\u{24f}'
        | '\u{391}'..='\u{3ff}'
        | '\u{400}'..='\u{481}'
        | '\u{48a}'..='\u{52f}' => char.is_alphabetic(),
        '\u{3041}'..='\u{3096}'
        | '\u{30a1}'..='\u{30fa}'
        | '\u{4e00}'..='\u{9fff}'
        | '\u{ac00}'..='\u{d7a3}' => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(server: &str, native: &str) -> ToolName {
        ToolName {
            server: server.to_owned(),
            native: native.to_owned(),
            exposed: format!("{server}__{native}"),
        }
    }

    #[test]
    fn names_become_identifiers() {
        for (name, expected) in [
            ("create_issue", "create_issue"),
            ("list-files", "list_files"),
            ("a.b/c d", "a_b_c_d"),
            ("2fa", "_2fa"),
            ("", "_"),
            ("delete", "delete_"),
            ("then", "then_"),
            ("toJSON", "toJSON_"),
            ("__proto__", "__proto___"),
            ("with", "with_"),
            ("$x", "$x"),
            ("搜索", "搜索"),
            ("größe", "größe"),
            ("Ⓐ", "_"),
            ("a\u{301}", "a_"),
            ("a\n*/", "a___"),
        ] {
            assert_eq!(identifier(name), expected, "{name:?}");
        }
        assert_eq!(identifier(&"x".repeat(1000)).len(), MAX_CHARACTERS);
        assert!(RESERVED.is_sorted());
    }

    #[test]
    fn collisions_do_not_depend_on_the_order() {
        let mut tools = vec![
            tool("git-hub", "a-b"),
            tool("git_hub", "x"),
            tool("git-hub", "a.b"),
            tool("git-hub", "a_b"),
            tool("git-hub", "a_b_2"),
        ];
        let expected = [
            ("git-hub__a-b", "git_hub_2", "a_b_3"),
            ("git-hub__a.b", "git_hub_2", "a_b_4"),
            ("git-hub__a_b", "git_hub_2", "a_b"),
            ("git-hub__a_b_2", "git_hub_2", "a_b_2"),
            ("git_hub__x", "git_hub", "x"),
        ];
        for _ in 0..tools.len() {
            tools.rotate_left(1);
            let mut found = identifiers(&tools);
            found.sort_by(|one, other| one.exposed.cmp(&other.exposed));
            let found: Vec<_> = found
                .iter()
                .map(|one| (&*one.exposed, &*one.server, &*one.function))
                .collect();
            assert_eq!(found, expected);
        }
    }
}
