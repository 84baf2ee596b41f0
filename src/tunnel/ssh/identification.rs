//! Lets a tunnel begin only if both sides speak SSH: each must begin with an identification (RFC 4253 section 4.2).
//!
//! An identification is passed on once it is complete. The bytes after it wait until both sides have identified
//! themselves. So a server that does not speak SSH gets at most one harmless line.
//!
//! Exception: the announcement of an anchor (`protocol/resume/`), with which a target may begin, is passed on at once.
//! A session's client sends nothing before the announcement, and the anchor identifies itself after the client.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::mem::take;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use crate::base::text::ascii;
use crate::net::transport::{Reader, Transport, Writer, read_more};
use crate::protocol::resume::handshake::lines;
use crate::tunnel::direction::Direction;
use crate::tunnel::outcome::{Close, CloseReason, Side};
use crate::tunnel::relay::meter::Meter;
use crate::tunnel::relay::{EarlyData, Failure, Transports};

/// Passes on the identification of each side, in either order, and calls `identified` with it. `deadline` is the time
/// for both.
///
/// The bytes after an identification become early data in `transports`. A side that finishes before its identification
/// ends the tunnel: it does not speak SSH, and the other side's bytes are not for it.
///
/// # Errors
/// How the tunnel ends: [`CloseReason::NotSsh`], or as a relay would.
pub async fn exchange<D: Transport, U: Transport>(
    transports: &mut Transports<D, U>,
    meter: &Meter,
    deadline: Duration,
    identified: impl Fn(Side, Line<'_>) + Sync,
) -> Result<(), Close> {
    let (from_client, to_client) = transports.downstream.split();
    let (from_target, to_target) = transports.upstream.split();
    let early = transports.early.get_or_insert_default();
    let progress = PassedCount::default();
    let client_says = |line: Line<'_>| identified(Side::Client, line);
    let target_says = |line: Line<'_>| identified(Side::Target, line);
    let mut upload = HeldDirection::new(Direction::Upload, from_client, to_target, take(&mut early.upload));
    let mut download = HeldDirection::new(Direction::Download, from_target, to_client, take(&mut early.download));
    let both = async {
        tokio::select! {
            biased;
            () = progress.all.notified() => Ok(()),
            close = upload.run(meter, &progress, client_says) => Err(close),
            close = download.run(meter, &progress, target_says) => Err(close),
        }
    };
    let result = timeout(deadline, both).await;
    let result = result.unwrap_or(Err(Close {
        by: if download.passed { Side::Client } else { Side::Target },
        reason: CloseReason::NotSsh,
    }));
    **early = EarlyData {
        upload: upload.held,
        download: download.held,
        inspector: early.inspector.take(),
    };
    result
}

/// The number of sides whose identification has been passed on.
#[derive(Debug, Default)]
struct PassedCount {
    passed: AtomicU8,
    all: Notify,
}

impl PassedCount {
    fn passed(&self) {
        if self.passed.fetch_add(1, Ordering::Relaxed) == 1 {
            self.all.notify_one();
        }
    }
}

/// One direction until its identification has been passed on.
#[derive(Debug)]
struct HeldDirection<R, W> {
    direction: Direction,
    reader: R,
    writer: W,
    held: Vec<u8>,
    /// The bytes of the announcement that was passed on.
    announced: usize,
    passed: bool,
}

impl<R: Reader, W: Writer> HeldDirection<R, W> {
    fn new(direction: Direction, reader: R, writer: W, held: Vec<u8>) -> Self {
        Self {
            direction,
            reader,
            writer,
            held,
            announced: 0,
            passed: false,
        }
    }

    /// Passes the identification on, then completes only when its side fails.
    async fn run(&mut self, meter: &Meter, progress: &PassedCount, identified: impl Fn(Line<'_>)) -> Close {
        if let Err(close) = self.pass(meter, identified).await {
            return close;
        }
        self.passed = true;
        progress.passed();
        let error = self.reader.failed().await;
        let by = self.direction.sender();
        Failure::new(by, &error).into()
    }

    async fn pass(&mut self, meter: &Meter, identified: impl Fn(Line<'_>)) -> Result<(), Close> {
        let source = self.direction.sender();
        let length = loop {
            if let Some(length) = self.announcement() {
                self.announced = length;
                self.send(length, meter).await?;
            }
            match read_within(&self.held, source, MAX_BYTES - self.announced) {
                Ok(Some(line)) => {
                    identified(line);
                    break line.length;
                }
                Ok(None) if !self.is_http() => {}
                Ok(None) | Err(NotSsh) => {
                    return Err(Close {
                        by: source,
                        reason: CloseReason::NotSsh,
                    });
                }
            }
            let more = read_more(&mut self.reader, CHUNK, &mut self.held).await;
            if more.map_err(|error| Failure::new(source, &error))? == 0 {
                return Err(Close {
                    by: source,
                    reason: CloseReason::Eof,
                });
            }
        };
        self.send(length, meter).await
    }

    /// Returns whether a target answers the client's identification with a status line. Lines before an identification
    /// are allowed, so the tunnel would otherwise last until the web server closes it, or until the deadline.
    fn is_http(&self) -> bool {
        self.direction == Direction::Download && self.held.starts_with(b"HTTP/")
    }

    /// Returns the length of the announcement with which a target begins; `None` if there is none, or one was passed
    /// on.
    fn announcement(&self) -> Option<usize> {
        let may_be_one = self.direction == Direction::Download && self.announced == 0;
        if may_be_one {
            lines::announcement_length(&self.held)
        } else {
            None
        }
    }

    /// Passes on the first bytes of those that are held.
    async fn send(&mut self, length: usize, meter: &Meter) -> Result<(), Close> {
        let by = self.direction.receiver();
        let rest = self.held.split_off(length);
        let line = std::mem::replace(&mut self.held, rest);
        let mut line = line.as_slice();
        let sent = poll_fn(|context| self.poll_send(context, &mut line, meter)).await;
        sent.map_err(|error| Failure::new(by, &error).into())
    }

    fn poll_send(&mut self, context: &mut Context<'_>, line: &mut &[u8], meter: &Meter) -> Poll<io::Result<()>> {
        while !line.is_empty() {
            let written = ready!(self.writer.poll_write(context, line))?;
            meter.record(self.direction, written);
            *line = line.get(written..).unwrap_or_default();
        }
        self.writer.poll_flush(context)
    }
}

/// An identification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// The number of bytes up to and with its line end, those of earlier lines included.
    pub length: usize,
    /// The line itself, with its end.
    pub text: &'a [u8],
    /// The text after `SSH-2.0-`.
    pub software: &'a [u8],
}

/// A side does not begin with an identification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotSsh;

/// Looks for the identification among a side's first bytes; `None` means that more are needed.
///
/// Only a server may send other lines before its identification. A line may end with a bare LF, which OpenSSH takes,
/// too. Version 1.99 is that of a server that also speaks SSH 1 (RFC 4253 section 5.1).
///
/// # Errors
/// The bytes cannot become an identification any more, or are too many.
pub fn read(bytes: &[u8], from: Side) -> Result<Option<Line<'_>>, NotSsh> {
    read_within(bytes, from, MAX_BYTES)
}

/// Like [`read`], but all lines together have at most `max` bytes.
fn read_within(bytes: &[u8], from: Side, max: usize) -> Result<Option<Line<'_>>, NotSsh> {
    let mut length = 0;
    for text in bytes.split_inclusive(|&byte| byte == b'\n') {
        length += text.len();
        // The result must not depend on the sizes of the reads.
        if length > max {
            return Err(NotSsh);
        }
        if from == Side::Client || begins(text, b"SSH-") {
            let software = identification(text)?;
            return Ok(software.map(|software| Line { length, text, software }));
        }
    }
    if bytes.len() < max { Ok(None) } else { Err(NotSsh) }
}

