//! One exchange over HTTP/2: the head of a request, and its one answer.

use h2::Reason;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header};

use super::exchange::{
    ConnectRequest, CredentialPolicy, Exchange, Purpose, SESSION_FIELD, body, credential, fields, session,
};
use crate::base::authority::Authority;
use crate::protocol::end_notice::{self, Marker};
use crate::tunnel::http2::{Request, Stream};
use crate::tunnel::outcome::{Malformed, Refusal, RefusalReason, refusal_of};

/// Returns the marker of the notice that the client asks for.
fn end_marker(fields: &HeaderMap) -> Option<Marker> {
    end_notice::marker(fields.get_all(end_notice::FIELD).iter().map(HeaderValue::as_bytes))
}

impl Exchange for Request {
    type Transport = Stream;

    const HTTP: &'static str = "2";

    /// h2 has checked the rest: `:scheme`, `:path` or `:protocol` on a CONNECT and connection fields are stream errors,
    /// field names in upper case an error of the connection.
    async fn read_head(&mut self, credentials: CredentialPolicy) -> Result<ConnectRequest, RefusalReason> {
        if self.head.method != Method::CONNECT {
            return Err(RefusalReason::MethodNotAllowed);
        }
        let authority = self.head.uri.authority().ok_or(Malformed::NoAuthority);
        let target = authority.and_then(|authority| authority.as_str().parse().map_err(Malformed::Target));
        let target: Authority = target.map_err(RefusalReason::Malformed)?;
        if self.head.headers.len() > MAX_FIELDS {
            return Err(RefusalReason::RequestHeaderTooLarge);
        }
        // Even 0, which HTTP/1 clients send: h2 would take every byte of the tunnel for one too many.
        if self.head.headers.contains_key(header::CONTENT_LENGTH) {
            return Err(RefusalReason::Malformed(Malformed::Content));
        }
        let credential = match credentials {
            CredentialPolicy::Ignored => None,
            CredentialPolicy::Read => {
                let values = self.head.headers.get_all(header::PROXY_AUTHORIZATION);
                credential(values.iter().map(HeaderValue::as_bytes))
            }
        };
        Ok(ConnectRequest {
            authority: target,
            purpose: Purpose::Tunnel,
            credential,
            end_marker: end_marker(&self.head.headers),
            session: session(
                self.head
                    .headers
                    .get_all(SESSION_FIELD)
                    .iter()
                    .map(HeaderValue::as_bytes),
            ),
        })
    }

    /// Completes at a reset, or when the connection ends. END_STREAM is a half-close.
    async fn client_gone(&mut self) -> RefusalReason {
        match self.reset().await {
            Ok(()) => RefusalReason::ClientDisconnected,
            // The connection has ended.
            Err(error) => refusal_of(&error, RefusalReason::ClientDisconnected),
        }
    }

    async fn accept(self) -> Result<(Stream, Vec<u8>), RefusalReason> {
        // Without fields of a length (RFC 9110 section 9.3.6). Early data is in the stream.
        let mut answer = Response::new(());
        if let Some(marker) = end_marker(&self.head.headers)
            && let Ok(marker) = marker.to_string().try_into()
        {
            answer.headers_mut().insert(end_notice::FIELD, marker);
        }
        let stream = self.answer(answer);
        Ok((stream.map_err(|_| RefusalReason::ClientDisconnected)?, Vec::new()))
    }

    /// HTTP/2 has no upgrade (RFC 9113 section 8.6), so no request for one has been read.
    async fn upgrade(self, _fields: &str) -> Result<(Stream, Vec<u8>), RefusalReason> {
        Err(RefusalReason::MethodNotAllowed)
    }

    async fn refuse(self, denial: &Refusal) -> Option<Stream> {
        if denial.reason == RefusalReason::Malformed(Malformed::NoAuthority) {
            // "Malformed requests [...] MUST be treated as a stream error of type PROTOCOL_ERROR": section 8.1.1.
            self.reset_stream(Reason::PROTOCOL_ERROR);
        } else if denial.reason.is_answered()
            // An error means that the client has reset the stream.
            && let Ok(stream) = self.answer(answer(denial))
        {
            return Some(stream.finished_with(body(denial).into_bytes()));
        }
        None
    }

    /// Sends nothing: clients of HTTP/2 read a status.
    async fn refuse_in_band(self, _message: &[u8]) -> Option<Stream> {
        None
    }
}

/// Returns the head of a refusal. The phrase is in `Proxy-Status` (RFC 9209), too.
fn answer(denial: &Refusal) -> Response<()> {
    let mut answer = Response::new(());
    *answer.status_mut() = StatusCode::from_u16(denial.reason.status()).unwrap_or_default();
    let details = match denial.details() {
        Some(details) => format!("{}: {details}", denial.phrase()),
        None => denial.phrase().to_owned(),
    };
    for (name, value) in fields(denial, Some(&details)) {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            answer.headers_mut().append(name, value);
        }
    }
    answer
}

/// The same as over HTTP/1.
const MAX_FIELDS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_has_the_fields_of_one_over_http_1() {
        let answer = answer(&RefusalReason::MethodNotAllowed.into());
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
        let answer = super::answer(&told);
        assert_eq!(answer.headers()["retry-after"], "1");
        assert_eq!(
            answer.headers()["proxy-status"],
            "switchboard; error=destination_unavailable; details=\"none for 'ab'\""
        );
    }
}
