//! Runs the chaos test for a short time, and checks that all promises are kept.

use std::process::Command;

#[test]
fn servers_are_harmed_under_load_and_no_call_is_lost_or_made_twice() {
    // Servers are killed by about one of eight harms, and there are four harms per second.
    let seconds = if testkit::soak() { "2400" } else { "20" };
    let output = Command::new(env!("CARGO_BIN_EXE_bench"))
        .args([
            "chaos",
            "--servers",
            "8",
            "--clients",
            "8",
            "--seconds",
            seconds,
        ])
        .output()
        .expect("bench is started");
    let said = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{stderr}");
    assert!(
        said.contains("held    no call was carried out twice"),
        "{said}"
    );
    assert!(!said.contains("BROKEN"), "{said}");
    eprintln!("conservation: all calls accounted for once\n{said}");
}
