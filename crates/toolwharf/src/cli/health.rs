//! `health`: whether the running gateway is ready, as an exit code. Images without a shell use it for their health check.

use std::time::Duration;

use super::{Context, http::Refused, print};

/// Time limit of the request. Docker checks at most this long, too.
const TIME_LIMIT: Duration = Duration::from_secs(5);

pub(super) async fn run(context: &Context) -> anyhow::Result<()> {
    let api = context.gateway().await?.patient(TIME_LIMIT);
    match api.text("/readyz").await {
        Ok(state) => print::data(&state),
        Err(error) => match error.downcast_ref::<Refused>() {
            Some(refused) if refused.status == 503 => Err(anyhow::anyhow!(
                "the gateway at {} is not ready: it is starting, or cannot reach its database; its log says which",
                api.url
            )),
            _ => Err(error),
        },
    }
}
