//! The three lines of a connection: the anchor's announcement, and the identification of each side.
//!
//! Both identifications are valid in SSH (RFC 4253 section 4.2), so that they pass filters that let only SSH pass.

use std::ops::ControlFlow::{self, Break, Continue};

use crate::protocol::host_key::{LINE, is_line as is_host_key};
use crate::protocol::resume::MAX_LINE_BYTES;
use crate::protocol::resume::frame::ATTACHED_HEAD;
use crate::protocol::resume::keys::{Nonce, PublicKey, SessionId};

/// The anchor's first line. SSH clients skip it: it does not begin with `SSH-`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// The anchor's key. Another key means another anchor, or a restarted one.
    pub key: PublicKey,
    /// The nonce of this connection.
    pub nonce: Nonce,
}

impl Announcement {
    /// Returns the line, with its end.
    pub fn line(&self) -> String {
        format!("{ANNOUNCEMENT}{} {}\r\n", self.key, self.nonce)
    }

    /// Parses a line without its end. `None` for any other line, which is skipped.
    pub fn read(line: &[u8]) -> Option<Self> {
        let mut fields = fields(line, ANNOUNCEMENT)?;
        Some(Self {
            key: PublicKey::parse(fields.next()?)?,
            nonce: Nonce::parse(fields.next()?)?,
        })
    }
}

/// The client's first line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hello {
    /// Begins a session.
    New {
        /// The client's key for this session.
        key: PublicKey,
        /// The nonce of this connection.
        nonce: Nonce,
    },
    /// Resumes a session.
    Resume {
        /// The session's id.
        id: SessionId,
        /// The nonce of this connection.
        nonce: Nonce,
    },
}

impl Hello {
    /// Returns the line, with its end.
    pub fn line(&self) -> String {
        match self {
            Self::New { key, nonce } => format!("{HELLO}{VERSION} new {key} {nonce}\r\n"),
            Self::Resume { id, nonce } => format!("{HELLO}{VERSION} resume {id} {nonce}\r\n"),
        }
    }

    fn read(line: &[u8]) -> Option<Self> {
        let mut fields = fields(line, HELLO)?;
        if fields.next()? != VERSION {
            return None;
        }
        match fields.next()? {
            "new" => Some(Self::New {
                key: PublicKey::parse(fields.next()?)?,
                nonce: Nonce::parse(fields.next()?)?,
            }),
            "resume" => Some(Self::Resume {
                id: SessionId::parse(fields.next()?)?,
                nonce: Nonce::parse(fields.next()?)?,
            }),
            _ => None,
        }
    }
}

/// The kind of a client's first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstBytes {
    /// The bytes may become a hello: more are needed.
    NeedMore,
    /// Not a hello, but the bytes of a plain SSH client. They are for the target.
    Plain,
    /// A hello, and the number of its bytes with the line end.
    Hello(Hello, usize),
    /// An invalid hello, or one of another version. It is not for the target.
    Malformed,
}

/// Returns the length of the announcement at the beginning of an anchor's bytes, with its line end and the host keys
/// before it. `None` if there is another line before it, or it is incomplete.
pub fn announcement_length(bytes: &[u8]) -> Option<usize> {
    let mut length = 0;
    for line in bytes.split_inclusive(|&byte| byte == b'\n') {
        length += line.len();
        let is_line = line.len() <= MAX_LINE && line.ends_with(b"\n");
        if is_line && Announcement::read(without_end(line)).is_some() {
            return Some(length);
        }
        if !is_line || !is_host_key(without_end(line)) {
            return None;
        }
    }
    None
}

