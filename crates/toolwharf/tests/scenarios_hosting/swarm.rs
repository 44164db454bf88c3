//! Accesses the test swarm directly, without the product.

use std::path::PathBuf;

use crate::support::docker_at;

/// The variable with the directory of the test swarm. `xtask/src/swarm.rs` describes its content.
const VARIABLE: &str = "TOOLWHARF_TEST_SWARM";
/// The nodes that run the servers of these tests.
const NODES: [usize; 3] = [1, 2, 3];

fn socket(number: usize) -> String {
    let dir = std::env::var(VARIABLE).unwrap_or_else(|_| {
        panic!(
            "{VARIABLE} names no swarm; run: cargo xtask swarm -- cargo nextest run --profile soak -p toolwharf -E \
             'binary(scenarios_hosting) & test(/swarm/)'"
        )
    });
    let socket = PathBuf::from(dir).join(number.to_string()).join("sock");
    format!("unix://{}", socket.display())
}

/// Returns the settings of the provider.
pub(crate) fn settings(gvisor: bool) -> String {
    let daemons = NODES.map(socket);
    let kernel = if gvisor { "gvisor" } else { "linux" };
    let constraint = format!("node.labels.kernel == {kernel}");
    format!("[swarm]\ndaemons = {daemons:?}\nconstraints = [{constraint:?}]\ngvisor = {gvisor}\n")
}

/// Runs the Docker client against a node's daemon.
fn docker(number: usize, args: &[&str]) -> String {
    docker_at(&socket(number), args)
}

fn everywhere(args: &[&str], id: &str) -> Vec<String> {
    let label = format!("label=toolwharf.hosting={id}");
    let mut all = Vec::new();
    for number in NODES {
        let listed = docker(number, &[args, &["--quiet", "--filter", &label]].concat());
        all.extend(listed.lines().map(|one| format!("{number} {one}")));
    }
    all
}

/// Returns a server's running containers, as node number and container id.
pub(crate) fn containers(id: &str) -> Vec<String> {
    everywhere(&["ps", "--no-trunc"], id)
}

pub(crate) fn has_volumes(id: &str) -> bool {
    !everywhere(&["volume", "ls"], id).is_empty()
}

/// Kills the process in a container.
pub(crate) fn kill(container: &str) {
    let (number, id) = container.split_once(' ').expect("a node, and an id");
    let number = number.parse().expect("a number");
    docker(number, &["kill", "--signal", "KILL", id]);
}
