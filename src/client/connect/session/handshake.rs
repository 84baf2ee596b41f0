//! The handshake at the start of a connection, over the stream of a tunnel.

use std::io;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, timeout_at};

use crate::protocol::host_key::{self, KeySource, PublishedKeys};
use crate::protocol::resume::HANDSHAKE_TIMEOUT;
use crate::protocol::resume::driver::DetachCause;
use crate::protocol::resume::handshake::client_handshake::{
    ClientHandshake, HandshakeError, HandshakeResult, HandshakeStep,
};
use crate::uplink::dial::io::{BoxedIo, read_some};
use crate::uplink::error::ClientError;

/// The other end of a tunnel.
pub(in crate::client) enum FarEnd {
    /// No anchor: all bytes are relayed, these first.
    Plain { stream: BoxedIo, bytes: Vec<u8> },
    /// The stream has failed after these bytes.
    Broken { bytes: Vec<u8>, error: io::Error },
    /// An anchor, to which the client has to prove itself.
    Anchor {
        stream: BoxedIo,
        handshake: Box<ClientHandshake>,
    },
}

impl FarEnd {
    /// Returns the host keys in the lines before the announcement or the identification.
    pub(in crate::client) fn host_keys(&self) -> PublishedKeys {
        let lines = match self {
            Self::Plain { bytes, .. } | Self::Broken { bytes, .. } => bytes,
            Self::Anchor { handshake, .. } => handshake.lines(),
        };
        PublishedKeys {
            source: KeySource::Anchor,
            keys: host_key::in_lines(lines),
        }
    }
}

/// Waits for the announcement of an anchor, and sends nothing: an SSH server would take any bytes for the client's
/// identification. An SSH server identifies itself at once, so the wait takes no time there.
pub(in crate::client) async fn detect(mut stream: BoxedIo, early: Vec<u8>) -> Result<FarEnd, ClientError> {
    let mut handshake = ClientHandshake::begin();
    let last = Instant::now() + HANDSHAKE_TIMEOUT;
    let mut read = early;
    loop {
        match handshake.receive(&read)? {
            HandshakeStep::Plain(bytes) => return Ok(FarEnd::Plain { stream, bytes }),
            HandshakeStep::NeedMore if handshake.is_proved() => {
                let handshake = Box::new(handshake);
                return Ok(FarEnd::Anchor { stream, handshake });
            }
            HandshakeStep::NeedMore => {}
            // The anchor has not seen the proof yet.
            HandshakeStep::Attached(_) => return Err(HandshakeError::Fault.into()),
        }
        read.clear();
        read.reserve(BUFFER);
        let silence = (Instant::now() + SILENCE_TIMEOUT).min(last);
        let read = timeout_at(silence, read_some(&mut stream, &mut read)).await;
        match read {
            Ok(Ok(1..)) => {}
            Ok(Ok(0)) | Err(_) => {
                let bytes = handshake.into_plain_bytes();
                return Ok(FarEnd::Plain { stream, bytes });
            }
            Ok(Err(error)) => {
                let bytes = handshake.into_plain_bytes();
                return Ok(FarEnd::Broken { bytes, error });
            }
        }
    }
}

/// Proves an existing session to the anchor, and checks the anchor's proof.
pub(super) async fn resume(
    mut stream: BoxedIo,
    early: Vec<u8>,
    mut handshake: ClientHandshake,
) -> Result<(BoxedIo, HandshakeResult), ClientError> {
    let mut read = early;
    loop {
        let step = handshake.receive(&read)?;
        if let HandshakeStep::Attached(attached) = step {
            return Ok((stream, attached));
        }
        let output = handshake.take_output();
        if !output.is_empty() {
            stream.write_all(&output).await?;
            stream.flush().await?;
        }
        read.clear();
        read.reserve(BUFFER);
        if read_some(&mut stream, &mut read).await? == 0 {
            return Err(DetachCause::Closed.into());
        }
    }
}

/// After this silence there is no anchor.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(3);
/// The size of a read: most handshakes fit into one.
const BUFFER: usize = 4 * 1024;
