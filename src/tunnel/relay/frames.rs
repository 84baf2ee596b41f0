//! Separates the bytes of a session's user from the session's own, in one direction of a tunnel that carries the session.
//!
//! The heads of frames are in clear (docs/resume.md, section 6). Spliced bytes are not seen: they count as the user's, and
//! the position in the stream is lost. It is found again at a read that begins with a frame without bytes of the user's,
//! such as the PING of a session that sleeps: 4 bytes of type and length, which a read within DATA has by chance once in
//! 2^28. The same holds for bytes that are no frames.

use crate::protocol::resume::frame::{Decoder, Piece};

/// The frames of one direction.
#[derive(Debug)]
pub(super) struct Frames {
    /// `None` while the position in the stream is unknown.
    decoder: Option<Decoder>,
}

impl Default for Frames {
    /// Frames that begin with the next byte.
    fn default() -> Self {
        let decoder = Some(Decoder::default());
        Self { decoder }
    }
}

impl Frames {
    /// Returns frames whose beginning is unknown.
    pub(super) fn lost() -> Self {
        Self { decoder: None }
    }

    /// Returns whether the bytes that were read next are the session's own: they bring no DATA.
    pub(super) fn are_own(&mut self, mut bytes: &[u8]) -> bool {
        let mut is_found = self.decoder.is_some();
        let decoder = self.decoder.get_or_insert_default();
        let mut has_data = false;
        loop {
            match decoder.next(&mut bytes) {
                Ok(Some(Piece::Frame(_))) => is_found = true,
                Ok(Some(Piece::Data { .. })) if is_found => has_data = true,
                Ok(None) if is_found => return !has_data,
                Ok(_) | Err(_) => {
                    self.decoder = None;
                    return false;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::resume::frame::{Frame, encode_data};

    const OWN: [Frame; 4] = [
        Frame::Ping(7),
        Frame::Pong(u64::MAX),
        Frame::Ack {
            offset: 1 << 40,
            window: 65_536,
        },
        Frame::Keeps { window: 4096 },
    ];

    fn own() -> Vec<u8> {
        let mut bytes = Vec::new();
        OWN.iter().for_each(|frame| frame.encode(&mut bytes));
        // A type of a later version.
        bytes.extend([200, 0, 0, 3, 3, 3, 3]);
        bytes
    }

    #[test]
    fn only_the_reads_that_bring_data_are_the_users_however_frames_are_cut() {
        let mut data = Vec::new();
        encode_data(&mut data, 5, (&[3; 300], b""));
        let stream = [own(), data, own()].concat();
        for piece in [1, 2, 3, 5, 13, 64, 1000] {
            let mut frames = Frames::default();
            let (mut at, mut users) = (0, Vec::new());
            for read in stream.chunks(piece) {
                if !frames.are_own(read) {
                    users.push(at..at + read.len());
                }
                at += read.len();
            }
            let (first, last) = (own().len() + 12, own().len() + 312);
            let (from, to) = (users[0].start, users.last().unwrap().end);
            assert!(from <= first && first < from + piece, "{piece}: {users:?}");
            assert!(to >= last && to < last + piece, "{piece}: {users:?}");
            assert!(users.windows(2).all(|pair| pair[0].end == pair[1].start));
        }
    }

    #[test]
    fn unexpected_bytes_are_the_users_until_a_read_begins_with_a_frame_of_the_sessions_own() {
        for unexpected in [
            &b"SSH-2.0-OpenSSH\r\n"[..],
            &[3; 20],
            &[6, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[99, 255, 0, 0],
        ] {
            let mut frames = Frames::default();
            assert!(!frames.are_own(unexpected), "{unexpected:?}");
            let mut data = Vec::new();
            encode_data(&mut data, 0, (b"key", b""));
            for lost in [&data[..], &own()[1..], &own()[..5], b"", &[6]] {
                assert!(!frames.are_own(lost), "{lost:?}");
            }
            assert!(frames.are_own(&own()));
            assert!(!frames.are_own(&data) && frames.are_own(&own()[..5]) && frames.are_own(&own()[5..]));
        }
    }

    #[test]
    fn a_direction_is_found_again_by_each_kind_of_frame_but_data() {
        for frame in OWN {
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            let mut frames = Frames::lost();
            assert!(frames.are_own(&bytes), "{frame:?}");
        }
    }
}
