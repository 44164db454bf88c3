//! Single-use links that sign a browser in.

use api::BrowserLink;
use axum::{Extension, Json, extract::State, http::HeaderMap};

use super::{AppState, Problem, access::Who};
use auth::tickets::LINK;
use gateway::Guard;

/// Creates a link that signs a browser in with the caller's key.
pub(super) async fn link(
    State(rest): State<AppState>,
    Extension(who): Who,
    headers: HeaderMap,
) -> Result<Json<BrowserLink>, Problem> {
    if !who.id.starts_with("key:") {
        let why = "only a caller with a key can create a sign-in link: open `/sign-in` in the browser instead";
        return Err(Problem::forbidden(why));
    }
    let Some(url) = rest.front.guard().link(&who, &headers).await? else {
        return Err(Problem::new(409, Guard::NO_LINK));
    };
    let expires_in = LINK.as_secs();
    Ok(Json(BrowserLink { url, expires_in }))
}
