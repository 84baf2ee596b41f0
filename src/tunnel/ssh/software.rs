//! The SSH software that a side names in its identification.

use std::fmt;

use crate::base::text::ascii;

/// The software of one side, in its own words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Software(Box<str>);

impl Software {
    /// Parses the software after `SSH-2.0-`. Each byte that is not printable ASCII becomes a `?`: the text is logged.
    ///
    /// Of a session's client only version and purpose are kept: its key or the session's id follows, and is not logged.
    pub fn parse(bytes: &[u8]) -> Self {
        let shown = if bytes.starts_with(RESUMING) {
            let words = bytes.split_inclusive(|byte| *byte == b' ').take(2);
            let length = words.map(<[u8]>::len).sum();
            bytes.get(..length).unwrap_or(bytes).trim_ascii_end()
        } else {
            bytes
        };
        Self(ascii(shown.iter().copied().map(char::from)))
    }
}

impl fmt::Display for Software {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The beginning of the software that a session's client names (`docs/resume.md`).
const RESUMING: &[u8] = b"switchboard_resume_";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_the_id_of_a_session_nor_what_steers_a_terminal_is_shown() {
        for (said, shown) in [
            ("switchboard_resume_1 resume 0f0f 1d1d", "switchboard_resume_1 resume"),
            ("switchboard_resume_1 new 0f0f 1d1d", "switchboard_resume_1 new"),
            ("switchboard_resume_1", "switchboard_resume_1"),
            ("OpenSSH_9.2p1 Debian-2 a b", "OpenSSH_9.2p1 Debian-2 a b"),
            ("a\x1b[31m\u{ff}b\t", "a?[31m??b?"),
        ] {
            assert_eq!(Software::parse(said.as_bytes()).to_string(), shown);
        }
    }
}
