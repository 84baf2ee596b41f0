//! The credentials of one process over all of its requests: a plugin that opens a browser runs when the proxy has refused
//! what there is, and not at each request.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::uplink::credentials::{self, Credentials, Source};

/// The last credentials, and when a source may be asked again.
#[derive(Debug, Default)]
pub(crate) struct CachedLogin {
    last: Option<Credentials>,
    /// When fresh credentials may be asked for again.
    next: Option<Instant>,
    /// The time between the last two runs; zero in front of the first one.
    pause: Duration,
}

impl CachedLogin {
    /// The credentials for a request. Those that a program gave are shown until the proxy refuses them: the network of a
    /// second request may be one on which the program cannot work. Files are read again.
    pub(crate) async fn credentials(&mut self, source: &credentials::Options) -> anyhow::Result<Credentials> {
        if let Some(kept) = &self.last
            && may_run_a_program(source.source.as_ref())
        {
            return Ok(kept.clone());
        }
        Ok(self.last.insert(source.obtain().await?).clone())
    }

    /// The credentials after a refusal of those before. A program is asked at once for the first time, and then
    /// with pauses that grow: the user may be away.
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

    /// The proxy has opened a tunnel: the next refusal is a new one.
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

/// Between two runs of a program for fresh credentials.
const MIN_PLUGIN_INTERVAL: Duration = Duration::from_secs(60);
/// Between two runs while none of them helps.
const MAX_PLUGIN_INTERVAL: Duration = Duration::from_secs(16 * 60);
