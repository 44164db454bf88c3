//! What the tests of this crate share.

use std::{future::Future, time::Duration};

use agent::{Origin, Raw, ToolFunction};
use model::{ExposedName, NativeName, ServerName};

/// Awaits something that has to happen soon.
pub(crate) async fn within<F: Future>(what: &str, future: F) -> F::Output {
    testkit::within(what, Duration::from_secs(20), future).await
}

/// A tool of a server, which takes anything.
pub(crate) fn function(name: &str) -> ToolFunction {
    ToolFunction {
        name: ExposedName::new(name),
        description: format!("the tool {name}").into(),
        parameters: Raw::parse(r#"{"type":"object"}"#).expect("JSON"),
        response: None,
        origin: Origin::Server {
            server: ServerName::parse("test").expect("a name"),
            native: NativeName::new(name),
        },
    }
}
