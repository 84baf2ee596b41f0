//! How much clients may send ahead of their targets, which is what a connection holds when all of its targets stall.

use bytes::Buf;
use h2::server::Connection;
use tokio::io::{AsyncRead, AsyncWrite};

/// The window of a connection's streams: the fewer they are, the more each may send ahead.
///
/// HTTP/2 has one window for the connection, and one size of window for all streams. Were the connection's smaller than
/// the sum of theirs, tunnels that are stuck would stop the others; were theirs large, a hundred of them would hold as
/// many times that. So their size follows their number: whatever all of them hold together, in whatever order they came
/// and got stuck, is no more than the connection's window, and that bounds who does not obey.
#[derive(Debug)]
pub(super) struct Windows {
    size: u32,
    /// What the client had sent in all when it asked last.
    before: u64,
}

impl Windows {
    pub(super) fn new() -> Self {
        Self {
            size: SMALLEST,
            before: 0,
        }
    }

    /// There is a further stream; that much has come on its connection so far.
    pub(super) fn asked(&mut self, received: u64) {
        self.before = received;
    }

    /// Has the client told when it may send more or less ahead on each of so many streams.
    ///
    /// Less at once, but more only when it sends in bulk: of those that ask for a hundred tunnels at once, the first
    /// would otherwise be promised what there is for few.
    pub(super) fn adjust<T, B>(&mut self, connection: &mut Connection<T, B>, streams: usize, received: u64)
    where
        T: AsyncRead + AsyncWrite + Unpin,
        B: Buf,
    {
        let size = size_for(streams);
        let is_bulk = received - self.before >= u64::from(SMALLEST);
        // It fails until the client has acknowledged the size before: then it is tried again.
        if (size < self.size || (size > self.size && is_bulk)) && connection.set_initial_window_size(size).is_ok() {
            self.size = size;
        }
    }
}

fn size_for(streams: usize) -> u32 {
    if streams <= FEW {
        LARGEST
    } else if streams <= SOME {
        MIDDLE
    } else {
        SMALLEST
    }
}

/// At a round trip of 50 ms it bounds an upload to 10 MiB/s.
const LARGEST: u32 = 512 * 1024;
const MIDDLE: u32 = 128 * 1024;
/// What every stream begins with, as RFC 9113 section 6.9.2 has it, but for a byte.
pub(super) const SMALLEST: u32 = 64 * 1024;
const FEW: usize = 4;
const SOME: usize = 16;
/// As many as RFC 9113 section 6.5.2 recommends at least. The limits of a client count streams as tunnels.
pub(super) const MOST_STREAMS: u32 = 100;
/// Of the connection: the few that were alone have filled the largest windows, and so on. 8.75 MiB.
#[expect(clippy::cast_possible_truncation, reason = "they are small, and constant")]
pub(super) const ALL: u32 =
    FEW as u32 * LARGEST + (SOME - FEW) as u32 * MIDDLE + (MOST_STREAMS - SOME as u32) * SMALLEST;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_many_come_and_get_stuck_they_fit_into_the_connections_window() {
        let all: u32 = (1..=100).map(size_for).sum();
        assert_eq!(all, ALL);
        assert_eq!(ALL, 8960 * 1024);
    }
}
