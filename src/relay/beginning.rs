//! Looks at the beginning of an upload for the line of a client whose session outlives the tunnel.

use std::ops::ControlFlow;

use crate::drain::Open;
use crate::resume::lines::{First, first};

/// The first bytes of an upload, until they say whether the tunnel is resumable. They are relayed as all others.
#[derive(Debug)]
pub(super) struct Beginning<'a> {
    tunnel: &'a Open,
    /// Empty when one read brings the whole line, as it most often does.
    held: Vec<u8>,
}

impl<'a> Beginning<'a> {
    pub(super) fn of(tunnel: &'a Open) -> Box<Self> {
        Box::new(Self {
            tunnel,
            held: Vec::new(),
        })
    }

    /// Looks at what has been read next. With `Break` nothing more of it is to be looked at: after 255 bytes at the latest,
    /// the length of a line.
    pub(super) fn inspect(&mut self, bytes: &[u8]) -> ControlFlow<()> {
        let beginning = if self.held.is_empty() {
            first(bytes)
        } else {
            self.held.extend_from_slice(bytes);
            first(&self.held)
        };
        match beginning {
            First::Undecided if self.held.is_empty() => self.held.extend_from_slice(bytes),
            First::Undecided => {}
            First::Hello(..) => {
                self.tunnel.set_resumable();
                return ControlFlow::Break(());
            }
            First::Plain | First::Faulty => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drain::Conductor;

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
                let (_conductor, drain) = Conductor::new();
                let open = drain.opened();
                let mut beginning = Beginning::of(&open);
                let pieces = says.as_bytes().chunks(piece);
                let looked_at: usize = pieces
                    .scan(false, |is_over, bytes| {
                        let looks = !std::mem::replace(is_over, *is_over || beginning.inspect(bytes).is_break());
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
}
