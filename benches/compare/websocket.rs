//! A tunnel by a WebSocket, as its client has it.

use std::io::{self, Read, Write};
use std::task::Poll;

use switchboard::protocol::websocket::{Codec, Role};

use crate::route::Tunnel;

/// The frames, on a connection whose handshake is over.
#[derive(Debug)]
pub(crate) struct WebSocket {
    pub(crate) tunnel: Tunnel,
    codec: Codec,
    frames: Vec<u8>,
}

impl WebSocket {
    pub(crate) fn new(tunnel: Tunnel) -> Self {
        let (codec, frames) = (Codec::new(Role::Client, Vec::new()), Vec::new());
        Self { tunnel, codec, frames }
    }
}

impl Read for WebSocket {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        loop {
            self.frames.resize(room.len(), 0);
            let read = self.tunnel.read(&mut self.frames)?;
            let decoded = self.codec.decode(self.frames.get(..read).unwrap_or_default(), room)?;
            if decoded > 0 || read == 0 {
                return Ok(decoded);
            }
        }
    }
}

impl Write for WebSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Self { tunnel, codec, .. } = self;
        let write = |pieces: &[io::IoSlice<'_>]| Poll::Ready(tunnel.write_vectored(pieces));
        match codec.sender.poll_write(bytes, write) {
            Poll::Ready(written) => written,
            Poll::Pending => Ok(0),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.tunnel.flush()
    }
}
