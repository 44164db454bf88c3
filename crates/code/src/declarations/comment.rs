//! Text that is safe inside a comment.

/// The text in one line, at most `most` characters of it. `None` if nothing is left.
pub(super) fn comment(text: &str, most: usize) -> Option<String> {
    let mut line = String::new();
    let mut count = 0;
    for word in text.split(|char: char| char.is_whitespace() || char.is_control()) {
        let word: String = word.chars().filter(|char| !is_invisible(*char)).collect();
        if word.is_empty() {
            continue;
        }
        if !line.is_empty() {
            line.push(' ');
            count += 1;
        }
        for char in word.chars() {
            if count >= most {
                line.push('…');
                return Some(finished(&line));
            }
            line.push(char);
            count += 1;
        }
    }
    (!line.is_empty()).then(|| finished(&line))
}

/// Separates the characters that would end the comment.
fn finished(line: &str) -> String {
    line.replace("*/", "* /")
}

/// Characters that change how the text around them is shown, or that hide text.
fn is_invisible(char: char) -> bool {
    matches!(char,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{feff}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_ends_the_comment() {
        for (text, expected) in [
            ("", None),
            (" \n\u{200b} ", None),
            ("a\r\n\tb\u{2028}c", Some("a b c")),
            ("*/ evil()", Some("* / evil()")),
            ("**//", Some("** //")),
            ("*\u{200b}/", Some("* /")),
            ("a\u{202e}b\0c", Some("ab c")),
            ("1234567890123", Some("1234567890…")),
            ("123456789 */", Some("123456789 …")),
        ] {
            assert_eq!(comment(text, 10).as_deref(), expected, "{text:?}");
        }
    }
}
