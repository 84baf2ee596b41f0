//! Frames byte by byte, for what no implementation would send.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;

use crate::harness::DEADLINE;
use crate::harness::peer::Peer;

/// A connection on which HTTP/2 was begun.
#[derive(Debug)]
pub(crate) struct Raw {
    stream: TcpStream,
}

impl Raw {
    /// Sends the preface, and SETTINGS that change nothing.
    pub(crate) fn connect(proxy: SocketAddr) -> Self {
        let stream = TcpStream::connect(proxy).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        Self { stream }.begun()
    }

    /// The same on a connection that there is already.
    pub(crate) fn begin(peer: Peer) -> Self {
        Self::from(peer).begun()
    }

    fn begun(mut self) -> Self {
        self.stream.write_all(PREFACE).unwrap();
        self.send(&frame(SETTINGS, 0, 0, b""));
        self
    }

    /// The same for a client that takes 1 GiB of a stream, and of all together.
    pub(crate) fn connect_with_wide_windows(proxy: SocketAddr) -> Self {
        let mut raw = Self::connect(proxy);
        let window = (1_u32 << 30).to_be_bytes();
        raw.send(&frame(SETTINGS, 0, 0, &[&[0, 4][..], &window].concat()));
        raw.send(&frame(WINDOW_UPDATE, 0, 0, &window));
        raw
    }

    /// Writes all of it.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// The next frame.
    #[track_caller]
    pub(crate) fn any(&mut self) -> Frame {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head).unwrap();
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c)];
        self.stream.read_exact(&mut payload).unwrap();
        Frame {
            kind,
            flags,
            stream: u32::from_be_bytes(stream),
            payload,
        }
    }

    /// The next frame that is about a stream, and is no WINDOW_UPDATE.
    #[track_caller]
    pub(crate) fn next(&mut self) -> Frame {
        loop {
            let frame = self.any();
            if frame.stream > 0 && frame.kind != WINDOW_UPDATE {
                return frame;
            }
        }
    }

    /// Reads as far as the next frame of this kind about this stream. Returns the payload bytes of the frames before it.
    #[track_caller]
    pub(crate) fn skip_to(&mut self, kind: u8, stream: u32) -> usize {
        let mut skipped = 0;
        loop {
            let frame = self.next();
            if (frame.kind, frame.stream) == (kind, stream) {
                return skipped;
            }
            skipped += frame.payload.len();
        }
    }

    /// Sends this for as long as the proxy takes it, for at most that many bytes, reading what it answers or not.
    /// Returns how many were sent, when the proxy has ended the connection.
    #[track_caller]
    pub(crate) fn flood(mut self, mut next: impl FnMut() -> Vec<u8>, max: usize, reads: bool) -> usize {
        let mut answers = self.stream.try_clone().unwrap();
        let reading = thread::spawn(move || {
            let mut sink = [0; 65536];
            if reads {
                while let Ok(1..) = answers.read(&mut sink) {}
            }
        });
        let mut sent = 0;
        let ended = loop {
            let burst = next();
            match self.stream.write(&burst) {
                Ok(written) if written == burst.len() => sent += written,
                Ok(_) | Err(_) => break true,
            }
            if sent > max {
                break false;
            }
        };
        assert!(ended, "{sent} bytes were taken");
        self.stream.shutdown(std::net::Shutdown::Both).ok();
        reading.join().unwrap();
        sent
    }

    /// Reads to the end, however the connection ends, and gives the code of the GOAWAY in it.
    #[track_caller]
    pub(crate) fn goaway(mut self) -> Option<u32> {
        let mut came = Vec::new();
        let mut chunk = [0; 65536];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => break,
                Ok(read) => came.extend_from_slice(&chunk[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("it was not ended"),
                Err(_) => break,
            }
        }
        goaway_in(&came)
    }
}

/// One on which it was begun.
impl From<Peer> for Raw {
    fn from(peer: Peer) -> Self {
        Self { stream: peer.into() }
    }
}

/// The code of the last GOAWAY among these frames.
pub(crate) fn goaway_in(mut frames: &[u8]) -> Option<u32> {
    let mut code = None;
    while frames.len() >= 9 {
        let length = usize::from(frames[0]) << 16 | usize::from(frames[1]) << 8 | usize::from(frames[2]);
        if frames[3] == GOAWAY {
            code = Some(u32::from_be_bytes(frames[13..17].try_into().unwrap()));
        }
        frames = frames.get(9 + length..).unwrap_or_default();
    }
    code
}

/// A frame that came.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

/// One frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A CONNECT as a header block: literals without indexing (RFC 7541 section 6.2.2).
pub(crate) fn connect(target: &str) -> Vec<u8> {
    let mut block = field(":method", "CONNECT");
    block.extend(field(":authority", target));
    block
}

/// One literal field.
pub(crate) fn field(name: &str, value: &str) -> Vec<u8> {
    let mut field = vec![0];
    for text in [name, value] {
        assert!(text.len() < 127);
        field.push(u8::try_from(text.len()).unwrap());
        field.extend(text.as_bytes());
    }
    field
}

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
pub(crate) const PADDED: u8 = 8;
