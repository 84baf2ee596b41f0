//! The SSH software that a side names in its identification.

use std::fmt;

use crate::base::text::ascii;

/// The software of one side, in its own words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Software(Box<str>);

impl Software {
    /// The software behind `SSH-2.0-`. Each byte that is not printable ASCII becomes a `?`: it goes into a log.
    ///
    /// What a client of a session says behind its version and purpose is the session's id, which is not for a log.
    pub fn of(bytes: &[u8]) -> Self {
        let shown = if bytes.starts_with(RESUMING) {
            let words = bytes.split_inclusive(|byte| *byte == b' ').take(2);
            let length = words.map(<[u8]>::len).sum();
            bytes.get(..length).unwrap_or(bytes).trim_ascii_end()
        } else {
            bytes
        };
        Self(ascii(shown.iter().copied().map(char::from)))
    }

    /// Its family.
    pub fn family(&self) -> Family {
        let known = |(prefix, _): &&(&str, Family)| {
            let start = self.0.get(..prefix.len());
            start.is_some_and(|start| start.eq_ignore_ascii_case(prefix))
        };
        PREFIXES.iter().find(known).map_or(Family::Other, |&(_, family)| family)
    }
}

impl fmt::Display for Software {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A family of software: a metric label, which free text of a peer must not become.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// OpenSSH, that of Windows included.
    OpenSsh,
    /// PuTTY, plink and pscp.
    Putty,
    /// libssh.
    Libssh,
    /// libssh2, which is another library: curl, git GUIs.
    Libssh2,
    /// Dropbear.
    Dropbear,
    /// JSch and its successors.
    Jsch,
    /// Apache MINA SSHD: Gerrit, Eclipse.
    Mina,
    /// Paramiko: Ansible, Fabric.
    Paramiko,
    /// AsyncSSH.
    AsyncSsh,
    /// golang.org/x/crypto/ssh.
    Go,
    /// ssh2 of Node.js.
    Ssh2Js,
    /// Our own client and anchor: the SSH software of the session is not seen.
    Switchboard,
    /// Anything else.
    Other,
}

impl Family {
    /// Every family, for metrics that show zero before the first.
    pub const ALL: [Self; 13] = [
        Self::OpenSsh,
        Self::Putty,
        Self::Libssh,
        Self::Libssh2,
        Self::Dropbear,
        Self::Jsch,
        Self::Mina,
        Self::Paramiko,
        Self::AsyncSsh,
        Self::Go,
        Self::Ssh2Js,
        Self::Switchboard,
        Self::Other,
    ];

    /// The value of the label `family`.
    pub fn label(self) -> &'static str {
        match self {
            Self::OpenSsh => "openssh",
            Self::Putty => "putty",
            Self::Libssh => "libssh",
            Self::Libssh2 => "libssh2",
            Self::Dropbear => "dropbear",
            Self::Jsch => "jsch",
            Self::Mina => "mina",
            Self::Paramiko => "paramiko",
            Self::AsyncSsh => "asyncssh",
            Self::Go => "go",
            Self::Ssh2Js => "ssh2js",
            Self::Switchboard => "switchboard",
            Self::Other => "other",
        }
    }
}

/// The beginning of what the client of a session calls itself (`docs/resume.md`).
const RESUMING: &[u8] = b"switchboard_resume_";

/// The prefixes of each family, the longer one first where one is the prefix of another.
const PREFIXES: [(&str, Family); 15] = [
    ("OpenSSH", Family::OpenSsh),
    ("PuTTY", Family::Putty),
    ("libssh2", Family::Libssh2),
    ("libssh", Family::Libssh),
    ("dropbear", Family::Dropbear),
    ("JSCH", Family::Jsch),
    ("APACHE-SSHD", Family::Mina),
    ("SSHD-", Family::Mina),
    ("GerritCodeReview", Family::Mina),
    ("paramiko", Family::Paramiko),
    ("AsyncSSH", Family::AsyncSsh),
    ("ssh2js", Family::Ssh2Js),
    ("switchboard_resume_", Family::Switchboard),
    ("switchboard_anchor_", Family::Switchboard),
    ("Go", Family::Go),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_session_is_not_shown() {
        for (said, shown) in [
            ("switchboard_resume_1 resume 0f0f 1d1d", "switchboard_resume_1 resume"),
            ("switchboard_resume_1 new 0f0f 1d1d", "switchboard_resume_1 new"),
            ("switchboard_resume_1", "switchboard_resume_1"),
            ("OpenSSH_9.2p1 Debian-2 a b", "OpenSSH_9.2p1 Debian-2 a b"),
        ] {
            assert_eq!(Software::of(said.as_bytes()).to_string(), shown);
        }
    }

    #[test]
    fn known_software_has_its_family_and_all_else_is_other() {
        for (software, family) in [
            ("OpenSSH_9.2p1 Debian-2+deb12u7", "openssh"),
            ("OpenSSH_for_Windows_9.5", "openssh"),
            ("PuTTY_Release_0.78", "putty"),
            ("libssh_0.10.5", "libssh"),
            ("libssh2_1.11.0", "libssh2"),
            ("dropbear_2022.83", "dropbear"),
            ("JSCH-0.1.54", "jsch"),
            ("JSCH_0.2.16", "jsch"),
            ("APACHE-SSHD-2.12.0", "mina"),
            ("paramiko_3.4.0", "paramiko"),
            ("AsyncSSH_2.14.2", "asyncssh"),
            ("Go", "go"),
            ("ssh2js1.15.0", "ssh2js"),
            ("switchboard_resume_1 new 0f 0e", "switchboard"),
            ("switchboard_anchor_1", "switchboard"),
            ("switchboard", "other"),
            ("Cisco-1.25", "other"),
            ("", "other"),
            ("\u{e9}", "other"),
        ] {
            assert_eq!(Software::of(software.as_bytes()).family().label(), family, "{software}");
        }
        assert_eq!(Software::of(b"a\x1b[31m\xffb\t").to_string(), "a?[31m?b?");
    }
}
