//! The send state that a connection and its streams share.

use std::convert::Infallible;
use std::mem::{self, take};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio_util::sync::PollSemaphore;

use super::frame_budget::Credit;
use super::send_buffer::{BufferPermits, Class};
use super::write_queue::FIRST_SHARE;
use super::zero_copy::ZeroCopy;

/// A handle to the shared state.
#[derive(Clone, Debug)]
pub(super) struct Outgoing(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    permits: Mutex<BufferPermits>,
    /// How often the permits may still be [renewed](Outgoing::renew_permits).
    renewals: AtomicU32,
    zero_copy: ZeroCopy,
    credit: Credit,
    /// Senders and permits to drop at the next flush: h2 has finished with the payload that held each of them. `None` once
    /// there will be no flush.
    unflushed: Mutex<Option<Vec<FlushRelease>>>,
    /// The bytes of one bulk write.
    share: AtomicUsize,
}

/// The part of a payload that is dropped at the flush.
pub(super) type FlushRelease = (Option<oneshot::Sender<Infallible>>, Option<OwnedSemaphorePermit>);

impl Outgoing {
    pub(super) fn new(credit: Credit) -> Self {
        Self(Arc::new(Shared {
            permits: Mutex::new(BufferPermits::new()),
            renewals: AtomicU32::new(MAX_RENEWALS),
            zero_copy: ZeroCopy::default(),
            credit,
            unflushed: Mutex::new(Some(Vec::new())),
            share: AtomicUsize::new(FIRST_SHARE),
        }))
    }

    /// Returns a handle by which one stream waits for permits of send buffers.
    pub(super) fn semaphore(&self, class: Class) -> PollSemaphore {
        self.0.permits.lock().semaphore(class)
    }

    /// Replaces the permits after the peer may have shrunk windows (RFC 9113 section 6.9.2). Payloads that wait in h2
    /// for window space may hold all former permits, for which streams with space would wait.
    ///
    /// Each renewal adds to the memory that unsent downloads may hold, so there are only [`MAX_RENEWALS`].
    pub(super) fn renew_permits(&self) {
        let spend = |left: u32| left.checked_sub(1);
        if self
            .0
            .renewals
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend)
            .is_ok()
        {
            let former = mem::replace(&mut *self.0.permits.lock(), BufferPermits::new());
            former.close();
        }
    }

    pub(super) fn zero_copy(&self) -> &ZeroCopy {
        &self.0.zero_copy
    }

    pub(super) fn credit(&self) -> &Credit {
        &self.0.credit
    }

    /// Returns the bytes that one bulk write may have: as many as the link takes in a short time.
    pub(super) fn share(&self) -> usize {
        self.0.share.load(Ordering::Relaxed)
    }

    /// Sets the bytes of one bulk write.
    pub(super) fn set_share(&self, share: usize) {
        self.0.share.store(share, Ordering::Relaxed);
    }

    /// Drops this at the next flush, or at once if there will be none.
    pub(super) fn drop_when_flushed(&self, release: FlushRelease) {
        if let Some(unflushed) = self.0.unflushed.lock().as_mut() {
            unflushed.push(release);
        }
    }

    /// Notes that the transport has taken everything written so far.
    pub(super) fn flushed(&self) {
        // Bound to a name: the receivers are woken by the drop, which must not happen under the lock.
        let flushed = self.0.unflushed.lock().as_mut().map(take);
        drop(flushed);
    }

    /// Notes that nothing more will be written.
    pub(super) fn closed(&self) {
        let flushed = self.0.unflushed.lock().take();
        drop(flushed);
    }
}

/// How often a client may shrink its windows without harm to its own streams. Each renewal lets the connection's unsent
/// downloads hold 640 KiB more, 5 MiB in all.
const MAX_RENEWALS: u32 = 8;
