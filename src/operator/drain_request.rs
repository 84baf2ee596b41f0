//! The client of `POST /drain`: makes a process on this host drain and waits for it, as a preStop hook that needs neither
//! shell nor signal.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use clap::Args;
use tokio::time::sleep;

use super::replicas::{AdminRequest, Replica, ReplicaError};
use crate::base::values;
use crate::daemon::admin::DrainStatus;

/// The process to drain, and how long to wait for it: the arguments of the program.
#[derive(Args, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The admin port of the process
    #[arg(
        long,
        env = "SWITCHBOARD_ADMIN",
        value_name = "ADDR",
        value_parser = values::address,
        default_value = "127.0.0.1:9090"
    )]
    admin: SocketAddr,
    /// Return when the tunnels of the process have ended
    #[arg(long)]
    wait: bool,
    /// Return when no resumable tunnel and at most N others are left
    #[arg(long, value_name = "N", default_value_t = 0, requires = "wait")]
    at_most: u32,
    /// Wait no longer than this, such as 50m
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, requires = "wait")]
    timeout: Option<Duration>,
}

/// The state of the process at the end of the wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaAnswer {
    /// It drains; after a wait, with at most as many tunnels as allowed. At the timeout there may be resumable ones besides,
    /// which survive the end of the process.
    Draining(DrainStatus),
    /// It has ended.
    Ended,
    /// More tunnels than allowed were left at the timeout.
    TimedOut(DrainStatus),
}

/// The process does not drain, or its state is unknown.
#[derive(Debug, thiserror::Error)]
#[error("cannot ask {address} to drain: {error}")]
pub struct RequestError {
    address: SocketAddr,
    error: ReplicaError,
}

/// Starts the drain, and waits for its end if the options say so.
///
/// # Errors
/// See [`RequestError`]. A process that drains and then refuses connections has ended, which is not an error.
pub async fn drain(options: &Options) -> Result<ReplicaAnswer, RequestError> {
    let address = options.admin;
    let failed = |error| RequestError { address, error };
    let process = Replica::at(address, ANSWER_TIMEOUT);
    let start = Instant::now();
    let mut progress: DrainStatus = process
        .request(&AdminRequest::post("/drain").acknowledged())
        .await
        .map_err(failed)?;
    if !options.wait {
        return Ok(ReplicaAnswer::Draining(progress));
    }
    let mut failures = 0;
    loop {
        // While the ports are open, new tunnels may begin.
        let is_open = matches!(progress.phase.as_str(), "serving" | "not_ready" | "closing_listeners");
        let resumable = progress.resumable.unwrap_or_default();
        let are_few = !is_open && progress.tunnels.saturating_sub(resumable) <= options.at_most;
        // Also waits for resumable tunnels, which move away within seconds: those left at the end of the process would
        // all reconnect at the same moment.
        if are_few && resumable == 0 {
            return Ok(ReplicaAnswer::Draining(progress));
        }
        if options.timeout.is_some_and(|timeout| start.elapsed() >= timeout) {
            return Ok(if are_few {
                ReplicaAnswer::Draining(progress)
            } else {
                ReplicaAnswer::TimedOut(progress)
            });
        }
        sleep(POLL_INTERVAL).await;
        match process.request(&AdminRequest::get("/drain").acknowledged()).await {
            Ok(further) => (progress, failures) = (further, 0),
            Err(ReplicaError::Closed(_)) => return Ok(ReplicaAnswer::Ended),
            Err(error) if failures == MAX_FAILURES => return Err(failed(error)),
            Err(_) => failures += 1,
        }
    }
}

const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// A process with work to do answers within milliseconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The tolerated failures of polls in a row. After one more, within 110 seconds, the process counts as hung.
const MAX_FAILURES: u32 = 20;

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn no_more_of_an_answer_is_read_than_an_acknowledgement_has() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let options = Options {
            admin: listener.local_addr().unwrap(),
            wait: false,
            at_most: 0,
            timeout: None,
        };
        let answer = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert!(stream.read(&mut [0; 1024]).await.unwrap() > 0);
            stream.write_all(b"HTTP/1.1 202 Accepted\r\n\r\n").await.unwrap();
            // Without an end, until the client closes the connection.
            while stream.write_all(&[b' '; 4096]).await.is_ok() {}
        });
        let error = drain(&options).await.unwrap_err().to_string();
        assert!(error.ends_with("its answer has more than 1 MiB"), "{error}");
        answer.await.unwrap();
    }
}
