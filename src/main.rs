//! The binary: `cli` has its programs.

use std::process::ExitCode;

mod cli;

fn main() -> ExitCode {
    cli::run()
}
