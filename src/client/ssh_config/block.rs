//! A Host block of ssh_config(5) that leads names through the proxy.

use std::fmt::Write;

use super::quoting::{QuotingFault, System, word};
use crate::client::{ProxyUrl, Scheme};

/// A block, before it is written.
#[derive(Clone, Debug)]
pub struct Block {
    /// The patterns of the names, as of ssh_config(5).
    pub names: Vec<String>,
    /// What carries the bytes.
    pub command: ProxyCommand,
    /// The account on the targets.
    pub user: Option<String>,
    /// Whether further logins share a connection.
    pub control_master: bool,
    /// The system that ssh runs on.
    pub system: System,
}

/// What ssh starts in place of a TCP connection.
#[derive(Clone, Debug)]
pub enum ProxyCommand {
    /// `switchboard connect`.
    Switchboard {
        /// The path of the program, and its arguments in front of the target.
        words: Vec<String>,
        /// Whether its sessions outlive their connections.
        is_resumable: bool,
    },
    /// Another program.
    Foreign(ForeignClient, ProxyUrl),
}

/// A program that asks an HTTP proxy for a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForeignClient {
    /// proxytunnel.
    Proxytunnel,
    /// nc of OpenBSD, Debian's netcat-openbsd.
    Nc,
    /// ncat, of nmap.
    Ncat,
    /// socat.
    Socat,
    /// corkscrew.
    Corkscrew,
}

/// A block that cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockFault {
    /// A pattern that is none.
    #[error("{0:?} is no pattern of names: write one such as *.svc.cluster.local, without spaces")]
    Name(String),
    /// ssh takes a Host line for none of its names.
    #[error("{0} excludes names, and includes none: give the names that are reached, too (--name)")]
    OnlyExcluded(String),
    /// No account has such a name.
    #[error("{0:?} is no name of an account")]
    User(String),
    /// A part of the command.
    #[error(transparent)]
    Quoting(#[from] QuotingFault),
    /// Every user of the machine sees the arguments of its processes.
    #[error(
        "the proxy's URL has a password, which a ProxyCommand would show in the list of processes: put the URL into the \
         configuration file, or take a token"
    )]
    Password,
    /// Only proxytunnel speaks TLS to a proxy.
    #[error("{0} speaks no TLS to a proxy: take `switchboard connect` or proxytunnel for https://")]
    Tls(&'static str),
    /// OpenSSH for Windows has no ControlMaster.
    #[error("ssh of Windows cannot share connections (--control-master)")]
    ControlMaster,
}

impl Block {
    /// Its lines, each with its end.
    ///
    /// # Errors
    /// A part that ssh would not read as it is meant.
    pub fn text(&self) -> Result<String, BlockFault> {
        let title = self.title()?;
        if self.names.iter().all(|name| name.starts_with('!')) {
            return Err(BlockFault::OnlyExcluded(title));
        }
        let mut text = format!("Host {title}\n");
        let mut line = |keyword: &str, value: &str| writeln!(text, "    {keyword} {value}").unwrap_or_default();
        line("ProxyCommand", &self.command.line(self.system)?);
        match &self.command {
            ProxyCommand::Switchboard { is_resumable: true, .. } => {
                line("#", KEEPALIVES);
                line("ServerAliveInterval", "0");
            }
            ProxyCommand::Switchboard { .. } | ProxyCommand::Foreign(..) => {
                line("ServerAliveInterval", "15");
                line("ServerAliveCountMax", "4");
            }
        }
        if let Some(user) = &self.user {
            line("User", account(user)?);
        }
        if self.control_master {
            if self.system == System::Windows {
                return Err(BlockFault::ControlMaster);
            }
            line("ControlMaster", "auto");
            // %C is a hash: a path with the names could be too long for a socket (unix(7)).
            line("ControlPath", "~/.ssh/switchboard-%C");
            line("ControlPersist", "10m");
        }
        Ok(text)
    }

    /// Its patterns, by which it is found again.
    ///
    /// # Errors
    /// One of them is none.
    pub fn title(&self) -> Result<String, BlockFault> {
        title(&self.names)
    }
}

/// The patterns in one line.
///
/// # Errors
/// One of them is none.
pub(super) fn title(names: &[String]) -> Result<String, BlockFault> {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_*?:[]".contains(&byte);
    for name in names {
        let pattern = name.strip_prefix('!').unwrap_or(name);
        if pattern.is_empty() || pattern.starts_with('-') || !pattern.bytes().all(is_of_name) {
            return Err(BlockFault::Name(name.clone()));
        }
    }
    Ok(names.join(" "))
}

/// An account, if ssh reads its name as one.
fn account(user: &str) -> Result<&str, BlockFault> {
    let is_odd = |character: char| character.is_control() || character.is_whitespace() || "\"'#%`$".contains(character);
    match user.is_empty() || user.starts_with('-') || user.contains(is_odd) {
        true => Err(BlockFault::User(user.to_owned())),
        false => Ok(user),
    }
}

impl ProxyCommand {
    fn line(&self, system: System) -> Result<String, BlockFault> {
        match self {
            Self::Switchboard { words, .. } => {
                let words: Result<Vec<_>, _> = words.iter().map(|text| word(text, system)).collect();
                // In two words: an IPv6 address in %h has no brackets.
                Ok(words?.join(" ") + " %h %p")
            }
            Self::Foreign(client, proxy) => client.line(proxy),
        }
    }
}

