//! Waits where the proxy says when another request makes sense: `--wait`.

use std::io::{self, Write};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::dialing::Dialing;
use super::login::Login;
use super::opened::Opened;
use super::{ClientError, LONGEST_LINE, Options, attempt};
use crate::text::{chain, printable};

/// Opens the tunnel. A 429 or 503 is followed by another request when the proxy asks for it, for as long as
/// [`Options::wait`].
pub(super) async fn open(options: &Options, login: &mut Login, dialing: &mut Dialing) -> Result<Opened, ClientError> {
    let until = options.wait.and_then(|wait| Instant::now().checked_add(wait));
    let mut is_told = false;
    loop {
        let error = match Box::pin(attempt::open(options, login, dialing)).await {
            Err(error) => error,
            opened => return opened,
        };
        let (Some(until), Some(pause)) = (until, pause(&error)) else {
            return Err(error);
        };
        if Instant::now() + pause > until {
            return Err(error);
        }
        if options.verbose || !is_told {
            is_told = true;
            let line = printable(&chain(&error), LONGEST_LINE);
            writeln!(io::stderr(), "switchboard: {line}: waiting").ok();
        }
        sleep(pause).await;
    }
}

/// The time until another request makes sense.
fn pause(error: &ClientError) -> Option<Duration> {
    if let ClientError::Refused {
        status: 429 | 503,
        retry_after,
        ..
    } = error
    {
        return Some(retry_after.unwrap_or(UNNAMED).max(SHORTEST));
    }
    None
}

/// Where the proxy names no time.
const UNNAMED: Duration = Duration::from_secs(5);
/// A proxy that names none at all does not make this client spin.
const SHORTEST: Duration = Duration::from_secs(1);
