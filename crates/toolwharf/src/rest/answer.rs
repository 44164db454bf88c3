//! Errors as HTTP says them: problem details (RFC 9457).

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};

use crate::{config::EditError, gateway::Refusal, registry};

/// A problem detail.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Problem {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    title: String,
    pub(crate) status: u16,
    /// What is wrong, and the way out.
    #[serde(default)]
    pub(crate) detail: String,
}

impl Problem {
    pub(crate) fn new(status: u16, detail: impl Into<String>) -> Self {
        let known = StatusCode::from_u16(status).ok();
        Self {
            kind: "about:blank".to_owned(),
            title: known
                .and_then(|status| status.canonical_reason())
                .unwrap_or_default()
                .to_owned(),
            status,
            detail: detail.into(),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let kind = HeaderValue::from_static("application/problem+json");
        let mut response = (status, [(header::CONTENT_TYPE, kind)], body).into_response();
        if status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer");
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, scheme);
        }
        response
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        Self::new(refusal.status.as_u16(), refusal.error.message)
    }
}

impl From<registry::Error> for Problem {
    fn from(error: registry::Error) -> Self {
        use registry::Error;
        let status = match &error {
            Error::NoServer { .. } => 404,
            Error::Exists { .. } => 412,
            Error::NoFile => 409,
            Error::Edit { source, .. } => match source {
                EditError::NoServer(_) => 404,
                EditError::Exists(_) => 412,
                EditError::Name(_) | EditError::Unfit { .. } => 422,
                // The file is somebody else's matter, and the request fine.
                EditError::Ambiguous(_)
                | EditError::NotAnObject(_)
                | EditError::Unreadable(_)
                | EditError::Locked(_)
                | EditError::Contended(_) => 409,
                EditError::Write { .. } => 500,
            },
        };
        let detail = match &error {
            Error::Edit {
                source: EditError::Write { source, .. },
                ..
            } => format!("{error}: {source}"),
            _ => error.to_string(),
        };
        Self::new(status, detail)
    }
}
