//! Retries after a 429 or 503: with `--wait`, and always for a target that the proxy is starting.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::attempt;
use super::attempt::Tunnel;
use crate::base::text::printable;
use crate::client::options::Options;
use crate::client::stderr::MAX_LINE;
use crate::uplink::credential_cache::CachedLogin;
use crate::uplink::dial::dialer::ProxyDialer;
use crate::uplink::error::ClientError;

/// Opens the tunnel. After a 429 or 503 it retries for at most [`Options::wait`], with the pauses of Retry-After. For a
/// starting target it waits as long as the proxy's answer allows, regardless of that option.
pub(in crate::client) async fn open(
    options: &Options,
    login: &mut CachedLogin,
    dialer: &mut ProxyDialer,
) -> Result<Tunnel, ClientError> {
    let (began, mut starts_by) = (Instant::now(), None);
    let mut is_told = false;
    loop {
        let refusal = match Box::pin(attempt::open(options, login, dialer)).await {
            Err(ClientError::Refused(refusal)) if matches!(refusal.status, 429 | 503) => refusal,
            ended => return ended,
        };
        // The wait for a start ends `GRACE` after the time that the first answer has named. An answer that names no such
        // time is handled as any other refusal.
        let is_overdue = starts_by.is_some_and(|by| Instant::now() >= by);
        let starting = refusal.starting.filter(|_| refusal.status == 503 && !is_overdue);
        if let Some(left) = starting.map(|left| left.min(MAX_START_TIME)) {
            starts_by.get_or_insert(Instant::now() + left + GRACE);
            // The proxy holds each request, so the line comes about every ten seconds.
            let (target, waited, left) = (&options.target, began.elapsed().as_secs(), left.as_secs());
            (options.output.0)(&format!("{target} is starting: waited {waited} s, {left} s left"));
            sleep(MIN_PAUSE).await;
            continue;
        }
        let pause = refusal.retry_after.unwrap_or(DEFAULT_PAUSE).max(MIN_PAUSE);
        if options
            .wait
            .is_none_or(|wait| pause > wait.saturating_sub(began.elapsed()))
        {
            return Err(ClientError::Refused(refusal));
        }
        if options.verbose || !is_told {
            is_told = true;
            (options.output.0)(&format!("{}: waiting", printable(&refusal.to_string(), MAX_LINE)));
        }
        sleep(pause).await;
    }
}

/// The pause if the proxy names none.
const DEFAULT_PAUSE: Duration = Duration::from_secs(5);
/// The maximum time to start that a proxy may name.
const MAX_START_TIME: Duration = Duration::from_secs(3600);
/// The time for the proxy's last answer, after the time to start.
const GRACE: Duration = Duration::from_secs(30);
/// The minimum pause, so that a proxy that names zero does not make this client spin.
const MIN_PAUSE: Duration = Duration::from_secs(1);
