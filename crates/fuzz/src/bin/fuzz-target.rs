//! libFuzzer with the target that `FUZZ_TARGET` names. The arguments are those of libFuzzer.

#![no_main]

use std::sync::LazyLock;

use fuzz::Target;

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    Target::find(&name).unwrap_or_else(|| panic!("FUZZ_TARGET={name:?} is not a target"))
});

libfuzzer_sys::fuzz_target!(|input: &[u8]| TARGET.check(input));
