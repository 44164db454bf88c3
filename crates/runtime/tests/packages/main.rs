//! U03: what a package tries to run while npm or uv installs it. npm, uv and bubblewrap are real. The registry is
//! hostile and runs on loopback.

#![expect(clippy::unwrap_used, reason = "it is a test")]

mod attacks;
mod bounds;
mod ground;
mod inside;
