//! The bounds of a bench's figures: a bench that exceeds one exits with 1.

use std::fmt::Display;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

static IS_ONE_EXCEEDED: AtomicBool = AtomicBool::new(false);

/// Prints whether a figure keeps its bound.
pub(crate) fn bound(what: impl Display, is_kept: bool) {
    println!("{} {what}", if is_kept { "kept:    " } else { "EXCEEDED:" });
    IS_ONE_EXCEEDED.fetch_or(!is_kept, Ordering::Relaxed);
}

/// Returns the exit status of the bench. Bounds are those of an optimised build: another one exceeds them with 0.
pub(crate) fn status() -> ExitCode {
    if IS_ONE_EXCEEDED.load(Ordering::Relaxed) && !cfg!(debug_assertions) {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}
