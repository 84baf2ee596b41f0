//! Waits where the proxy says when another request makes sense: `--wait`, and always for a target that it has started.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::attempt;
use super::attempt::Tunnel;
use crate::base::text::printable;
use crate::client::options::Options;
use crate::client::stderr::{self, MAX_LINE};
use crate::uplink::credential_cache::CachedLogin;
use crate::uplink::dial::dialer::ProxyDialer;
use crate::uplink::error::ClientError;

/// Opens the tunnel. A 429 or 503 is followed by another request when the proxy asks for it, for as long as
/// [`Options::wait`]. A target that is starting is waited for, as long as the proxy gives it, whatever that option says.
pub(in crate::client) async fn open(
    options: &Options,
    login: &mut CachedLogin,
    dialing: &mut ProxyDialer,
) -> Result<Tunnel, ClientError> {
    let until = options.wait.and_then(|wait| Instant::now().checked_add(wait));
    let (began, mut starts_by) = (Instant::now(), None);
    let mut is_told = false;
    loop {
        let refusal = match Box::pin(attempt::open(options, login, dialing)).await {
            Err(ClientError::Refused(refusal)) if matches!(refusal.status, 429 | 503) => refusal,
            ended => return ended,
        };
        // The proxy ends the wait for a start by another answer; one that does not is given up when the time that it has
        // named first is over.
        let left = refusal.starting.filter(|_| refusal.status == 503);
        let left = left.map(|left| left.min(MAX_RETRY_AFTER));
        if let Some(left) = left.filter(|_| starts_by.is_none_or(|by| Instant::now() < by)) {
            starts_by.get_or_insert(Instant::now() + left + GRACE);
            // Each request is held for a while by the proxy, so the line comes every ten seconds or so.
            let (waited, left) = (began.elapsed().as_secs(), left.as_secs());
            let target = &options.target;
            stderr::line(&format!("{target} is starting: waited {waited} s, {left} s left"));
            sleep(MIN_RETRY_AFTER).await;
            continue;
        }
        let pause = refusal.retry_after.unwrap_or(UNNAMED).max(MIN_RETRY_AFTER);
        if until.is_none_or(|until| Instant::now() + pause > until) {
            return Err(ClientError::Refused(refusal));
        }
        if options.verbose || !is_told {
            is_told = true;
            stderr::line(&format!("{}: waiting", printable(&refusal.to_string(), MAX_LINE)));
        }
        sleep(pause).await;
    }
}

/// Where the proxy names no time.
const UNNAMED: Duration = Duration::from_secs(5);
/// The longest pause that a proxy may name.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);
/// Behind the time that it has named, for its last answer.
const GRACE: Duration = Duration::from_secs(30);
/// A proxy that names none at all does not make this client spin.
const MIN_RETRY_AFTER: Duration = Duration::from_secs(1);
