//! The bounds of an SSH connection's memory and work, and its end: the `Gate` of the connection, which its socket asks, and the
//! `Inbox` of a channel, which holds what waits for the target.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::net::transport::StreamCancelled;

/// One connection. Nothing is read from its socket while too many bytes wait for the target, and nothing is taken from
/// the target while too many wait for the socket.
#[derive(Debug, Default)]
pub(super) struct Gate {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The cost of the payloads that wait for the target.
    queued: usize,
    /// The bytes of the download that the session has and the kernel has not.
    unsent: usize,
    /// Those of them that are encrypted. The next flush has written them.
    encrypted: usize,
    allowance: Allowance,
    /// True if the client has sent a FIN.
    has_finished: bool,
    is_closed: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// The relay of the download.
    download: Option<Waker>,
}

/// The bytes that a client may send which carry nothing for a target: key exchanges, logins, channels that are refused. They
/// cost CPU time, and answers that wait in memory without a bound.
#[derive(Debug, Default)]
struct Allowance {
    /// The bytes that were spent. Less than none, if bytes are on the way to a channel that was closed here.
    spent: i64,
    /// The time up to which credit was given; `None` before the login, which earns none.
    counted_to: Option<Instant>,
}

impl Allowance {
    fn spend(&mut self, bytes: usize) {
        if let Some(counted_to) = &mut self.counted_to {
            let earned = counted_to.elapsed().as_millis() * BYTES_PER_MILLISECOND;
            if earned > 0 {
                *counted_to = Instant::now();
                self.earn(earned.try_into().unwrap_or(MAX_SPENT));
            }
        }
        self.spent = self.spent.saturating_add(signed(bytes));
    }

    /// No credit is saved.
    fn earn(&mut self, bytes: i64) {
        if self.spent > 0 {
            self.spent = self.spent.saturating_sub(bytes).max(0);
        }
    }

    fn is_exhausted(&self) -> bool {
        self.spent > MAX_SPENT
    }
}

