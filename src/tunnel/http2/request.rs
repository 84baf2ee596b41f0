//! One request on an HTTP/2 connection, until it is answered.

use std::future::poll_fn;
use std::io;

use h2::Reason;
use h2::server::SendResponse;
use http::{Response, request};

use super::outgoing::Outgoing;
use super::payload::Payload;
use super::recv_queue::SharedQueue;
use super::stream::{Stream, stream_error};

/// A request that has not been answered.
#[derive(Debug)]
pub struct Request {
    /// Its head.
    pub head: request::Parts,
    receive: SharedQueue,
    respond: SendResponse<Payload>,
    outgoing: Outgoing,
}

impl Request {
    pub(super) fn new(request: http::Request<SharedQueue>, respond: SendResponse<Payload>, outgoing: Outgoing) -> Self {
        let (head, receive) = request.into_parts();
        Self {
            head,
            receive,
            respond,
            outgoing,
        }
    }

    /// Sends the head of the answer, and returns the stream after it.
    ///
    /// # Errors
    /// The client has reset the stream.
    pub fn answer(mut self, answer: Response<()>) -> Result<Stream, h2::Error> {
        let send = self.respond.send_response(answer, false)?;
        Ok(Stream::new(self.receive, send, self.outgoing))
    }

    /// Resets the stream instead of an answer.
    pub fn reset_stream(mut self, reason: Reason) {
        self.respond.send_reset(reason);
    }

    /// Completes when the client has reset the stream.
    ///
    /// # Errors
    /// The failure of the connection.
    pub async fn reset(&mut self) -> io::Result<()> {
        let reset = poll_fn(|context| self.respond.poll_reset(context)).await;
        reset.map(drop).map_err(stream_error)
    }
}
