//! HTTP error responses: problem details (RFC 9457).

use std::{
    convert::Infallible,
    io::ErrorKind,
    num::NonZeroU32,
    ops::{Deref, DerefMut},
};

use api::Wrong;
use axum::{
    body::{Body, Bytes},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use config::EditError;
use futures_util::{Stream, StreamExt as _, stream};
use tokio::time::timeout;

use auth::Ambiguous;
use backend::{projects::SecretError, server_files};
use gateway::{KEEP_ALIVE, Refusal, challenge};

/// Seconds to wait before a retry, if the database was not available.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("2");
/// Maximum length of a name in a message, in characters.
const MAX_SHOWN_CHARS: usize = 100;

/// A problem detail (RFC 9457) with its response headers.
#[derive(Debug)]
pub struct Problem {
    said: Box<api::Problem>,
    /// Seconds to wait before a retry, if not the default.
    pub(crate) retry_after: Option<NonZeroU32>,
    /// The value of `WWW-Authenticate`, which says how to get a valid token.
    challenge: Option<HeaderValue>,
}

impl Deref for Problem {
    type Target = api::Problem;

    fn deref(&self) -> &api::Problem {
        &self.said
    }
}

impl DerefMut for Problem {
    fn deref_mut(&mut self) -> &mut api::Problem {
        &mut self.said
    }
}

impl Problem {
    pub(crate) fn new(status: u16, detail: impl Into<String>) -> Self {
        let known = StatusCode::from_u16(status).ok();
        let said = api::Problem {
            kind: "about:blank".to_owned(),
            title: known
                .and_then(|status| status.canonical_reason())
                .unwrap_or_default()
                .to_owned(),
            status,
            detail: detail.into(),
            reason: None,
            login_url: None,
            errors: Vec::new(),
            mcp: None,
        };
        Self {
            said: said.into(),
            retry_after: None,
            challenge: None,
        }
    }

    /// An error in one field of the body.
    pub(super) fn field(status: u16, pointer: &str, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        let mut problem = Self::new(
            status,
            format!("`{}`: {detail}", pointer.trim_start_matches('/')),
        );
        problem.errors.push(Wrong {
            pointer: pointer.to_owned(),
            detail,
        });
        problem
    }

    /// Returns the errors in the body.
    pub(super) fn into_errors(self) -> Vec<Wrong> {
        self.said.errors
    }

    /// The text is the same whether the project is missing or belongs to another caller.
    pub(super) fn no_project(id: &str) -> Self {
        Self::new(404, format!("there is no project `{}`", shown(id)))
    }

    /// The caller's role is not sufficient.
    pub(super) fn forbidden(why: impl Into<String>) -> Self {
        Self::new(403, why)
    }
}

/// Returns the beginning of a name, for messages.
pub(super) fn shown(name: &str) -> String {
    name.chars().take(MAX_SHOWN_CHARS).collect()
}

/// Turns "not found" into `None`.
pub(super) fn found<T>(result: store::Result<T>) -> Result<Option<T>, Problem> {
    match result {
        Ok(row) => Ok(Some(row)),
        Err(store::Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns an uncached event stream. While there are no events, periodic comments prevent proxies from closing the
/// connection.
pub(super) fn event_stream(events: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    let events = stream::unfold(Box::pin(events), async |mut events| {
        let event = match timeout(KEEP_ALIVE, events.next()).await {
            Ok(event) => event?,
            Err(_) => Bytes::from_static(b": \n\n"),
        };
        Some((Ok::<_, Infallible>(event), events))
    });
    (headers, Body::from_stream(events)).into_response()
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let retry_after = self
            .retry_after
            .map_or(RETRY_AFTER, |seconds| seconds.get().into());
        let body = serde_json::to_vec(&*self).unwrap_or_default();
        let kind = HeaderValue::from_static("application/problem+json");
        let mut response = (status, [(header::CONTENT_TYPE, kind)], body).into_response();
        let headers = response.headers_mut();
        if let Some(challenge) = challenge(status, self.challenge.as_ref()) {
            headers.insert(header::WWW_AUTHENTICATE, challenge);
        }
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, retry_after);
        }
        response
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        Self {
            challenge: refusal.challenge,
            ..Self::new(refusal.status.as_u16(), refusal.error.message)
        }
    }
}

impl From<Ambiguous> for Problem {
    fn from(ambiguous: Ambiguous) -> Self {
        Self::new(400, format!("{ambiguous} as `?project=`"))
    }
}

impl From<store::Error> for Problem {
    fn from(error: store::Error) -> Self {
        use store::Error;
        match &error {
            Error::NotFound {
                what: "project",
                name,
            } => Self::no_project(name),
            Error::NotFound { what, name } => {
                Self::new(404, format!("there is no {what} `{}`", shown(name)))
            }
            Error::Conflict { what, name, why } => {
                Self::new(409, format!("{what} `{}`: {why}", shown(name)))
            }
            Error::Invalid(why) => Self::new(400, why.as_str()),
            Error::Unavailable { source, .. } => {
                match source {
                    Some(source) => tracing::warn!("{error}: {source}"),
                    None => tracing::warn!("{error}"),
                }
                Self::new(503, error.to_string())
            }
            Error::Corrupt(source) => {
                tracing::error!("{error}: {source}");
                Self::new(500, error.to_string())
            }
        }
    }
}

impl From<SecretError> for Problem {
    fn from(error: SecretError) -> Self {
        match error {
            SecretError::Name(_) => Self::new(400, error.to_string()),
            SecretError::Value => Self::field(400, "/value", error.to_string()),
            SecretError::Sealed => {
                tracing::error!("{error}");
                Self::new(500, error.to_string())
            }
            SecretError::Store(error) => error.into(),
        }
    }
}

impl From<server_files::Error> for Problem {
    fn from(error: server_files::Error) -> Self {
        use server_files::Error;
        let status = match &error {
            Error::NoServer { .. } => 404,
            Error::Exists { .. } => 412,
            Error::NoFile => 409,
            Error::Edit { source, .. } => match source {
                EditError::NoServer(_) => 404,
                EditError::Exists(_) | EditError::Changed(_) => 412,
                EditError::Name(_) | EditError::Unfit { .. } => 422,
                // The request is valid, but another process or user has to fix the file.
                EditError::Ambiguous(_)
                | EditError::NotAnObject(_)
                | EditError::Unreadable(_)
                | EditError::Locked(_)
                | EditError::Contended(_) => 409,
                EditError::Write { source, .. } => match source.kind() {
                    ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => 409,
                    _ => 500,
                },
            },
        };
        let detail = match &error {
            Error::Edit {
                source: EditError::Write { source, .. },
                ..
            } => format!("{error}: {source}"),
            _ => error.to_string(),
        };
        let mut problem = Self::new(status, detail);
        if let Error::Edit {
            source: EditError::Unfit { wrong, .. },
            ..
        } = error
        {
            problem.errors = wrong;
        }
        problem
    }
}
