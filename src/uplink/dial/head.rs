//! The request to the proxy, a CONNECT or a registration, and the head of its answer.

use std::time::Duration;

use anyhow::anyhow;
use http::StatusCode;
use httparse::{ParserConfig, Status};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use super::deadline::{Deadline, Step};
use super::io::read_some;
use super::tls;
use super::websocket::Upgrade;
use crate::base::authority::Authority;
use crate::base::secret::Secret;
use crate::base::text::printable;
use crate::protocol::end_notice::{self, Marker};
use crate::protocol::host_key::{self, HostKeys, KeySource, PublishedKeys};
use crate::protocol::listing::NameFilter;
use crate::protocol::registration::{PATH, REPLICA_FIELD, REPLICAS_FIELD, ReplicaList, UPGRADE, is_id};
use crate::protocol::resume::keys::SessionId;
use crate::uplink::error::{ClientError, Refusal};

/// The purpose of a request.
#[derive(Clone, Debug)]
pub(crate) enum Wanted<'a> {
    /// Opens a tunnel.
    Tunnel {
        /// The target as typed.
        target: &'a str,
        /// The marker for the requested end notice.
        end_marker: Option<Marker>,
        /// The session to resume, and the time since a byte of its user has moved.
        session: Option<(SessionId, Duration)>,
        /// True if the proxy is to start no workload for it.
        no_wake: bool,
        /// True if the answer is to have the host keys of the target.
        host_keys: bool,
    },
    /// Serves a target on this connection ([`registration`](crate::protocol::registration)).
    Registration {
        /// The name that is served.
        serves: &'a Authority,
        /// The proxy, as the host of the request.
        host: &'a Authority,
        /// The host keys of the target.
        host_keys: &'a HostKeys,
    },
    /// Lists names ([`listing`](crate::protocol::listing)).
    Listing {
        /// The names that are meant.
        filter: &'a NameFilter,
        /// The proxy, as the host of the request.
        host: &'a Authority,
    },
}

/// The 2xx or 101 of a proxy.
#[derive(Debug, Default)]
pub(crate) struct Agreement {
    /// The bytes that were read after the head.
    pub(crate) early: Vec<u8>,
    /// The marker of its end notice; `None` if it sends none.
    pub(crate) end_marker: Option<Marker>,
    /// The replica that has answered a registration, and the list of all; `None` for a tunnel.
    pub(crate) replicas: Option<(Box<str>, ReplicaList)>,
    /// The host keys of the target; `None` if the proxy publishes none.
    pub(crate) host_keys: Option<PublishedKeys>,
}

/// A request to the proxy.
pub(crate) struct Request<'a> {
    /// Its purpose.
    pub(crate) wanted: &'a Wanted<'a>,
    /// The value of `Proxy-Authorization` or, for a WebSocket, of `Authorization`: a load balancer takes the proxy for a
    /// server.
    pub(crate) authorization: Option<Secret>,
    /// The upgrade to a WebSocket, for a tunnel; `None` for a CONNECT or a registration.
    pub(crate) upgrade: Option<Upgrade<'a>>,
}