impl ForeignClient {
    /// The name of the program.
    pub fn program(self) -> &'static str {
        match self {
            Self::Proxytunnel => "proxytunnel",
            Self::Nc => "nc",
            Self::Ncat => "ncat",
            Self::Socat => "socat",
            Self::Corkscrew => "corkscrew",
        }
    }

    fn line(self, proxy: &ProxyUrl) -> Result<String, BlockFault> {
        if proxy.has_credentials() {
            return Err(BlockFault::Password);
        }
        let is_https = proxy.scheme() == Scheme::Https;
        if is_https && self != Self::Proxytunnel {
            return Err(BlockFault::Tls(self.program()));
        }
        let authority = proxy.authority().to_string();
        let port = proxy.port();
        // Of an IPv6 address with its brackets.
        let host = authority.strip_suffix(&format!(":{port}")).unwrap_or(&authority);
        Ok(match self {
            Self::Proxytunnel if is_https => format!("proxytunnel -E -p {authority} -d %h:%p"),
            Self::Proxytunnel => format!("proxytunnel -p {authority} -d %h:%p"),
            Self::Nc => format!("nc -X connect -x {authority} %h %p"),
            Self::Ncat => format!("ncat --proxy {authority} --proxy-type http %h %p"),
            Self::Socat => format!("socat - PROXY:{host}:%h:%p,proxyport={port}"),
            Self::Corkscrew => format!("corkscrew {} {port} %h %p", proxy.host()),
        })
    }
}

const KEEPALIVES: &str =
    "connect finds dead connections itself; keepalives of ssh would end a session that waits for another connection";

#[cfg(test)]
mod tests {
    use super::*;

    fn block(command: ProxyCommand) -> Block {
        Block {
            names: vec!["*.svc.cluster.local".to_owned(), "!db.svc.cluster.local".to_owned()],
            command,
            user: None,
            control_master: false,
            system: System::Unix,
        }
    }

    fn foreign(client: ForeignClient, url: &str) -> Block {
        block(ProxyCommand::Foreign(client, url.parse().unwrap()))
    }

    fn own() -> Block {
        block(ProxyCommand::Switchboard {
            words: ["/opt/my tools/switchboard", "connect", "--proxy", "https://p:1"]
                .map(str::to_owned)
                .to_vec(),
            is_resumable: true,
        })
    }

    #[test]
    fn a_block_of_ours_switches_keepalives_off_and_has_what_was_asked_for() {
        let plain = format!(
            "Host *.svc.cluster.local !db.svc.cluster.local\n    ProxyCommand '/opt/my tools/switchboard' connect --proxy \
             https://p:1 %h %p\n    # {KEEPALIVES}\n    ServerAliveInterval 0\n"
        );
        assert_eq!(own().text().unwrap(), plain);
        let more = Block {
            user: Some("alice".to_owned()),
            control_master: true,
            ..own()
        };
        let lines =
            "    User alice\n    ControlMaster auto\n    ControlPath ~/.ssh/switchboard-%C\n    ControlPersist 10m\n";
        assert_eq!(more.text().unwrap(), plain + lines);
        let windows = Block {
            system: System::Windows,
            ..more
        };
        assert_eq!(windows.text(), Err(BlockFault::ControlMaster));
    }

    #[test]
    fn other_clients_have_the_lines_of_the_documentation_and_keepalives() {
        use ForeignClient::*;
        for (client, url, expected) in [
            (
                Proxytunnel,
                "http://proxy.example.com:8080",
                "proxytunnel -p proxy.example.com:8080 -d %h:%p",
            ),
            (
                Proxytunnel,
                "https://proxy.example.com",
                "proxytunnel -E -p proxy.example.com:443 -d %h:%p",
            ),
            (
                Nc,
                "http://proxy.example.com:8080",
                "nc -X connect -x proxy.example.com:8080 %h %p",
            ),
            (
                Ncat,
                "http://[fd00::1]:8080",
                "ncat --proxy [fd00::1]:8080 --proxy-type http %h %p",
            ),
            (
                Socat,
                "http://proxy.example.com:8080",
                "socat - PROXY:proxy.example.com:%h:%p,proxyport=8080",
            ),
            (
                Socat,
                "http://[fd00::1]:8080",
                "socat - PROXY:[fd00::1]:%h:%p,proxyport=8080",
            ),
            (
                Corkscrew,
                "http://proxy.example.com:8080",
                "corkscrew proxy.example.com 8080 %h %p",
            ),
        ] {
            let text = foreign(client, url).text().unwrap();
            assert!(
                text.contains(&format!("    ProxyCommand {expected}\n    ServerAliveInterval 15\n")),
                "{text}"
            );
        }
        assert_eq!(foreign(Nc, "https://p").text(), Err(BlockFault::Tls("nc")));
        assert_eq!(foreign(Proxytunnel, "http://u:p@p").text(), Err(BlockFault::Password));
    }

    #[test]
    fn what_ssh_would_read_differently_is_refused() {
        for name in [
            "",
            "a b",
            "-oProxyCommand=x",
            "a\nHost b",
            "a#b",
            "\"a\"",
            "!",
            "é",
            "a,b",
        ] {
            let block = Block {
                names: vec![name.to_owned()],
                ..own()
            };
            assert_eq!(block.text(), Err(BlockFault::Name(name.to_owned())));
        }
        let block = Block {
            names: vec!["!a".to_owned(), "!*.b".to_owned()],
            ..own()
        };
        assert_eq!(block.text(), Err(BlockFault::OnlyExcluded("!a !*.b".to_owned())));
        for user in ["", "a b", "a\nProxyCommand x", "%h", "-a", "a\"b"] {
            let block = Block {
                user: Some(user.to_owned()),
                ..own()
            };
            assert_eq!(block.text(), Err(BlockFault::User(user.to_owned())));
        }
    }
}
