//! The client of `POST /drain`: asks a process on this host to drain and waits for it, as a preStop hook that needs
//! neither shell nor signal.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::base::text::escaped;
use crate::daemon::admin::Progress;
use crate::net::listener::reachable;

/// The process to ask, and how long to wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The admin port of the process.
    pub admin: SocketAddr,
    /// The end of the wait; `None` returns once the drain has begun.
    pub wait: Option<Wait>,
}

/// The end of the wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The wait ends when no resumable tunnel is left, and no more others than this.
    pub at_most: u32,
    /// The longest wait; `None` has no end.
    pub timeout: Option<Duration>,
}

/// The state of the process at the end of the wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It drains; after a wait, with no more tunnels than allowed. At the timeout there may still be resumable ones, which no
    /// end of the process cuts.
    Draining(Progress),
    /// The process has ended.
    Ended,
    /// More tunnels than allowed were left at the timeout.
    TimedOut(Progress),
}

/// Why the process does not drain, or its state is unknown.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The request had no answer.
    #[error("cannot ask {address} to drain")]
    Unreachable {
        /// The admin port.
        address: SocketAddr,
        /// The fault of the connection.
        #[source]
        source: io::Error,
    },
    /// The answer is not that of a process that drains.
    #[error("{address} does not drain: {answer}")]
    Refused {
        /// The admin port.
        address: SocketAddr,
        /// The status line, and the first line of the body.
        answer: String,
    },
}

/// Begins the drain, and waits for its end if the options say so.
///
/// # Errors
/// See [`RequestError`]. A process that drains and then refuses connections has ended, which is not an error.
pub fn drain(options: &Options) -> Result<Answer, RequestError> {
    let address = reachable(options.admin);
    let start = Instant::now();
    let mut progress = ask(address, "POST")?;
    let Some(Wait { at_most, timeout }) = options.wait else {
        return Ok(Answer::Draining(progress));
    };
    let mut failures = 0;
    loop {
        // As long as the ports are open, further tunnels may begin.
        let is_open = matches!(progress.phase.as_str(), "serving" | "leaving" | "parting");
        let resumable = progress.resumable.unwrap_or_default();
        let are_few = !is_open && progress.tunnels.saturating_sub(resumable) <= at_most;
        // Resumable tunnels leave within seconds, and are waited for: when the process ends, all that are left reconnect
        // in one moment.
        if are_few && resumable == 0 {
            return Ok(Answer::Draining(progress));
        }
        if timeout.is_some_and(|timeout| start.elapsed() >= timeout) {
            return Ok(if are_few {
                Answer::Draining(progress)
            } else {
                Answer::TimedOut(progress)
            });
        }
        sleep(POLL_INTERVAL);
        match ask(address, "GET") {
            Ok(further) => (progress, failures) = (further, 0),
            Err(RequestError::Unreachable { source, .. }) if source.kind() == io::ErrorKind::ConnectionRefused => {
                return Ok(Answer::Ended);
            }
            Err(error) if failures == MOST_FAILURES => return Err(error),
            Err(_) => failures += 1,
        }
    }
}

fn ask(address: SocketAddr, method: &str) -> Result<Progress, RequestError> {
    let answer = exchange(address, method).map_err(|source| RequestError::Unreachable { address, source })?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1);
    match serde_json::from_str(body) {
        Ok(progress) if matches!(status, Some("200" | "202")) => Ok(progress),
        Ok(_) | Err(_) => {
            let line = head.lines().next().unwrap_or_default();
            let text = body.lines().next().unwrap_or_default();
            let answer = escaped(&format!("{line}: {text}"));
            Err(RequestError::Refused { address, answer })
        }
    }
}

fn exchange(address: SocketAddr, method: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_TIMEOUT)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    let request =
        format!("{method} /drain HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.take(LONGEST_ANSWER).read_to_string(&mut answer)?;
    Ok(answer)
}

const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// A process with work to do answers within milliseconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Polls in a row. After 20, at most 100 seconds, the process hangs.
const MOST_FAILURES: u32 = 20;
const LONGEST_ANSWER: u64 = 64 * 1024;
