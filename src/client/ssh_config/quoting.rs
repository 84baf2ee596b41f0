//! Words of a ProxyCommand: ssh expands `%` in them, and hands the line to a shell or, on Windows, to a new process.

use anyhow::{bail, ensure};

use crate::base::platform;

/// The system by whose rules a command line is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// ssh runs `$SHELL -c "exec LINE"` (ssh_config(5), ProxyCommand).
    Unix,
    /// OpenSSH for Windows passes the line to a new process, which splits it as the C runtime does.
    Windows,
}

impl System {
    /// The system of this process.
    pub const OWN: Self = if platform::IS_WINDOWS {
        Self::Windows
    } else {
        Self::Unix
    };
}

/// Returns a word as it is written in a ProxyCommand, so that the program gets exactly this text.
///
/// # Errors
/// No command line can have it: ssh_config(5) cannot quote control characters, and Windows programs disagree about
/// quotation marks within arguments.
pub(super) fn word(text: &str, system: System) -> anyhow::Result<String> {
    ensure!(
        !text.chars().any(char::is_control),
        "{text:?} has a control character, which a line of ssh_config(5) cannot have"
    );
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=@,+%".contains(&byte);
    let is_plain = |byte| is_plain(byte) || (system == System::Windows && byte == b'\\');
    // ssh(1) turns `%%` into `%` before all else.
    let expanded = text.replace('%', "%%");
    if !text.is_empty() && text.bytes().all(is_plain) {
        return Ok(expanded);
    }
    match system {
        // POSIX 2.2.2: nothing is special between single quotes but their end.
        System::Unix => Ok(format!("'{}'", expanded.replace('\'', r"'\''"))),
        System::Windows if text.contains('"') => {
            bail!("{text:?} has a quotation mark, which a command line of Windows cannot have")
        }
        System::Windows => {
            // Backslashes before a quotation mark would quote it (CommandLineToArgvW).
            let backslashes = expanded.chars().rev().take_while(|&last| last == '\\').count();
            Ok(format!("\"{expanded}{}\"", "\\".repeat(backslashes)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_the_shell_and_for_ssh() {
        for (text, expected) in [
            ("/usr/bin/switchboard", "/usr/bin/switchboard"),
            ("https://ssh.example.com:8443", "https://ssh.example.com:8443"),
            ("/home/A User/bin/switchboard", "'/home/A User/bin/switchboard'"),
            ("100%", "100%%"),
            ("a%h b", "'a%%h b'"),
            ("it's", r"'it'\''s'"),
            ("$HOME`x`", "'$HOME`x`'"),
            ("#", "'#'"),
            ("", "''"),
            ("a\\b", r"'a\b'"),
            ("é", "'é'"),
        ] {
            assert_eq!(word(text, System::Unix).unwrap(), expected);
        }
        word("a\nb", System::Unix).unwrap_err();
    }

    #[test]
    fn words_are_quoted_for_windows() {
        for (text, expected) in [
            (r"C:\bin\switchboard.exe", r"C:\bin\switchboard.exe"),
            (r"C:\Program Files\x.exe", r#""C:\Program Files\x.exe""#),
            (r"C:\my folder\", r#""C:\my folder\\""#),
            ("50% a", "\"50%% a\""),
            ("", "\"\""),
            ("a&b", "\"a&b\""),
        ] {
            assert_eq!(word(text, System::Windows).unwrap(), expected);
        }
        word("a\"b", System::Windows).unwrap_err();
        word("a\0b", System::Windows).unwrap_err();
    }
}