impl Request<'_> {
    /// Sends the request over an open connection, and reads the answer.
    pub(crate) async fn open(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        deadline: Deadline,
    ) -> Result<Agreement, ClientError> {
        let head = self.to_http1();
        let answer = deadline.bound(Step::Answer, async {
            // One write: some proxies take the first segment for the whole request.
            let sent = async {
                stream.write_all(head.expose().as_bytes()).await?;
                stream.flush().await
            };
            let sent = sent.await;
            // A proxy may answer and close before it has read the request. Then its answer explains the failed write.
            match (read_answer(stream).await, sent) {
                (Err(ClientError::Lost(error)), _) => Err(tls::explain(error, ClientError::Lost)),
                (Ok(None), Err(error)) => Err(ClientError::Lost(error)),
                (Ok(None), Ok(())) => Err(no_answer()),
                (Ok(Some(answer)), _) => Ok(answer),
                (Err(error), _) => Err(error),
            }
        });
        let answer = answer.await?;
        match *self.wanted {
            Wanted::Tunnel {
                end_marker, host_keys, ..
            } if answer.opens_tunnel(self.upgrade.as_ref()) => Ok(Agreement {
                early: answer.rest,
                end_marker: end_marker.filter(|marker| answer.end_marker == Some(*marker)),
                replicas: None,
                host_keys: answer.host_keys.filter(|_| host_keys),
            }),
            Wanted::Registration { .. } if answer.refusal.status == 101 && answer.replicas.is_some() => Ok(Agreement {
                early: answer.rest,
                end_marker: None,
                replicas: answer.replicas,
                host_keys: None,
            }),
            Wanted::Listing { .. } if answer.refusal.status == 200 => Ok(Agreement {
                early: answer.rest,
                ..Agreement::default()
            }),
            Wanted::Registration { .. } if answer.takes_no_anchors() => Err(ClientError::NoAnchors),
            Wanted::Tunnel { .. } | Wanted::Registration { .. } | Wanted::Listing { .. } => {
                Err(self.refused(answer, stream).await)
            }
        }
    }

    /// Returns the error for an answer that opens nothing. The text of its body is read from `stream`.
    async fn refused(&self, answer: Answer, stream: &mut (impl AsyncRead + Unpin)) -> ClientError {
        if let Some(upgrade) = self.upgrade.as_ref().filter(|_| answer.details.is_none()) {
            let status = answer.refusal.status;
            return ClientError::WithBackoff(anyhow!("the answer is {status}: {}", upgrade.advice(status)));
        }
        // Proxies send 404, 405 and 501, too, such as for an unknown name. A `Proxy-Status` shows a proxy.
        let is_a_proxy = answer.details.is_some() || !matches!(answer.refusal.status, 404 | 405 | 501);
        let is_foreign = is_a_proxy && answer.is_foreign();
        let mut refusal = answer.into_refusal(stream).await;
        // The proxy may have quoted a part of the credential.
        let field = self.authorization.as_ref().map(Secret::expose);
        if let Some((_scheme, secret)) = field.and_then(|field| field.split_once(' ')) {
            refusal.reason = Secret::from(secret).redacted(&refusal.reason);
        }
        if is_foreign {
            refusal.reason += FOREIGN;
        }
        if is_a_proxy {
            return ClientError::Refused(refusal);
        }
        refusal.retry_after = None;
        ClientError::Never(anyhow!(
            "{refusal} (this is not a CONNECT proxy, or it knows no such name: are the host and the port of its URL right?)"
        ))
    }

    /// Returns the bytes of the request. All values have been parsed before, so they hold no line end.
    pub(crate) fn to_http1(&self) -> Secret {
        let authorization = self.authorization.as_ref().map(Secret::expose);
        let (line, rest) = match self.wanted {
            Wanted::Tunnel {
                target,
                end_marker,
                session,
                no_wake,
                host_keys,
            } => {
                let marker = end_marker.map(|marker| format!("Switchboard-End: {marker}\r\n"));
                let session = session
                    .map(|(id, idle)| format!("Switchboard-Session: {id}\r\nSwitchboard-Idle: {}\r\n", idle.as_secs()));
                let no_wake = no_wake.then(|| "Switchboard-Wake: ?0\r\n".to_owned());
                let host_keys = host_keys.then(|| "Switchboard-Host-Keys: ?1\r\n".to_owned());
                let rest = marker.into_iter().chain(session).chain(no_wake).chain(host_keys);
                let line = match &self.upgrade {
                    Some(upgrade) => upgrade.head(target),
                    None => format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n"),
                };
                (line, rest.collect::<String>())
            }
            Wanted::Registration {
                serves,
                host,
                host_keys,
            } => {
                let line = format!("GET {PATH}{serves} HTTP/1.1\r\nHost: {host}\r\n");
                let mut rest = format!("Connection: Upgrade\r\nUpgrade: {UPGRADE}\r\n");
                let (source, keys) = (KeySource::Anchor, HostKeys::clone(host_keys));
                let field = format!("Switchboard-Host-Keys: {}\r\n", PublishedKeys { source, keys });
                let others = authorization.map_or(0, str::len) + line.len() + rest.len() + USER_AGENT.len();
                // A longer head is refused, and without the keys the anchor can at least be reached.
                if !host_keys.is_empty() && others + field.len() + FIELD_NAMES <= MAX_HEADER_BYTES {
                    rest += &field;
                }
                (line, rest)
            }
            Wanted::Listing { filter, host } => (
                format!("GET {} HTTP/1.1\r\nHost: {host}\r\n", filter.to_path()),
                "Connection: close\r\n".to_owned(),
            ),
        };
        let agent = format!("User-Agent: {USER_AGENT}\r\n");
        let name = match &self.upgrade {
            Some(_) => "Authorization: ",
            None => "Proxy-Authorization: ",
        };
        let [name, value, end] = authorization.map_or([""; 3], |value| [name, value, "\r\n"]);
        // Allocated once in its final length: a reallocation would leave a copy of the secret.
        [&*line, &*agent, name, value, end, &*rest, "\r\n"].concat().into()
    }
}

