//! Tracks the TLS records in what a peer sends (RFC 8446 section 5.1): an end inside a record is a truncation.

/// The progress of the current record.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Records {
    /// The bytes read of an incomplete header; else 0.
    header: u8,
    /// The length of the record, as far as it has been read.
    length: u16,
    /// Bytes of its body that have not arrived.
    left: u16,
}

impl Records {
    /// Advances by the bytes that have arrived.
    pub(crate) fn advance(&mut self, mut bytes: &[u8]) {
        while let [byte, rest @ ..] = bytes {
            if self.left > 0 {
                let body = bytes.len().min(self.left.into());
                self.left -= u16::try_from(body).unwrap_or(self.left);
                bytes = bytes.get(body..).unwrap_or_default();
                continue;
            }
            bytes = rest;
            self.header = (self.header + 1) % HEADER;
            // Earlier bytes are shifted out: after a whole header its last two bytes are left.
            self.length = self.length << 8 | u16::from(*byte);
            if self.header == 0 {
                self.left = self.length;
            }
        }
    }

    /// Returns whether a record has begun and is incomplete.
    pub(crate) fn is_inside(self) -> bool {
        self.header > 0 || self.left > 0
    }
}

/// The bytes of a header: a type, a version of two bytes, and a length of two.
const HEADER: u8 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_boundaries_are_found_however_the_records_are_cut() {
        let sizes = [0_u16, 1, 2, 255, 256, 16_384, u16::MAX];
        let mut stream = Vec::new();
        let mut ends = vec![0];
        for size in sizes {
            stream.extend([23, 3, 3]);
            stream.extend(size.to_be_bytes());
            stream.extend(vec![0xff; size.into()]);
            ends.push(stream.len());
        }
        for piece in [1, 2, 3, 5, 6, 7, 1_000, 16_389, 100_000] {
            let (mut records, mut arrived) = (Records::default(), 0);
            assert!(!records.is_inside());
            for bytes in stream.chunks(piece) {
                records.advance(bytes);
                arrived += bytes.len();
                assert_eq!(
                    records.is_inside(),
                    !ends.contains(&arrived),
                    "{arrived} in pieces of {piece}"
                );
            }
        }
    }
}
