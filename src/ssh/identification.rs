//! Lets a tunnel begin only if both sides speak SSH: the first line of each must be an identification (RFC 4253 4.2).
//!
//! Nothing of a side's bytes is passed on before its line has been seen, and only the line itself before the other side
//! has been seen, too: whoever leads a client to something that is not an SSH server has sent it one harmless line.

use std::future::poll_fn;
use std::io;
use std::mem::take;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use crate::direction::Direction;
use crate::net::transport::{Reader, Transport, Writer};
use crate::outcome::{Close, Reason, Side};
use crate::relay::meter::Meter;
use crate::relay::{Early, Failure, Transports};

pub use super::software::{Family, Software};

/// How long it may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// From the 200 until both sides have sent their line.
    pub identification: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            identification: Duration::from_secs(30),
        }
    }
}

/// Passes on the first line of each side, and tells `identified` what it says. Either may come first.
///
/// What comes behind a line stays in `ends`. A side that finishes before its line ends the tunnel: it is no SSH, and so
/// the other side's bytes are not for it.
///
/// # Errors
/// How the tunnel ends: [`Reason::NotSsh`], or as a relay would.
pub async fn exchange<D: Transport>(
    ends: &mut Transports<D>,
    meter: &Meter,
    options: &Options,
    identified: impl Fn(Side, Software) + Sync,
) -> Result<(), Close> {
    let (from_client, to_client) = ends.downstream.split();
    let (from_target, to_target) = Transport::split(&mut ends.upstream);
    let progress = Progress::default();
    let client_says = |software| identified(Side::Client, software);
    let target_says = |software| identified(Side::Target, software);
    let mut upload = Opening::new(Direction::Upload, from_client, to_target, take(&mut ends.early.upload));
    let mut download = Opening::new(
        Direction::Download,
        from_target,
        to_client,
        take(&mut ends.early.download),
    );
    let both = async {
        tokio::select! {
            biased;
            () = progress.both() => Ok(()),
            close = upload.run(meter, &progress, client_says) => Err(close),
            close = download.run(meter, &progress, target_says) => Err(close),
        }
    };
    let result = timeout(options.identification, both).await;
    let result = result.unwrap_or(Err(Close {
        by: if download.passed { Side::Client } else { Side::Target },
        reason: Reason::NotSsh,
    }));
    *ends.early = Early {
        upload: upload.held,
        download: download.held,
    };
    result
}

/// How many sides have had their say.
#[derive(Debug, Default)]
struct Progress {
    passed: AtomicU8,
    all: Notify,
}

impl Progress {
    fn passed(&self) {
        if self.passed.fetch_add(1, Ordering::Relaxed) == 1 {
            self.all.notify_one();
        }
    }

    async fn both(&self) {
        self.all.notified().await;
    }
}

/// One direction until its line has passed.
#[derive(Debug)]
struct Opening<F, T> {
    direction: Direction,
    from: F,
    to: T,
    held: Vec<u8>,
    passed: bool,
}

impl<F: Reader, T: Writer> Opening<F, T> {
    fn new(direction: Direction, from: F, to: T, held: Vec<u8>) -> Self {
        Self {
            direction,
            from,
            to,
            held,
            passed: false,
        }
    }

    /// Passes the line on, then only looks out for a failure of its side.
    async fn run(&mut self, meter: &Meter, progress: &Progress, identified: impl Fn(Software)) -> Close {
        if let Err(close) = self.pass(meter, identified).await {
            return close;
        }
        self.passed = true;
        progress.passed();
        let error = self.from.failed().await;
        let by = self.sides().0;
        Failure { by, error }.into()
    }

    async fn pass(&mut self, meter: &Meter, identified: impl Fn(Software)) -> Result<(), Close> {
        let (source, sink) = self.sides();
        let length = loop {
            match read(&self.held, source) {
                Ok(Some(line)) => {
                    identified(Software::of(line.software));
                    break line.length;
                }
                Ok(None) => {}
                Err(NotSsh) => {
                    return Err(Close {
                        by: source,
                        reason: Reason::NotSsh,
                    });
                }
            }
            let more = poll_fn(|context| poll_more(context, &mut self.from, &mut self.held)).await;
            if more.map_err(|error| Failure { by: source, error })? == 0 {
                return Err(Close {
                    by: source,
                    reason: Reason::Eof,
                });
            }
        };
        let rest = self.held.split_off(length);
        let line = std::mem::replace(&mut self.held, rest);
        let mut line = line.as_slice();
        let sent = poll_fn(|context| self.poll_send(context, &mut line, meter)).await;
        sent.map_err(|error| Failure { by: sink, error }.into())
    }

