//! What a connection and its streams share about what they send.

use std::convert::Infallible;
use std::mem::take;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio_util::sync::PollSemaphore;

use super::frames::Credit;
use super::send_buffer::{BufferPermits, Class};
use super::zero_copy::ZeroCopy;

/// A handle to the shared state.
#[derive(Clone, Debug)]
pub(super) struct Outgoing(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    permits: BufferPermits,
    zero_copy: ZeroCopy,
    credit: Credit,
    /// Senders that are dropped by the next flush, for streams whose END_STREAM has been written. `None` once there will
    /// be no flush.
    unflushed: Mutex<Option<Vec<oneshot::Sender<Infallible>>>>,
}

impl Outgoing {
    pub(super) fn new(credit: Credit) -> Self {
        Self(Arc::new(Shared {
            permits: BufferPermits::new(),
            zero_copy: ZeroCopy::default(),
            credit,
            unflushed: Mutex::new(Some(Vec::new())),
        }))
    }

    /// A handle by which one stream waits for permits of send buffers.
    pub(super) fn semaphore(&self, class: Class) -> PollSemaphore {
        self.0.permits.semaphore(class)
    }

    pub(super) fn zero_copy(&self) -> &ZeroCopy {
        &self.0.zero_copy
    }

    pub(super) fn credit(&self) -> &Credit {
        &self.0.credit
    }

    /// Drops `sender` at the next flush, or at once if there will be none.
    pub(super) fn drop_when_flushed(&self, sender: oneshot::Sender<Infallible>) {
        if let Some(unflushed) = self.0.unflushed.lock().as_mut() {
            unflushed.push(sender);
        }
    }

    /// All that was written has been given to the transport.
    pub(super) fn flushed(&self) {
        // Bound to a name: the receivers are woken by the drop, which must not happen under the lock.
        let flushed = self.0.unflushed.lock().as_mut().map(take);
        drop(flushed);
    }

    /// Nothing will be written any more.
    pub(super) fn closed(&self) {
        let flushed = self.0.unflushed.lock().take();
        drop(flushed);
    }
}