impl Gate {
    /// Completes when the socket may be read.
    ///
    /// # Errors
    /// The connection was closed, or its client sends too much that carries nothing.
    pub(super) fn poll_readable(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.state.lock();
        if state.is_closed {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        if state.allowance.is_exhausted() {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        // For the close as well.
        state.reader = Some(context.waker().clone());
        match state.queued < MAX_QUEUED {
            true => Poll::Ready(Ok(())),
            false => Poll::Pending,
        }
    }

    /// Returns whether the socket may be written; the context is woken by the close.
    ///
    /// # Errors
    /// The connection was closed.
    pub(super) fn check_writable(&self, context: &Context<'_>) -> io::Result<()> {
        let mut state = self.state.lock();
        state.writer = Some(context.waker().clone());
        match state.is_closed {
            true => Err(io::ErrorKind::ConnectionAborted.into()),
            false => Ok(()),
        }
    }

    /// Counts bytes that were read; none are the client's FIN.
    pub(super) fn read(&self, bytes: usize) {
        let mut state = self.state.lock();
        state.has_finished |= bytes == 0;
        state.allowance.spend(bytes);
    }

    /// Notes that all that was encrypted is in the kernel.
    pub(super) fn flushed(&self) {
        let mut state = self.state.lock();
        let sent = std::mem::take(&mut state.encrypted);
        state.unsent = state.unsent.saturating_sub(sent);
        // A client answers its download, with WINDOW_ADJUST.
        state.allowance.earn(signed(sent / BYTES_PER_ANSWER));
        if state.unsent < MAX_UNSENT
            && let Some(waker) = state.download.take()
        {
            drop(state);
            waker.wake();
        }
    }

    /// Returns whether the client has sent nothing. Asked before its login only.
    pub(super) fn is_untouched(&self) -> bool {
        self.state.lock().allowance.spent == 0
    }

    /// Notes the login.
    pub(super) fn authenticated(&self) {
        self.state.lock().allowance = Allowance {
            spent: 0,
            counted_to: Some(Instant::now()),
        };
    }

    /// Allows for the bytes that are on the way to a channel which is closed here: the session drops them.
    pub(super) fn expect_late(&self, window: u32) {
        let spent = &mut self.state.lock().allowance.spent;
        *spent = (*spent - i64::from(window)).max(-i64::from(window));
    }

    /// Expects no more of them: the client asks for its next channel after it has read of the close.
    pub(super) fn expect_no_late(&self) {
        let spent = &mut self.state.lock().allowance.spent;
        *spent = (*spent).max(0);
    }

    /// Returns how the connection's end looks to a channel that was open: after a FIN the channel was closed, because OpenSSH
    /// ends its jump host so at a logout, without a message of SSH.
    pub(super) fn end(&self) -> ChannelEnd {
        match self.state.lock().has_finished {
            true => ChannelEnd::Closed,
            false => ChannelEnd::Lost,
        }
    }

    /// Ends the connection: reads and writes fail from now on.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        let wakers = [state.reader.take(), state.writer.take()];
        drop(state);
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    /// Completes when the session may get more of the download, at most [`MAX_PIECE`] bytes.
    pub(super) fn poll_room(&self, context: &Context<'_>) -> Poll<()> {
        self.poll_unsent_below(MAX_UNSENT, context)
    }

    /// Completes when the kernel has all of the download.
    pub(super) fn poll_sent(&self, context: &Context<'_>) -> Poll<()> {
        self.poll_unsent_below(1, context)
    }

    fn poll_unsent_below(&self, bytes: usize, context: &Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        if state.unsent < bytes {
            return Poll::Ready(());
        }
        state.download = Some(context.waker().clone());
        Poll::Pending
    }

    /// Returns a copy of some bytes of the download for the session, at most [`MAX_PIECE`]: it drops them once they are
    /// encrypted.
    pub(super) fn piece(self: &Arc<Self>, bytes: &[u8]) -> Bytes {
        let bytes: Box<[u8]> = bytes.get(..MAX_PIECE).unwrap_or(bytes).into();
        self.state.lock().unsent += bytes.len();
        let gate = Arc::clone(self);
        Bytes::from_owner(Piece { bytes, gate })
    }

    /// Counts a payload that waits for the target. It earns what its packet has spent, and no more: else small ones would pay
    /// for exchanges of keys.
    fn add(&self, payload: &[u8]) {
        let mut state = self.state.lock();
        state.queued += cost(payload);
        state.allowance.earn(signed(payload.len() + payload.len() / 8 + PACKET));
    }

    fn release(&self, cost: usize) {
        let mut state = self.state.lock();
        let was_shut = state.queued >= MAX_QUEUED;
        state.queued = state.queued.saturating_sub(cost);
        if was_shut
            && state.queued < MAX_QUEUED
            && let Some(waker) = state.reader.take()
        {
            drop(state);
            waker.wake();
        }
    }
}

/// Bytes of the download that the session has not encrypted.
#[derive(Debug)]
struct Piece {
    bytes: Box<[u8]>,
    gate: Arc<Gate>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.gate.state.lock().encrypted += self.bytes.len();
    }
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// The end of a channel, other than its end of stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChannelEnd {
    /// The client has closed it, or the connection in order.
    Closed,
    /// The connection broke.
    Lost,
}

impl From<ChannelEnd> for io::Error {
    fn from(end: ChannelEnd) -> Self {
        match end {
            ChannelEnd::Closed => StreamCancelled.into(),
            ChannelEnd::Lost => io::ErrorKind::ConnectionReset.into(),
        }
    }
}
/// The upload of one channel, from the SSH session to the relay.
#[derive(Debug)]
pub(super) struct Inbox {
    gate: Arc<Gate>,
    upload: Mutex<Upload>,
}

#[derive(Debug, Default)]
struct Upload {
    payloads: VecDeque<Bytes>,
    has_finished: bool,
    /// True if the relay has read the end of stream.
    has_read_all: bool,
    end: Option<ChannelEnd>,
    /// True if the relay has dropped its end.
    is_abandoned: bool,
    reader: Option<Waker>,
}

impl Inbox {
    /// Creates the upload of a channel on this connection.
    pub(super) fn new(gate: Arc<Gate>) -> Arc<Self> {
        Arc::new(Self {
            gate,
            upload: Mutex::default(),
        })
    }

