//! Edits single settings in the text of a settings file. Comments, order and line ends are kept.

use toml_edit::{DocumentMut, Item, Table, Value};

/// Returns the text with this value of `sandbox` under `[defaults]`. `None`: the text is not TOML, or `defaults` is not a
/// table.
#[must_use]
pub fn with_default_sandbox(text: &str, sandbox: bool) -> Option<String> {
    // The parser normalizes line ends.
    let is_windows = text.contains("\r\n");
    let mut document: DocumentMut = text.parse().ok()?;
    let defaults = document.entry("defaults");
    let defaults = defaults.or_insert_with(|| Item::Table(Table::new()));
    let defaults = defaults.as_table_like_mut()?;
    let mut value = Value::from(sandbox);
    match defaults.get_mut("sandbox").and_then(Item::as_value_mut) {
        Some(old) => {
            // A comment behind the value.
            old.decor().clone_into(value.decor_mut());
            *old = value;
        }
        None => {
            defaults.insert("sandbox", Item::Value(value));
        }
    }
    let text = document.to_string();
    Some(match is_windows {
        true => text.replace("\r\n", "\n").replace('\n', "\r\n"),
        false => text,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_setting_is_changed_and_the_rest_stays() {
        for (text, sandbox, expect) in [
            ("", true, Some("[defaults]\nsandbox = true\n")),
            (
                "# Mine.\nlisten = \"127.0.0.1:1\" # here\n\n[log]\nlevel = \"info\"\n",
                true,
                Some(
                    "# Mine.\nlisten = \"127.0.0.1:1\" # here\n\n[log]\nlevel = \"info\"\n\n[defaults]\nsandbox = true\n",
                ),
            ),
            (
                "[defaults]\npackages = \"pinned\"\nsandbox = true # all of them\n[log]\n",
                false,
                Some("[defaults]\npackages = \"pinned\"\nsandbox = false # all of them\n[log]\n"),
            ),
            (
                "defaults = { packages = \"pinned\" }\n",
                true,
                Some("defaults = { packages = \"pinned\" , sandbox = true }\n"),
            ),
            (
                "[defaults]\r\nsandbox = false\r\n",
                true,
                Some("[defaults]\r\nsandbox = true\r\n"),
            ),
            ("defaults = 1\n", true, None),
            ("[broken", true, None),
        ] {
            assert_eq!(
                with_default_sandbox(text, sandbox).as_deref(),
                expect,
                "{text}"
            );
        }
    }
}
