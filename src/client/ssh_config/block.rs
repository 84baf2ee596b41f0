//! A Host block of ssh_config(5) that routes names through the proxy.

use std::fmt::Write;
use std::net::SocketAddr;
use std::slice;

use anyhow::ensure;

use super::quoting::{System, word};
use crate::base::platform;

/// A block, before it is written.
#[derive(Clone, Debug)]
pub struct Block {
    /// The patterns of names, in the syntax of ssh_config(5).
    pub names: Vec<String>,
    /// Further names, each with the one that it is short for.
    pub aliases: Vec<(String, String)>,
    /// The way to them.
    pub route: Route,
    /// True if its sessions outlive their connections.
    pub is_resumable: bool,
    /// The files in which ssh looks host keys up; empty leaves ssh's own.
    pub known_hosts: Vec<String>,
    /// True if ssh connects only where it knows the host key.
    pub is_strict: bool,
    /// The account on the targets.
    pub user: Option<String>,
    /// True if further logins share a connection.
    pub control_master: bool,
    /// The system that ssh runs on.
    pub system: System,
}

/// The way of ssh to a target.
#[derive(Clone, Debug)]
pub enum Route {
    /// A ProxyCommand: the path of the program, and its arguments before the target.
    Command(Vec<String>),
    /// A jump host, as `[USER@]HOST[:PORT]`.
    Jump(String),
    /// A port of this host.
    Port {
        /// The address of the port.
        address: SocketAddr,
        /// The name of the target in known_hosts.
        host_key: String,
    },
}

impl Block {
    /// Returns the lines of the block, each with a line end.
    ///
    /// # Errors
    /// A part that ssh would not read as it is meant.
    pub fn text(&self) -> anyhow::Result<String> {
        let names = title(&self.names)?;
        ensure!(
            self.names.iter().any(|name| !name.starts_with('!')),
            "{names} excludes names, and includes none: give the names that are reached, too (--name)"
        );
        let mut text = String::new();
        for (alias, name) in &self.aliases {
            let is_name = !format!("{alias}{name}").contains(['*', '?', '!']);
            let (alias, name) = (title(slice::from_ref(alias))?, title(slice::from_ref(name))?);
            ensure!(
                is_name,
                "{alias}={name} has a wildcard: an alias is one name, and short for one"
            );
            write!(text, "Host {alias}\n    HostName {name}\n")?;
        }
        let aliases = self.aliases.iter().map(|(alias, _)| format!(" {alias}"));
        writeln!(text, "Host {names}{}", aliases.collect::<String>())?;
        let mut line = |keyword: &str, value: &str| writeln!(text, "    {keyword} {value}").unwrap_or_default();
        if let Route::Port { address, host_key } = &self.route {
            line("HostName", &address.ip().to_string());
            line("Port", &address.port().to_string());
            line("HostKeyAlias", host_key);
        }
        match &self.route {
            Route::Jump(jump) => line("ProxyJump", jump_host(jump)?),
            Route::Command(_) | Route::Port { .. } => line("ProxyCommand", &self.command()?),
        }
        let files: Result<Vec<_>, _> = self.known_hosts.iter().map(|file| path(file)).collect();
        if !self.known_hosts.is_empty() {
            line("UserKnownHostsFile", &files?.join(" "));
        }
        if self.is_strict {
            line("StrictHostKeyChecking", "yes");
        }
        if self.is_resumable {
            line("#", KEEPALIVES);
            line("ServerAliveInterval", "0");
        } else {
            line("ServerAliveInterval", "15");
            line("ServerAliveCountMax", "4");
        }
        if let Some(user) = &self.user {
            line("User", account(user)?);
        }
        if self.control_master {
            ensure!(
                self.system != System::Windows,
                "ssh of Windows cannot share connections (--control-master)"
            );
            line("ControlMaster", "auto");
            // %C is a hash: a path with the names could be too long for a socket (unix(7)).
            line("ControlPath", "~/.ssh/switchboard-%C");
            line("ControlPersist", "10m");
        }
        Ok(text)
    }

