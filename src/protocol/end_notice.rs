//! The end notice: the last bytes of a tunnel that the proxy ends. They give `connect` the reason. See docs/clients.md.
//!
//! The request has a marker of 128 random bits, and the 2xx repeats it. The target never sees the marker, and so cannot
//! forge a notice.

use std::fmt;

use data_encoding::HEXLOWER;

/// The field of a request that asks for a notice, and of the 2xx that promises one.
pub(crate) const FIELD: &str = "switchboard-end";

/// The first bytes of a notice. As a field it is 32 lower-case hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marker([u8; MARKER]);

impl From<[u8; MARKER]> for Marker {
    fn from(bytes: [u8; MARKER]) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for Marker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

impl Marker {
    /// Parses the marker of a field; `None` if it is not one.
    pub(crate) fn parse(field: &[u8]) -> Option<Self> {
        let bytes = HEXLOWER.decode(field).ok()?;
        bytes.try_into().ok().map(Self)
    }

    /// Returns the first bytes of a notice.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the number of bytes before the marker, or before its first bytes at the end of `bytes`. A notice ends a
    /// download: after offset 0 only the last [`MAX_BYTES`] are searched.
    pub(crate) fn begins_in(&self, bytes: &[u8]) -> usize {
        let marker = &self.0;
        if bytes.starts_with(marker) {
            return 0;
        }
        let [first, ..] = *marker;
        // The first byte is compared before the others: 272 comparisons of 16 bytes a read took 0.05 s of CPU a GiB.
        let last_bytes = bytes.iter().enumerate().skip(bytes.len().saturating_sub(MAX_BYTES));
        let mut begins = last_bytes.filter(|(_, byte)| **byte == first).map(|(at, _)| at);
        let begun = begins.find(|at| {
            let rest = bytes.get(*at..).unwrap_or_default();
            rest.starts_with(marker) || marker.starts_with(rest)
        });
        begun.unwrap_or(bytes.len())
    }
}

/// Returns the marker in a message's fields [`FIELD`]; `None` unless there is exactly one, and it is valid.
pub(crate) fn marker<'a>(mut values: impl Iterator<Item = &'a [u8]>) -> Option<Marker> {
    let first = values.next()?;
    if values.next().is_some() {
        return None;
    }
    Marker::parse(first.trim_ascii())
}

/// Returns a notice: the marker, the length of the rest in one byte, the sentence in printable ASCII, and the byte
/// [`FINAL`] if the tunnel's session is over, too. Clients that do not know this byte do not print it.
pub(crate) fn notice(marker: Marker, sentence: &str, is_final: bool) -> Vec<u8> {
    let length = sentence.len().min(MAX_SENTENCE_BYTES) + usize::from(is_final);
    let mut bytes = marker.0.to_vec();
    bytes.push(u8::try_from(length).unwrap_or_default());
    bytes.extend(sentence.bytes().take(MAX_SENTENCE_BYTES));
    bytes.extend(is_final.then_some(FINAL));
    bytes
}

/// Parses the bytes after the marker; `None` until they are complete. Returns the sentence with its [`FINAL`], if any,
/// and whether the session is over.
pub(crate) fn sentence(notice: &[u8]) -> Option<(String, bool)> {
    let (&length, rest) = notice.split_first()?;
    let sentence = rest.get(..length.into())?;
    let is_final = sentence.ends_with(&[FINAL]);
    Some((String::from_utf8_lossy(sentence).into_owned(), is_final))
}

/// The maximum number of bytes of a sentence.
pub(crate) const MAX_SENTENCE_BYTES: usize = 254;
const FINAL: u8 = 1;

const MARKER: usize = 16;
/// The maximum number of bytes of a notice.
const MAX_BYTES: usize = MARKER + 1 + 255;

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: Marker = Marker(*b"0123456789abcdef");

    #[test]
    fn a_marker_is_32_lower_case_digits_and_nothing_else() {
        assert_eq!(Marker::parse(MARK.to_string().as_bytes()), Some(MARK));
        for text in [
            "",
            "0123456789abcdef",
            "0123456789ABCDEF0123456789abcdef",
            "+123456789abcdef0123456789abcdef",
            "0123456789abcdef0123456789abcdef0",
            "é123456789abcdef0123456789abcde",
        ] {
            assert_eq!(Marker::parse(text.as_bytes()), None, "{text}");
        }
        let value = MARK.to_string();
        assert_eq!(marker([value.as_bytes()].into_iter()), Some(MARK));
        assert_eq!(marker([value.as_bytes(), value.as_bytes()].into_iter()), None);
        assert_eq!(marker([&b"\xff"[..]].into_iter()), None);
    }

    #[test]
    fn a_long_sentence_is_cut_and_an_incomplete_one_is_none() {
        for (is_final, last) in [(false, ""), (true, "\x01")] {
            let bytes = notice(MARK, &"x".repeat(300), is_final);
            assert_eq!(bytes.len(), MAX_BYTES - 1 + last.len());
            assert_eq!(sentence(&bytes[MARKER..]), Some(("x".repeat(254) + last, is_final)));
            assert_eq!(sentence(&bytes[MARKER..MAX_BYTES - 2]), None);
        }
        assert_eq!(sentence(&[]), None);
    }
}
