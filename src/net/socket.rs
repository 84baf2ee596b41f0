//! The options of every TCP socket, and the ways to close one: gracefully, with a reset at once, or with one after the last byte.

use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::event::{self, PollFd, PollFlags, Timespec};
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::base::boxed::boxed;
use crate::net::keepalive::Keepalive;

/// Sets the options of both sockets of a tunnel: no delay for keystrokes, and an end for peers that have vanished.
///
/// Options of a listener hold for every socket that it accepts: Linux clones them.
///
/// Without TCP_NODELAY the second of two keystrokes waits 40 ms for a delayed ACK. Without TCP_USER_TIMEOUT
/// unacknowledged data keeps a dead connection for about 15 minutes (tcp(7)).
///
/// # Errors
/// The error of setsockopt(2), such as for a socket that has been reset.
pub(crate) fn prepare(socket: &impl AsFd) -> io::Result<()> {
    Keepalive::PROXY.turn_on(socket)?;
    let socket = SockRef::from(socket);
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))
}

/// Sets whether a peer that answers may keep its receive window closed for longer than [`USER_TIMEOUT`].
///
/// With a TCP_USER_TIMEOUT Linux drops such a peer, too (tcp_probe_timer in net/ipv4/tcp_timer.c, since 5.11). Without
/// one it drops only a peer that leaves 15 probes unanswered.
pub(crate) fn tolerate_closed_window(stream: &TcpStream, is_tolerated: bool) {
    let timeout = (!is_tolerated).then_some(USER_TIMEOUT);
    // If it fails, the timeout stays as it was.
    SockRef::from(stream).set_tcp_user_timeout(timeout).ok();
}

/// Makes the drop of this socket send a reset, and discard what is not sent yet.
///
/// Dropping both sockets of a tunnel after an error would send a clean FIN: a killed download would look complete.
pub(crate) fn reset_on_drop(stream: &TcpStream) {
    // It fails only for a socket that is no longer connected: there is nothing left to reset.
    SockRef::from(stream).set_linger(Some(Duration::ZERO)).ok();
}

/// Undoes [`reset_on_drop`]: the drop sends what is not sent yet, and a FIN.
pub(crate) fn finish_on_drop(stream: &TcpStream) {
    // As above.
    SockRef::from(stream).set_linger(None).ok();
}

/// Makes the kernel want more bytes only while less than `unsent` are unsent, for a connection that carries more than one
/// tunnel.
///
/// By default the kernel takes some MiB, and a keystroke is sent after all of them (TCP_NOTSENT_LOWAT in tcp(7)).
pub(crate) fn keep_unsent_below(socket: &impl AsFd, unsent: usize) {
    // Without it a tunnel is only slower.
    let unsent = u32::try_from(unsent).unwrap_or(u32::MAX);
    SockRef::from(socket).set_tcp_notsent_lowat(unsent).ok();
}

/// Completes when less than half of the [allowed](keep_unsent_below) bytes are unsent.
///
/// A write takes more: the kernel adds to its last packet, up to 64 KiB, regardless of what is unsent (tcp_sendmsg_locked in
/// net/ipv4/tcp.c). And tokio remembers that the socket was writable until a write fails.
pub(crate) fn poll_sendable(stream: &TcpStream, context: &mut Context<'_>) -> Poll<io::Result<()>> {
    loop {
        ready!(stream.poll_write_ready(context))?;
        let mut asked = [PollFd::new(stream, PollFlags::OUT)];
        let answer = stream.try_io(Interest::WRITABLE, || {
            // After a failure, such as EINTR by a SIGHUP, the write itself shows whether the socket takes bytes.
            let is_full = event::poll(&mut asked, Some(&Timespec::default())) == Ok(0);
            (!is_full).then_some(()).ok_or(io::ErrorKind::WouldBlock.into())
        });
        if !matches!(&answer, Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
            return Poll::Ready(answer);
        }
    }
}

/// Selects the congestion control that every system has and every user may choose (tcp(7)), for a loopback connection.
///
/// BBR, where it is the system's, paces by timers, which were two thirds of the CPU time of sender, relay and reader
/// together (docs/decisions/12-no-pacing-on-loopback.md). Nothing within a host can be congested. To be called before
/// the connect: a connected socket keeps pacing.
pub(crate) fn do_not_pace(socket: &impl AsFd) {
    // Without it bulk only takes more CPU time.
    SockRef::from(socket).set_tcp_congestion(b"reno").ok();
}

