//! Both sides of a session together: the handshake, attacks on it, and the model.

use std::time::{Duration, Instant};

use super::frame::{Decoder, Frame, Piece, encode_data};
use super::handshake::anchor_handshake::{self, AnchorHandshake};
use super::handshake::client_handshake::{self, ClientHandshake, HandshakeError};
use super::keys::{AgreementKey, Mac, ResumeClaim};
use super::reason::{DetachReason, EndReason};
use super::registry::Registry;
use super::session::{AttachmentState, Session};
use super::*;

mod frames;
mod handshake;
mod hostile;
mod model;
mod sessions;

/// Returns the frames of some bytes, those with data without their bytes.
fn frames(bytes: &[u8]) -> Vec<String> {
    let (mut decoder, mut bytes, mut found) = (Decoder::default(), bytes, Vec::new());
    while let Some(piece) = decoder.next(&mut bytes).unwrap() {
        found.push(match piece {
            Piece::Data { offset, bytes } => format!("Data({offset}+{})", bytes.len()),
            Piece::Frame(frame) => format!("{frame:?}"),
        });
    }
    assert!(is_between_frames(&mut decoder));
    found
}

/// Returns whether all that was read are whole frames: the next one is read as such.
fn is_between_frames(decoder: &mut Decoder) -> bool {
    let ping = encoded(&[Frame::Ping(7)]);
    matches!(
        decoder.next(&mut ping.as_slice()),
        Ok(Some(Piece::Frame(Frame::Ping(7))))
    )
}

fn encoded(frames: &[Frame]) -> Vec<u8> {
    let mut bytes = Vec::new();
    frames.iter().for_each(|frame| frame.encode(&mut bytes));
    bytes
}
