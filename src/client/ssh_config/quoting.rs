//! Words of a ProxyCommand: ssh expands `%` in them, and hands the line to a shell or, on Windows, to a new process.

use std::mem;

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
        // Shells disagree about a backslash before a backquote. POSIX 2.2.2: nothing is special between single quotes but
        // their end.
        System::Unix if text.contains('`') => Ok(format!("'{}'", expanded.replace('\'', r"'\''"))),
        // POSIX 2.2.3. Editors that split the line without a shell know double quotes and backslashes only.
        System::Unix => {
            let mut quoted = String::from("\"");
            for character in expanded.chars() {
                quoted.extend(['"', '$', '\\'].contains(&character).then_some('\\'));
                quoted.push(character);
            }
            Ok(quoted + "\"")
        }
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

/// Returns the words of a ProxyCommand: the inverse of [`word`].
pub(super) fn words(line: &str, system: System) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\\' if system == System::Unix && quote != Some('\'') => word.extend(characters.next()),
            '"' | '\'' if quote == Some(character) => {
                quote = None;
                let text = word.trim_end_matches('\\').len();
                word.truncate(if system == System::Unix {
                    word.len()
                } else {
                    text.midpoint(word.len())
                });
            }
            '"' | '\'' if quote.is_none() => quote = Some(character),
            ' ' if quote.is_none() => words.push(mem::take(&mut word)),
            '%' if characters.peek() == Some(&'%') => word.extend(characters.next()),
            other => word.push(other),
        }
    }
    words.push(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_the_shell_and_for_ssh() {
        for (text, expected) in [
            ("/usr/bin/switchboard", "/usr/bin/switchboard"),
            ("https://ssh.example.com:8443", "https://ssh.example.com:8443"),
            ("/home/A User/bin/switchboard", r#""/home/A User/bin/switchboard""#),
            ("100%", "100%%"),
            ("a%h b", r#""a%%h b""#),
            ("it's", r#""it's""#),
            ("a \"$b\"", r#""a \"\$b\"""#),
            ("it's $HOME`x`", r"'it'\''s $HOME`x`'"),
            ("#", r##""#""##),
            ("", r#""""#),
            ("a\\b", r#""a\\b""#),
            ("é", r#""é""#),
        ] {
            assert_eq!(word(text, System::Unix).unwrap(), expected);
            assert_eq!(words(expected, System::Unix), [text]);
        }
        word("a\nb", System::Unix).unwrap_err();
    }

    #[test]
    fn a_shell_and_an_editor_without_one_read_the_same_words() {
        let texts = [
            "/a b/c", "it's", "a\\b c", "$HOME", "a \"$b\"", "#", "", "é", "a;b|c&d", "x*?[y]", "~", "!x",
        ];
        let line = texts.map(|text| word(text, System::Unix).unwrap()).join(" ");
        assert_eq!(words(&line, System::Unix), texts);
        let mut shell = std::process::Command::new("sh");
        let printed = shell.args(["-c", &format!("printf '%s\\n' {line}")]).output().unwrap();
        assert_eq!(String::from_utf8(printed.stdout).unwrap(), texts.join("\n") + "\n");
    }

    #[test]
    fn words_are_quoted_for_windows() {
        for (text, expected) in [
            (r"C:\bin\switchboard.exe", r"C:\bin\switchboard.exe"),
            (r"C:\Program Files\x.exe", r#""C:\Program Files\x.exe""#),
            (r"C:\my folder\", r#""C:\my folder\\""#),
            (r"\\server\share 1\x", r#""\\server\share 1\x""#),
            (r"\\server\x", r"\\server\x"),
            ("50% a", "\"50%% a\""),
            ("", "\"\""),
            ("a&b", "\"a&b\""),
        ] {
            assert_eq!(word(text, System::Windows).unwrap(), expected);
            assert_eq!(words(expected, System::Windows), [text]);
        }
        word("a\"b", System::Windows).unwrap_err();
        word("a\0b", System::Windows).unwrap_err();
    }
}