    /// Appends bytes of the client.
    pub(super) fn push(&self, bytes: &[u8]) {
        self.update(|upload| {
            // In one step: a payload that comes after the relay has left would be counted for ever.
            if !bytes.is_empty() && !upload.is_abandoned {
                self.gate.add(bytes);
                upload.payloads.push_back(Bytes::copy_from_slice(bytes));
            }
        });
    }

    /// Returns the gate of its connection.
    pub(super) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// The client sends no more.
    pub(super) fn finish(&self) {
        self.update(|upload| upload.has_finished = true);
    }

    /// The channel has ended. Only its first end counts.
    pub(super) fn fail(&self, end: ChannelEnd) {
        self.update(|upload| _ = upload.end.get_or_insert(end));
    }

    /// Drops what waits for the relay, which takes no more.
    pub(super) fn abandon(&self) {
        let dropped = {
            let mut upload = self.upload.lock();
            upload.is_abandoned = true;
            std::mem::take(&mut upload.payloads)
        };
        self.gate.release(dropped.iter().map(|payload| cost(payload)).sum());
    }

    /// Returns whether the channel has ended on either side.
    pub(super) fn is_over(&self) -> bool {
        let upload = self.upload.lock();
        upload.is_abandoned || upload.end.is_some()
    }

    pub(super) fn has_finished(&self) -> bool {
        self.upload.lock().has_finished
    }

    /// Takes the next bytes, at most `max`; `None` if none wait.
    pub(super) fn take(&self, max: usize) -> Option<Bytes> {
        let mut upload = self.upload.lock();
        let Some(mut payload) = upload.payloads.pop_front() else {
            upload.has_read_all = upload.has_finished;
            return None;
        };
        let before = cost(&payload);
        let taken = payload.split_to(max.min(payload.len()));
        let mut rest = 0;
        if !payload.is_empty() {
            rest = cost(&payload);
            upload.payloads.push_front(payload);
        }
        drop(upload);
        self.gate.release(before - rest);
        Some(taken)
    }

    /// Completes when bytes wait, or none will ever come.
    ///
    /// # Errors
    /// The channel has ended without an end of stream.
    pub(super) fn poll_readable(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        let mut upload = self.upload.lock();
        if !upload.payloads.is_empty() || upload.has_finished {
            return Poll::Ready(Ok(()));
        }
        upload.poll_end(context).map(|end| Err(end.into()))
    }

    /// Completes when the channel has failed, or has ended after all that its client has sent was read: bytes before an end of
    /// stream reach a slow target.
    pub(super) fn poll_failed(&self, context: &Context<'_>) -> Poll<ChannelEnd> {
        let mut upload = self.upload.lock();
        if upload.end == Some(ChannelEnd::Closed) && upload.has_finished && !upload.has_read_all {
            // The relay's own reads change that, so there is nothing to wake.
            return Poll::Pending;
        }
        upload.poll_end(context)
    }

    /// Completes when the channel has ended.
    pub(super) fn poll_end(&self, context: &Context<'_>) -> Poll<ChannelEnd> {
        self.upload.lock().poll_end(context)
    }

    fn update(&self, change: impl FnOnce(&mut Upload)) {
        let mut upload = self.upload.lock();
        change(&mut upload);
        let waker = upload.reader.take();
        drop(upload);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Upload {
    fn poll_end(&mut self, context: &Context<'_>) -> Poll<ChannelEnd> {
        if let Some(end) = self.end {
            return Poll::Ready(end);
        }
        self.reader = Some(context.waker().clone());
        Poll::Pending
    }
}

/// Returns the memory of a payload in the queue, with what an allocation and an entry take: many are of one byte.
fn cost(payload: &[u8]) -> usize {
    payload.len() + 128
}

/// The least that a packet of data has besides its payload: lengths, type, channel, padding, tag.
const PACKET: usize = 36;
/// Bytes that may wait for the target. One packet more may come.
const MAX_QUEUED: usize = 256 * 1024;
/// Bytes of the download that may wait for the socket. One piece more may come.
const MAX_UNSENT: usize = 256 * 1024;
/// Bytes of the download that the session gets at once.
const MAX_PIECE: usize = 32 * 1024;
/// Bytes that carry nothing for a target. A login with six passwords takes less than 16 KiB, an exchange of keys 3 KiB.
const MAX_SPENT: i64 = 64 * 1024;
/// The credit for time after the login: 50 of the smallest exchanges of keys a second, and 300 WINDOW_ADJUSTs.
const BYTES_PER_MILLISECOND: u128 = 16;
/// The download that earns one byte: a client that answers each 832 bytes with a WINDOW_ADJUST pays nothing.
const BYTES_PER_ANSWER: usize = 16;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;
    use std::thread;
    use std::time::Duration;

    use super::*;

    fn context() -> Context<'static> {
        Context::from_waker(Waker::noop())
    }

