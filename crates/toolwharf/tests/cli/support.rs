//! Helpers shared by the tests of the command line.

use std::path::Path;

use testkit::Bin;

pub(super) fn scripted() -> String {
    Bin::path("testkit-scripted").display().to_string()
}

pub(super) fn read(file: &Path) -> String {
    std::fs::read_to_string(file).expect("a file")
}