/// Reads up to the end of the final response head, at most 16 KiB; `None` if the proxy closed before its first byte.
/// The caller sets the deadline.
///
/// Interim responses are limited, too: a flood of them would use CPU until the deadline.
async fn read_answer(stream: &mut (impl AsyncRead + Unpin)) -> Result<Option<Answer>, ClientError> {
    let mut buffer = Vec::with_capacity(MAX_HEADER_BYTES);
    let mut interim = 0;
    loop {
        while let Some((mut answer, length)) = parse(&buffer)? {
            buffer.drain(..length);
            if !answer.is_interim() {
                answer.rest = buffer;
                return Ok(Some(answer));
            }
            interim += length;
            if interim > MAX_INTERIM {
                return Err(ClientError::WithBackoff(anyhow!(
                    "the proxy sends interim answers (1xx) without end"
                )));
            }
        }
        if buffer.len() >= MAX_HEADER_BYTES {
            return Err(too_long());
        }
        if read_some(stream, &mut buffer).await.map_err(ClientError::Lost)? == 0 {
            return match buffer.is_empty() {
                true => Ok(None),
                false => Err(ClientError::Immediately(anyhow!(
                    "the proxy closed the connection in the middle of its answer"
                ))),
            };
        }
    }
}

/// A response head, and the bytes that were read after it.
#[derive(Debug)]
struct Answer {
    /// The status, the reason phrase, and the fields of a refusal; also if it is not a refusal.
    refusal: Refusal,
    /// The details of its Proxy-Status (RFC 9209), which may be empty; `None` without such a field.
    details: Option<String>,
    /// The marker of its end notice; `None` if it has none.
    end_marker: Option<Marker>,
    /// The replica that has answered, and the list of all; `None` if a field is missing or invalid.
    replicas: Option<(Box<str>, ReplicaList)>,
    /// The host keys of the target; `None` if there are none, or one is invalid.
    host_keys: Option<PublishedKeys>,
    /// Its `Sec-WebSocket-Accept` and `Sec-WebSocket-Protocol`.
    websocket: [Option<Box<str>>; 2],
    /// True if it has `Sec-WebSocket-Extensions`.
    is_extended: bool,
    /// The length of the text after the head, at most [`MAX_BODY`] bytes: 0 if the body is not plain text.
    text_length: usize,
    /// The bytes that were read after the head.
    rest: Vec<u8>,
}

