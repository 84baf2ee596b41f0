//! Errors of a stream as a socket would report them.

use std::io;

use h2::Reason;

use crate::net::transport::Cancelled;

/// An error of the stream as a socket would report it.
pub(in crate::proxy::http::http2) fn stream_error(error: h2::Error) -> io::Error {
    match error.reason() {
        Some(reason) if error.is_reset() && error.is_remote() => reset_error(reason),
        Some(_) => io::ErrorKind::ConnectionReset.into(),
        None => error.into_io().unwrap_or_else(|| io::ErrorKind::ConnectionReset.into()),
    }
}

/// The error of a stream that the client has reset. "The endpoint uses [CANCEL] to indicate that the stream is no longer
/// needed" (RFC 9113 section 7); NO_ERROR says that there is none.
pub(super) fn reset_error(reason: Reason) -> io::Error {
    match reason {
        Reason::CANCEL | Reason::NO_ERROR => Cancelled.into(),
        _ => io::ErrorKind::ConnectionReset.into(),
    }
}
