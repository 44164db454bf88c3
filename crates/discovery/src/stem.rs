//! Reduces English words to a common form: plurals, `-ing` and `-ed`.
//!
//! The recipe of the word table (`words/make.py`) has the same rules. A test compares the two.

/// Returns whether any byte of `text` is a vowel. `y` counts.
fn has_vowel(text: &[u8]) -> bool {
    text.iter().any(|byte| b"aeiouy".contains(byte))
}

/// Removes the second of two equal consonants at the end, as in `running` and `planned`.
fn undouble(word: &mut Vec<u8>) {
    if let [.., before, last] = word[..]
        && word.len() > 2
        && before == last
        && !b"lszaeiou".contains(&last)
    {
        word.pop();
    }
}

/// The common form of `word`, which must be in lower case. Words that are not ASCII letters stay the same.
pub(crate) fn stem(word: &str) -> String {
    if word.len() < 4 || !word.bytes().all(|byte| byte.is_ascii_lowercase()) {
        return word.to_owned();
    }
    let mut stem = word.as_bytes().to_vec();
    if stem.len() > 4 && stem.ends_with(b"ies") {
        stem.truncate(stem.len() - 3);
        stem.push(b'y');
    } else if [&b"sses"[..], b"xes", b"ches", b"shes"]
        .iter()
        .any(|end| stem.ends_with(end))
    {
        stem.truncate(stem.len() - 2);
    } else if stem.ends_with(b"s")
        && ![&b"ss"[..], b"us", b"is"]
            .iter()
            .any(|end| stem.ends_with(end))
    {
        stem.pop();
    }
    let length = stem.len();
    if length > 5 && stem.ends_with(b"ing") && has_vowel(&stem[..length - 3]) {
        stem.truncate(length - 3);
        undouble(&mut stem);
    } else if length > 4
        && stem.ends_with(b"ed")
        && !stem.ends_with(b"eed")
        && has_vowel(&stem[..length - 2])
    {
        stem.truncate(length - 2);
        undouble(&mut stem);
    }
    if stem.len() > 4 && stem.ends_with(b"e") {
        stem.pop();
    }
    String::from_utf8(stem).expect("ASCII letters")
}

#[cfg(test)]
mod tests {
    use super::stem;

    #[test]
    fn forms_of_a_word_have_one_stem() {
        for forms in [
            &["file", "files"][..],
            &["query", "queries"],
            &["search", "searches", "searched", "searching"],
            &["run", "running", "runs"],
            &["plan", "planned", "planning", "plans"],
            &["create", "creates", "created", "creating"],
            &["box", "boxes"],
            &["address", "addresses", "addressed"],
        ] {
            let stems: Vec<String> = forms.iter().map(|form| stem(form)).collect();
            assert!(stems.iter().all(|one| *one == stems[0]), "{stems:?}");
        }
    }

    #[test]
    fn other_words_stay_the_same() {
        for word in [
            "", "s", "bus", "status", "analysis", "class", "need", "string", "s3", "天气",
        ] {
            assert_eq!(stem(word), word);
        }
    }
}
