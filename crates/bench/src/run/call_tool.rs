//! Compares calls through `call_tool`, the tool of search mode, with direct calls of the same tool. The gateway is
//! compared with itself, with direct calls as the baseline.
//!
//! Both kinds of calls go to the same process. They are measured without records, with records, and with clients of MCP
//! 2026-07-28.

use super::calls::{CLIENTS, Case, Figure, NO_AUDIT, Side, Transport, case, cpu, interleave};
use super::calls::{p50, through_product};
use super::report::{Bound, Row};
use super::{Driver, Product};
use crate::echo::Era;

/// Maximum ratio of the cost of a call through `call_tool` to a direct one.
const MAX_RATIO: f64 = 1.2;

const CASES: [(Case, Era, &str, Figure); 3] = [
    (
        case("call-tool", Era::Legacy, Era::Legacy, Transport::Stdio),
        Era::Legacy,
        NO_AUDIT,
        cpu("CPU per call, not recorded", Bound::Ratio(MAX_RATIO)),
    ),
    (
        case("call-tool", Era::Legacy, Era::Legacy, Transport::Stdio),
        Era::Legacy,
        "",
        cpu("CPU per call, recorded", Bound::Ratio(MAX_RATIO)),
    ),
    (
        case("call-tool", Era::Modern, Era::Legacy, Transport::Stdio),
        Era::Modern,
        NO_AUDIT,
        cpu(
            "CPU per call, MCP 2026-07-28, not recorded",
            Bound::Ratio(MAX_RATIO),
        ),
    ),
];
const LATENCY: Figure = p50("p50, 32 clients", Bound::None);

/// Measures direct calls and calls through `call_tool`.
pub(crate) async fn run(driver: &mut Driver) -> anyhow::Result<Vec<Row>> {
    let Product::Toolwharf(program) = driver.product.clone() else {
        // The baseline proxy has no `call_tool`.
        return Ok(Vec::new());
    };
    let mut rows = Vec::new();
    for (case, era, settings, figure) in &CASES {
        let chain = through_product(&program, *case, settings, None).await?;
        let measured = async {
            let direct = Side::echo(&chain, *era).await?;
            let found = Side::echo(&chain, *era).await?.through_call_tool();
            let size = driver.size;
            let rounds = (size.rounds, size.calls);
            interleave(driver, &direct, &found, (*era, CLIENTS), rounds).await
        };
        let measured = measured.await;
        let pair = chain.finish(measured).await?;
        let mut row = pair.row(case.name, figure);
        row.note = format!("floor: direct; {}", pair.note());
        rows.push(row);
        rows.push(pair.row(case.name, &LATENCY));
    }
    Ok(rows)
}
