//! Nodes that are lost, silent or drained, and managers that are away.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::faults::{Line, Way, answers, echo, mark, processes};
use crate::support::{LONG, with};

#[tokio::test]
async fn d06_a_killed_server_of_a_silent_node_has_ended_when_that_is_said() {
    let way = Way::new(2);
    let bench = with("silent", &[1], |options| {
        options.daemons.push(way.address());
        options.constraints = vec!["node.hostname == node-2".to_owned()];
    });
    let mark = mark("silent");
    let mut instance = bench.launch(echo(&mark)).await.expect("it starts");
    answers(&mut instance, "one").await;
    // Its watch was spoken to within the last two seconds, so that it does nothing for the next six.
    way.line.send_replace(Line::Silent);
    let begun = Instant::now();
    let stopping = instance.handle.stop(Duration::ZERO);
    timeout(LONG, stopping).await.expect("in time");
    let took = begun.elapsed();
    assert_eq!(processes(&mark).len(), 0, "said after {took:?}");
    way.line.send_replace(Line::Open);
    bench.nothing_left().await;
}
