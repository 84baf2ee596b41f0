//! Credentials cached for the life of the process: a plugin that opens a browser runs only after the proxy has rejected
//! the current credentials, not once per request.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::uplink::credentials::{self, Credentials, Source};

/// The last credentials, and when a program may run again.
#[derive(Debug, Default)]
pub(crate) struct CachedLogin {
    last: Option<Credentials>,
    /// When a program may run again for fresh credentials; `None` before the first such run.
    next: Option<Instant>,
    /// The pause after the last such run; zero before the first one.
    pause: Duration,
}

impl CachedLogin {
    /// Returns the credentials for a request. Those of a program or a kubeconfig are used until the proxy rejects them,
    /// as a program may not work on the network of a later request. A token file is read each time.
    pub(crate) async fn credentials(&mut self, source: &credentials::Options) -> anyhow::Result<Credentials> {
        if let Some(kept) = self.last.as_ref().filter(|last| last.is_of_program) {
            return Ok(kept.clone());
        }
        Ok(self.last.insert(source.obtain().await?).clone())
    }

    /// Gets credentials after the current ones were rejected. A program runs at once the first time, then with growing
    /// pauses, as the user may be away.
    pub(crate) async fn fresh(&mut self, source: &credentials::Options) -> anyhow::Result<Credentials> {
        if may_run_a_program(source.source.as_ref()) {
            if let Some(next) = self.next {
                sleep_until(next).await;
            }
            self.pause = (self.pause * 2).clamp(MIN_PLUGIN_INTERVAL, MAX_PLUGIN_INTERVAL);
            self.next = Some(Instant::now() + self.pause);
        }
        let obtained = source.obtain().await;
        if may_run_a_program(source.source.as_ref()) {
            // A login may have taken minutes.
            self.next = Some(Instant::now() + self.pause);
        }
        Ok(self.last.insert(obtained?).clone())
    }

    /// Notes that the proxy has accepted a request, which shortens the pause to at most [`MIN_PLUGIN_INTERVAL`].
    pub(crate) fn succeeded(&mut self) {
        self.pause = self.pause.min(MIN_PLUGIN_INTERVAL);
        self.next = self.next.map(|next| next.min(Instant::now() + MIN_PLUGIN_INTERVAL));
    }
}

fn may_run_a_program(source: Option<&Source>) -> bool {
    match source {
        None | Some(Source::Token(_) | Source::TokenFile(_)) => false,
        Some(Source::TokenCommand(_) | Source::Kubeconfig { .. }) => true,
    }
}

/// The first pause between two runs of a program for fresh credentials.
const MIN_PLUGIN_INTERVAL: Duration = Duration::from_secs(60);
/// The maximum pause between two runs of a program.
const MAX_PLUGIN_INTERVAL: Duration = Duration::from_secs(16 * 60);
