//! One-time links that sign a browser in.

use api::BrowserLink;
use axum::{Extension, Json, extract::State};

use super::{AppState, Problem, access::Who};
use crate::{gateway::Guard, tickets::LINK};

/// A link that signs a browser in with the key of whoever asks.
pub(super) async fn link(
    State(rest): State<AppState>,
    Extension(who): Who,
) -> Result<Json<BrowserLink>, Problem> {
    if !who.id.starts_with("key:") {
        let why = "only a key can be handed to a browser: open `/sign-in` there instead";
        return Err(Problem::forbidden(why));
    }
    let Some(url) = rest.front.guard().link(&who).await? else {
        return Err(Problem::new(409, Guard::NO_LINK));
    };
    let expires_in = LINK.as_secs();
    Ok(Json(BrowserLink { url, expires_in }))
}
