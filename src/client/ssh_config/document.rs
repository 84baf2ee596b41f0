//! The texts of the two files, as bytes: the user's with our Include, and ours with one section for each block.

/// A text that is not changed, since what it means is not certain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct DocumentFault {
    /// The line, from 1.
    pub line: usize,
    /// What it is not.
    pub reason: &'static str,
}

/// The user's file with that Include in front of everything: ssh takes the first value of a keyword, and an Include behind
/// a Host line would only hold for that host. A comment in front of it says whose it is. A file that has an Include of its own
/// stays as it is.
///
/// # Errors
/// It is not the text of ssh_config(5).
pub(super) fn with_include(text: &[u8], path: &str) -> Result<Vec<u8>, DocumentFault> {
    check(text)?;
    let mut top = text
        .split_inclusive(|&byte| byte == b'\n')
        .take_while(|line| !begins_a_block(line));
    if top.any(|line| is_include(line, path)) {
        return Ok(text.to_vec());
    }
    let is_of_windows = text
        .split_inclusive(|&byte| byte == b'\n')
        .next()
        .is_some_and(|line| line.ends_with(b"\r\n"));
    let end = if is_of_windows { "\r\n" } else { "\n" };
    Ok([OURS, end, &include(path), end]
        .map(str::as_bytes)
        .concat()
        .into_iter()
        .chain(text.iter().copied())
        .collect())
}

/// The user's file without the lines that [`with_include`] adds: an Include without our comment is the user's own.
///
/// # Errors
/// It is not the text of ssh_config(5).
pub(super) fn without_include(text: &[u8], path: &str) -> Result<Vec<u8>, DocumentFault> {
    check(text)?;
    let mut is_top = true;
    let mut kept = Vec::with_capacity(text.len());
    let mut lines = text.split_inclusive(|&byte| byte == b'\n').peekable();
    while let Some(line) = lines.next() {
        is_top &= !begins_a_block(line);
        let is_ours = is_top && line.trim_ascii() == OURS.as_bytes();
        if is_ours && lines.next_if(|next| is_include(next, path)).is_some() {
            continue;
        }
        kept.extend_from_slice(line);
    }
    Ok(kept)
}

/// Our file with that block in the section of that title, which is made or takes the place of the one before.
///
/// # Errors
/// The marks of sections do not go together.
pub(super) fn with_section(text: &[u8], title: &str, block: &str) -> Result<Vec<u8>, DocumentFault> {
    let has_end = text.is_empty() || text.ends_with(b"\n");
    let section = |mark: &str| format!("{BEGIN}{title}\n{mark}{block}{END}{title}\n");
    if let Some((start, end)) = find(text, title)? {
        let (before, after) = (
            text.get(..start).unwrap_or_default(),
            text.get(end..).unwrap_or_default(),
        );
        let old = text.get(start..end).unwrap_or_default();
        let section = section(if is_marked(old) { UNENDED } else { "" });
        return Ok([before, section.as_bytes(), after].concat());
    }
    let mut all = if text.is_empty() {
        HEADER.as_bytes().to_vec()
    } else {
        text.to_vec()
    };
    if !has_end {
        all.push(b'\n');
    }
    all.extend_from_slice(section(if has_end { "" } else { UNENDED }).as_bytes());
    Ok(all)
}

/// Our file without the section of that title; empty if nothing but our own header would be left. `None` if there is no such
/// section.
///
/// # Errors
/// The marks of sections do not go together.
pub(super) fn without_section(text: &[u8], title: &str) -> Result<Option<Vec<u8>>, DocumentFault> {
    let Some((start, end)) = find(text, title)? else {
        return Ok(None);
    };
    let mut before = text.get(..start).unwrap_or_default();
    let after = text.get(end..).unwrap_or_default();
    // What stands behind the section needs the line end.
    if after.is_empty() && is_marked(text.get(start..end).unwrap_or_default()) {
        before = before.strip_suffix(b"\n").unwrap_or(before);
    }
    let rest = [before, after].concat();
    Ok(Some(if rest == HEADER.as_bytes() { Vec::new() } else { rest }))
}

/// Whether a section says that the line in front of it had no end.
fn is_marked(section: &[u8]) -> bool {
    let mut lines = section.split_inclusive(|&byte| byte == b'\n');
    lines.nth(1) == Some(UNENDED.as_bytes())
}

