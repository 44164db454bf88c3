//! The definition of the tool that reads long results.

use serde_json::{Value, json};

/// The name of the tool.
pub const READ_RESULT: &str = "read_result";
/// The beginning of the URIs of long results.
pub const URI_PREFIX: &str = "toolwharf://results/";

/// The description for the model.
#[must_use]
pub fn description() -> &'static str {
    "Reads more of a tool's result that was too long to be shown whole; its note has the URI. Answers are bounded, and say how to \
     read on."
}

/// The JSON schema of the arguments.
#[must_use]
pub fn schema() -> Value {
    let number = |least: u32, description: &str| json!({ "type": "integer", "minimum": least, "description": description });
    json!({
        "type": "object",
        "properties": {
            "uri": { "type": "string", "description": "The URI in the note of the shortened result" },
            "path": { "type": "string", "description": "Reads only this value of a JSON result: `items[0].body` or `/items/0/body`" },
            "offset": number(0, "The first byte to read"),
            "length": number(1, "How many bytes"),
            "line": number(1, "The first line to read"),
            "lines": number(1, "How many lines"),
            "search": { "type": "string", "description": "Finds this word, whatever its case" },
            "context": number(0, "Bytes shown around each match (100)"),
            "skip": number(0, "Matches to skip"),
            "row": number(0, "The first row of an array to read, as CSV"),
            "rows": number(1, "How many rows (100)"),
            "columns": { "type": "array", "items": { "type": "string" }, "description": "Only these keys of each row, or paths within it" },
        },
        "required": ["uri"],
        "additionalProperties": false,
    })
}

/// The definition as in a list of tools.
#[must_use]
pub fn definition() -> Value {
    json!({
        "name": READ_RESULT,
        "title": "Read a long result",
        "description": description(),
        "inputSchema": schema(),
        "annotations": { "readOnlyHint": true, "openWorldHint": false },
    })
}