/// Classifies the first bytes of a client.
pub fn classify(bytes: &[u8]) -> FirstBytes {
    let Some(line) = bytes.strip_prefix(HELLO.as_bytes()) else {
        let may_become_one = HELLO.as_bytes().starts_with(bytes);
        return if may_become_one {
            FirstBytes::NeedMore
        } else {
            FirstBytes::Plain
        };
    };
    let Some(end) = line.iter().position(|&byte| byte == b'\n') else {
        let is_short = bytes.len() < MAX_LINE;
        return if is_short {
            FirstBytes::NeedMore
        } else {
            FirstBytes::Malformed
        };
    };
    let length = HELLO.len() + end + 1;
    let line = bytes.get(..length).filter(|line| line.len() <= MAX_LINE);
    match line.and_then(|line| Hello::read(without_end(line))) {
        Some(hello) => FirstBytes::Hello(hello, length),
        None => FirstBytes::Malformed,
    }
}

/// Finds the session that an anchor's first bytes attach, and the number of bytes before its frames. They begin with the
/// anchor's lines, or with its frames. `Break(None)` if they attach no session, `Continue` if more bytes are needed.
pub fn attached(bytes: &[u8]) -> ControlFlow<Option<(SessionId, usize)>> {
    let begins_like = |bytes: &[u8], other: &[u8]| bytes.iter().zip(other).all(|(one, other)| one == other);
    let (mut rest, mut are_frames) = (bytes, true);
    loop {
        if are_frames && begins_like(rest, &ATTACHED_HEAD) {
            let id = rest.get(ATTACHED_HEAD.len()..).and_then(<[u8]>::first_chunk);
            let before = bytes.len() - rest.len();
            return id.map_or(Continue(()), |id| Break(Some((SessionId(*id), before))));
        }
        let begins = |prefix: &str| begins_like(bytes, prefix.as_bytes());
        let is_first = rest.len() == bytes.len();
        if is_first && !begins(ANNOUNCEMENT) && !begins(LINE) {
            return Break(None);
        }
        let Some((line, after)) = rest
            .iter()
            .position(|&byte| byte == b'\n')
            .map(|end| rest.split_at(end + 1))
        else {
            return if bytes.len() > MAX_LINE_BYTES {
                Break(None)
            } else {
                Continue(())
            };
        };
        (rest, are_frames) = (after, is_identification(without_end(line)));
    }
}

/// The anchor's identification, with its end: the answer to a hello. Frames follow.
pub const IDENTIFICATION: &str = "SSH-2.0-switchboard_anchor_1\r\n";

/// Returns whether a line without its end is the anchor's identification. A comment may follow.
pub fn is_identification(line: &[u8]) -> bool {
    let rest = line.strip_prefix(without_end(IDENTIFICATION.as_bytes()));
    rest.is_some_and(|comment| comment.is_empty() || comment.starts_with(b" "))
}

/// Returns whether a line is the identification of any SSH software.
pub fn is_ssh(line: &[u8]) -> bool {
    line.starts_with(b"SSH-")
}

/// The lines of a side before its frames, and the bytes after them. The caller checks their limit.
#[derive(Debug, Default)]
pub(in crate::protocol::resume) struct Lines {
    held: Vec<u8>,
    read: usize,
}

impl Lines {
    /// Appends bytes that have arrived.
    pub(in crate::protocol::resume) fn push(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// Returns the next line without its end, as long as all lines together do not exceed the limit.
    pub(in crate::protocol::resume) fn next_line(&mut self) -> Option<&[u8]> {
        let rest = self.held.get(self.read..)?;
        let end = rest.iter().position(|&byte| byte == b'\n')?;
        let line = rest
            .get(..=end)
            .filter(|line| self.read + line.len() <= MAX_LINE_BYTES)?;
        self.read += line.len();
        Some(without_end(line))
    }

    /// Returns whether the bytes exceed the limit of the lines. Call it only if there is no next line, because frames
    /// follow the last line.
    pub(in crate::protocol::resume) fn exceeds_limit(&self) -> bool {
        self.held.len() > MAX_LINE_BYTES
    }

    /// Returns all bytes, including the lines that were read.
    pub(in crate::protocol::resume) fn held(&self) -> &[u8] {
        &self.held
    }

    /// Takes all bytes, including the lines that were read.
    pub(in crate::protocol::resume) fn take_all(&mut self) -> Vec<u8> {
        self.read = 0;
        std::mem::take(&mut self.held)
    }

    /// Takes the bytes after the lines that were read.
    pub(in crate::protocol::resume) fn take_rest(&mut self) -> Vec<u8> {
        let rest = self.held.split_off(self.read);
        self.take_all();
        rest
    }
}

/// Returns the fields after a prefix. Later versions of the line append fields, which are skipped.
fn fields<'a>(line: &'a [u8], prefix: &str) -> Option<impl Iterator<Item = &'a str>> {
    let rest = line.strip_prefix(prefix.as_bytes())?;
    let is_text = line.len() + 2 <= MAX_LINE && rest.iter().all(|byte| matches!(byte, b' '..=b'~'));
    is_text.then_some(str::from_utf8(rest).ok()?.split(' '))
}

