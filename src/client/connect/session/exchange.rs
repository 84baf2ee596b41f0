//! The exchange with which a connection begins, over the stream of a tunnel.

use std::io;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, timeout_at};

use crate::client::dial::transport::{Stream, read_some};
use crate::client::error::ClientError;
use crate::protocol::resume::LONGEST_EXCHANGE;
use crate::protocol::resume::driver::Unlinked;
use crate::protocol::resume::exchange::opening::{Attached, Failure, Opening, Step};

/// What is at the other end of a tunnel.
pub(in crate::client) enum Found {
    /// No anchor: all bytes pass on, these first.
    Plain { stream: Stream, bytes: Vec<u8> },
    /// The stream has failed behind these bytes.
    Broken { bytes: Vec<u8>, error: io::Error },
    /// An anchor, which the client has to prove itself to.
    Anchor { stream: Stream, opening: Box<Opening> },
}

/// Waits for the announcement of an anchor, and sends nothing: to an SSH server the first line would be the client's
/// identification. An SSH server identifies itself at once, so that it costs no time.
pub(in crate::client) async fn find(mut stream: Stream, early: Vec<u8>) -> Result<Found, ClientError> {
    let mut opening = Opening::begin();
    let last = Instant::now() + LONGEST_EXCHANGE;
    let mut read = early;
    loop {
        match opening.receive(&read)? {
            Step::Plain(bytes) => return Ok(Found::Plain { stream, bytes }),
            Step::Undecided if opening.is_proved() => {
                let opening = Box::new(opening);
                return Ok(Found::Anchor { stream, opening });
            }
            Step::Undecided => {}
            // It has not seen the proof yet.
            Step::Attached(_) => return Err(Failure::Fault.into()),
        }
        read.clear();
        read.reserve(BUFFER);
        let silence = (Instant::now() + LONGEST_SILENCE).min(last);
        let read = timeout_at(silence, read_some(&mut stream, &mut read)).await;
        match read {
            Ok(Ok(1..)) => {}
            Ok(Ok(0)) | Err(_) => {
                let bytes = opening.into_plain();
                return Ok(Found::Plain { stream, bytes });
            }
            Ok(Err(error)) => {
                let bytes = opening.into_plain();
                return Ok(Found::Broken { bytes, error });
            }
        }
    }
}

/// Proves a session that exists, and has it proved by the anchor.
pub(super) async fn resume(
    mut stream: Stream,
    early: Vec<u8>,
    mut opening: Opening,
) -> Result<(Stream, Attached), ClientError> {
    let mut read = early;
    loop {
        let step = opening.receive(&read)?;
        if let Step::Attached(attached) = step {
            return Ok((stream, attached));
        }
        let output = opening.take_output();
        if !output.is_empty() {
            stream.write_all(&output).await?;
            stream.flush().await?;
        }
        read.clear();
        read.reserve(BUFFER);
        if read_some(&mut stream, &mut read).await? == 0 {
            return Err(Unlinked::Closed.into());
        }
    }
}

/// The silence behind which there is no anchor.
const LONGEST_SILENCE: Duration = Duration::from_secs(3);
/// The bytes of one read: the lines of an exchange are not many more.
const BUFFER: usize = 4 * 1024;
