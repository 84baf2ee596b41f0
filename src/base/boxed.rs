//! Keeps the future of an idle tunnel small.

use std::pin::Pin;

/// Puts a step of a tunnel's walk on the heap while it runs.
///
/// A future has room for the largest of its steps for as long as it lives, and an idle tunnel's lives for days. So a
/// step that is over in a moment, or that few tunnels take, goes through here. A test of `tunnel` bounds the sum.
pub(crate) fn boxed<F: Future>(step: F) -> Pin<Box<F>> {
    Box::pin(step)
}
