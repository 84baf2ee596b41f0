//! One exchange over HTTP/1: reads the head, and writes the response.

use std::fmt::Write;
use std::io;
use std::time::Duration;

use tokio::time::timeout;

use super::client_program::{ClientProgram, SniffedHead, identify};
use super::head::{self, Head, MAX_HEAD_BYTES, Version};
use super::request::{CredentialPolicy, RequestHead, SEND_TIMEOUT, body, fields, listing_fields, status};
use super::websocket::WebSocketOptions;
use crate::base::secret;
use crate::net::transport::{Reader as _, Transport, read_more, send_all};
use crate::protocol::end_notice::Marker;
use crate::protocol::host_key::PublishedKeys;
use crate::protocol::ssh_disconnect::{Code, Disconnect};
use crate::protocol::websocket::handshake::{SUBPROTOCOL, UPGRADE};
use crate::tunnel::outcome::{Malformed, Refusal, RefusalReason, refusal_of};
use crate::tunnel::stream::{Stream, WebSocket};

/// An exchange that has no answer yet.
#[derive(Debug)]
pub struct Http1Exchange {
    stream: Stream,
    /// The bytes that were read; once the head is complete, those after it.
    buffer: Vec<u8>,
    /// The version of the request, once it is known.
    version: Version,
    /// The sender of the request, once it is complete.
    sniffed: SniffedHead,
    end_marker: Option<Marker>,
    /// The `Sec-WebSocket-Accept` of the answer, if the request is for a WebSocket.
    accept: Option<Box<str>>,
}

impl Http1Exchange {
    /// Creates an exchange of which `read` was already received.
    pub(in crate::proxy) fn new(stream: Stream, read: Vec<u8>) -> Self {
        Self {
            stream,
            buffer: read,
            version: Version::default(),
            sniffed: SniffedHead::default(),
            end_marker: None,
            accept: None,
        }
    }

    async fn read_some(&mut self) -> io::Result<usize> {
        let (mut reader, _) = self.stream.split();
        let max = MAX_HEAD_BYTES.saturating_sub(self.buffer.len());
        read_more(&mut reader, max, &mut self.buffer).await
    }

    /// Takes a complete head out of the buffer.
    fn take_head(&mut self, head: Head) -> RequestHead {
        let bytes = self.buffer.get_mut(..head.length).unwrap_or_default();
        self.sniffed = identify(bytes);
        let (credential, end_marker) = match &head.request {
            RequestHead::Connect(request) => (&request.credential, request.end_marker),
            RequestHead::Listing(request) => (&request.credential, None),
        };
        if credential.is_some() {
            // The buffer lives as long as the early data in it.
            secret::wipe(bytes);
        }
        self.buffer.drain(..head.length);
        self.version = head.version;
        self.end_marker = end_marker;
        self.accept = head.accept;
        head.request
    }

    /// Returns the refusal as an HTTP response or, for a client that spoke SSH, as a message of SSH.
    fn answer(&self, refusal: &Refusal) -> Vec<u8> {
        if refusal.reason != RefusalReason::Malformed(Malformed::Ssh) {
            let status = status(refusal, self.accept.is_some());
            return response(refusal, status, self.version).into_bytes();
        }
        let sentence = refusal.phrase().to_owned();
        let code = Code::ProtocolError;
        Disconnect { code, sentence }.to_bytes(&self.buffer)
    }

