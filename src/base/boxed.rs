//! Keeps the future of an idle tunnel small.

use std::pin::Pin;

/// Puts a step of a tunnel on the heap while it runs.
///
/// A future is as large as its largest step for as long as it lives, and an idle tunnel's lives for days. So a short
/// step, or one that few tunnels take, goes through here. clippy's `large_futures` bounds the size.
pub(crate) fn boxed<F: Future>(step: F) -> Pin<Box<F>> {
    Box::pin(step)
}