    fn is_readable(gate: &Gate) -> bool {
        gate.poll_readable(&context()).is_ready()
    }

    fn is_refused(gate: &Gate) -> bool {
        matches!(gate.poll_readable(&context()), Poll::Ready(Err(_)))
    }

    #[test]
    fn the_socket_is_not_read_while_the_target_takes_nothing() {
        let gate = Arc::new(Gate::default());
        let inbox = Inbox::new(Arc::clone(&gate));
        while is_readable(&gate) {
            inbox.push(&[0; 32 * 1024]);
        }
        assert!(inbox.take(usize::MAX).is_some_and(|payload| payload.len() == 32 * 1024));
        assert!(is_readable(&gate));
        inbox.push(&[0; 32 * 1024]);
        assert!(!is_readable(&gate));
        inbox.abandon();
        assert!(is_readable(&gate));
        inbox.push(&[0; 512 * 1024]);
        assert!(is_readable(&gate), "a channel that was dropped takes no memory");
    }

    #[test]
    fn payloads_of_one_byte_count_with_their_allocation() {
        let gate = Arc::new(Gate::default());
        let inbox = Inbox::new(Arc::clone(&gate));
        let mut pushed = 0;
        while is_readable(&gate) {
            inbox.push(&[0]);
            pushed += 1;
        }
        assert!(pushed <= 2048, "{pushed}");
    }

    /// The session is woken when it may go on, and not by each payload that is taken.
    #[test]
    fn the_session_is_woken_once() {
        struct Count(AtomicUsize);
        impl Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let (gate, count) = (Arc::new(Gate::default()), Arc::new(Count(AtomicUsize::new(0))));
        let inbox = Inbox::new(Arc::clone(&gate));
        let waker = Waker::from(Arc::clone(&count));
        let context = Context::from_waker(&waker);
        while gate.poll_readable(&context).is_ready() {
            inbox.push(&[0; 32 * 1024]);
        }
        while inbox.take(usize::MAX).is_some() {}
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert!(gate.poll_readable(&context).is_ready());
        inbox.push(b"key");
        assert!(inbox.take(usize::MAX).is_some());
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
    }

    /// Threads that push and abandon at once leave nothing counted.
    #[test]
    fn a_payload_that_comes_as_the_relay_leaves_takes_no_memory() {
        let gate = Arc::new(Gate::default());
        for _ in 0..2000 {
            let inbox = Inbox::new(Arc::clone(&gate));
            thread::scope(|scope| {
                scope.spawn(|| (0..4).for_each(|_| inbox.push(&[0; 1024])));
                scope.spawn(|| inbox.abandon());
            });
        }
        assert_eq!(gate.state.lock().queued, 0);
    }

    #[test]
    fn the_download_waits_for_the_socket() {
        let gate = Arc::new(Gate::default());
        let mut pieces = Vec::new();
        while gate.poll_room(&context()).is_ready() {
            pieces.push(gate.piece(&[0; 512 * 1024]));
        }
        let taken: usize = pieces.iter().map(Bytes::len).sum();
        assert!((MAX_UNSENT..MAX_UNSENT + MAX_PIECE).contains(&taken), "{taken}");
        gate.flushed();
        assert!(gate.poll_room(&context()).is_pending(), "nothing is encrypted");
        pieces.pop();
        assert!(gate.poll_room(&context()).is_pending(), "nothing is written");
        gate.flushed();
        assert!(gate.poll_room(&context()).is_ready());
        assert!(gate.poll_sent(&context()).is_pending());
        pieces.clear();
        gate.flushed();
        assert!(gate.poll_sent(&context()).is_ready());
    }

