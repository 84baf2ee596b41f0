//! From the bytes of a request head to the decision.

use switchboard::proxy::http::head::{self, Head, MAX_HEAD_BYTES};
use switchboard::proxy::http::{CredentialPolicy, RequestHead};
use switchboard::tunnel::outcome::RefusalReason;

use super::naive;

/// The parser accepts what the plain one accepts, and nothing else; however a head is chopped, it is the same head, and
/// what comes behind it does not matter.
pub(crate) fn check(bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(MAX_HEAD_BYTES)];
    let decision = parse(bytes);
    let accepted = decision.as_ref().ok().and_then(Option::as_ref);
    assert_eq!(accepted.and_then(named), naive::accepted(bytes));
    let Some(head) = accepted else { return };
    for cut in 0..head.length {
        assert!(matches!(parse(&bytes[..cut]), Ok(None)), "the first {cut} bytes");
    }
    let alone = parse(&bytes[..head.length]);
    let alone = alone.expect("accepted before").expect("whole before");
    assert_eq!((named(&alone), alone.length), (named(head), head.length));
}

fn parse(bytes: &[u8]) -> Result<Option<Head>, RefusalReason> {
    head::parse(bytes, CredentialPolicy::Read, None)
}

/// The target and the length; `None` for a list of names, which the plain parser does not know.
fn named(head: &Head) -> Option<(String, usize)> {
    match &head.request {
        RequestHead::Connect(request) => Some((request.authority.to_string(), head.length)),
        RequestHead::Listing(_) => None,
    }
}
