//! The half of a stream that receives: the upload.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use h2::RecvStream;

use super::{Send, broken, lock};
use crate::net::transport::Reader;

/// What has come and was not passed on.
#[derive(Debug)]
pub(super) struct Receive {
    stream: RecvStream,
    /// What came while nothing of it could be passed on.
    ahead: VecDeque<Bytes>,
    /// Behind that, the payload of small frames in one piece: alone each would keep a whole buffer of h2's.
    small: BytesMut,
    /// What was read last.
    current: Bytes,
    /// How many bytes that was: when they have been passed on, the client may send as many more.
    unreleased: usize,
    ended: bool,
}

impl Receive {
    pub(super) fn new(stream: RecvStream) -> Self {
        Self {
            stream,
            ahead: VecDeque::new(),
            small: BytesMut::new(),
            current: Bytes::new(),
            unreleased: 0,
            ended: false,
        }
    }

    /// Whether the client's end of stream has come.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Takes the next frame, if there is one: `None` at the end of stream.
    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<()>>> {
        if self.ended {
            return Poll::Ready(Ok(None));
        }
        match ready!(self.stream.poll_data(context)) {
            Some(Ok(bytes)) => {
                self.keep(bytes);
                Poll::Ready(Ok(Some(())))
            }
            Some(Err(error)) => Poll::Ready(Err(broken(error))),
            None => {
                let trailers = ready!(self.stream.poll_trailers(context)).map_err(broken)?;
                if trailers.is_some() {
                    // No frame but DATA may follow on a connected stream (RFC 9113 section 8.5).
                    return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
                }
                self.ended = true;
                Poll::Ready(Ok(None))
            }
        }
    }

    /// Takes all frames that there are: the window bounds them.
    fn take_in(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        loop {
            match self.poll_frame(context) {
                Poll::Ready(Ok(Some(()))) => {}
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Ready(Ok(None)) | Poll::Pending => return Ok(()),
            }
        }
    }

    fn keep(&mut self, bytes: Bytes) {
        if bytes.len() < SMALL && self.has_some() {
            self.small.extend_from_slice(&bytes);
        } else if !bytes.is_empty() {
            self.settle();
            self.ahead.push_back(bytes);
        }
    }

    fn has_some(&self) -> bool {
        !self.ahead.is_empty() || !self.small.is_empty()
    }

    fn settle(&mut self) {
        if !self.small.is_empty() {
            self.ahead.push_back(std::mem::take(&mut self.small).freeze());
        }
    }

    /// One frame as it stands, or as many as there is room for: a write for each would cost more than to copy them.
    fn take<'a>(&'a mut self, room: &'a mut [u8]) -> &'a [u8] {
        self.settle();
        if self.ahead.len() == 1 || self.ahead.front().is_some_and(|first| first.len() >= room.len()) {
            self.current = self.next(room.len());
            self.unreleased = self.current.len();
            return &self.current;
        }
        let mut length = 0;
        while let Some(rest) = room.get_mut(length..).filter(|rest| !rest.is_empty()) {
            let next = self.next(rest.len());
            if next.is_empty() {
                break;
            }
            rest.get_mut(..next.len()).unwrap_or_default().copy_from_slice(&next);
            length += next.len();
        }
        self.unreleased = length;
        room.get(..length).unwrap_or_default()
    }

    /// What was read last has been passed on.
    fn release(&mut self) {
        if self.unreleased > 0 {
            self.current = Bytes::new();
            // It fails for a stream that is gone, whose window does not matter any more.
            self.stream.flow_control().release_capacity(self.unreleased).ok();
            self.unreleased = 0;
        }
    }

    fn next(&mut self, most: usize) -> Bytes {
        match self.ahead.front_mut() {
            Some(first) if first.len() > most => first.split_to(most),
            Some(_) => self.ahead.pop_front().unwrap_or_default(),
            None => Bytes::new(),
        }
    }
}

/// Where the upload is read.
#[derive(Debug)]
pub struct From<'a> {
    receive: &'a mut Receive,
    send: &'a Mutex<Send>,
}

impl<'a> From<'a> {
    pub(super) fn new(receive: &'a mut Receive, send: &'a Mutex<Send>) -> Self {
        Self { receive, send }
    }
}

impl Reader for From<'_> {
    fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.receive.release();
        while !self.receive.has_some() {
            if ready!(self.receive.poll_frame(context))?.is_none() {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_read<'a>(&'a mut self, context: &mut Context<'_>, room: &'a mut [u8]) -> Poll<io::Result<&'a [u8]>> {
        ready!(self.poll_readable(context))?;
        self.receive.take_in(context)?;
        Poll::Ready(Ok(self.receive.take(room)))
    }

    /// Frames that come meanwhile are kept: the window bounds them, as none of them is passed on.
    async fn failed(&mut self) -> io::Error {
        poll_fn(|context| {
            if let Err(error) = self.receive.take_in(context) {
                return Poll::Ready(error);
            }
            lock(self.send).poll_reset(context).map(|reset| match reset {
                Ok(_) => io::ErrorKind::ConnectionReset.into(),
                Err(error) => broken(error),
            })
        })
        .await
    }
}

/// Smaller frames than this are copied together when they have to wait.
const SMALL: usize = 4096;
