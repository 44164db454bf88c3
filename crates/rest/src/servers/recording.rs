//! Recording the arguments and results of a server's calls for a while, regardless of the settings.

use std::time::Duration;

use api::{RecordingRequest, Server};
use axum::{
    Extension, Json,
    body::Bytes,
    extract::{State, rejection::BytesRejection},
    http::StatusCode,
};
use serde_json::json;
use store::NewEvent;

use super::Target;
use crate::{AppState, Problem, Rest, access::Who, input::object};
use auth::Principal;

/// Bounds of the duration, in seconds.
const MIN_SECONDS: u32 = 60;
const MAX_SECONDS: u32 = 24 * 60 * 60;

const NOT_RECORDED: &str = "calls are not recorded: set `enabled = true` under `[audit]` in toolwharf.toml, then try again";

pub(crate) async fn begin(
    State(rest): State<AppState>,
    Extension(who): Who,
    target: Target,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Server>, Problem> {
    let RecordingRequest { seconds } = object(body)?;
    if !(MIN_SECONDS..=MAX_SECONDS).contains(&seconds) {
        let must = format!("must be a whole number from {MIN_SECONDS} to {MAX_SECONDS}");
        return Err(Problem::field(400, "/seconds", must));
    }
    if !rest.gateway.settings().audit.enabled {
        return Err(Problem::new(409, NOT_RECORDED));
    }
    {
        let _one_at_a_time = rest.turn().await?;
        let ends_at = store::now() + Duration::from_secs(seconds.into());
        let until = ends_at.format("%Y-%m-%dT%H:%M:%SZ");
        let message = format!("arguments and results of calls are recorded until {until}");
        rest.note(&who, &target, "recording_started", &message)
            .await?;
        rest.projects
            .store()
            .recording_put(&target.key, ends_at)
            .await?;
        rest.read_recordings().await?;
    }
    Ok(Json(rest.with_product(&who, &target).await?))
}

pub(crate) async fn end(
    State(rest): State<AppState>,
    Extension(who): Who,
    target: Target,
) -> Result<StatusCode, Problem> {
    let _one_at_a_time = rest.turn().await?;
    if rest.gateway.recording(&target.key).is_some() {
        let message = "arguments and results of calls are no longer recorded";
        rest.note(&who, &target, "recording_ended", message).await?;
    }
    rest.projects.store().recording_delete(&target.key).await?;
    rest.read_recordings().await?;
    Ok(StatusCode::NO_CONTENT)
}

impl Rest {
    async fn read_recordings(&self) -> Result<(), Problem> {
        let recordings = self.projects.store().recording_list().await?;
        self.gateway.set_recordings(recordings);
        Ok(())
    }

    /// Adds an event to the server's log, with the caller's name.
    async fn note(
        &self,
        who: &Principal,
        target: &Target,
        kind: &str,
        message: &str,
    ) -> Result<(), Problem> {
        let message = format!("{message} (requested by `{}`)", who.id);
        let event = NewEvent {
            project: target.key.owner.as_ref(),
            server: &target.events(),
            kind,
            detail: &json!({ "message": message, "by": *who.id }),
        };
        Ok(self.projects.store().event_add(event).await?)
    }
}
