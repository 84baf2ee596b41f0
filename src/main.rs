//! The command line: `serve`, `check` and `connect`.

fn main() {}