impl Answer {
    /// Returns whether it is a 2xx, whose length fields are ignored (RFC 9110 section 9.3.6); or the 101 of an upgrade.
    fn opens_tunnel(&self, upgrade: Option<&Upgrade<'_>>) -> bool {
        let [accept, subprotocol] = &self.websocket;
        match upgrade {
            Some(upgrade) => {
                let is_accepted = upgrade.is_accepted(accept.as_deref(), subprotocol.as_deref());
                // None was offered (RFC 6455 section 4.1).
                self.refusal.status == 101 && is_accepted && !self.is_extended
            }
            None => (200..300).contains(&self.refusal.status),
        }
    }

    /// Returns whether it is from a proxy that does not support registrations, or a server that is not a proxy.
    fn takes_no_anchors(&self) -> bool {
        matches!(self.refusal.status, 200..300 | 404 | 405 | 426 | 501)
    }

    /// Returns whether the status has its standard phrase and no Proxy-Status: switchboard never answers so.
    fn is_foreign(&self) -> bool {
        let standard = StatusCode::from_u16(self.refusal.status).ok();
        let standard = standard.and_then(|status| status.canonical_reason());
        let is_407 = self.refusal.status == 407;
        !is_407
            && self.details.is_none()
            && standard.is_some_and(|phrase| phrase.eq_ignore_ascii_case(&self.refusal.reason))
    }

    /// Returns the refusal. Its reason is that of `Proxy-Status`, else the first line of the text, else the reason phrase,
    /// which a proxy on the way may have replaced.
    async fn into_refusal(mut self, stream: &mut (impl AsyncRead + Unpin)) -> Refusal {
        let details = self.details.take().unwrap_or_default();
        if !details.is_empty() {
            self.refusal.reason = printable(&details, MAX_LINE);
            return self.refusal;
        }
        // The status is known: a slow or broken body must not hide it, so its errors and its timeout are ignored.
        let body = async {
            while self.rest.len() < self.text_length && !self.rest.contains(&b'\n') {
                if !matches!(read_some(stream, &mut self.rest).await, Ok(1..)) {
                    break;
                }
            }
        };
        tokio::time::timeout(BODY_WAIT, body).await.ok();
        self.rest.truncate(self.text_length);
        let text = String::from_utf8_lossy(&self.rest);
        let line = text.lines().next().unwrap_or_default().trim();
        let is_markup = line.starts_with(['<', '{']);
        let reason = if line.is_empty() || is_markup {
            &self.refusal.reason
        } else {
            line
        };
        self.refusal.reason = printable(reason, MAX_LINE);
        self.refusal
    }

    /// Returns whether another head follows, as after every 1xx (RFC 9110 section 15.2) but 101, which ends HTTP.
    fn is_interim(&self) -> bool {
        (100..200).contains(&self.refusal.status) && self.refusal.status != 101
    }
}

/// Parses one head, and returns it with its length; `None` if it is incomplete.
fn parse(buffer: &[u8]) -> Result<Option<(Answer, usize)>, ClientError> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut response = httparse::Response::new(&mut headers);
    // Only the status decides, so malformed fields are tolerated.
    let mut parser = ParserConfig::default();
    parser
        .allow_spaces_after_header_name_in_responses(true)
        .allow_obsolete_multiline_headers_in_responses(true)
        .ignore_invalid_headers_in_responses(true);
    match parser.parse_response(&mut response, buffer) {
        Ok(Status::Partial) => Ok(None),
        Ok(Status::Complete(length)) => {
            let field = |name: &str| {
                let mut headers = response.headers.iter();
                let header = headers.find(|header| header.name.eq_ignore_ascii_case(name))?;
                Some(header.value)
            };
            let text = |name| str::from_utf8(field(name)?).ok();
            let refusal = Refusal {
                status: response.code.ok_or_else(ClientError::no_http)?,
                retry_after: seconds(field("retry-after")),
                starting: seconds(field("switchboard-starting")),
                reason: response.reason.unwrap_or_default().to_owned(),
            };
            let answer = Answer {
                refusal,
                details: details(&response),
                end_marker: end_notice::marker(field(end_notice::FIELD).into_iter()),
                replicas: text(REPLICA_FIELD)
                    .filter(|id| is_id(id))
                    .zip(text(REPLICAS_FIELD).and_then(|list| list.parse().ok()))
                    .map(|(id, list)| (id.into(), list)),
                host_keys: text(host_key::FIELD).and_then(|keys| keys.parse().ok()),
                websocket: ["sec-websocket-accept", "sec-websocket-protocol"].map(|name| text(name).map(Into::into)),
                is_extended: response.headers.iter().any(|header| {
                    header.name.eq_ignore_ascii_case("sec-websocket-extensions")
                        && !header.value.trim_ascii().is_empty()
                }),
                text_length: text_length(field, response.reason.unwrap_or_default()),
                rest: Vec::new(),
            };
            Ok(Some((answer, length)))
        }
        Err(httparse::Error::TooManyHeaders) => Err(too_long()),
        Err(_) => Err(ClientError::no_http()),
    }
}

