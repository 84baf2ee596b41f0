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
}

impl WebSocket {
    pub(crate) fn new(tunnel: Tunnel) -> Self {
        let codec = Codec::new(Role::Client, Vec::new());
        Self { tunnel, codec }
    }
}

impl Read for WebSocket {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.tunnel.read(room)?;
            let decoded = self.codec.decode(room.get_mut(..read).unwrap_or_default())?;
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