    /// Returns the ProxyCommand.
    ///
    /// # Errors
    /// A word that ssh would not read as it is meant.
    pub fn command(&self) -> anyhow::Result<String> {
        let Route::Command(words) = &self.route else {
            return Ok("none".to_owned());
        };
        let words: Result<Vec<_>, _> = words.iter().map(|text| word(text, self.system)).collect();
        // `%h:%p` would be ambiguous: an IPv6 address in %h has no brackets.
        Ok(words?.join(" ") + " %h %p")
    }
}

/// Returns the patterns in one line.
///
/// # Errors
/// One of them is not a pattern.
pub(super) fn title(names: &[String]) -> anyhow::Result<String> {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_*?:[]".contains(&byte);
    for name in names {
        let pattern = name.strip_prefix('!').unwrap_or(name);
        ensure!(
            !pattern.is_empty() && !pattern.starts_with('-') && pattern.bytes().all(is_of_name),
            "{name:?} is not a pattern of names: write one such as *.svc.cluster.local, without spaces"
        );
    }
    Ok(names.join(" "))
}

/// Returns `jump`, if ssh reads it as one jump host and expands nothing in it.
fn jump_host(jump: &str) -> anyhow::Result<&str> {
    let (user, host) = jump
        .rsplit_once('@')
        .map_or((None, jump), |(user, host)| (Some(user), host));
    let is_odd = |byte: u8| !byte.is_ascii_alphanumeric() && !b".-_:[]".contains(&byte);
    let is_user = user.is_none_or(|user| account(user).is_ok() && !user.contains([',', '/', '@']));
    ensure!(
        is_user && !host.is_empty() && !host.starts_with('-') && !host.bytes().any(is_odd),
        "{jump:?} is not a jump host: write one such as ssh.example.com or alice@ssh.example.com:2222"
    );
    Ok(jump)
}

/// Returns a path as a line of ssh_config(5) has it.
fn path(path: &str) -> anyhow::Result<String> {
    let is_odd = |character: char| character.is_control() || "\"\\${}".contains(character);
    let path = if platform::IS_WINDOWS {
        path.replace('\\', "/")
    } else {
        path.to_owned()
    };
    ensure!(
        !path.contains(is_odd),
        "the path {path:?} cannot be written into the configuration of ssh"
    );
    let path = path.replace('%', "%%");
    Ok(if path.contains([' ', '#', '\'']) {
        format!("\"{path}\"")
    } else {
        path
    })
}

/// Returns `user`, if ssh reads it as the name of an account.
fn account(user: &str) -> anyhow::Result<&str> {
    let is_odd = |character: char| character.is_control() || character.is_whitespace() || "\"'#%`$".contains(character);
    let is_account = !user.is_empty() && !user.starts_with('-') && !user.contains(is_odd);
    ensure!(is_account, "{user:?} is not the name of an account");
    Ok(user)
}

