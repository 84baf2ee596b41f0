//! Text for logs and terminals: an error with its causes, and text of foreign origin made safe to print.

use std::error::Error;

/// Returns an error and its causes in one line: `cannot look up proxy: Name or service not known`.
///
/// A cause that the line quotes already is left out: some crates repeat it in their own message.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(below) = cause {
        let message = below.to_string();
        if !line.contains(&message) {
            line.push_str(": ");
            line.push_str(&message);
        }
        cause = below.source();
    }
    line
}

/// Returns a foreign text for a log line: control and other unprintable characters become Rust escapes, such as `\n` and
/// `\u{1b}`. Quotes and backslashes stay as they are.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '"' | '\'' | '\\' => escaped.push(character),
            _ if has_no_picture(character) => escaped.extend(character.escape_unicode()),
            _ => escaped.extend(character.escape_debug()),
        }
    }
    escaped
}

/// Returns whether a character cannot be seen, or changes how others are seen: a control, a format character such as those of
/// bidirectional text, a separator other than the space, one without a picture of its own, or an unassigned one.
pub(crate) fn is_unprintable(character: char) -> bool {
    if character.is_ascii() {
        return character.is_ascii_control();
    }
    if has_no_picture(character) {
        return true;
    }
    // `escape_debug` escapes a combining character at the start of a text, so a letter goes before it.
    let behind_a_letter: String = ['a', character].iter().collect();
    behind_a_letter.escape_debug().nth(1) == Some('\\')
}

/// Returns whether a letter, mark or symbol is shown as nothing: those of Unicode's Default_Ignorable_Code_Point that are
/// neither formats nor unassigned (DerivedCoreProperties.txt), and the Braille pattern without dots.
fn has_no_picture(character: char) -> bool {
    matches!(
        character,
        '\u{34f}'
            | '\u{115f}'
            | '\u{1160}'
            | '\u{17b4}'
            | '\u{17b5}'
            | '\u{180b}'..='\u{180d}'
            | '\u{180f}'
            | '\u{2800}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{ffa0}'
            | '\u{e0100}'..='\u{e01ef}'
    )
}

/// Returns the first `max` characters of a foreign text, [escaped], with `…` where the text goes on.
pub(crate) fn excerpt(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        Some((end, _)) => escaped(text.get(..end).unwrap_or_default()) + "…",
        None => escaped(text),
    }
}

/// Returns a foreign text as printable ASCII: every other character becomes `?`. Bytes are passed as `char::from(byte)`.
pub(crate) fn ascii(characters: impl Iterator<Item = char>) -> Box<str> {
    let replace = |character| match character {
        ' '..='~' => character,
        _ => '?',
    };
    characters.map(replace).collect()
}

/// Returns at most `max` characters of a foreign text for a terminal, without those that are unprintable. White space at its
/// ends is left out.
pub(crate) fn printable(text: &str, max: usize) -> String {
    let spaced = |character: char| match character {
        '\u{2028}' | '\u{2029}' => character,
        _ if character.is_whitespace() && !character.is_control() => ' ',
        _ => character,
    };
    text.chars()
        .map(spaced)
        .filter(|&character| !is_unprintable(character))
        .take(max)
        .collect::<String>()
        .trim()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{message}")]
    struct Link {
        message: &'static str,
        source: Option<Box<Self>>,
    }

    #[test]
    fn a_chain_names_each_cause_once() {
        let link = |message, source: Option<Link>| Link {
            message,
            source: source.map(Box::new),
        };
        let error = link("no table: file", Some(link("file", Some(link("not found", None)))));
        assert_eq!(chain(&error), "no table: file: not found");
        assert_eq!(chain(&link("alone", None)), "alone");
    }

    #[test]
    fn an_excerpt_is_short_and_cannot_steer_a_terminal() {
        assert_eq!(excerpt("10 \"MiB\"/s", 60), "10 \"MiB\"/s");
        assert_eq!(
            excerpt("\u{1b}[31m\n\u{202e}\u{3164}", 60),
            "\\u{1b}[31m\\n\\u{202e}\\u{3164}"
        );
        assert_eq!(excerpt("déjà vu", 4), "déjà…");
        assert_eq!(excerpt("déjà", 4), "déjà");
    }

    #[test]
    fn what_cannot_be_seen_is_unprintable_and_letters_of_any_script_are_not() {
        let without_picture = "\u{34f}\u{115f}\u{180b}\u{2800}\u{3164}\u{fe0f}\u{ffa0}\u{e0101}";
        for character in without_picture.chars() {
            assert!(is_unprintable(character), "{character:?}");
        }
        for character in "\0\n\u{7f}\u{9b}\u{a0}\u{ad}\u{200b}\u{2028}\u{202e}\u{2066}\u{feff}\u{e000}".chars() {
            assert!(is_unprintable(character), "{character:?}");
        }
        for character in " a~'\"\\é日\u{301}ि😀".chars() {
            assert!(!is_unprintable(character), "{character:?}");
        }
    }

    #[test]
    fn ascii_replaces_each_other_character_by_one_question_mark() {
        assert_eq!(&*ascii("a/b\r\nX: y\u{e9}~ \u{7f}".chars()), "a/b??X: y?~ ?");
        assert_eq!(
            &*ascii(b"OpenSSH_9.2\xff\0".iter().copied().map(char::from)),
            "OpenSSH_9.2??"
        );
    }

    #[test]
    fn a_printable_text_has_no_control_and_no_invisible_character() {
        assert_eq!(
            printable(" \x1b[31mred\x07\x7f\u{9b}\u{202e}\u{61c}\u{3164}text\r\n", 400),
            "[31mredtext"
        );
        assert_eq!(printable("10\u{a0}MiB", 400), "10 MiB");
        assert_eq!(printable("abcdef", 3), "abc");
    }
}