/// Returns whether the system has refused to send an end of stream (shutdown(2)), for which the peer would wait for
/// ever. A lost connection needs none: the read fails.
pub(crate) fn is_refusal_of_an_end(error: &io::Error) -> bool {
    let is_lost = matches!(
        error.kind(),
        io::ErrorKind::NotConnected | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    );
    error.raw_os_error().is_some() && !is_lost
}

/// Sends a FIN after all that was written.
///
/// # Errors
/// The error of shutdown(2), such as for a socket that has been reset.
pub(crate) fn finish(stream: &TcpStream) -> io::Result<()> {
    SockRef::from(stream).shutdown(Shutdown::Write)
}

/// Sends a FIN after all that was written, then waits for the peer's, within bounds of time and bytes.
///
/// The caller drops the socket next. A close with unread input makes the kernel send a reset, and a reset may
/// make the peer's kernel discard what the peer has not read (RFC 9112 section 9.6): the refusal or the tail of an
/// upload would be lost. The input is discarded.
pub(crate) async fn close_gently(stream: &TcpStream) {
    if finish(stream).is_ok() {
        // The socket is dropped next in any case.
        timeout(LINGER, discard(stream)).await.ok();
    }
}

/// Sends what was written, within bounds of time, and a reset after it.
///
/// A reset discards what the kernel has not sent. Linux as the peer still delivers what was sent, before the reset.
pub(crate) async fn cut_off(stream: &TcpStream) {
    // The socket is reset next in any case.
    timeout(LINGER, sent(stream)).await.ok();
    reset_on_drop(stream);
    // A connect to no address resets at once (tcp(7), connect(2)): the drop may have to wait for the tunnel's other
    // side. If the connect fails, the drop resets.
    rustix::net::connect_unspec(stream).ok();
}

/// Completes when the kernel has sent all that was written.
///
/// With a TCP_NOTSENT_LOWAT of one byte a socket is writable when no byte is unsent (tcp(7)). A second descriptor waits
/// for that: the stream's own remembers that it was writable before.
async fn sent(stream: &TcpStream) -> io::Result<()> {
    SockRef::from(stream).set_tcp_notsent_lowat(1)?;
    let asked = TcpStream::from_std(stream.as_fd().try_clone_to_owned()?.into())?;
    asked.writable().await
}

/// Completes when the peer resets the connection or the kernel times it out, without reading from it.
pub(crate) async fn failed(stream: &TcpStream) -> io::Error {
    match boxed(stream.ready(Interest::ERROR)).await {
        Ok(_) => match stream.take_error() {
            Ok(Some(error)) | Err(error) => error,
            // Another read of the socket has taken the error already.
            Ok(None) => io::ErrorKind::ConnectionReset.into(),
        },
        Err(error) => error,
    }
}

/// Completes when the peer's FIN has come, without reading from the connection: bytes before it may be unread.
///
/// # Errors
/// As [`failed`].
pub(crate) async fn ended(stream: &TcpStream) -> io::Result<()> {
    // A wait for input would complete for the bytes before the FIN. Tokio also completes a wait for urgent data at the
    // FIN (`Ready`), and here only then: the socket is not registered for urgent data itself.
    tokio::select! {
        biased;
        error = failed(stream) => Err(error),
        ended = stream.ready(Interest::PRIORITY) => ended.map(drop),
    }
}

/// Reads until the end of stream, an error, or [`LINGER_BYTES`].
async fn discard(stream: &TcpStream) {
    let mut left = LINGER_BYTES;
    while left > 0 && stream.readable().await.is_ok() {
        match try_discard(stream) {
            Ok(0) => return,
            Ok(read) => left = left.saturating_sub(read),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

/// Not async: its buffer must not live as long as the wait.
fn try_discard(stream: &TcpStream) -> io::Result<usize> {
    stream.try_read(&mut [0; 4096])
}

const USER_TIMEOUT: Duration = Duration::from_secs(120);
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 64 * 1024;
