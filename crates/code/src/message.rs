//! The messages between the gateway and the process of a run: JSON texts, one per line.
//!
//! | gateway → process | |
//! | --- | --- |
//! | `{"run": {"code", "tools", "limits"}}` | once, first |
//! | `{"result": {"id", "value"}}` | the result of `tools/call`, as the server sent it |
//! | `{"error": {"id", "message"}}` | the call failed |
//! | `{"clock": {"left"}}` | the clock of the run is started with this time left, or stopped (`null`) |
//!
//! | process → gateway | |
//! | --- | --- |
//! | `{"call": {"id", "name", "arguments"}}` | `name` is an exposed name, `arguments` an object |
//! | `{"log": {"text"}}` | one line of `console.log` |
//! | `{"done": {"value"}}`, `{"failed": {…}}` | once, last |

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::limits::Limits;
use crate::outcome::{Failure, Value};

/// Server identifier → function identifier → exposed name.
pub(crate) type Tools = BTreeMap<String, BTreeMap<String, String>>;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ToChild {
    Run {
        code: String,
        tools: Tools,
        limits: Limits,
    },
    Result {
        id: u32,
        value: Box<RawValue>,
    },
    Error {
        id: u32,
        message: String,
    },
    Clock {
        left: Option<Duration>,
    },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FromChild {
    Call {
        id: u32,
        name: String,
        arguments: Box<RawValue>,
    },
    Log {
        text: String,
    },
    Done {
        value: Value,
    },
    Failed(Failure),
}

/// The message as one line, with its end. `None` if it cannot be written as JSON.
pub(crate) fn line(message: &impl Serialize) -> Option<Vec<u8>> {
    let mut line = serde_json::to_vec(message).ok()?;
    // Raw JSON may contain line ends between its tokens. In strings they are escaped.
    for byte in &mut line {
        if *byte == b'\n' || *byte == b'\r' {
            *byte = b' ';
        }
    }
    line.push(b'\n');
    Some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line() {
        let value = RawValue::from_string("{\n\"a\":\r\n \"x\\ny\"}".to_owned()).unwrap();
        let line = line(&ToChild::Result { id: 7, value }).unwrap();
        assert_eq!(line.iter().filter(|&&byte| byte == b'\n').count(), 1);
        let back: ToChild = serde_json::from_slice(&line).unwrap();
        let ToChild::Result { id: 7, value } = back else {
            panic!("{back:?}");
        };
        let value: serde_json::Value = serde_json::from_str(value.get()).unwrap();
        assert_eq!(value, serde_json::json!({"a": "x\ny"}));
    }
}
