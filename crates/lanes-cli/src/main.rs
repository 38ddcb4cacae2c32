//! The command line of `lanes`.
fn main() {}