/// The first and the last byte of a section, and whether all marks are in pairs.
fn find(text: &[u8], title: &str) -> Result<Option<(usize, usize)>, DocumentFault> {
    let (mut open, mut found, mut start): (Option<(&[u8], usize)>, _, _) = (None, None, 0);
    let fault = |line, reason| Err(DocumentFault { line, reason });
    for (number, line) in (1..).zip(text.split_inclusive(|&byte| byte == b'\n')) {
        let end = start + line.len();
        let bare = line.trim_ascii();
        if let Some(begun) = bare.strip_prefix(BEGIN.as_bytes()) {
            if open.is_some() {
                return fault(number, "a section begins within another one");
            }
            open = Some((begun, start));
        } else if let Some(ended) = bare.strip_prefix(END.as_bytes()) {
            match open.take() {
                Some((begun, _)) if begun != ended => return fault(number, "the end of another section"),
                None => return fault(number, "the end of a section that has not begun"),
                Some((begun, _)) if begun == title.as_bytes() && found.is_some() => {
                    return fault(number, "a second section of this name");
                }
                Some((begun, at)) if begun == title.as_bytes() => found = Some((at, end)),
                Some(_) => {}
            }
        }
        start = end;
    }
    match open {
        Some(_) => fault(text.split(|&byte| byte == b'\n').count(), "a section has no end"),
        None => Ok(found),
    }
}

/// Refuses what is no text of ssh_config(5), or not a whole one.
fn check(text: &[u8]) -> Result<(), DocumentFault> {
    let fault = |line, reason| Err(DocumentFault { line, reason });
    if text.starts_with(b"\xef\xbb\xbf") || text.starts_with(b"\xff\xfe") || text.starts_with(b"\xfe\xff") {
        return fault(1, "a byte order mark, which ssh does not read");
    }
    for (number, line) in (1..).zip(text.split(|&byte| byte == b'\n')) {
        let line = line.trim_ascii();
        if line.contains(&0) {
            return fault(number, "a NUL byte");
        }
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let (keyword, rest) = parts(line);
        if keyword.is_empty() || !keyword.iter().all(u8::is_ascii_alphanumeric) {
            return fault(number, "no keyword of ssh_config(5)");
        }
        // Commands have quotation marks of the shell's.
        let is_quoted = keyword.eq_ignore_ascii_case(b"Host") || keyword.eq_ignore_ascii_case(b"Include");
        if is_quoted && rest.iter().filter(|&&byte| byte == b'"').count() % 2 == 1 {
            return fault(number, "a quotation mark without its pair");
        }
    }
    Ok(())
}

/// A keyword and its value, which spaces or `=` part.
fn parts(line: &[u8]) -> (&[u8], &[u8]) {
    let is_separator = |byte: &u8| byte.is_ascii_whitespace() || *byte == b'=' || *byte == b'"';
    let length = line.iter().position(is_separator).unwrap_or(line.len());
    let (keyword, rest) = line.split_at(length);
    let value = rest.trim_ascii_start();
    (keyword, value.strip_prefix(b"=").unwrap_or(value).trim_ascii())
}

fn begins_a_block(line: &[u8]) -> bool {
    let (keyword, _) = parts(line.trim_ascii());
    keyword.eq_ignore_ascii_case(b"Host") || keyword.eq_ignore_ascii_case(b"Match")
}

/// Whether it is the line of [`include`], however it is written.
fn is_include(line: &[u8], path: &str) -> bool {
    let (keyword, value) = parts(line.trim_ascii());
    let bare = value
        .strip_prefix(b"\"")
        .and_then(|value| value.strip_suffix(b"\""))
        .unwrap_or(value);
    keyword.eq_ignore_ascii_case(b"Include") && bare == path.as_bytes()
}

fn include(path: &str) -> String {
    match path.contains(char::is_whitespace) {
        true => format!("Include \"{path}\""),
        false => format!("Include {path}"),
    }
}

