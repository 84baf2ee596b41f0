//! Inspects the first bytes of a direction while they are relayed: for a session that outlives the tunnel, and for the
//! caller's inspector. The frames of a session follow.

use std::fmt::Debug;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::frames::Frames;
use super::meter::Meter;
use crate::protocol::resume::handshake::lines::{FirstBytes, attached, classify};
use crate::tunnel::direction::Direction;
use crate::tunnel::drain::TunnelGuard;

/// An inspector of the prefixes of both directions. It holds nothing back.
pub trait InspectPrefix: Debug + Send + Sync {
    /// Inspects all bytes of a direction so far. Returns `Break` once it has seen enough, which must be within 8 KiB.
    fn inspect(&self, direction: Direction, beginning: &[u8]) -> ControlFlow<()>;
}

/// The first bytes of a direction, until enough of them have been seen, and then the frames of a session. They are relayed
/// as all others.
#[derive(Debug)]
pub(super) struct Prefix<'a> {
    direction: Direction,
    meter: &'a Meter,
    /// The tunnel's guard; `None` once its upload has shown whether it is resumable, or its download which session it carries.
    guard: Option<&'a TunnelGuard>,
    inspector: Option<Arc<dyn InspectPrefix>>,
    /// Empty if the first read brings enough, as most often.
    held: Vec<u8>,
    /// `None` until the prefix has shown a session.
    frames: Option<Frames>,
}

impl<'a> Prefix<'a> {
    /// Returns the prefix of a direction; `None` if nothing inspects it.
    pub(super) fn new(
        direction: Direction,
        guard: Option<&'a TunnelGuard>,
        inspector: Option<Arc<dyn InspectPrefix>>,
        meter: &'a Meter,
    ) -> Option<Box<Self>> {
        // The hello of the upload was read before the relay.
        let is_session = direction == Direction::Upload && guard.is_some_and(TunnelGuard::is_resumable);
        (guard.is_some() || inspector.is_some()).then(|| {
            Box::new(Self {
                direction,
                meter,
                guard,
                inspector,
                held: Vec::new(),
                frames: is_session.then(Frames::default),
            })
        })
    }

    /// Notes that bytes are spliced, uninspected.
    pub(super) fn skip(&mut self) {
        self.meter.set_own(self.direction, false);
        if let Some(frames) = &mut self.frames {
            *frames = Frames::lost();
        }
    }

    /// Inspects the bytes that were read next. Returns `Break` if nothing more is to be inspected.
    pub(super) fn inspect(&mut self, bytes: &[u8]) -> ControlFlow<()> {
        if let Some(frames) = &mut self.frames {
            self.meter.set_own(self.direction, frames.are_own(bytes));
            return ControlFlow::Continue(());
        }
        let is_first = self.held.is_empty();
        if !is_first {
            self.held.extend_from_slice(bytes);
        }
        let beginning = if is_first { bytes } else { &self.held };
        let mut is_own = false;
        if let Some(guard) = self.guard {
            match detect_session(guard, self.direction, beginning) {
                // The lines of a handshake, as far as it can be seen.
                ControlFlow::Continue(()) => is_own = true,
                ControlFlow::Break(found) => {
                    self.guard = None;
                    self.frames = found.map(|(mut frames, rest)| {
                        is_own = frames.are_own(rest);
                        frames
                    });
                }
            }
        }
        self.meter.set_own(self.direction, is_own);
        let direction = self.direction;
        let is_done = |inspector: &Arc<dyn InspectPrefix>| inspector.inspect(direction, beginning).is_break();
        if self.inspector.as_ref().is_some_and(is_done) {
            self.inspector = None;
        }
        if self.frames.is_some() {
            (self.held, self.inspector) = (Vec::new(), None);
            return ControlFlow::Continue(());
        }
        if self.guard.is_none() && self.inspector.is_none() {
            return ControlFlow::Break(());
        }
        if is_first {
            self.held.extend_from_slice(bytes);
        }
        ControlFlow::Continue(())
    }
}