    #[test]
    fn a_client_may_send_little_that_carries_nothing() {
        let gate = Arc::new(Gate::default());
        gate.read(64 * 1024);
        assert!(is_readable(&gate));
        gate.read(1);
        assert!(is_refused(&gate));
        gate.authenticated();
        assert!(!is_refused(&gate));
        let inbox = Inbox::new(Arc::clone(&gate));
        for _ in 0..1000 {
            gate.read(1100);
            inbox.push(&[0; 1000]);
            inbox.take(usize::MAX);
        }
        assert!(!is_refused(&gate), "bytes for the target are free");
        for _ in 0..1000 {
            gate.read(52);
            drop(gate.piece(&[0; 1000]));
            gate.flushed();
        }
        assert!(!is_refused(&gate), "so are answers to the download");
        gate.expect_late(1024 * 1024);
        gate.read(1024 * 1024);
        assert!(!is_refused(&gate), "and bytes for a channel that was closed here");
        gate.expect_late(1024 * 1024);
        gate.expect_no_late();
        gate.read(64 * 1024 + 1);
        assert!(is_refused(&gate), "before the next one");
    }

    #[test]
    fn payloads_earn_no_exchange_of_keys() {
        for payload in [&b""[..], b"x"] {
            let gate = Arc::new(Gate::default());
            gate.authenticated();
            let inbox = Inbox::new(Arc::clone(&gate));
            let mut exchanges = 0;
            while exchanges < 1000 && !is_refused(&gate) {
                for _ in 0..4 {
                    gate.read(PACKET + payload.len());
                    inbox.push(payload);
                    inbox.take(usize::MAX);
                }
                gate.read(330);
                exchanges += 1;
            }
            assert!(exchanges < 1000, "{payload:?}");
        }
    }

    #[test]
    fn bytes_before_an_end_of_stream_are_read_before_the_end_of_the_channel() {
        let inbox = Inbox::new(Arc::default());
        inbox.push(b"last");
        inbox.finish();
        inbox.fail(ChannelEnd::Closed);
        assert!(inbox.poll_failed(&context()).is_pending());
        assert_eq!(inbox.take(9).unwrap(), "last");
        assert!(inbox.poll_failed(&context()).is_pending(), "the target may not have it");
        assert!(inbox.take(9).is_none());
        assert!(inbox.poll_failed(&context()).is_ready());
    }

    #[tokio::test(start_paused = true)]
    async fn time_earns_a_client_few_exchanges_of_keys() {
        let gate = Gate::default();
        gate.authenticated();
        let mut exchanges = 0;
        for _ in 0..100 {
            tokio::time::advance(Duration::from_millis(10)).await;
            while exchanges < 100_000 && is_readable(&gate) && !is_refused(&gate) {
                gate.read(330);
                exchanges += 1;
            }
            // The next credit.
            gate.read(0);
        }
        assert!((200..400).contains(&exchanges), "{exchanges}");
    }

    #[test]
    fn bytes_come_before_the_end_of_the_channel() {
        let inbox = Inbox::new(Arc::default());
        inbox.push(b"last");
        inbox.fail(ChannelEnd::Lost);
        assert!(matches!(inbox.poll_readable(&context()), Poll::Ready(Ok(()))));
        assert_eq!(inbox.take(2).unwrap(), "la");
        assert_eq!(inbox.take(9).unwrap(), "st");
        assert!(matches!(inbox.poll_readable(&context()), Poll::Ready(Err(_))));
    }

    #[test]
    fn a_connection_ends_by_a_fin() {
        let gate = Gate::default();
        assert_eq!(gate.end(), ChannelEnd::Lost);
        gate.read(0);
        assert_eq!(gate.end(), ChannelEnd::Closed);
    }
}