/// Returns the first details in the fields `Proxy-Status`: those of the proxy nearest to the target come first.
fn details(response: &httparse::Response<'_, '_>) -> Option<String> {
    let fields = response.headers.iter();
    let fields = fields.filter(|header| header.name.eq_ignore_ascii_case("proxy-status"));
    let text = fields
        .map(|header| String::from_utf8_lossy(header.value))
        .reduce(|all, field| all + ", " + field)?;
    let string = text.split_once("details=\"").map_or("", |(_, string)| string);
    // An escape of RFC 9651 is a backslash before a quotation mark or a backslash.
    let string = string.replace("\\\"", "'");
    Some(string.split('"').next().unwrap_or_default().replace("\\\\", "\\"))
}

/// Returns the error for a proxy that closed without an answer.
fn no_answer() -> ClientError {
    ClientError::Immediately(anyhow!("the proxy closed the connection without an answer"))
}

/// Returns the error for a head over 16 KiB, or with over 128 fields.
fn too_long() -> ClientError {
    ClientError::WithBackoff(anyhow!("the head of the proxy's answer is too long"))
}

/// Returns the length of a text body; 0 for HTML and for chunks, whose first line is not for a person. A body that no field
/// announces is expected only after an empty reason phrase.
fn text_length<'a>(field: impl Fn(&str) -> Option<&'a [u8]>, phrase: &str) -> usize {
    let field = |name| std::str::from_utf8(field(name)?).ok();
    let announced = field("content-length").and_then(|length| length.trim().parse().ok());
    let is_text = match field("content-type") {
        Some(kind) => kind.to_ascii_lowercase().starts_with("text/plain"),
        None => announced.is_some() || phrase.trim().is_empty(),
    };
    if !is_text || field("transfer-encoding").is_some() {
        return 0;
    }
    announced.unwrap_or(MAX_BODY).min(MAX_BODY)
}