fn without_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

const ANNOUNCEMENT: &str = "switchboard-resume-1 ";
const HELLO: &str = "SSH-2.0-switchboard_resume_";
const VERSION: &str = "1";
/// The maximum length of a line in bytes with its end, the same as for an SSH identification (RFC 4253 section 4.2).
pub const MAX_LINE: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_they_were_written_and_are_ssh_identifications() {
        let (key, nonce, id) = (PublicKey([0xab; 32]), Nonce([7; 16]), SessionId([0xff; 16]));
        let announcement = Announcement { key, nonce };
        let line = announcement.line();
        assert_eq!(Announcement::read(line.trim_end().as_bytes()), Some(announcement));
        assert!(!is_ssh(line.as_bytes()) && line.len() == 120);
        for hello in [Hello::New { key, nonce }, Hello::Resume { id, nonce }] {
            let line = hello.line();
            assert_eq!(classify(line.as_bytes()), FirstBytes::Hello(hello, line.len()));
            for cut in 0..line.len() {
                assert_eq!(classify(&line.as_bytes()[..cut]), FirstBytes::NeedMore, "{cut}");
            }
            let bare = line.replace('\r', "") + "behind it";
            assert_eq!(classify(bare.as_bytes()), FirstBytes::Hello(hello, line.len() - 1));
            use crate::tunnel::outcome::Side;
            let read = crate::tunnel::ssh::identification::read(line.as_bytes(), Side::Client);
            assert_eq!(read.unwrap().unwrap().length, line.len());
        }
        let read =
            crate::tunnel::ssh::identification::read(IDENTIFICATION.as_bytes(), crate::tunnel::outcome::Side::Target);
        assert_eq!(read.unwrap().unwrap().length, IDENTIFICATION.len());
    }

    #[test]
    fn a_plain_client_is_known_by_its_first_other_byte() {
        for plain in [
            "SSH-2.0-OpenSSH_9.2p1\r\n",
            "SSH-2.0-switchboard\r\n",
            "SSH-2.0-so",
            "SSH-1",
            "x",
            "\r\n",
            "SSH-2.0-switchboard_resumes",
        ] {
            assert_eq!(classify(plain.as_bytes()), FirstBytes::Plain, "{plain:?}");
        }
        assert_eq!(classify(b""), FirstBytes::NeedMore);
    }

    #[test]
    fn a_hello_with_a_fault_is_not_for_the_target() {
        let good = Hello::New {
            key: PublicKey([1; 32]),
            nonce: Nonce([2; 16]),
        };
        let good = good.line();
        for (from, to) in [
            ("resume_1", "resume_2"),
            ("resume_1", "resume_11"),
            (" new", " old"),
            (" new", "  new"),
            ("01", "0"),
            ("01", "AB"),
            ("0101", "+101"),
            ("\r\n", "\r\r\n"),
            ("new 01", "new \u{e9}"),
        ] {
            assert_eq!(
                classify(good.replacen(from, to, 1).as_bytes()),
                FirstBytes::Malformed,
                "{from} {to}"
            );
        }
        let later = good.replace("\r\n", " later=1\r\n");
        assert!(matches!(classify(later.as_bytes()), FirstBytes::Hello(..)));
        let padded = |length: usize| good.replace("\r\n", &format!(" {}\r\n", "x".repeat(length - good.len() - 1)));
        assert_eq!(padded(255).len(), 255);
        assert!(matches!(classify(padded(255).as_bytes()), FirstBytes::Hello(..)));
        assert_eq!(classify(padded(256).as_bytes()), FirstBytes::Malformed);
        assert_eq!(classify(&padded(256).as_bytes()[..255]), FirstBytes::Malformed);
    }

    #[test]
    fn an_announcement_is_found_only_as_the_whole_first_line() {
        let good = Announcement {
            key: PublicKey([1; 32]),
            nonce: Nonce([2; 16]),
        };
        let line = good.line();
        for cut in 0..line.len() {
            assert_eq!(announcement_length(&line.as_bytes()[..cut]), None, "{cut}");
        }
        assert_eq!(announcement_length((line.clone() + &line).as_bytes()), Some(line.len()));
        assert_eq!(
            announcement_length(line.replace('\r', "").as_bytes()),
            Some(line.len() - 1)
        );
        let padded = |length: usize| line.replace("\r\n", &format!(" {}\r\n", "x".repeat(length - line.len() - 1)));
        assert_eq!(announcement_length(padded(255).as_bytes()), Some(255));
        for other in [
            padded(256),
            format!("\r\n{line}"),
            format!(" {line}"),
            line.replace("\r\n", "\r\r\n"),
            line.replace("\r\n", " \u{1b}[2J\r\n"),
            line.replace("\r\n", " \0\r\n"),
            line.replace("0101", "010g"),
            line.replace("-1 ", "-2 "),
        ] {
            assert_eq!(announcement_length(other.as_bytes()), None, "{other:?}");
        }
    }

    #[test]
    fn valid_host_keys_may_be_before_an_announcement_and_no_other_line() {
        let line = Announcement {
            key: PublicKey([1; 32]),
            nonce: Nonce([2; 16]),
        };
        let line = line.line();
        let key = format!("{LINE}ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB\r\n");
        let with_keys = key.repeat(2) + &line;
        assert_eq!(announcement_length(with_keys.as_bytes()), Some(with_keys.len()));
        assert_eq!(announcement_length(key.as_bytes()), None);
        let mut session = with_keys.into_bytes();
        assert_eq!(attached(&session), Continue(()));
        session.extend_from_slice(IDENTIFICATION.as_bytes());
        assert_eq!(attached(&session), Continue(()));
        for other in [
            key.replace("ssh-ed25519", "ssh-dss"),
            key.replace("\r\n", " a comment\r\n"),
            key.replace("AEB", "A\u{1b}B"),
            key.replace(" ssh", "  ssh"),
            "Welcome\r\n".to_owned(),
        ] {
            assert_eq!(
                announcement_length((other.clone() + &line).as_bytes()),
                None,
                "{other:?}"
            );
        }
    }

    #[test]
    fn an_announcement_of_another_version_is_skipped() {
        let good = Announcement {
            key: PublicKey([1; 32]),
            nonce: Nonce([2; 16]),
        };
        let line = good.line();
        let line = line.trim_end();
        assert_eq!(Announcement::read(format!("{line} more").as_bytes()), Some(good));
        for other in [line.replace("-1 ", "-2 "), line.replace("01", "0g"), String::new()] {
            assert_eq!(Announcement::read(other.as_bytes()), None);
        }
        assert!(is_identification(b"SSH-2.0-switchboard_anchor_1"));
        assert!(is_identification(b"SSH-2.0-switchboard_anchor_1 of a test"));
        assert!(!is_identification(b"SSH-2.0-switchboard_anchor_12"));
    }
}
