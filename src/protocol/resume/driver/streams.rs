//! What the driver of a session moves bytes between.

use crate::protocol::resume::session::Attachment;

/// The program beside a session: ssh by stdin and stdout, or sshd by a TCP connection.
#[derive(Debug)]
pub struct Program<R, W> {
    /// Its bytes go into the session. Its end is the end of that stream.
    pub source: R,
    /// The session's bytes go to it. It is shut down at the end of that stream.
    pub sink: W,
}

/// A connection that carries the session.
#[derive(Debug)]
pub struct Link<S> {
    /// Its stream.
    pub stream: S,
    /// Its number.
    pub attachment: Attachment,
}

/// What the exchange of a connection has led to.
#[derive(Debug, Default)]
pub struct Exchanged<'a> {
    /// What is sent in front of the first frame: this side's answer. What it claims has to be the session's
    /// [`received`](crate::protocol::resume::session::Session::received) of the same step.
    pub answer: Vec<u8>,
    /// The offset that the other side expects.
    pub received: u64,
    /// The first frames of the other side, behind the exchange.
    pub rest: &'a [u8],
}