    async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        timeout(SEND_TIMEOUT, send_all(&mut self.stream, bytes)).await?
    }

    /// Reads until the head is complete or refused, in any number of pieces.
    pub(in crate::proxy) async fn read_head(
        &mut self,
        credentials: CredentialPolicy,
        websocket: Option<&WebSocketOptions>,
    ) -> Result<RequestHead, RefusalReason> {
        let mut known = 0;
        loop {
            let came = self.buffer.get(known..).unwrap_or_default();
            // Parsing after every byte of a slow client would cost the square of its head. So only the first bytes
            // are parsed, which may be no request at all, and each line's end, which may complete the head.
            let decides = known == 0 || came.contains(&b'\n') || self.buffer.len() >= MAX_HEAD_BYTES;
            if decides && !came.is_empty() {
                match head::parse(&self.buffer, credentials, websocket) {
                    Ok(Some(head)) => return Ok(self.take_head(head)),
                    Ok(None) => {}
                    Err(refusal) => {
                        self.sniffed = identify(&self.buffer);
                        // The rest of the head would pass for the bytes after it. An SSH client has sent none.
                        if refusal != RefusalReason::Malformed(Malformed::Ssh) {
                            self.buffer.clear();
                        }
                        return Err(refusal);
                    }
                }
            }
            known = self.buffer.len();
            match self.read_some().await {
                Ok(0) if known == 0 => return Err(RefusalReason::PortProbe),
                Ok(0) => return Err(RefusalReason::Malformed(Malformed::Truncated)),
                Ok(_) => {}
                Err(error) if known == 0 => return Err(refusal_of(&error, RefusalReason::PortProbe)),
                Err(error) => return Err(refusal_of(&error, RefusalReason::ClientDisconnected)),
            }
        }
    }

    /// Completes at a reset. An end of stream is a half-close, as that of `printf … | nc`: the client waits for its
    /// answer.
    pub(in crate::proxy) async fn client_gone(&mut self) -> RefusalReason {
        while self.buffer.len() < MAX_HEAD_BYTES {
            match self.read_some().await {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => return refusal_of(&error, RefusalReason::ClientDisconnected),
            }
        }
        self.stream.split().0.failed().await;
        RefusalReason::ClientDisconnected
    }

    /// Writes the response in one piece: corkscrew reads it by one read.
    pub(in crate::proxy) async fn accept(
        mut self,
        keys: Option<&PublishedKeys>,
    ) -> Result<(Stream, Vec<u8>), RefusalReason> {
        if let Some(accept) = self.accept.take() {
            let fields = format!(
                "Upgrade: {UPGRADE}\r\nSec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: {SUBPROTOCOL}\r\n{}",
                extra_fields(self.end_marker, keys)
            );
            let (stream, early) = self.upgrade(&fields).await?;
            return Ok((WebSocket::server(stream, early).into(), Vec::new()));
        }
        let sent = match (self.end_marker, keys) {
            (None, None) => self.send(CONFIRMATION).await,
            (marker, keys) => {
                let fields = extra_fields(marker, keys);
                let head = format!("HTTP/1.1 200 Connection established\r\n{fields}\r\n");
                self.send(head.as_bytes()).await
            }
        };
        sent.map_err(|_| RefusalReason::ClientDisconnected)?;
        Ok((self.stream, self.buffer))
    }

    /// Sends the 101 with these fields.
    pub(in crate::proxy) async fn upgrade(mut self, fields: &str) -> Result<(Stream, Vec<u8>), RefusalReason> {
        let head = format!("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n{fields}\r\n");
        let sent = self.send(head.as_bytes()).await;
        sent.map_err(|_| RefusalReason::ClientDisconnected)?;
        Ok((self.stream, self.buffer))
    }

    /// Sends a listing.
    pub(in crate::proxy) async fn list(mut self, listing: &str) -> Result<Stream, RefusalReason> {
        let fields = listing_fields(listing.len());
        let fields: String = fields
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        let answer = format!("HTTP/1.1 200 OK\r\nConnection: close\r\n{fields}\r\n{listing}");
        let sent = self.send(answer.as_bytes()).await;
        sent.map_err(|_| RefusalReason::ClientDisconnected)?;
        Ok(self.stream)
    }

    /// Sends the refusal. The caller then closes the stream gracefully, and parses nothing after the head: with
    /// keep-alive those bytes would be taken for another request (RFC 9931 section 6). `None` if the client has left,
    /// or gets no answer; after [`RefusalReason::TlsRecord`] the close sends the alert.
    pub(in crate::proxy) async fn refuse(mut self, refusal: &Refusal) -> Option<Stream> {
        let is_told = refusal.reason == RefusalReason::TlsRecord
            || refusal.reason.is_answered() && {
                let answer = self.answer(refusal);
                self.send(&answer).await.is_ok()
            };
        is_told.then_some(self.stream)
    }

    /// Returns the sender of the request, and the requested target as it was sent.
    pub(in crate::proxy) fn client_program(&self) -> (ClientProgram, &str) {
        (self.sniffed.program, &self.sniffed.target)
    }

    /// Sends the refusal in band: a 200, and after it this message of SSH. Otherwise like [`Self::refuse`].
    ///
    /// corkscrew drops what it reads together with the 200. As soon as corkscrew has read the 200, an SSH client sends
    /// its identification. So the message is sent after the client's first bytes, or after a pause.
    pub(in crate::proxy) async fn refuse_in_band(mut self, message: &Disconnect) -> Option<Stream> {
        self.send(CONFIRMATION).await.ok()?;
        if self.buffer.is_empty() {
            // An end of stream may be a half-close, and after a failure the next write fails, too.
            timeout(PAUSE, self.read_some()).await.ok();
        }
        let message = message.to_bytes(&self.buffer);
        self.send(&message).await.ok()?;
        Some(self.stream)
    }
}

