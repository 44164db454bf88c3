//! Heavy loops are short in CI and run at full length in `cargo xtask soak`.

/// Returns whether loops run at full length. `cargo xtask soak` sets `TOOLWHARF_SOAK=1`.
#[must_use]
pub fn soak() -> bool {
    std::env::var_os("TOOLWHARF_SOAK").is_some_and(|value| value == "1")
}
