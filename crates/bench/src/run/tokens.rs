//! Compares calls with an issuer's token and calls with a key. The gateway is compared with itself, with the calls with
//! a key as the baseline.
//!
//! Both kinds of calls go to the same process over the REST API. The token has the size and claims of a typical company
//! sign-in, and its issuer is a real one. The issuer's keys are fetched once, before the measurement.

use anyhow::Context as _;
use serde_json::json;
use testkit::Issuer;

use super::calls::{CLIENTS, Figure, NO_AUDIT, Side, cpu, interleave, p50, stdio_entry};
use super::load::Work;
use super::part::Home;
use super::report::{Bound, Row};
use super::{Driver, Product};
use crate::echo::Era;

/// Maximum ratio of the cost of a call with a token to one with a key.
const MAX_RATIO: f64 = 1.1;

const FIGURES: [Figure; 2] = [
    cpu(
        "CPU per call with a token, 32 clients",
        Bound::Ratio(MAX_RATIO),
    ),
    p50("p50, 32 clients", Bound::None),
];

/// Measures calls with a key and with a token.
pub(crate) async fn run(driver: &mut Driver) -> anyhow::Result<Vec<Row>> {
    let Product::Toolwharf(program) = driver.product.clone() else {
        // The baseline proxy checks neither keys nor tokens.
        return Ok(Vec::new());
    };
    let issuer = Issuer::start(json!({})).await;
    let settings = format!(
        "{NO_AUDIT}[auth.oidc.corp]\nissuer = \"{}\"\naccess = [{{ claim = \"groups\", values = [\"ml\"], role = \"call\" }}]\n",
        issuer.url()
    );
    let home = Home::new(&json!({ "echo": stdio_entry(&[])? }), &settings)?;
    let part = home.start(&program).await?;
    let measured = async {
        let base = part.url.strip_suffix("/mcp").context("not an endpoint")?;
        let groups: Vec<_> = (0..20).map(|n| format!("department-{n}")).collect();
        let groups = [&["ml".to_owned()], groups.as_slice()].concat();
        let claims = json!({ "groups": groups, "email": "ann@example.com", "name": "Ann" });
        let token = issuer
            .token("ann", "client", base, &["mcp:call"], claims)
            .await;
        let bytes = token.len();
        let url = format!("{base}/api/v1/mcp/servers/echo/call");
        let side = |bearer| Side::new(&part, &url, Work::Bridge { bearer });
        let (key, token) = (side(part.token()?), side(token));
        let size = driver.size;
        let rounds = (size.rounds, size.calls);
        let load = (Era::Legacy, CLIENTS);
        let pair = interleave(driver, &key, &token, load, rounds).await?;
        let mut rows = pair.rows("tokens", &FIGURES);
        rows[0].note = format!(
            "floor: with a key; a token of {bytes} bytes; {}",
            pair.note()
        );
        anyhow::Ok(rows)
    };
    let measured = measured.await;
    part.finish(measured).await
}
