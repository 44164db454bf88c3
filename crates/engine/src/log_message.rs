//! Log messages of servers (`notifications/message`), as clients receive them: by level, and with the server's name.

use mcp::{
    Frame, bridge,
    json::{Splice, quote},
};

/// Returns whether a client that asked for messages from the level `least` on gets this one. `None`: it gets all.
pub(crate) fn is_wanted(frame: &Frame, least: Option<&str>) -> bool {
    let level = || frame.object()?.string("level");
    least.is_none_or(|least| bridge::is_logged(&level().unwrap_or_default(), least))
}

/// Names the server in `logger`, for clients that see several servers: `one`, or `one/db` for its logger `db`.
pub(crate) fn expose(frame: &Frame, label: &str, splice: &mut Splice<'_>) {
    let Some(params) = frame.object() else { return };
    let logger = match params.string("logger").as_deref() {
        None | Some("") => label.to_owned(),
        Some(own) if own == label => return,
        Some(own) => format!("{label}/{own}"),
    };
    let logger = quote(&logger);
    match params.find("logger") {
        Some(own) => splice.replace(own, logger.into_bytes()),
        None => splice.insert(frame.text(), &params.span(), format!("\"logger\":{logger}")),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_logger_names_the_server() {
        for (params, expect) in [
            (r#"{"data":1}"#, r#"{"logger":"one","data":1}"#),
            (r#"{"logger":"","data":1}"#, r#"{"logger":"one","data":1}"#),
            (r#"{"logger":"db"}"#, r#"{"logger":"one/db"}"#),
            (r#"{"logger":"one"}"#, r#"{"logger":"one"}"#),
            (r#"{"logger":"two/x"}"#, r#"{"logger":"one/two/x"}"#),
            (r#"{"logger":null}"#, r#"{"logger":"one"}"#),
            ("[1]", "[1]"),
        ] {
            let frame = Frame::notification("notifications/message", Some(params.as_bytes()));
            let mut splice = Splice::new();
            expose(&frame, "one", &mut splice);
            let text = splice.apply(frame.text());
            let text = String::from_utf8_lossy(&text);
            assert!(text.ends_with(&format!("{expect}}}")), "{params}: {text}");
        }
    }
}
