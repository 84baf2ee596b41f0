//! The parser of a request head: the bytes become a target, or a refusal.

use std::borrow::Cow;

use httparse::{Error, Header, Request, Status};

use super::request::{
    ConnectRequest, CredentialPolicy, HostKeysField, ListingRequest, MAX_FIELDS, Purpose, RequestHead, WAKE_FIELD,
    credential, no_wake, session,
};
use super::websocket::{self, WebSocketOptions, has_token};
use crate::protocol::end_notice;
use crate::protocol::host_key;
use crate::protocol::listing::NameFilter;
use crate::protocol::registration;
use crate::protocol::websocket::handshake::{self, is_key};
use crate::tunnel::outcome::{Malformed, RefusalReason};

/// The most bytes that a request head may have.
pub const MAX_HEAD_BYTES: usize = 16 * 1024;

/// A complete head.
#[derive(Debug)]
pub struct Head {
    /// The request.
    pub request: RequestHead,
    /// The length in bytes, with the empty line that ends the head.
    pub length: usize,
    /// The version of HTTP.
    pub version: Version,
    /// The `Sec-WebSocket-Accept` of the answer, if the request is for a WebSocket.
    pub accept: Option<Box<str>>,
}

/// The version of an HTTP/1 request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    #[default]
    Http11,
}

/// Parses the head of a CONNECT (RFC 9112 section 3) or, if `websocket` is given, of a WebSocket request. `None` means
/// that more bytes are needed.
///
/// # Errors
/// The refusal, which no further byte can change.
///
/// httparse is hyper's parser. It is called directly, since hyper keeps neither the raw request target nor the fault, and
/// answers a fault by itself.
pub fn parse(
    bytes: &[u8],
    credentials: CredentialPolicy,
    websocket: Option<&WebSocketOptions>,
) -> Result<Option<Head>, RefusalReason> {
    // "A server SHOULD ignore at least one empty line" before a request line: RFC 9112 section 2.2.
    let blank = bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
    match bytes.get(blank) {
        Some(&TLS_HANDSHAKE) => return Err(malformed(Malformed::Tls)),
        _ if bytes.starts_with(b"SSH-") => return Err(malformed(Malformed::Ssh)),
        _ if blank > MAX_BLANK_BYTES => return Err(malformed(Malformed::RequestLine)),
        _ => {}
    }
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut request = Request::new(&mut fields);
    let length = match request.parse(bytes) {
        Ok(Status::Complete(length)) => length,
        Ok(Status::Partial) if bytes.len() >= MAX_HEAD_BYTES => return Err(RefusalReason::RequestHeaderTooLarge),
        Ok(Status::Partial) => return Ok(None),
        Err(error) => return Err(parse_refusal(error, bytes)),
    };
    let version = match request.version {
        Some(0) => Version::Http10,
        _ => Version::Http11,
    };
    let Some((purpose, target, is_websocket)) = requested(&request, websocket)? else {
        let request = RequestHead::Listing(listing(&request, credentials)?);
        return Ok(Some(Head {
            request,
            length,
            version,
            accept: None,
        }));
    };
    // Before the fields: most clients repeat the target in Host, and the phrase has to name the fault that the user typed.
    let authority = target.parse().map_err(|error| malformed(Malformed::Target(error)))?;
    check_fields(request.headers, version == Version::Http11).map_err(malformed)?;
    let field = |name| values(request.headers, name);
    let forwarding = is_websocket.then(|| websocket::check(field)).transpose()?;
    let accept = is_websocket.then(|| accept(field)).transpose().map_err(malformed)?;
    let credential = match (credentials, purpose) {
        (CredentialPolicy::Ignored, Purpose::Tunnel) => None,
        (CredentialPolicy::Read, _) | (_, Purpose::Registration) => {
            // A load balancer forwards the field for servers, and may remove that for proxies.
            let of_server = field("authorization").filter(|_| is_websocket);
            credential(field("proxy-authorization").chain(of_server))
        }
    };
    Ok(Some(Head {
        request: RequestHead::Connect(ConnectRequest {
            authority,
            purpose,
            credential,
            end_marker: end_notice::marker(values(request.headers, end_notice::FIELD)),
            session: session(|name| values(request.headers, name).next()),
            no_wake: no_wake(values(request.headers, WAKE_FIELD)),
            host_keys: HostKeysField::parse(values(request.headers, host_key::FIELD)),
            forwarding,
        }),
        length,
        version,
        accept,
    }))
}

