//! One exchange over HTTP/2: the head of a request, and its one answer.

use h2::Reason;
use h2::ext::Protocol;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header};
use tokio::time::timeout;

use super::request::{
    ConnectRequest, CredentialPolicy, HostKeysField, ListingRequest, MAX_FIELDS, Purpose, RequestHead, SEND_TIMEOUT,
    WAKE_FIELD, body, credential, fields, listing_fields, no_wake, session, status,
};
use super::websocket::{self, WebSocketOptions};
use crate::base::authority::Authority;
use crate::net::transport::send_all;
use crate::protocol::end_notice::{self, Marker};
use crate::protocol::host_key::{self, PublishedKeys};
use crate::protocol::listing::NameFilter;
use crate::protocol::websocket::handshake::{self, SUBPROTOCOL, UPGRADE, is_key};
use crate::tunnel::http2::Request;
use crate::tunnel::outcome::{Malformed, Refusal, RefusalReason, refusal_of};
use crate::tunnel::stream::{Stream, WebSocket};

/// Reads the head.
///
/// h2 has refused the rest already: `:scheme` or `:path` on a CONNECT without `:protocol` and connection fields by a stream
/// error, field names in upper case by a connection error. A `:protocol` it accepts from a client that was offered none.
///
/// # Errors
/// The refusal.
pub(in crate::proxy) fn read_head(
    request: &Request,
    credentials: CredentialPolicy,
    websocket: Option<&WebSocketOptions>,
) -> Result<RequestHead, RefusalReason> {
    let head = &request.head;
    if head.headers.len() > MAX_FIELDS {
        return Err(RefusalReason::RequestHeaderTooLarge);
    }
    let field = |name| values(&head.headers, name);
    let credential = |is_websocket: bool| match credentials {
        CredentialPolicy::Ignored => None,
        CredentialPolicy::Read => {
            let of_server = field("authorization").filter(|_| is_websocket);
            credential(field("proxy-authorization").chain(of_server))
        }
    };
    if head.method != Method::CONNECT {
        let path = head.uri.path_and_query().map_or("", |path| path.as_str());
        let has_body = values(&head.headers, "content-length").any(|length| length != b"0");
        let filter = NameFilter::of_path(path).filter(|_| head.method == Method::GET && !has_body);
        let filter = filter.ok_or(RefusalReason::MethodNotAllowed)?;
        return Ok(RequestHead::Listing(ListingRequest {
            filter,
            credential: credential(false),
        }));
    }
    let is_websocket = is_websocket(request);
    if !is_websocket && head.extensions.get::<Protocol>().is_some() {
        return Err(RefusalReason::MethodNotAllowed);
    }
    let target = match is_websocket {
        true => {
            let path = websocket.and_then(|websocket| websocket.target(head.uri.path_and_query()?.as_str()));
            path.ok_or(RefusalReason::MethodNotAllowed)?
                .parse()
                .map_err(Malformed::Target)
        }
        false => {
            let authority = head.uri.authority().ok_or(Malformed::NoAuthority);
            authority.and_then(|authority| authority.as_str().parse().map_err(Malformed::Target))
        }
    };
    let target: Authority = target.map_err(RefusalReason::Malformed)?;
    let forwarding = is_websocket.then(|| websocket::check(field)).transpose()?;
    // Even 0, which HTTP/1 clients send: h2 would reject the tunnel's first byte.
    if head.headers.contains_key(header::CONTENT_LENGTH) {
        return Err(RefusalReason::Malformed(Malformed::Content));
    }
    Ok(RequestHead::Connect(ConnectRequest {
        authority: target,
        purpose: Purpose::Tunnel,
        credential: credential(is_websocket),
        end_marker: end_marker(&head.headers),
        session: session(|name| values(&head.headers, name).next()),
        no_wake: no_wake(values(&head.headers, WAKE_FIELD)),
        host_keys: HostKeysField::parse(values(&head.headers, host_key::FIELD)),
        forwarding,
    }))
}

/// Completes at a reset, or when the connection ends. END_STREAM is a half-close.
pub(in crate::proxy) async fn client_gone(request: &mut Request) -> RefusalReason {
    match request.reset().await {
        Ok(()) => RefusalReason::ClientDisconnected,
        // The connection has ended.
        Err(error) => refusal_of(&error, RefusalReason::ClientDisconnected),
    }
}