/// Returns the response. A 407 has the version of the request: nc asks for a password if the answer begins with
/// `HTTP/1.0 407`, its own version. All other answers are HTTP/1.1 (RFC 9110 section 2.5 allows either).
fn response(refusal: &Refusal, status: u16, version: Version) -> String {
    let phrase = refusal.phrase();
    let version = match (version, status) {
        (Version::Http10, 407) => "HTTP/1.0",
        _ => "HTTP/1.1",
    };
    let mut answer = format!("{version} {status} {phrase}\r\nConnection: close\r\n");
    for (name, value) in fields(refusal, status) {
        // Writing to a String does not fail.
        write!(answer, "{name}: {value}\r\n").ok();
    }
    answer + "\r\n" + &body(refusal)
}

/// Returns the fields for a client that asks for an end notice or for host keys.
fn extra_fields(marker: Option<Marker>, keys: Option<&PublishedKeys>) -> String {
    let marker = marker.map(|marker| format!("Switchboard-End: {marker}\r\n"));
    let keys = keys.map(|keys| format!("Switchboard-Host-Keys: {keys}\r\n"));
    marker.into_iter().chain(keys).collect()
}

/// No field at all, which every client understands and every client's buffer holds (RFC 9110 section 9.3.6 forbids
/// Content-Length and Transfer-Encoding).
const CONFIRMATION: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";
/// The pause between the 200 and the message, for a client that waits for the server's identification. By then even a
/// client on a busy machine has read the 200.
const PAUSE: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_a_whole_response_that_closes() {
        assert_eq!(
            response(&RefusalReason::MethodNotAllowed.into(), 405, Version::Http10),
            "HTTP/1.1 405 only CONNECT is served here\r\nConnection: close\r\nContent-Type: text/plain\r\n\
             Content-Length: 28\r\nProxy-Status: switchboard; error=http_request_error; \
             details=\"only CONNECT is served here\"\r\nAllow: CONNECT\r\n\r\n\
             only CONNECT is served here\n"
        );
        assert!(response(&RefusalReason::Draining.into(), 503, Version::Http11).contains("\r\nRetry-After: 1\r\n"));
    }

    #[test]
    fn a_challenge_has_two_fields_and_the_version_that_asked() {
        let challenged = |refusal: RefusalReason, version| response(&refusal.into(), 407, version);
        let basic = "\r\nProxy-Authenticate: Basic realm=\"switchboard\", charset=\"UTF-8\"";
        for (refusal, bearer) in [
            (RefusalReason::CredentialsRequired, "Bearer realm=\"switchboard\""),
            (
                RefusalReason::CredentialsRefused,
                "Bearer realm=\"switchboard\", error=\"invalid_token\"",
            ),
        ] {
            let answer = challenged(refusal, Version::Http10);
            assert!(answer.starts_with("HTTP/1.0 407 "), "{answer}");
            assert!(
                answer.contains(&format!("{basic}\r\nProxy-Authenticate: {bearer}\r\n")),
                "{answer}"
            );
            assert!(challenged(refusal, Version::Http11).starts_with("HTTP/1.1 407 "));
        }
        let refusal = Refusal::with_phrase(RefusalReason::NotAuthorized, "no").with_details("create \"x\"");
        let answer = response(&refusal, 403, Version::Http10);
        assert!(answer.starts_with("HTTP/1.1 403 no\r\n"), "{answer}");
        let status = "Proxy-Status: switchboard; error=http_request_denied; details=\"no: create 'x'\"\r\n";
        assert!(answer.contains(status), "{answer}");
    }
}
