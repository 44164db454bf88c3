//! Helpers shared by these tests.

use std::path::Path;

use testkit::Bin;

pub(super) fn scripted() -> String {
    Bin::path("testkit-scripted").display().to_string()
}

pub(super) fn read(file: &Path) -> String {
    std::fs::read_to_string(file).expect("a file")
}
