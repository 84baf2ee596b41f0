//! Reports the outage of a session to the user: one line when it lasts, and one when it is over.

use std::time::Duration;

use tokio::time::Instant;

use crate::base::text::{chain, printable};
use crate::client::stderr::{MAX_LINE, UserOutput};
use crate::uplink::error::ClientError;

/// The time since the connection was lost, and what was reported.
#[derive(Debug)]
pub(super) struct OutageReporter {
    output: UserOutput,
    proxy: String,
    outage: Option<Outage>,
}

#[derive(Debug)]
struct Outage {
    started: Instant,
    reason: String,
    is_reported: bool,
}

impl OutageReporter {
    /// Creates the report for connections through a proxy of that name.
    pub(super) fn new(output: UserOutput, proxy: &str) -> Self {
        Self {
            output,
            proxy: proxy.to_owned(),
            outage: None,
        }
    }

    /// Notes that there is no connection, and the reason.
    pub(super) fn lost(&mut self, error: &ClientError) {
        let reason = chain(error);
        match &mut self.outage {
            Some(outage) => outage.reason = reason,
            None => {
                self.outage = Some(Outage {
                    started: Instant::now(),
                    reason,
                    is_reported: false,
                });
            }
        }
    }

    /// Returns the time without a connection, and its last reason.
    pub(super) fn outage(&self) -> Option<(Duration, &str)> {
        let outage = self.outage.as_ref()?;
        Some((outage.started.elapsed(), &outage.reason))
    }

    /// Reports an outage that lasts. To be called regularly.
    pub(super) fn tick(&mut self) {
        if let Some(outage) = &mut self.outage
            && !outage.is_reported
            && outage.started.elapsed() >= MIN_REPORTED_OUTAGE
        {
            outage.is_reported = true;
            let line = format!("reconnecting to {}: {}", self.proxy, outage.reason);
            (self.output.0)(&printable(&line, MAX_LINE));
        }
    }

    /// Ends an outage, and reports that.
    pub(super) fn connected(&mut self) {
        if let Some(outage) = self.outage.take().filter(|outage| outage.is_reported) {
            let line = format!("reconnected after {} s", outage.started.elapsed().as_secs());
            (self.output.0)(&line);
        }
    }
}

/// A shorter outage is not reported, as a user hardly notices it.
const MIN_REPORTED_OUTAGE: Duration = Duration::from_secs(3);
