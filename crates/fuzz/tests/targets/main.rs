//! Each fuzz target, with the inputs in `corpus` and changes of them: see [`fuzz`].

mod coverage;

use fuzz::Target;

/// In CI, inputs at random for at most ten seconds. In `cargo xtask soak`, inputs from coverage for a minute.
fn fuzz(name: &str) {
    let target = Target::find(name).expect(name);
    let count = fuzz::short::run(&target);
    println!("fuzz {name}: {count} inputs without a fault");
    if std::env::var_os("TOOLWHARF_SOAK").is_some_and(|value| value == "1") {
        coverage::run(&target);
    }
}

#[test]
fn fuzz_frames() {
    fuzz("frames");
}

#[test]
fn fuzz_json() {
    fuzz("json");
}

#[test]
fn fuzz_sse() {
    fuzz("sse");
}

#[test]
fn fuzz_headers() {
    fuzz("headers");
}

#[test]
fn fuzz_configuration() {
    fuzz("configuration");
}

#[test]
fn fuzz_manifests() {
    fuzz("manifests");
}

#[test]
fn fuzz_uris() {
    fuzz("uris");
}

#[test]
fn fuzz_oauth() {
    fuzz("oauth");
}

#[test]
fn fuzz_registry() {
    fuzz("registry");
}

#[test]
fn fuzz_mcpb() {
    fuzz("mcpb");
}