const KEEPALIVES: &str =
    "connect finds dead connections itself; keepalives of ssh would end a session that waits for another connection";

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Block {
        Block {
            names: vec!["*.svc.cluster.local".to_owned(), "!db.svc.cluster.local".to_owned()],
            aliases: Vec::new(),
            route: Route::Command(
                ["/opt/my tools/switchboard", "connect", "--proxy", "https://p:1"]
                    .map(str::to_owned)
                    .to_vec(),
            ),
            is_resumable: true,
            known_hosts: Vec::new(),
            is_strict: false,
            user: None,
            control_master: false,
            system: System::Unix,
        }
    }

    fn fault(block: &Block) -> String {
        block.text().unwrap_err().to_string()
    }

    #[test]
    fn a_block_of_ours_switches_keepalives_off_and_has_what_was_asked_for() {
        let plain = format!(
            "Host *.svc.cluster.local !db.svc.cluster.local\n    ProxyCommand \"/opt/my tools/switchboard\" connect --proxy \
             https://p:1 %h %p\n    # {KEEPALIVES}\n    ServerAliveInterval 0\n"
        );
        assert_eq!(own().text().unwrap(), plain);
        let more = Block {
            known_hosts: vec!["~/.ssh/known_hosts".to_owned(), "/a b/100%".to_owned()],
            is_strict: true,
            user: Some("alice".to_owned()),
            control_master: true,
            ..own()
        };
        let files = "    UserKnownHostsFile ~/.ssh/known_hosts \"/a b/100%%\"\n    StrictHostKeyChecking yes\n";
        let (route, rest) = plain.split_at(plain.find("    #").unwrap());
        let lines =
            "    User alice\n    ControlMaster auto\n    ControlPath ~/.ssh/switchboard-%C\n    ControlPersist 10m\n";
        assert_eq!(more.text().unwrap(), format!("{route}{files}{rest}{lines}"));
        let windows = Block {
            system: System::Windows,
            ..more
        };
        assert!(fault(&windows).contains("cannot share connections"));
        let plain = Block {
            is_resumable: false,
            ..own()
        };
        let lines = "%h %p\n    ServerAliveInterval 15\n    ServerAliveCountMax 4\n";
        assert!(plain.text().unwrap().ends_with(lines));
    }

    #[test]
    fn an_alias_is_a_name_of_the_block_and_a_port_of_this_host_keeps_the_targets_key() {
        let mut block = Block {
            names: vec!["*.a".to_owned()],
            aliases: vec![("box".to_owned(), "devbox.team-a".to_owned())],
            ..own()
        };
        let text = block.text().unwrap();
        assert!(
            text.starts_with("Host box\n    HostName devbox.team-a\nHost *.a box\n    ProxyCommand "),
            "{text}"
        );
        block.route = Route::Port {
            address: "127.0.0.1:40122".parse().unwrap(),
            host_key: "[x.a]:2222".to_owned(),
        };
        let lines = "Host *.a box\n    HostName 127.0.0.1\n    Port 40122\n    HostKeyAlias [x.a]:2222\n    ProxyCommand none\n";
        let text = block.text().unwrap();
        assert!(text.contains(lines), "{text}");
    }

    #[test]
    fn a_jump_host_takes_the_place_of_the_command() {
        let of = |jump: &str| Block {
            route: Route::Jump(jump.to_owned()),
            is_resumable: false,
            ..own()
        };
        let lines = "    ProxyJump alice@ssh.example.com:2222\n    ServerAliveInterval 15\n    ServerAliveCountMax 4\n";
        let text = of("alice@ssh.example.com:2222").text().unwrap();
        assert!(text.ends_with(lines) && !text.contains("ProxyCommand"), "{text}");
        for jump in ["ssh", "[::1]:22", "192.0.2.1", "a.b@ssh_1"] {
            of(jump).text().unwrap();
        }
        for jump in [
            "",
            "-oX",
            "a b",
            "a,b",
            "a\nHost b",
            "ssh://a",
            "a%h",
            "a@",
            "@a",
            "a,b@c",
            "a@b@c",
            "none;x",
            "é",
        ] {
            assert!(
                fault(&of(jump)).starts_with(&format!("{jump:?} is not a jump host")),
                "{jump:?}"
            );
        }
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
            assert!(
                fault(&block).starts_with(&format!("{name:?} is not a pattern")),
                "{name:?}"
            );
        }
        let block = Block {
            names: vec!["!a".to_owned(), "!*.b".to_owned()],
            ..own()
        };
        assert!(fault(&block).starts_with("!a !*.b excludes names"));
        for user in ["", "a b", "a\nProxyCommand x", "%h", "-a", "a\"b"] {
            let block = Block {
                user: Some(user.to_owned()),
                ..own()
            };
            assert_eq!(fault(&block), format!("{user:?} is not the name of an account"));
        }
    }
}
