//! The description of a route.

use axum::{extract::Request, response::Response};
use futures_util::future::BoxFuture;
use serde_json::Value;
use utoipa::ToSchema;

use super::{AppState, access::Need, schemas};
use crate::schemas::Schemas;
use auth::Role;

pub(super) struct Route {
    /// The operation id, which names the function in generated clients: a verb and a noun.
    pub(super) id: &'static str,
    /// The method and the path.
    line: &'static str,
    pub(super) need: Need,
    pub(super) summary: &'static str,
    /// Additional description, in sentences.
    pub(super) about: &'static str,
    pub(super) serve: Serve,
    /// Maximum size of a request body, in bytes.
    pub(super) max_body: usize,
    pub(super) body: Option<Body>,
    pub(super) answer: Answer,
    /// May create a resource (status 201).
    pub(super) creates: bool,
    /// Responds with an `ETag` and accepts conditional requests.
    pub(super) tagged: bool,
    pub(super) query: &'static [Parameter],
}

/// Default maximum size of a request body, in bytes.
const MAX_BODY_BYTES: usize = 2 << 20;

/// A handler with its type erased, see [`handled_by`].
pub(super) type Serve = fn(Request, AppState) -> BoxFuture<'static, Response>;

/// Erases the type of a handler (an async function with axum's extractors). The compiler would otherwise make axum's
/// whole stack of services for each handler, and prove for each of them that its future is `Send`. That was 40 % of the
/// time to build this crate.
macro_rules! handled_by {
    ($handler:expr) => {
        |request, rest| axum::handler::Handler::call($handler, request, rest)
    };
}
pub(super) use handled_by;

type SchemaOf = fn(&mut Schemas) -> Value;

#[derive(Clone, Copy)]
pub(super) enum Body {
    Json(SchemaOf),
    /// A schema of [`config::schemas`], and the accepted content types.
    Written(&'static str, &'static [&'static str]),
}

/// Text content types, each with the name of its example.
type Texts = &'static [(&'static str, &'static str)];

#[derive(Clone, Copy)]
pub(super) enum Answer {
    /// 204
    Nothing,
    Json(SchemaOf),
    /// 204, or 200 with a body.
    Maybe(SchemaOf),
    /// Text or an event stream.
    Text(Texts),
    /// JSON, or one of the text types if the request accepts it.
    JsonOr(SchemaOf, Texts),
}

/// A query parameter.
#[derive(Clone, Copy)]
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy)]
pub(super) enum Kind {
    Text,
    Server,
    Number,
    Lines,
    Boolean,
    Time,
    Status,
    Format,
    Project,
}

pub(super) const fn parameter(name: &'static str, kind: Kind, about: &'static str) -> Parameter {
    Parameter { name, about, kind }
}

pub(super) const LIMIT: Parameter = parameter(
    "limit",
    Kind::Number,
    "The number of rows, 1 to 1000 (default 100)",
);
pub(super) const AFTER: Parameter = parameter(
    "after",
    Kind::Text,
    "The value of `next` in the previous page",
);
pub(super) const PAGED: &[Parameter] = &[LIMIT, AFTER];

/// The `project` parameter, for routes that look up a server or whose response depends on the project.
pub(super) const PROJECT: Parameter = parameter(
    "project",
    Kind::Project,
    "The project; a project key always refers to its own project",
);

pub(super) const CHAT_EVENTS: Texts = &[("text/event-stream", "ChatEvents")];

pub(super) const ADMIN: Need = Need::Administrator;
pub(super) const READ: Need = Need::Project(Role::Read);
pub(super) const MANAGE: Need = Need::Project(Role::Manage);
/// Administrators only, within a project.
pub(super) const OWNER: Need = Need::Project(Role::Admin);

impl Route {
    pub(super) fn method(&self) -> &'static str {
        self.line.split(' ').next().unwrap_or_default()
    }

    pub(super) fn path(&self) -> &'static str {
        &self.line[self.method().len() + 1..]
    }

    pub(super) const fn new(
        id: &'static str,
        line: &'static str,
        need: Need,
        summary: &'static str,
        serve: Serve,
    ) -> Self {
        Self {
            id,
            line,
            need,
            summary,
            about: "",
            serve,
            max_body: MAX_BODY_BYTES,
            body: None,
            answer: Answer::Nothing,
            creates: false,
            tagged: false,
            query: &[],
        }
    }

    pub(super) const fn of_at_most(mut self, body_bytes: usize) -> Self {
        self.max_body = body_bytes;

        self
    }

    pub(super) const fn about(mut self, about: &'static str) -> Self {
        self.about = about;

        self
    }

    pub(super) const fn takes<T: ToSchema>(mut self) -> Self {
        self.body = Some(Body::Json(schemas::reference::<T>));

        self
    }

    /// A body without a type. `schema` is the name of a schema of [`config::schemas`].
    pub(super) const fn takes_written(
        mut self,
        schema: &'static str,
        kinds: &'static [&'static str],
    ) -> Self {
        self.body = Some(Body::Written(schema, kinds));

        self
    }

    pub(super) const fn answers<T: ToSchema>(mut self) -> Self {
        self.answer = Answer::Json(schemas::reference::<T>);

        self
    }

    pub(super) const fn may_answer<T: ToSchema>(mut self) -> Self {
        self.answer = Answer::Maybe(schemas::reference::<T>);

        self
    }

    pub(super) const fn answers_text(mut self, kinds: Texts) -> Self {
        self.answer = Answer::Text(kinds);

        self
    }

    pub(super) const fn answers_or<T: ToSchema>(mut self, kinds: Texts) -> Self {
        self.answer = Answer::JsonOr(schemas::reference::<T>, kinds);

        self
    }

    pub(super) const fn creates(mut self) -> Self {
        self.creates = true;

        self
    }

    pub(super) const fn tagged(mut self) -> Self {
        self.tagged = true;

        self
    }

    pub(super) const fn asks(mut self, query: &'static [Parameter]) -> Self {
        self.query = query;

        self
    }
}