/// Returns the software in a line that has to be an identification; `None` before the line is complete.
fn identification(line: &[u8]) -> Result<Option<&[u8]>, NotSsh> {
    let Some(version) = VERSIONS.into_iter().find(|version| begins(line, version)) else {
        return Err(NotSsh);
    };
    let Some(whole) = line.strip_suffix(b"\n") else {
        return if line.len() < MAX_LINE_BYTES {
            Ok(None)
        } else {
            Err(NotSsh)
        };
    };
    let whole = whole.strip_suffix(b"\r").unwrap_or(whole);
    let software = whole.strip_prefix(version).unwrap_or_default();
    if line.len() > MAX_LINE_BYTES || software.is_empty() || software.iter().any(|byte| matches!(byte, 0 | b'\r')) {
        return Err(NotSsh);
    }
    Ok(Some(software))
}

/// Returns whether the line begins with these bytes, or may do so once there is more of it.
fn begins(line: &[u8], with: &[u8]) -> bool {
    line.iter().zip(with).all(|(byte, expected)| byte == expected)
}

/// The software of one side, in its own words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Software(Box<str>);

impl Software {
    /// Parses the software after `SSH-2.0-`. Each byte that is not printable ASCII becomes a `?`: the text is logged.
    ///
    /// Of a session's client only version and purpose are kept: its key or the session's id follows, and is not logged.
    pub fn parse(bytes: &[u8]) -> Self {
        let shown = if bytes.starts_with(RESUMING) {
            let words = bytes.split_inclusive(|byte| *byte == b' ').take(2);
            let length = words.map(<[u8]>::len).sum();
            bytes.get(..length).unwrap_or(bytes).trim_ascii_end()
        } else {
            bytes
        };
        Self(ascii(shown.iter().copied().map(char::from)))
    }
}

impl fmt::Display for Software {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

const VERSIONS: [&[u8]; 2] = [b"SSH-2.0-", b"SSH-1.99-"];
/// The longest identification in bytes, its line end included (RFC 4253 section 4.2).
const MAX_LINE_BYTES: usize = 255;
/// The most bytes of all lines of a server up to its identification. OpenSSH takes as many in one line.
const MAX_BYTES: usize = 8 * 1024;
/// The maximum size of a read: small, so that most bytes after the identification are left to the relay.
const CHUNK: usize = 1024;
/// The beginning of the software that a session's client names (`docs/resume.md`).
const RESUMING: &[u8] = b"switchboard_resume_";

#[cfg(test)]
mod tests;
