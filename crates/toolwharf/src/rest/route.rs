//! What a route is, and how one is written down.

use axum::routing::MethodRouter;
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    AppState,
    access::Need,
    openapi::{self, Schemas},
};
use crate::auth::Role;

/// One operation.
pub(super) struct Route {
    /// Of the operation, by which generated clients call it: a verb and a noun.
    pub(super) id: &'static str,
    /// The method and the path.
    line: &'static str,
    pub(super) need: Need,
    pub(super) summary: &'static str,
    /// What there is to know besides, in sentences.
    pub(super) about: &'static str,
    pub(super) serve: fn() -> MethodRouter<AppState>,
    pub(super) body: Option<Body>,
    pub(super) answer: Answer,
    /// May make what was not there: 201.
    pub(super) creates: bool,
    /// Answers with a tag, and takes conditions about it.
    pub(super) tagged: bool,
    pub(super) query: &'static [Parameter],
}

type SchemaOf = fn(&mut Schemas) -> Value;

#[derive(Clone, Copy)]
pub(super) enum Body {
    Json(SchemaOf),
    /// A schema of `bodies.json`, and the content types in which it comes.
    Written(&'static str, &'static [&'static str]),
}

/// Content types of texts, each with the name of its example.
type Texts = &'static [(&'static str, &'static str)];

#[derive(Clone, Copy)]
pub(super) enum Answer {
    /// 204
    Nothing,
    Json(SchemaOf),
    /// 204, or 200 with that.
    Maybe(SchemaOf),
    /// Text, or a stream of events.
    Text(Texts),
    /// JSON, or one of these where the request accepts it.
    JsonOr(SchemaOf, Texts),
}

/// Something behind the `?`.
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

/// Of every route that looks for a server, or whose answer depends on the project.
pub(super) const PROJECT: Parameter = parameter(
    "project",
    Kind::Project,
    "The project that is meant; the key of a project always means its own",
);

/// What comes of a chat.
pub(super) const CHAT_EVENTS: Texts = &[("text/event-stream", "ChatEvents")];

pub(super) const ADMIN: Need = Need::Administrator;
pub(super) const READ: Need = Need::Project(Role::Read);
pub(super) const MANAGE: Need = Need::Project(Role::Manage);
/// In a project, but not for its own keys.
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
        serve: fn() -> MethodRouter<AppState>,
    ) -> Self {
        Self {
            id,
            line,
            need,
            summary,
            about: "",
            serve,
            body: None,
            answer: Answer::Nothing,
            creates: false,
            tagged: false,
            query: &[],
        }
    }

    pub(super) const fn about(mut self, about: &'static str) -> Self {
        self.about = about;

        self
    }

    pub(super) const fn takes<T: ToSchema>(mut self) -> Self {
        self.body = Some(Body::Json(openapi::reference::<T>));

        self
    }

    /// A body without a type of its own: `schema` is one of `bodies.json`.
    pub(super) const fn takes_written(
        mut self,
        schema: &'static str,
        kinds: &'static [&'static str],
    ) -> Self {
        self.body = Some(Body::Written(schema, kinds));

        self
    }

    pub(super) const fn answers<T: ToSchema>(mut self) -> Self {
        self.answer = Answer::Json(openapi::reference::<T>);

        self
    }

    pub(super) const fn may_answer<T: ToSchema>(mut self) -> Self {
        self.answer = Answer::Maybe(openapi::reference::<T>);

        self
    }

    pub(super) const fn answers_text(mut self, kinds: Texts) -> Self {
        self.answer = Answer::Text(kinds);

        self
    }

    pub(super) const fn answers_or<T: ToSchema>(mut self, kinds: Texts) -> Self {
        self.answer = Answer::JsonOr(openapi::reference::<T>, kinds);

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