/// Returns the listing that a GET asks for. Every other GET has one answer, which shows nobody whether names are listed here.
fn listing(request: &Request<'_, '_>, credentials: CredentialPolicy) -> Result<ListingRequest, RefusalReason> {
    let filter = NameFilter::of_path(request.path.unwrap_or_default());
    let is_valid = check_fields(request.headers, request.version == Some(1)).is_ok();
    let filter = filter.filter(|_| is_valid).ok_or(RefusalReason::MethodNotAllowed)?;
    Ok(ListingRequest {
        filter,
        credential: match credentials {
            CredentialPolicy::Ignored => None,
            CredentialPolicy::Read => credential(values(request.headers, "proxy-authorization")),
        },
    })
}

/// Returns the purpose of a request, its target, and whether it is for a WebSocket; `None` for any other GET, which may ask for a
/// listing.
fn requested<'a>(
    request: &'a Request<'_, '_>,
    websocket: Option<&WebSocketOptions>,
) -> Result<Option<(Purpose, Cow<'a, str>, bool)>, RefusalReason> {
    let path = request.path.unwrap_or_default();
    match request.method {
        Some("CONNECT") => return Ok(Some((Purpose::Tunnel, path.into(), false))),
        Some("GET") => {}
        _ => return Err(RefusalReason::MethodNotAllowed),
    }
    if asks_for_upgrade(request, registration::UPGRADE) {
        let served = path.strip_prefix(registration::PATH);
        let served = served.ok_or(RefusalReason::MethodNotAllowed)?;
        return Ok(Some((Purpose::Registration, served.into(), false)));
    }
    let Some(target) = websocket.and_then(|websocket| websocket.target(path)) else {
        return Ok(None);
    };
    match asks_for_upgrade(request, handshake::UPGRADE) {
        true => Ok(Some((Purpose::Tunnel, target, true))),
        false => Err(RefusalReason::UpgradeRequired),
    }
}

/// Returns whether a request asks for that protocol, by HTTP/1.1 (RFC 9110 section 7.8).
fn asks_for_upgrade(request: &Request<'_, '_>, protocol: &str) -> bool {
    let has = |name, wanted| has_token(values(request.headers, name), wanted);
    request.version == Some(1) && has("connection", "upgrade") && has("upgrade", protocol)
}

/// Returns the `Sec-WebSocket-Accept` for the one key of a request.
fn accept<'a, V: Iterator<Item = &'a [u8]>>(field: impl Fn(&'static str) -> V) -> Result<Box<str>, Malformed> {
    let mut keys = field("sec-websocket-key");
    match (keys.next(), keys.next()) {
        (Some(key), None) if is_key(key) => Ok(handshake::accept(key).into()),
        _ => Err(Malformed::WebSocketKey),
    }
}

/// Returns the values of all fields of that name.
fn values<'a>(fields: &'a [Header<'_>], name: &'static str) -> impl Iterator<Item = &'a [u8]> {
    let fields = fields.iter().filter(move |field| field.name.eq_ignore_ascii_case(name));
    fields.map(|field| field.value)
}

fn malformed(fault: Malformed) -> RefusalReason {
    RefusalReason::Malformed(fault)
}

fn parse_refusal(error: Error, bytes: &[u8]) -> RefusalReason {
    match error {
        Error::TooManyHeaders => RefusalReason::RequestHeaderTooLarge,
        Error::Version => malformed(Malformed::Version),
        Error::HeaderName | Error::HeaderValue => malformed(Malformed::Field),
        Error::NewLine if has_request_line(bytes) => malformed(Malformed::Field),
        Error::NewLine | Error::Token | Error::Status => malformed(Malformed::RequestLine),
    }
}