/// Sends the 200, without Content-Length (RFC 9110 section 9.3.6).
///
/// # Errors
/// [`RefusalReason::ClientDisconnected`].
pub(in crate::proxy) fn accept(request: Request, host_keys: Option<&PublishedKeys>) -> Result<Stream, RefusalReason> {
    let mut answer = Response::new(());
    let marker = end_marker(&request.head.headers).map(|marker| (end_notice::FIELD, marker.to_string()));
    let host_keys = host_keys.map(|keys| (host_key::FIELD, keys.to_string()));
    let is_websocket = is_websocket(&request);
    let subprotocol = is_websocket.then(|| ("sec-websocket-protocol", SUBPROTOCOL.to_owned()));
    // RFC 8441 has no key, but Envoy passes that of an HTTP/1.1 client on, and this answer back.
    let key = values(&request.head.headers, "sec-websocket-key").next();
    let key = key.filter(|key| is_websocket && is_key(key));
    let accepted = key.map(|key| ("sec-websocket-accept", handshake::accept(key)));
    let websocket = subprotocol.into_iter().chain(accepted);
    for (name, value) in marker.into_iter().chain(host_keys).chain(websocket) {
        if let Ok(value) = value.try_into() {
            answer.headers_mut().insert(name, value);
        }
    }
    let stream = request.answer(answer).map_err(|_| RefusalReason::ClientDisconnected)?;
    Ok(match is_websocket {
        true => WebSocket::server(stream.into(), Vec::new()).into(),
        false => stream.into(),
    })
}

/// Returns whether a CONNECT is one for a WebSocket (RFC 8441 section 5).
fn is_websocket(request: &Request) -> bool {
    let protocol = request.head.extensions.get::<Protocol>();
    protocol.is_some_and(|protocol| protocol.as_str() == UPGRADE)
}

/// Sends a listing, as the client's window allows it.
///
/// # Errors
/// [`RefusalReason::ClientDisconnected`].
pub(in crate::proxy) async fn list(request: Request, listing: &str) -> Result<Stream, RefusalReason> {
    let answer = with_fields(Response::new(()), listing_fields(listing.len()));
    let stream = request.answer(answer).map_err(|_| RefusalReason::ClientDisconnected)?;
    let mut stream = Stream::from(stream);
    let sent = timeout(SEND_TIMEOUT, send_all(&mut stream, listing.as_bytes())).await;
    match sent {
        Ok(Ok(())) => Ok(stream),
        Ok(Err(_)) | Err(_) => Err(RefusalReason::ClientDisconnected),
    }
}

/// Sends the refusal. Returns the stream, to be held until the client has read it; `None` if the client has left, or gets
/// no answer.
pub(in crate::proxy) fn refuse(request: Request, refusal: &Refusal) -> Option<Stream> {
    if refusal.reason == RefusalReason::Malformed(Malformed::NoAuthority) {
        // "Malformed requests [...] MUST be treated as a stream error of type PROTOCOL_ERROR": section 8.1.1.
        request.reset_stream(Reason::PROTOCOL_ERROR);
    } else if refusal.reason.is_answered()
        // An error means that the client has reset the stream.
        && let Ok(stream) = {
            let status = status(refusal, is_websocket(&request));
            request.answer(answer(refusal, status))
        }
    {
        return Some(stream.finished_with(body(refusal).into_bytes()).into());
    }
    None
}

/// Returns the marker of the notice that the client asks for.
fn end_marker(fields: &HeaderMap) -> Option<Marker> {
    end_notice::marker(values(fields, end_notice::FIELD))
}

/// Returns the values of all fields of that name.
fn values<'a>(fields: &'a HeaderMap, name: &'static str) -> impl Iterator<Item = &'a [u8]> {
    fields.get_all(name).iter().map(HeaderValue::as_bytes)
}

/// Returns the head of a refusal.
fn answer(refusal: &Refusal, status: u16) -> Response<()> {
    let mut answer = Response::new(());
    *answer.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    // HTTP/2 has no upgrades (RFC 9113 section 8.2.2).
    let fields = fields(refusal, status).into_iter();
    with_fields(
        answer,
        fields.filter(|(name, _)| !["Connection", "Upgrade"].contains(name)),
    )
}

/// Returns the head of an answer with these fields.
fn with_fields(mut answer: Response<()>, fields: impl IntoIterator<Item = (&'static str, String)>) -> Response<()> {
    for (name, value) in fields {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            answer.headers_mut().append(name, value);
        }
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_has_the_fields_of_one_over_http_1() {
        let answer = answer(&RefusalReason::MethodNotAllowed.into(), 405);
        assert_eq!(answer.status(), 405);
        let fields: Vec<_> = answer
            .headers()
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect();
        assert_eq!(
            fields,
            [
                ("content-type", "text/plain"),
                ("content-length", "28"),
                (
                    "proxy-status",
                    "switchboard; error=http_request_error; details=\"only CONNECT is served here\""
                ),
                ("allow", "CONNECT"),
            ]
        );
        let told = Refusal::with_phrase(RefusalReason::NoEndpoint, "none for \"a\\b\"");
        let answer = super::answer(&told, 503);
        assert_eq!(answer.headers()["retry-after"], "1");
        assert_eq!(
            answer.headers()["proxy-status"],
            "switchboard; error=destination_unavailable; details=\"none for 'ab'\""
        );
    }
}
