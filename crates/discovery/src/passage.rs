//! The text about a tool that a sentence model reads.

use crate::{
    schema,
    segment::{Server, Tool},
    words::each_word,
};

/// Bytes of the description that are used. Models read the beginning of a text only.
const MAX_DESCRIPTION_BYTES: usize = 2 << 10;

/// A text for a sentence model: the names of server and tool in words, the description, and the names of parameters.
pub fn passage(server: &Server<'_>, tool: &Tool<'_>) -> String {
    let mut passage = String::new();
    append(&mut passage, server.name);
    passage.push_str(": ");
    append(&mut passage, tool.name);
    passage.push_str(". ");
    if let Some(text) = tool.description.or(tool.title) {
        passage.push_str(&text[..text.floor_char_boundary(MAX_DESCRIPTION_BYTES)]);
        passage.push(' ');
    }
    let parameters = tool.input_schema.map(schema::words).unwrap_or_default();
    append(&mut passage, &parameters.names);
    passage
}

fn append(passage: &mut String, name: &str) {
    let mut first = true;
    each_word(name, |word| {
        if !std::mem::take(&mut first) {
            passage.push(' ');
        }
        passage.push_str(word);
        true
    });
}

#[cfg(test)]
mod tests {
    use super::passage;
    use crate::{Server, Tool};

    #[test]
    fn a_passage_has_words_instead_of_names() {
        let server = Server {
            name: "git-hub",
            ..Server::default()
        };
        let tool = Tool {
            name: "createIssue",
            description: Some("Opens an issue."),
            input_schema: Some(br#"{"properties":{"repo_name":{},"title":{}}}"#),
            ..Tool::default()
        };
        assert_eq!(
            passage(&server, &tool),
            "git hub: create issue. Opens an issue. repo name title"
        );
        assert_eq!(passage(&Server::default(), &Tool::default()), ": . ");
    }
}