/// Returns whether the request line is complete, without a bare CR: then a malformed line end is that of a field.
fn has_request_line(bytes: &[u8]) -> bool {
    let mut lines = bytes.split_inclusive(|&byte| byte == b'\n');
    let line = lines.find(|line| !matches!(*line, b"\r\n" | b"\n"));
    let line = line.and_then(|line| line.strip_suffix(b"\n"));
    line.is_some_and(|line| !line.strip_suffix(b"\r").unwrap_or(line).contains(&b'\r'))
}

fn check_fields(fields: &[Header<'_>], needs_host: bool) -> Result<(), Malformed> {
    let mut hosts = 0;
    for field in fields {
        if field.name.eq_ignore_ascii_case("host") {
            hosts += 1;
            if hosts > 1 {
                return Err(Malformed::SeveralHosts);
            }
            if !is_host(field.value) {
                return Err(Malformed::BadHost);
            }
        } else if field.name.eq_ignore_ascii_case("transfer-encoding")
            || (field.name.eq_ignore_ascii_case("content-length") && field.value != b"0")
        {
            return Err(Malformed::Content);
        }
    }
    if needs_host && hosts == 0 {
        return Err(Malformed::NoHost);
    }
    Ok(())
}

/// Returns whether the value is `uri-host [ ":" port ]` (RFC 9110 section 7.2); an empty value is valid.
///
/// The Host is never compared with the target: proxytunnel sends the proxy's own name.
fn is_host(value: &[u8]) -> bool {
    let (host, port) = match value.iter().rposition(|&byte| byte == b':') {
        Some(colon) if !value.ends_with(b"]") => value.split_at(colon),
        _ => (value, &b""[..]),
    };
    let is_host = match host {
        [b'[', inside @ .., b']'] => inside
            .iter()
            .all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.')),
        name => name
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=".contains(byte)),
    };
    is_host && port.iter().skip(1).all(u8::is_ascii_digit)
}

const MAX_BLANK_BYTES: usize = 8;
/// The content type of a TLS handshake record (RFC 8446 section 5.1): the client takes this port for an `https://` proxy.
const TLS_HANDSHAKE: u8 = 0x16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::authority::AuthorityError;
    use proptest::prelude::*;

    fn read(bytes: &[u8]) -> Result<Option<Head>, RefusalReason> {
        parse(bytes, CredentialPolicy::Read, None)
    }

    fn decide(head: &str) -> Result<Option<String>, RefusalReason> {
        Ok(read(head.as_bytes())?.map(|head| match head.request {
            RequestHead::Connect(request) => request.authority.to_string(),
            RequestHead::Listing(request) => request.filter.to_path(),
        }))
    }

    #[test]
    fn requests_of_real_clients_have_a_target() {
        for head in [
            "CONNECT svc-a.ns:80 HTTP/1.1\r\nHost: 127.0.0.1\r\nProxy-Connection: Keep-Alive\r\n\r\n",
            "CONNECT SVC-A.ns.:80 HTTP/1.0\r\n\r\n",
            "CONNECT svc-a.ns:80 HTTP/1.0\n\n",
            "\r\nCONNECT svc-a.ns:80 HTTP/1.1\r\nHost: svc-a.ns:80\r\nContent-Length: 0\r\n\r\n",
            "CONNECT svc-a.ns:80 HTTP/1.1\r\nHost:\r\n\r\n",
            "CONNECT svc-a.ns:80 HTTP/1.1\r\nhost: [fd00::1]:8080\r\nUser-Agent: x\r\n\r\n",
        ] {
            assert_eq!(decide(head), Ok(Some("svc-a.ns:80".to_owned())), "{head:?}");
        }
    }

    #[test]
    fn each_fault_is_named() {
        use Malformed::*;
        for (head, fault) in [
            ("\x16\x03\x01\x02", Tls),
            ("SSH-2.0-OpenSSH_9.2\r\n", Ssh),
            ("SSH-", Ssh),
            ("CONNECT a:1\r\n\r\n", RequestLine),
            ("CONNECT  a:1 HTTP/1.1\r\n", RequestLine),
            ("\0", RequestLine),
            ("CONNECT a:1 HTTP/1.1\rHost: a\r\n\r\n", RequestLine),
            ("\rCONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", RequestLine),
            ("\r\n\r\n\r\n\r\n\r\n", RequestLine),
            ("CONNECT a:1 HTTP/2.0\r\n", Version),
            ("CONNECT a:1 HTTP/0.9\r\n", Version),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Version),
            ("CONNECT a:1 HTTP/1.1\r\nHost : a\r\n\r\n", Field),
            ("CONNECT a:1 HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n", Field),
            ("CONNECT a:1 HTTP/1.1\r\nHost: a\rX: y\r\n\r\n", Field),
            ("CONNECT a:1 HTTP/1.1\r\nHost: a\0\r\n\r\n", Field),
            ("CONNECT a:1 HTTP/1.1\r\n\r\n", NoHost),
            ("CONNECT a:1 HTTP/1.1\r\nHost: a\r\nHOST: a\r\n\r\n", SeveralHosts),
            ("CONNECT a:1 HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n", SeveralHosts),
            ("CONNECT a:1 HTTP/1.1\r\nHost: a b\r\n\r\n", BadHost),
            ("CONNECT a:1 HTTP/1.1\r\nHost: a:x\r\n\r\n", BadHost),
            ("CONNECT a:1 HTTP/1.1\r\nHost: u@a\r\n\r\n", BadHost),
            ("CONNECT a:1 HTTP/1.1\r\nHost: [x]\r\n\r\n", BadHost),
            (
                "CONNECT a:1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
                Content,
            ),
            ("CONNECT a:1 HTTP/1.0\r\nTransfer-Encoding: identity\r\n\r\n", Content),
            ("CONNECT a:1 HTTP/1.0\r\nContent-Length: 1\r\n\r\n", Content),
            ("CONNECT a:1 HTTP/1.0\r\nContent-Length: 0, 0\r\n\r\n", Content),
            ("CONNECT a:0 HTTP/1.0\r\n\r\n", Target(AuthorityError::BadPort)),
            (
                "CONNECT u@a:1 HTTP/1.1\r\nHost: u@a:1\r\n\r\n",
                Target(AuthorityError::UserInfo),
            ),
            (
                "CONNECT http://a:1 HTTP/1.0\r\n\r\n",
                Target(AuthorityError::NotAuthorityForm),
            ),
        ] {
            assert_eq!(decide(head), Err(malformed(fault)), "{head:?}");
        }
    }

    #[test]
    fn other_methods_and_large_heads_have_their_own_refusals() {
        for method in ["GET", "connect", "OPTIONS"] {
            let head = format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(decide(&head), Err(RefusalReason::MethodNotAllowed));
        }
        let many = format!("CONNECT a:1 HTTP/1.0\r\n{}", "X: y\r\n".repeat(65));
        assert_eq!(decide(&many), Err(RefusalReason::RequestHeaderTooLarge));
        let long = format!("CONNECT {}", "a".repeat(MAX_HEAD_BYTES));
        assert_eq!(decide(&long), Err(RefusalReason::RequestHeaderTooLarge));
    }

    proptest! {
        #[test]
        fn any_bytes_are_decided_and_more_bytes_never_revoke_a_decision(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if !matches!(read(&bytes), Ok(None)) {
                let longer = [bytes.as_slice(), b"\r\nmore".as_slice()].concat();
                prop_assert_eq!(read(&longer).is_ok(), read(&bytes).is_ok());
            }
        }

        #[test]
        fn a_head_is_decided_at_its_last_byte_and_not_before(padding in "[ -~]{0,40}") {
            let head = format!("CONNECT svc.ns:22 HTTP/1.1\r\nHost: a\r\nX: {padding}\r\n\r\n");
            for end in 0..head.len() {
                prop_assert!(matches!(read(&head.as_bytes()[..end]), Ok(None)));
            }
            prop_assert_eq!(read(head.as_bytes()).unwrap().unwrap().length, head.len());
        }
    }
}
