//! A side of the model, and the bytes that it sends.

use super::event::Role;
use super::*;
use crate::protocol::resume::session::AttachmentId;
use crate::protocol::resume::session::send_queue::SendQueue;

/// One side, its programs, and what is on the way to it.
pub(super) struct Side {
    pub(super) session: Session,
    pub(super) attachment: Option<AttachmentId>,
    /// Its connection: that of the other side may be another one.
    pub(super) connection: u64,
    pub(super) inbound: Vec<u8>,
    /// The frames that are being written.
    pub(super) queue: SendQueue,
    /// The reference: the bytes that were written here, and those that were passed on here. A byte is known by its offset.
    pub(super) written: u64,
    pub(super) finished: bool,
    pub(super) passed: u64,
    pub(super) passed_fin: bool,
    pub(super) widest: usize,
}

impl Side {
    pub(super) fn new(window: u32) -> Self {
        let session = Session::new(Options {
            window,
            ..Options::default()
        });
        Self {
            widest: session.free().max(INITIAL_WINDOW as usize),
            session,
            attachment: None,
            connection: 0,
            inbound: Vec::new(),
            queue: SendQueue::default(),
            written: 0,
            finished: false,
            passed: 0,
            passed_fin: false,
        }
    }
}

/// Returns the byte at an offset of the stream that a side sends. No two parts of a stream are alike.
pub(super) fn byte(from: Role, offset: u64) -> u8 {
    let salt = if from == Role::Client {
        0x9e37_79b9_7f4a_7c15
    } else {
        0xc2b2_ae3d_27d4_eb4f_u64
    };
    (offset.wrapping_add(1).wrapping_mul(salt) >> 56) as u8
}