/// Parses the seconds of `Retry-After` (RFC 9110 section 10.2.3) or `Switchboard-Starting`. `None` for a date, which
/// would need a correct clock.
fn seconds(field: Option<&[u8]>) -> Option<Duration> {
    let seconds = str::from_utf8(field?).ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

const FOREIGN: &str =
    " (this is no answer of switchboard: a web server, a captive portal or another proxy has answered)";
/// The maximum number of characters of a message, and of a refusal's reason.
pub(crate) const MAX_LINE: usize = 400;
pub(crate) const USER_AGENT: &str = concat!("switchboard/", env!("CARGO_PKG_VERSION"));
const MAX_HEADER_BYTES: usize = 16 * 1024;
/// More than the bytes of a registration's head beside its values.
const FIELD_NAMES: usize = 128;
const MAX_FIELDS: usize = 128;
/// The maximum size of the interim responses: four heads. No proxy is known to send more than two.
const MAX_INTERIM: usize = 64 * 1024;
/// The maximum number of bytes of a body that are read for its first line.
const MAX_BODY: usize = 1024;
/// The timeout of the text after a refusal.
const BODY_WAIT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::websocket::handshake;
    use proptest::prelude::*;

    async fn read(bytes: &[u8]) -> Result<Answer, ClientError> {
        read_answer(&mut &*bytes).await?.ok_or_else(no_answer)
    }

    /// RFC 6455 section 4.1.
    #[tokio::test]
    async fn a_websocket_with_an_extension_that_was_not_offered_opens_no_tunnel() {
        let proxy = "ws://p.example.com/ssh".parse().unwrap();
        let upgrade = Upgrade::new(&proxy).unwrap();
        let head = upgrade.head("h:22");
        let key = head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: "));
        let accept = handshake::accept(key.unwrap().as_bytes());
        for (extensions, opens) in [
            ("", true),
            ("Sec-WebSocket-Extensions:\r\n", true),
            ("sec-websocket-extensions: permessage-deflate\r\n", false),
            ("Sec-WebSocket-Extensions: \r\nSec-WebSocket-Extensions: x\r\n", false),
            ("Sec-WebSocket-Extensions: \u{e9}\r\n", false),
        ] {
            let answer = format!(
                "HTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {accept}\r\n\
                 Sec-WebSocket-Protocol: {}\r\n{extensions}\r\n",
                handshake::SUBPROTOCOL
            );
            let answer = read(answer.as_bytes()).await.unwrap();
            assert_eq!(answer.opens_tunnel(Some(&upgrade)), opens, "{extensions:?}");
        }
    }

    #[test]
    fn the_request_names_the_target_twice_and_the_client_once() {
        let version = env!("CARGO_PKG_VERSION");
        let plain = format!("CONNECT H.:22 HTTP/1.1\r\nHost: H.:22\r\nUser-Agent: switchboard/{version}\r\n\r\n");
        let written = |no_wake, authorization: Option<&str>| {
            let wanted = Wanted::Tunnel {
                target: "H.:22",
                end_marker: None,
                session: None,
                no_wake,
                host_keys: false,
            };
            let request = Request {
                wanted: &wanted,
                authorization: authorization.map(|value| value.to_owned().into()),
                upgrade: None,
            };
            request.to_http1().expose().to_owned()
        };
        assert_eq!(written(false, None), plain);
        let with = |field: &str| plain.replace("\r\n\r\n", &format!("\r\n{field}\r\n\r\n"));
        assert_eq!(
            written(false, Some("Basic eA==")),
            with("Proxy-Authorization: Basic eA==")
        );
        assert_eq!(written(true, None), with("Switchboard-Wake: ?0"));
    }

    #[test]
    fn a_registration_without_room_for_its_keys_goes_without_them() {
        let ed25519 = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB";
        let host_keys: HostKeys = ed25519.parse().unwrap();
        for (token, has_keys) in [(15 << 10, true), (16_200, false)] {
            let wanted = Wanted::Registration {
                serves: &"a:22".parse().unwrap(),
                host: &"p:1".parse().unwrap(),
                host_keys: &host_keys,
            };
            let authorization = Some("x".repeat(token).into());
            let head = Request {
                wanted: &wanted,
                authorization,
                upgrade: None,
            }
            .to_http1();
            assert_eq!(head.expose().contains("Switchboard-Host-Keys"), has_keys, "{token}");
        }
    }

    #[tokio::test]
    async fn every_2xx_opens_the_tunnel_and_its_length_is_ignored() {
        for head in [
            "HTTP/1.1 200 Connection established\r\n\r\n",
            "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n",
            "HTTP/1.1 200\r\n\r\n",
            "HTTP/1.1 204 No Content\n\n",
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nBroken Header\r\nX : y\r\n z\r\n\r\n",
        ] {
            let answer = read(format!("{head}SSH-2.0-x\r\n").as_bytes()).await.unwrap();
            assert!(answer.opens_tunnel(None), "{head}");
            assert_eq!(answer.rest, b"SSH-2.0-x\r\n", "{head}");
        }
    }

    #[tokio::test]
    async fn a_refusal_gives_its_phrase_or_the_first_line_of_its_text() {
        for (bytes, status, reason) in [
            ("HTTP/1.1 403 no such target\r\n\r\nbody", 403, "no such target"),
            (
                "HTTP/1.1 403 no such target\r\nContent-Length: 6\r\n\r\n<html>",
                403,
                "no such target",
            ),
            (
                "HTTP/1.1 403 no such target\r\nContent-Length: 5\r\n\r\n\nbody",
                403,
                "no such target",
            ),
            ("HTTP/1.1 403 Forbidden\r\nContent-Length: 4\r\n\r\nbody", 403, "body"),
            (
                "HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain\r\n\r\nnot allowed\n",
                403,
                "not allowed",
            ),
            (
                "HTTP/1.1 403 Forbidden\r\nProxy-Status: hop; error=x\r\nProxy-Status: switchboard; error=y; \
                 details=\"a \\\"b\\\" is not allowed\", hop; details=\"none\"\r\n\r\nbody",
                403,
                "a 'b' is not allowed",
            ),
            (
                "HTTP/1.1 403 Forbidden\r\nProxy-Status: hop; details=\"\"\r\n\r\n",
                403,
                "Forbidden",
            ),
            (
                "HTTP/1.1 403 \r\nContent-Type: text/plain\r\n\r\n  not allowed \nmore",
                403,
                "not allowed",
            ),
            ("HTTP/1.1 403\r\nContent-Length: 3\r\n\r\nnot allowed", 403, "not"),
            (
                "HTTP/1.1 403\r\n\r\n\x1b[31mred\x07\x7f\u{9b}\u{202e}text\r\n",
                403,
                "[31mredtext",
            ),
            ("HTTP/1.1 502\r\nContent-Type: text/html\r\n\r\n<html>", 502, ""),
            ("HTTP/1.1 502\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc", 502, ""),
            ("HTTP/1.1 404\r\n\r\n", 404, ""),
            ("HTTP/1.1 101 Switching Protocols\r\n\r\n", 101, "Switching Protocols"),
            ("HTTP/1.1 302 Found\r\n\r\n", 302, "Found"),
        ] {
            let answer = read(bytes.as_bytes()).await.unwrap();
            assert!(!answer.opens_tunnel(None), "{bytes:?}");
            assert_eq!(answer.refusal.status, status, "{bytes:?}");
            let refusal = answer.into_refusal(&mut tokio::io::empty()).await;
            assert_eq!(refusal.reason, reason, "{bytes:?}");
        }
    }

    #[tokio::test]
    async fn bytes_that_are_no_answer_have_an_error_of_their_own() {
        let endless = format!("HTTP/1.1 200 OK\r\nX: {}", "a".repeat(20_000));
        let crowded = format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: y\r\n".repeat(129));
        for (bytes, expected) in [
            ("", "without an answer"),
            ("HTTP/1.1 100 Continue\r\n\r\n", "without an answer"),
            ("HTTP/1.1 200 OK\r\n", "in the middle"),
            ("SSH-2.0-OpenSSH_9.2\r\n", "not HTTP"),
            ("HTTP/2 200\r\n\r\n", "not HTTP"),
            ("HTTP/1.1 403 \x1b[2Jno\r\n\r\n", "not HTTP"),
            (
                "\x15\x03\x01\x00\x02\x02\x46",
                "are the scheme, the address and the port of its URL right?",
            ),
            (&endless, "too long"),
            (&crowded, "too long"),
        ] {
            let message = read(bytes.as_bytes()).await.unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
            assert_eq!(printable(&message, MAX_LINE), message);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic_and_no_reason_holds_a_control_character(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            let whole = [b"HTTP/1.1 403\r\n\r\n", bytes.as_slice()].concat();
            for input in [bytes.as_slice(), whole.as_slice()] {
                runtime.block_on(async {
                    if let Ok(answer) = read(input).await {
                        let Refusal { reason, .. } = answer.into_refusal(&mut tokio::io::empty()).await;
                        assert!(!reason.chars().any(char::is_control));
                    }
                });
            }
        }
    }
}
