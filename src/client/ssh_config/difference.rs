//! What an edit changes, in the unified format of diff(1) without context.

use std::fmt::Write;

use crate::base::text::escaped;

/// The lines that go and come. Empty where nothing changes.
pub(super) fn difference(path: &str, old: &[u8], new: &[u8]) -> String {
    let (before, after) = (lines(old), lines(new));
    let first = before.iter().zip(&after).take_while(|(old, new)| old == new).count();
    let (before, after) = (
        before.get(first..).unwrap_or_default(),
        after.get(first..).unwrap_or_default(),
    );
    let last = before
        .iter()
        .rev()
        .zip(after.iter().rev())
        .take_while(|(old, new)| old == new)
        .count();
    let gone = before.get(..before.len() - last).unwrap_or_default();
    let come = after.get(..after.len() - last).unwrap_or_default();
    if gone.is_empty() && come.is_empty() {
        return String::new();
    }
    let path = escaped(path);
    let mut text = format!(
        "--- {path}\n+++ {path}\n@@ -{} +{} @@\n",
        range(first, gone.len()),
        range(first, come.len())
    );
    for (sign, lines) in [('-', gone), ('+', come)] {
        for line in lines {
            let line = String::from_utf8_lossy(line);
            writeln!(text, "{sign}{}", escaped(line.trim_end_matches(['\r', '\n']))).unwrap_or_default();
        }
    }
    text
}

fn lines(text: &[u8]) -> Vec<&[u8]> {
    text.split_inclusive(|&byte| byte == b'\n').collect()
}

/// The range of a hunk; one without lines is behind the line that it names.
fn range(first: usize, count: usize) -> String {
    match count {
        0 => format!("{first},0"),
        1 => format!("{}", first + 1),
        count => format!("{},{count}", first + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_go_and_come_are_shown_with_their_numbers() {
        for (old, new, expected) in [
            ("a\n", "a\n", ""),
            ("", "x\n", "--- f\n+++ f\n@@ -0,0 +1 @@\n+x\n"),
            ("a\nb\nc\n", "a\nc\n", "--- f\n+++ f\n@@ -2 +1,0 @@\n-b\n"),
            ("a\nb\n", "a\nx\ny\nb\n", "--- f\n+++ f\n@@ -1,0 +2,2 @@\n+x\n+y\n"),
            ("a\n", "\u{1b}[2J\n", "--- f\n+++ f\n@@ -1 +1 @@\n-a\n+\\u{1b}[2J\n"),
            ("a\na\n", "a\n", "--- f\n+++ f\n@@ -2 +1,0 @@\n-a\n"),
        ] {
            assert_eq!(difference("f", old.as_bytes(), new.as_bytes()), expected);
        }
    }
}
