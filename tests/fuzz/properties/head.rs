//! From the bytes of a request head to the decision.

use switchboard::proxy::http::head::{self, Head, MAX_HEAD_BYTES};
use switchboard::proxy::http::{CredentialPolicy, RequestHead, WebSocketOptions};
use switchboard::tunnel::outcome::RefusalReason;

use super::naive;

/// The parser accepts what the plain one accepts, and nothing else, but for WebSockets where they are served.
pub(crate) fn check(bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(MAX_HEAD_BYTES)];
    let plain = accepted(bytes, None);
    assert_eq!(plain.as_ref().and_then(named), naive::accepted(bytes));
    let options = WebSocketOptions {
        path: "/ssh".into(),
        trusted_proxies: ["192.0.2.0/24".parse().expect("a network")].into(),
        ..WebSocketOptions::default()
    };
    match accepted(bytes, Some(&options)) {
        Some(head) if head.accept.is_some() => assert!(plain.is_none() && named(&head).is_some()),
        head => assert_eq!(head.as_ref().and_then(named), plain.as_ref().and_then(named)),
    }
}

/// The head, if it is accepted. However it is chopped, it is the same head, and what follows it does not matter.
fn accepted(bytes: &[u8], websocket: Option<&WebSocketOptions>) -> Option<Head> {
    let head = parse(bytes, websocket).ok().flatten()?;
    for cut in 0..head.length {
        let decision = parse(&bytes[..cut], websocket);
        assert!(matches!(decision, Ok(None)), "the first {cut} bytes");
    }
    let alone = parse(&bytes[..head.length], websocket);
    let alone = alone.expect("accepted before").expect("whole before");
    assert_eq!((named(&alone), alone.length), (named(&head), head.length));
    Some(head)
}

fn parse(bytes: &[u8], websocket: Option<&WebSocketOptions>) -> Result<Option<Head>, RefusalReason> {
    head::parse(bytes, CredentialPolicy::Read, websocket)
}

/// The target and the length; `None` for a list of names, which the plain parser does not know.
fn named(head: &Head) -> Option<(String, usize)> {
    match &head.request {
        RequestHead::Connect(request) => Some((request.authority.to_string(), head.length)),
        RequestHead::Listing(_) => None,
    }
}
