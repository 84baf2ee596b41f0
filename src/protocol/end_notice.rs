//! The end notice: the last bytes of a tunnel that the proxy ends, which tell `connect` why. docs/clients.md specifies it.
//!
//! A request brings a marker of 128 random bits, and the 2xx repeats it. The target sees neither, so that it cannot make a
//! notice.

use std::borrow::Cow;
use std::fmt;
use std::mem::take;

use data_encoding::HEXLOWER;

/// The field of a request that asks for a notice, and of the 2xx that promises one.
pub(crate) const FIELD: &str = "switchboard-end";

/// What a notice begins with. As a field it is 32 lower-case hexadecimal digits.
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
    /// Returns the marker of that field, or `None` for a text that is none.
    pub(crate) fn parse(field: &[u8]) -> Option<Self> {
        let bytes = HEXLOWER.decode(field).ok()?;
        bytes.try_into().ok().map(Self)
    }
}

/// The marker in the values of a message's fields of that name. Two fields are none.
pub(crate) fn marker<'a>(mut values: impl Iterator<Item = &'a [u8]>) -> Option<Marker> {
    let first = values.next()?;
    if values.next().is_some() {
        return None;
    }
    Marker::parse(first.trim_ascii())
}

/// The bytes of a notice: the marker, the length of the sentence in one byte, and the sentence, which is printable ASCII.
pub(crate) fn notice(marker: Marker, sentence: &str) -> Vec<u8> {
    let sentence = sentence.as_bytes();
    let length = u8::try_from(sentence.len()).unwrap_or(u8::MAX);
    let mut bytes = marker.0.to_vec();
    bytes.push(length);
    bytes.extend(sentence.iter().take(length.into()));
    bytes
}

/// Finds the notice at the end of a download, whose pieces it is fed one after the other.
#[derive(Debug)]
pub(crate) struct Finder {
    marker: Marker,
    /// The end of what came, as far as it is the beginning of a marker.
    recent: Vec<u8>,
    /// So many bytes of that have not been passed on.
    held: usize,
    /// What came behind the marker.
    notice: Option<Vec<u8>>,
}

/// The bytes of a download that are passed on.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Passed {
    /// Bytes of earlier pieces, which are no beginning of a notice after all.
    pub(crate) released: Vec<u8>,
    /// How many of this piece's first bytes follow them.
    pub(crate) now: usize,
}

impl Finder {
    pub(crate) fn new(marker: Marker) -> Self {
        Self {
            marker,
            recent: Vec::new(),
            held: 0,
            notice: None,
        }
    }

    /// Takes a piece. A notice is the end of a download: only so much as it may have is looked at, at the end of the piece.
    pub(crate) fn feed(&mut self, piece: &[u8]) -> Passed {
        if let Some(notice) = &mut self.notice {
            let missing = LONGEST.saturating_sub(notice.len());
            notice.extend(piece.iter().take(missing));
            return Passed::default();
        }
        let recent = take(&mut self.recent);
        let (before, unpassed) = (recent.len(), recent.len() - self.held);
        let all = if recent.is_empty() {
            Cow::Borrowed(piece)
        } else {
            Cow::Owned([&recent, piece].concat())
        };
        let (end, length) = (self.search(&all).max(unpassed), all.len());
        self.held = if self.notice.is_some() { 0 } else { length - end };
        Passed {
            released: all.get(unpassed..end.min(before)).unwrap_or_default().to_vec(),
            now: end.saturating_sub(before),
        }
    }

    /// Where the bytes end that are passed on: in front of a marker, or of the beginning of one at the end.
    fn search(&mut self, all: &[u8]) -> usize {
        let marker = &self.marker.0;
        let [first, ..] = *marker;
        // By the first byte, and only then by all: 272 comparisons of 16 bytes a read took 0.05 s of processor time a GiB.
        let last_bytes = all.iter().enumerate().skip(all.len().saturating_sub(LONGEST));
        let begins = last_bytes.filter(|(_, byte)| **byte == first);
        for (at, _) in begins {
            let rest = all.get(at..).unwrap_or_default();
            if let Some(notice) = rest.strip_prefix(marker) {
                self.notice = Some(notice.to_vec());
                return at;
            }
            if marker.starts_with(rest) {
                self.recent = rest.to_vec();
                return if rest.len() < LEAST_HELD { all.len() } else { at };
            }
        }
        all.len()
    }

