//! Settings of extensions, converted from TOML to the JSON that servers receive.

use serde_json::{Map, Value};
use toml::de::DeValue;

/// A value as JSON text. `None` if JSON cannot represent it.
pub(super) fn to_json(value: &DeValue<'_>) -> Option<String> {
    json(value).map(|json| json.to_string())
}

fn json(value: &DeValue<'_>) -> Option<Value> {
    Some(match value {
        DeValue::String(text) => Value::from(&**text),
        DeValue::Integer(number) => {
            Value::from(i64::from_str_radix(number.as_str(), number.radix()).ok()?)
        }
        DeValue::Float(number) => Value::from(number.as_str().parse::<f64>().ok()?),
        DeValue::Boolean(flag) => Value::from(*flag),
        DeValue::Datetime(_) => return None,
        DeValue::Array(items) => {
            let items = items.iter().map(|item| json(item.get_ref()));
            Value::Array(items.collect::<Option<_>>()?)
        }
        DeValue::Table(table) => {
            let members = table
                .iter()
                .map(|(key, value)| Some((key.get_ref().to_string(), json(value.get_ref())?)));
            Value::Object(members.collect::<Option<Map<_, _>>>()?)
        }
    })
}
