//! Credentials cached for the life of the process: a plugin that opens a browser runs only after the proxy has rejected
//! the current credentials, not once per request.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::base::random::Backoff;
use crate::uplink::credentials::{self, Credentials};

/// The last credentials, and when a program may run again.
#[derive(Debug, Default)]
pub(crate) struct CachedLogin {
    last: Option<Credentials>,
    /// When a program may run again for fresh credentials; `None` before the first such run.
    next: Option<Instant>,
    /// The number of such runs since the proxy last accepted a request, and one before.
    runs: u32,
}

impl CachedLogin {
    /// Returns the credentials for a request. A program's output is used until the proxy rejects it, as the program may
    /// not work on the network of a later request. Files are read again.
    pub(crate) async fn credentials(&mut self, source: &credentials::Options) -> anyhow::Result<Credentials> {
        if let Some(kept) = self.last.as_ref().filter(|last| last.is_of_program) {
            return Ok(kept.clone());
        }
        self.obtain(source).await
    }

    /// Gets credentials after the current ones were rejected. A program runs at once the first time, then with growing
    /// pauses, as the user may be away.
    pub(crate) async fn fresh(&mut self, source: &credentials::Options) -> anyhow::Result<Credentials> {
        if self.last.as_ref().is_none_or(|last| !last.is_of_program) {
            return self.obtain(source).await;
        }
        if let Some(next) = self.next {
            sleep_until(next).await;
        }
        let pause = PLUGIN_INTERVALS.after(self.runs);
        self.runs = self.runs.saturating_add(1);
        self.next = Some(Instant::now() + pause);
        let obtained = self.obtain(source).await;
        // A login may have taken minutes.
        self.next = Some(Instant::now() + pause);
        obtained
    }

    /// Gets credentials of the first ones' context: `kubectl config use-context` must not change the user of a session.
    async fn obtain(&mut self, source: &credentials::Options) -> anyhow::Result<Credentials> {
        let context = self.last.as_ref().and_then(|last| last.context.clone());
        let obtained = source.of_context(context).obtain().await?;
        Ok(self.last.insert(obtained).clone())
    }

    /// Notes that the proxy has accepted a request, which shortens the pause to that after the first run.
    pub(crate) fn succeeded(&mut self) {
        self.runs = self.runs.min(1);
        self.next = self.next.map(|next| next.min(Instant::now() + PLUGIN_INTERVALS.first));
    }
}

/// The pauses between two runs of a program for fresh credentials.
const PLUGIN_INTERVALS: Backoff = Backoff {
    first: Duration::from_secs(60),
    max: Duration::from_secs(16 * 60),
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uplink::credentials::Source;

    #[tokio::test(start_paused = true)]
    async fn a_program_runs_again_with_pauses_that_grow_and_a_file_is_read_without() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "token").unwrap();
        let source = credentials::Options {
            source: Some(Source::TokenFile(file.path().to_owned())),
            ..credentials::Options::default()
        };
        let mut login = CachedLogin::default();
        let begun = Instant::now();
        for seconds in [0, 60, 60 + 120, 60 + 120 + 240] {
            // As if a program had printed it: processes know nothing of a paused clock.
            login.last = Some(login.credentials(&source).await.unwrap().of_program());
            login.fresh(&source).await.unwrap();
            assert_eq!(begun.elapsed().as_secs(), seconds);
        }
        login.fresh(&source).await.unwrap();
        login.succeeded();
        login.last = Some(login.credentials(&source).await.unwrap().of_program());
        let asked = Instant::now();
        login.fresh(&source).await.unwrap();
        assert_eq!(asked.elapsed().as_secs(), 60);
    }
}