/// Detects a session in the first bytes of a direction. The upload shows whether the tunnel is resumable, the download
/// which session the tunnel carries. Returns `Break` once this is known: in the upload within 255 bytes (a line). Of a
/// session it has the frames, and their bytes so far.
fn detect_session<'b>(
    guard: &TunnelGuard,
    direction: Direction,
    beginning: &'b [u8],
) -> ControlFlow<Option<(Frames, &'b [u8])>> {
    let from = |at| (Frames::default(), beginning.get(at..).unwrap_or_default());
    if direction == Direction::Download {
        return attached(beginning).map_break(|session| match session {
            Some((id, at)) => {
                guard.set_session(id);
                Some(from(at))
            }
            None => guard.is_resumable().then(|| (Frames::lost(), beginning)),
        });
    }
    match classify(beginning) {
        FirstBytes::NeedMore => ControlFlow::Continue(()),
        FirstBytes::Hello(hello, length) => {
            guard.set_hello(hello);
            ControlFlow::Break(Some(from(length)))
        }
        FirstBytes::Plain | FirstBytes::Malformed => ControlFlow::Break(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::resume::keys::SessionId;
    use crate::tunnel::drain::DrainController;

    #[test]
    fn a_hello_is_found_however_it_is_cut() {
        let (new, resume) = (
            format!(
                "SSH-2.0-switchboard_resume_1 new {} {}\r\n",
                "0f".repeat(32),
                "01".repeat(16)
            ),
            format!(
                "SSH-2.0-switchboard_resume_1 resume {} {}\r\n",
                "0f".repeat(16),
                "01".repeat(16)
            ),
        );
        for (says, is_resumable) in [
            (new.clone(), true),
            (resume.clone() + &"frames".repeat(100), true),
            ("SSH-2.0-OpenSSH_9.2p1\r\n".to_owned() + &resume, false),
            (resume.replace("_1 ", "_2 "), false),
            (resume.replace("\r\n", &" ".repeat(300)), false),
            ("\0".repeat(1000), false),
            (new[..new.len() - 1].to_owned(), false),
        ] {
            for piece in [1, 2, 7, 100, 254, 255, 1000] {
                let (_conductor, drain) = DrainController::new();
                let open = drain.opened();
                let meter = Meter::new(Arc::default());
                let mut beginning = Prefix::new(Direction::Upload, Some(&open), None, &meter).unwrap();
                let pieces = says.as_bytes().chunks(piece);
                let looked_at: usize = pieces
                    .scan(false, |is_over, bytes| {
                        let mut ends = || beginning.inspect(bytes).is_break() || beginning.frames.is_some();
                        let looks = !std::mem::replace(is_over, *is_over || ends());
                        looks.then_some(bytes.len())
                    })
                    .sum();
                assert_eq!(open.is_resumable(), is_resumable, "{says:?} in pieces of {piece}");
                assert!(
                    looked_at < 255 + piece && beginning.held.capacity() <= 1024,
                    "{looked_at}"
                );
            }
        }
    }

    #[test]
    fn the_session_that_an_anchor_attaches_is_found_however_its_answer_is_cut() {
        let announcement = format!("switchboard-resume-1 {} {}\r\n", "0f".repeat(32), "01".repeat(16));
        let frame = [&[2, 0, 0, 56][..], &[9; 56]].concat();
        let identification = b"SSH-2.0-switchboard_anchor_1\r\n";
        let answer = |between: &[u8]| [announcement.as_bytes(), between, identification, &frame, b"more"].concat();
        let end = [announcement.as_bytes(), identification, &[9, 0, 0, 1, 4]].concat();
        let session = Some(SessionId([9; 16]));
        for (says, expected) in [
            (answer(b""), session),
            (
                answer(b"SSH-2.0-OpenSSH_10.0\r\n\0\0\x04\x14\x02\n\x02\0\0\x38\r\n"),
                session,
            ),
            // A relay that begins after the lines.
            (frame.clone(), session),
            (end, None),
            (b"SSH-2.0-OpenSSH_10.0\r\n".to_vec(), None),
            (
                [announcement.as_bytes(), &[b'x'; 20_000], identification, &frame].concat(),
                None,
            ),
        ] {
            for piece in [1, 2, 7, 100, 1000] {
                let (_conductor, drain) = DrainController::new();
                let open = drain.opened();
                let meter = Meter::new(Arc::default());
                let mut beginning = Prefix::new(Direction::Download, Some(&open), None, &meter).unwrap();
                let _seen = says.chunks(piece).find(|bytes| beginning.inspect(bytes).is_break());
                assert_eq!(open.session(), expected, "{says:?} in pieces of {piece}");
            }
        }
    }
}
