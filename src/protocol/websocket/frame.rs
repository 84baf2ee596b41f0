//! The parts of a frame that both directions share: its mask, and the payload of a close frame.

use std::ops::Range;

/// The side of the connection that this one is. Only a client masks its frames (RFC 6455 section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The side that has sent the request.
    Client,
    /// The side that has answered it.
    Server,
}

/// The content of a close frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloseFrame {
    /// The status code (section 7.4); `None` without one.
    pub code: Option<u16>,
    /// The reason, at most [`MAX_REASON_BYTES`].
    pub reason: Box<str>,
}

impl CloseFrame {
    /// Creates the close frame with that status, and as much of the reason as fits.
    pub fn new(code: u16, reason: &str) -> Self {
        Self {
            code: Some(code),
            reason: reason
                .get(..reason.floor_char_boundary(MAX_REASON_BYTES))
                .unwrap_or_default()
                .into(),
        }
    }

    /// Returns whether the peer has sent all that it had. A load balancer that goes away in the middle of a stream sends 1001.
    pub fn is_normal(&self) -> bool {
        matches!(self.code, None | Some(NORMAL))
    }

    /// Returns the payload of the close frame.
    pub(super) fn payload(&self) -> Vec<u8> {
        let code = self.code.map(u16::to_be_bytes);
        let reason = code.map_or("", |_| &*self.reason);
        [code.as_ref().map_or(&[][..], |code| code), reason.as_bytes()].concat()
    }
}

/// Copies `from`, masked or unmasked, to the start of `to`, which is at least as long.
pub(super) fn mask_into(from: &[u8], to: &mut [u8], mask: [u8; 4]) {
    let wide_mask = widen(mask);
    let (from, from_rest) = from.as_chunks::<8>();
    let (to, to_rest) = to.split_at_mut_checked(from.len() * 8).unwrap_or_default();
    let (to, _) = to.as_chunks_mut::<8>();
    for (to, from) in to.iter_mut().zip(from) {
        *to = (u64::from_ne_bytes(*from) ^ wide_mask).to_ne_bytes();
    }
    for ((to, from), mask) in to_rest.iter_mut().zip(from_rest).zip(mask.iter().cycle()) {
        *to = from ^ mask;
    }
}

/// Moves bytes within a buffer to `to`, which is not after them, masked or unmasked.
pub(super) fn move_masked(buffer: &mut [u8], Range { mut start, end }: Range<usize>, mut to: usize, mask: [u8; 4]) {
    let wide_mask = widen(mask);
    while let Some(block) = buffer.get(start..end).and_then(<[u8]>::first_chunk::<BLOCK>) {
        let mut block = *block;
        for word in block.as_chunks_mut().0 {
            *word = (u64::from_ne_bytes(*word) ^ wide_mask).to_ne_bytes();
        }
        if let Some(to) = buffer.get_mut(to..).and_then(<[u8]>::first_chunk_mut) {
            *to = block;
        }
        (start, to) = (start + BLOCK, to + BLOCK);
    }
    for ((from, to), mask) in (start..end).zip(to..).zip(mask.iter().cycle()) {
        let byte = buffer.get(from).map_or(0, |byte| byte ^ mask);
        if let Some(to) = buffer.get_mut(to) {
            *to = byte;
        }
    }
}

/// Returns the mask of 8 bytes. The compiler makes vectors of such words, and none of longer ones.
fn widen(mask: [u8; 4]) -> u64 {
    u64::from_ne_bytes([mask; 2].as_flattened().try_into().unwrap_or_default())
}

/// Returns the mask of the byte that is `bytes` further on.
pub(super) fn advance(mut mask: [u8; 4], bytes: usize) -> [u8; 4] {
    mask.rotate_left(bytes % 4);
    mask
}

/// Adds a payload to those of pings or pongs. If there are [`MAX_PINGS`], it replaces the last one: only the last ping needs an
/// answer (section 5.5.3).
pub(super) fn push_ping(pings: &mut Vec<Vec<u8>>, payload: Vec<u8>) {
    pings.truncate(MAX_PINGS - 1);
    pings.push(payload);
}

/// The most bytes of a frame with its header: four records of TLS.
pub(super) const MAX_FRAME_BYTES: usize = 64 * 1024;
/// The most pings that are answered at once: with their headers 2 KiB.
pub(super) const MAX_PINGS: usize = 16;
/// The most bytes of a close frame's reason: a control frame has at most 125 (section 5.5).
const MAX_REASON_BYTES: usize = 123;
/// The status of a normal closure.
pub(super) const NORMAL: u16 = 1000;
/// The bytes that are moved at once: four vectors.
const BLOCK: usize = 64;