const BEGIN: &str = "# BEGIN switchboard ";
const END: &str = "# END switchboard ";
/// What stands in front of our Include in the user's file.
const OURS: &str = "# Written by `switchboard config --write`, which removes it with the line below:";
/// The first line of a section behind a text without a final line end.
const UNENDED: &str = "# The line above this section had no line end.\n";
const HEADER: &str = "# Written by `switchboard config --write`, which changes what is between BEGIN and END.\n";

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PATH: &str = "switchboard.conf";

    #[test]
    fn the_include_stands_first_once_and_goes_without_a_trace() {
        for (text, end) in [
            (&b""[..], "\n"),
            (b"Host a\n  Port 1", "\n"),
            (b"Host a\r\n  Port 1\r\n", "\r\n"),
            // Within a block it would hold for that host only.
            (b"Host a\nInclude switchboard.conf\n", "\n"),
            (b"Match all\ninclude switchboard.conf\n", "\n"),
            (b"# caf\xe9\nUser=x\n", "\n"),
        ] {
            let with = with_include(text, PATH).unwrap();
            let lines = format!("{OURS}{end}Include switchboard.conf{end}");
            assert_eq!(with, [lines.as_bytes(), text].concat());
            assert_eq!(with_include(&with, PATH).unwrap(), with);
            assert_eq!(without_include(&with, PATH).unwrap(), text);
        }
        for text in [
            "# mine\ninclude switchboard.conf\nHost a\n",
            "Include=switchboard.conf\n",
            "  Include \"switchboard.conf\"  \n",
        ] {
            assert_eq!(with_include(text.as_bytes(), PATH).unwrap(), text.as_bytes());
            // It is the user's own.
            assert_eq!(without_include(text.as_bytes(), PATH).unwrap(), text.as_bytes());
        }
        let spaced = with_include(b"", "/home/A User/.ssh/switchboard.conf").unwrap();
        assert!(spaced.ends_with(b"\nInclude \"/home/A User/.ssh/switchboard.conf\"\n"));
    }

    #[test]
    fn a_text_that_is_no_ssh_config_is_refused_with_its_line() {
        for (text, line) in [
            (&b"Host a\n\0\n"[..], 2),
            (b"\xef\xbb\xbfHost a\n", 1),
            (b"\xff\xfeH\0", 1),
            (b"Host a\n<<<<<<< HEAD\n", 2),
            (b"{\"json\": true}\n", 1),
            (b"Port 1\nHost \"a\n", 2),
            (b"= x\n", 1),
        ] {
            assert_eq!(with_include(text, PATH).unwrap_err().line, line);
            assert_eq!(without_include(text, PATH).unwrap_err().line, line);
        }
        with_include(b"Host a\n  ProxyCommand sh -c \"it's\n", PATH).unwrap();
    }

    #[test]
    fn sections_are_made_replaced_and_removed_beside_others() {
        let one = with_section(b"", "a", "Host a\n").unwrap();
        assert_eq!(
            one,
            format!("{HEADER}# BEGIN switchboard a\nHost a\n# END switchboard a\n").as_bytes()
        );
        let two = with_section(&one, "b", "Host b\n").unwrap();
        assert_eq!(with_section(&two, "b", "Host b\n").unwrap(), two);
        let changed = with_section(&two, "a", "Host a\n    Port 1\n").unwrap();
        assert!(
            changed.ends_with(b"    Port 1\n# END switchboard a\n# BEGIN switchboard b\nHost b\n# END switchboard b\n")
        );
        assert_eq!(without_section(&two, "b").unwrap().unwrap(), one);
        assert_eq!(without_section(&one, "a").unwrap().unwrap(), b"");
        assert_eq!(without_section(&one, "c").unwrap(), None);
        let own = with_section(b"# mine", "a", "Host a\n").unwrap();
        assert!(own.starts_with(b"# mine\n# BEGIN"));
        let own = with_section(&own, "a", "Host a\n    Port 1\n").unwrap();
        assert_eq!(without_section(&own, "a").unwrap().unwrap(), b"# mine");
        let both = with_section(&own, "b", "Host b\n").unwrap();
        let rest = without_section(&both, "a").unwrap().unwrap();
        assert!(rest.starts_with(b"# mine\n# BEGIN switchboard b\n"));
    }

    #[test]
    fn sections_that_do_not_go_together_are_refused() {
        for (text, line) in [
            ("# BEGIN switchboard a\nHost a\n", 3),
            ("# END switchboard a\n", 1),
            ("# BEGIN switchboard a\n# BEGIN switchboard b\n", 2),
            ("# BEGIN switchboard a\n# END switchboard b\n", 2),
            (
                "# BEGIN switchboard a\n# END switchboard a\n# BEGIN switchboard a\n# END switchboard a\n",
                4,
            ),
        ] {
            assert_eq!(with_section(text.as_bytes(), "a", "").unwrap_err().line, line, "{text}");
            assert_eq!(without_section(text.as_bytes(), "a").unwrap_err().line, line, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_byte_of_the_user_is_lost(text in "(([A-Z][a-z]{0,8} [ -~]{0,20}|# [ -~]{0,20}|[ \t]*)\r?\n){0,8}") {
            if let Ok(with) = with_include(text.as_bytes(), "none.conf") {
                prop_assert!(with.ends_with(text.as_bytes()));
                prop_assert_eq!(without_include(&with, "none.conf").unwrap(), text.as_bytes());
            }
        }
    }
}
