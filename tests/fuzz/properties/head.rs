//! From the bytes of a request head to the decision.

use switchboard::proxy::http::head::{MAX_HEAD_BYTES, parse};

use super::naive;

/// The parser accepts what the plain one accepts, and nothing else; however a head is chopped, it is the same head, and
/// what comes behind it does not matter.
pub(crate) fn check(bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(MAX_HEAD_BYTES)];
    let decision = parse(bytes);
    let accepted = decision.as_ref().ok().and_then(Option::as_ref);
    let accepted = accepted.map(|head| (head.target.to_string(), head.length));
    assert_eq!(accepted, naive::accepted(bytes));
    let Some((target, length)) = accepted else { return };
    for cut in 0..length {
        assert_eq!(parse(&bytes[..cut]), Ok(None), "the first {cut} bytes");
    }
    let alone = parse(&bytes[..length]).expect("accepted before").expect("whole before");
    assert_eq!((alone.target.to_string(), alone.length), (target, length));
}
