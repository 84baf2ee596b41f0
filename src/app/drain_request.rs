//! Asks a process on this host to drain, and waits until it has: a preStop hook that needs neither shell nor signal.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::admin::Progress;

/// Whom to ask, and what to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The admin port of the process.
    pub admin: SocketAddr,
    /// `None` returns at once.
    pub wait: Option<Wait>,
}

/// What to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// How many tunnels may be left.
    pub at_most: u32,
    /// For how long at most; `None` is for ever.
    pub timeout: Option<Duration>,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It drains, and is that far; after a wait no more tunnels are left than may be.
    Drains(Progress),
    /// It has ended meanwhile.
    Ended,
    /// More tunnels were left when the time was over.
    Late(Progress),
}

/// Why nobody drains, or nobody knows.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// Nobody answers there.
    #[error("cannot ask {address} to drain")]
    Unreachable {
        /// Where.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Somebody answers, and does not drain.
    #[error("{address} does not drain: {answer}")]
    Refused {
        /// Who.
        address: SocketAddr,
        /// The status line, and what it says.
        answer: String,
    },
}

/// Asks, and waits as asked.
///
/// # Errors
/// See [`Fault`]. A process that has begun to drain and is gone then is no error: it has ended.
pub fn drain(options: &Options) -> Result<Answer, Fault> {
    let address = reachable(options.admin);
    let start = Instant::now();
    let mut progress = ask(address, "POST")?;
    let Some(Wait { at_most, timeout }) = options.wait else {
        return Ok(Answer::Drains(progress));
    };
    let mut unanswered = 0;
    loop {
        // As long as the ports are open more may come.
        let is_open = matches!(progress.phase.as_str(), "serving" | "leaving" | "parting");
        if !is_open && progress.tunnels <= at_most {
            return Ok(Answer::Drains(progress));
        }
        if timeout.is_some_and(|timeout| start.elapsed() >= timeout) {
            return Ok(Answer::Late(progress));
        }
        sleep(BETWEEN_LOOKS);
        match ask(address, "GET") {
            Ok(further) => (progress, unanswered) = (further, 0),
            Err(Fault::Unreachable { source, .. }) if source.kind() == io::ErrorKind::ConnectionRefused => {
                return Ok(Answer::Ended);
            }
            Err(fault) if unanswered == MOST_UNANSWERED => return Err(fault),
            Err(_) => unanswered += 1,
        }
    }
}

/// An address to listen on is often none to connect to.
fn reachable(admin: SocketAddr) -> SocketAddr {
    let loopback = match admin {
        SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    let ip = if admin.ip().is_unspecified() {
        loopback
    } else {
        admin.ip()
    };
    SocketAddr::new(ip, admin.port())
}

fn ask(address: SocketAddr, method: &str) -> Result<Progress, Fault> {
    let answer = exchange(address, method).map_err(|source| Fault::Unreachable { address, source })?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1);
    match serde_json::from_str(body) {
        Ok(progress) if matches!(status, Some("200" | "202")) => Ok(progress),
        Ok(_) | Err(_) => {
            let line = head.lines().next().unwrap_or_default();
            let said = body.lines().next().unwrap_or_default();
            let answer = format!("{line}: {said}").escape_debug().to_string();
            Err(Fault::Refused { address, answer })
        }
    }
}

fn exchange(address: SocketAddr, method: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let request =
        format!("{method} /drain HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.take(LONGEST_ANSWER).read_to_string(&mut answer)?;
    Ok(answer)
}

const BETWEEN_LOOKS: Duration = Duration::from_millis(200);
/// A process with work to do answers within milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);
/// Then it hangs, or is another one.
const MOST_UNANSWERED: u32 = 20;
const LONGEST_ANSWER: u64 = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_to_listen_on_is_asked_on_loopback() {
        for (admin, asked) in [
            ("0.0.0.0:9090", "127.0.0.1:9090"),
            ("[::]:9090", "[::1]:9090"),
            ("192.0.2.1:9090", "192.0.2.1:9090"),
        ] {
            assert_eq!(reachable(admin.parse().unwrap()), asked.parse().unwrap());
        }
    }
}
