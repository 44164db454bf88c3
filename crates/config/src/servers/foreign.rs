//! Keys of other clients that have another name here. A file is not guessed at: such a key is not read, and causes a
//! warning with the right key. `toolwharf import` translates them. Only switches of other clients are read, so that a
//! server that is switched off anywhere stays off.

use jsonc_parser::ast::{Object, ObjectProp, Value};

use super::super::keys::RENAMED;

/// The key to write instead of this one.
pub(super) fn renamed(prop: &ObjectProp<'_>) -> Option<&'static str> {
    let key = prop.name.as_str();
    // Under `tools`, other programs keep anything. Copilot's list has an effect if it names tools.
    let is_allow_list = |value: &Value<'_>| {
        let items = value.as_array().map(|list| &list.elements);
        let mut items = items.into_iter().flatten().peekable();
        let is_name = |item: &Value<'_>| item.as_string_lit().is_some_and(|name| name.value != "*");
        items.peek().is_some() && items.all(is_name)
    };
    if key == "tools" && !is_allow_list(&prop.value) {
        return None;
    }
    let mut renamed = RENAMED.iter();
    renamed.find_map(|(theirs, ours)| (*theirs == key).then_some(*ours))
}

/// Returns whether a text instead of a boolean switches the server off, as in Witsy.
pub(super) fn is_off(entry: &Object<'_>) -> bool {
    let mut states = ["state", "status"].into_iter();
    states.any(|key| {
        let state = entry.get_string(key);
        state.is_some_and(|state| state.value.eq_ignore_ascii_case("disabled"))
    })
}