    /// The sentence of a notice that has come as a whole.
    pub(crate) fn sentence(&self) -> Option<String> {
        let (&length, rest) = self.notice.as_ref()?.split_first()?;
        let sentence = rest.get(..length.into())?;
        Some(String::from_utf8_lossy(sentence).into_owned())
    }

    /// Whether a marker has come.
    pub(crate) fn has_marker(&self) -> bool {
        self.notice.is_some()
    }

    /// At the end of a download without a notice: the bytes that were held back.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let recent = take(&mut self.recent);
        let unpassed = recent.len().saturating_sub(take(&mut self.held));
        recent.get(unpassed..).unwrap_or_default().to_vec()
    }
}

const MARKER: usize = 16;
/// The bytes of a notice.
const LONGEST: usize = MARKER + 1 + 255;
/// The beginning of a marker is held back from so many bytes on. One piece in 256 ends in the first byte of one, and a
/// keystroke's echo must not wait for the next. Fewer than four bytes are no message to ssh: they are not yet the length of a
/// packet (RFC 4253 section 6).
const LEAST_HELD: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MARK: Marker = Marker(*b"0123456789abcdef");

    /// What is passed on of these pieces, and the sentence.
    fn pass(pieces: &[&[u8]]) -> (Vec<u8>, Option<String>) {
        let mut finder = Finder::new(MARK);
        let mut passed = Vec::new();
        for piece in pieces {
            let Passed { released, now } = finder.feed(piece);
            passed.extend(released);
            passed.extend(&piece[..now]);
        }
        passed.extend(finder.rest());
        (passed, finder.sentence())
    }

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
    fn a_long_sentence_is_cut() {
        let bytes = notice(MARK, &"x".repeat(300));
        assert_eq!(bytes.len(), LONGEST);
        assert_eq!(pass(&[&bytes]), (Vec::new(), Some("x".repeat(255))));
    }

    #[test]
    fn a_keystroke_that_ends_like_a_marker_begins_is_passed_on_at_once() {
        let mut finder = Finder::new(MARK);
        for (piece, now) in [(&b"x0"[..], 2), (b"12", 2), (b"3", 0)] {
            let passed = finder.feed(piece);
            assert_eq!((passed.released, passed.now), (Vec::new(), now), "{piece:?}");
        }
        assert_eq!(finder.feed(b"!").released, b"3");
    }

    #[test]
    fn an_incomplete_notice_has_no_sentence_and_is_not_passed_on() {
        let bytes = notice(MARK, "why");
        for length in MARKER..bytes.len() {
            let mut finder = Finder::new(MARK);
            assert_eq!(finder.feed(&bytes[..length]), Passed::default());
            assert!(finder.has_marker() && finder.sentence().is_none(), "{length}");
        }
    }

    /// Pieces of a stream of bytes that are often those of the marker.
    fn stream() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let lump = prop_oneof![
            (0..=MARKER).prop_map(|length| MARK.0[..length].to_vec()),
            proptest::collection::vec(any::<u8>(), 0..40),
        ];
        proptest::collection::vec(lump, 0..30)
    }

    proptest! {
        #[test]
        fn a_notice_is_found_however_it_is_split(before in stream(), cuts in proptest::collection::vec(0_usize..400, 0..8)) {
            let mut expected = before.concat();
            // Within a stream a whole marker is the notice.
            prop_assume!(!expected.windows(MARKER).any(|window| window == MARK.0));
            let mut all = expected.clone();
            all.extend(notice(MARK, "the reason"));
            prop_assume!(all.windows(MARKER).position(|window| window == MARK.0) == Some(expected.len()));
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(all.len())).collect();
            cuts.extend([0, all.len()]);
            cuts.sort_unstable();
            let pieces: Vec<_> = cuts.windows(2).map(|cut| &all[cut[0]..cut[1]]).collect();
            let (passed, sentence) = pass(&pieces);
            prop_assert_eq!(sentence.as_deref(), Some("the reason"));
            // Up to three bytes of the marker itself may have been passed on.
            let leaked = passed.len() - expected.len();
            prop_assert!(leaked < LEAST_HELD);
            expected.extend(&MARK.0[..leaked]);
            prop_assert_eq!(passed, expected);
        }

        #[test]
        fn without_a_notice_every_byte_is_passed_on(pieces in stream()) {
            let all = pieces.concat();
            prop_assume!(!all.windows(MARKER).any(|window| window == MARK.0));
            let pieces: Vec<_> = pieces.iter().map(Vec::as_slice).collect();
            prop_assert_eq!(pass(&pieces), (all, None));
        }
    }
}
