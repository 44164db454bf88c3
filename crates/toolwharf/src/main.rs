#[cfg_attr(
    not(test),
    expect(
        dead_code,
        unused_imports,
        reason = "the command line is to use all of it"
    )
)]
#[cfg_attr(
    test,
    expect(
        unused_imports,
        reason = "the tests reach what they need by its module"
    )
)]
mod config;

fn main() {}