    fn poll_send(&mut self, context: &mut Context<'_>, line: &mut &[u8], meter: &Meter) -> Poll<io::Result<()>> {
        while !line.is_empty() {
            let written = ready!(self.to.poll_write(context, line))?;
            meter.moved(self.direction, written);
            *line = line.get(written..).unwrap_or_default();
        }
        self.to.poll_flush(context)
    }

    fn sides(&self) -> (Side, Side) {
        match self.direction {
            Direction::Upload => (Side::Client, Side::Target),
            Direction::Download => (Side::Target, Side::Client),
        }
    }
}

/// Not async: its chunk must not live as long as the wait for the peer.
fn poll_more(context: &mut Context<'_>, from: &mut impl Reader, held: &mut Vec<u8>) -> Poll<io::Result<usize>> {
    let mut chunk = [0; CHUNK];
    let bytes = ready!(from.poll_read(context, &mut chunk))?;
    held.extend_from_slice(bytes);
    Poll::Ready(Ok(bytes.len()))
}

/// An identification, and what came before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// Up to and with its line end.
    pub length: usize,
    /// What stands behind `SSH-2.0-`.
    pub software: &'a [u8],
}

/// A side does not begin as SSH does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotSsh;

/// Looks for the identification among a side's first bytes; `None` means that more are needed.
///
/// A server may send other lines before it, which a client must ignore; a client may not. A line may end with a bare
/// LF, which OpenSSH takes, too. 1.99 is a server that would still speak SSH 1 (RFC 4253 section 5.1).
///
/// # Errors
/// It cannot become one any more, or is too long.
pub fn read(bytes: &[u8], from: Side) -> Result<Option<Line<'_>>, NotSsh> {
    let mut length = 0;
    for line in bytes.split_inclusive(|&byte| byte == b'\n') {
        length += line.len();
        // However many bytes a read has brought.
        if length > MOST_BYTES {
            return Err(NotSsh);
        }
        if from == Side::Client || begins(line, b"SSH-") {
            return identification(line).map(|software| software.map(|software| Line { length, software }));
        }
    }
    if bytes.len() < MOST_BYTES {
        Ok(None)
    } else {
        Err(NotSsh)
    }
}

/// What stands behind the version of a line that has to be an identification; `None` before its end.
fn identification(line: &[u8]) -> Result<Option<&[u8]>, NotSsh> {
    let Some(version) = VERSIONS.into_iter().find(|version| begins(line, version)) else {
        return Err(NotSsh);
    };
    let Some(whole) = line.strip_suffix(b"\n") else {
        return if line.len() < LONGEST { Ok(None) } else { Err(NotSsh) };
    };
    let whole = whole.strip_suffix(b"\r").unwrap_or(whole);
    let software = whole.strip_prefix(version).unwrap_or_default();
    if line.len() > LONGEST || software.is_empty() || software.iter().any(|byte| matches!(byte, 0 | b'\r')) {
        return Err(NotSsh);
    }
    Ok(Some(software))
}

/// Whether the line begins like that, or may once there is more of it.
fn begins(line: &[u8], with: &[u8]) -> bool {
    line.iter().zip(with).all(|(byte, expected)| byte == expected)
}

const VERSIONS: [&[u8]; 2] = [b"SSH-2.0-", b"SSH-1.99-"];
/// Of an identification, its line end included (RFC 4253 section 4.2).
const LONGEST: usize = 255;
/// Of all lines of a server up to its identification: OpenSSH takes 8 KiB for one, and nobody sends more than a few.
const MOST_BYTES: usize = 8 * 1024;
/// What comes behind the line is the relay's: no more of it than a read brings.
const CHUNK: usize = 1024;

#[cfg(test)]
mod tests;
