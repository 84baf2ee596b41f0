//! Credentials cached for the life of the process: a plugin that opens a browser runs only after the proxy has rejected
//! the current credentials, not once per request.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::base::random::Backoff;
use crate::uplink::credentials::{self, Credentials};

/// A handle to the last credentials, which its clones share: connections that need a login at the same time wait for one
/// run of a program.
#[derive(Clone, Debug, Default)]
pub(crate) struct CachedLogin {
    /// Locked while a program runs.
    last: Arc<Mutex<LastLogin>>,
    /// The [`LastLogin::count`] of the credentials that this handle returned last.
    returned: u64,
}

/// The last credentials, and when a program may run again.
#[derive(Debug, Default)]
struct LastLogin {
    credentials: Option<Credentials>,
    /// The number of credentials so far.
    count: u64,
    /// When a program may run again for fresh credentials; `None` before the first such run.
    next: Option<Instant>,
    /// The number of such runs since the proxy last accepted a request, and one before.
    runs: u32,
}

impl CachedLogin {
    /// Returns the credentials for a request. A program's output is used until the proxy rejects it, as the program may
    /// not work on the network of a later request. Files are read again.
    pub(crate) async fn credentials(&mut self, source: &credentials::Options) -> anyhow::Result<Credentials> {
        let mut last = self.last.lock().await;
        let credentials = match last.of_program() {
            Some(kept) => kept.clone(),
            None => last.obtain(source).await?,
        };
        self.returned = last.count;
        Ok(credentials)
    }

    /// Gets credentials after the current ones were rejected. A program runs at once the first time, then with growing
    /// pauses, as the user may be away; not if it has run since for another connection.
    pub(crate) async fn fresh(&mut self, source: &credentials::Options) -> anyhow::Result<Credentials> {
        loop {
            let mut last = self.last.lock().await;
            let is_newer = last.count > self.returned;
            let credentials = match last.of_program() {
                Some(kept) if is_newer => kept.clone(),
                Some(_) => match last.next.filter(|&next| next > Instant::now()) {
                    Some(next) => {
                        drop(last);
                        sleep_until(next).await;
                        continue;
                    }
                    None => last.run_again(source).await?,
                },
                None => last.obtain(source).await?,
            };
            self.returned = last.count;
            return Ok(credentials);
        }
    }

    /// Notes that the proxy has accepted a request, which shortens the pause to that after the first run. While a program
    /// runs the pause is its own.
    pub(crate) fn succeeded(&self) {
        if let Ok(mut last) = self.last.try_lock() {
            last.runs = last.runs.min(1);
            last.next = last.next.map(|next| next.min(Instant::now() + PLUGIN_INTERVALS.first));
        }
    }
}

impl LastLogin {
    fn of_program(&self) -> Option<&Credentials> {
        self.credentials.as_ref().filter(|last| last.is_of_program)
    }

    async fn run_again(&mut self, source: &credentials::Options) -> anyhow::Result<Credentials> {
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
        let context = self.credentials.as_ref().and_then(|last| last.context.clone());
        let obtained = source.of_context(context).obtain().await?;
        self.count += 1;
        Ok(self.credentials.insert(obtained).clone())
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

    /// As if a program had printed what the file holds: processes know nothing of a paused clock.
    async fn print(login: &mut CachedLogin, source: &credentials::Options) {
        let printed = login.credentials(source).await.unwrap().of_program();
        login.last.lock().await.credentials = Some(printed);
    }

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
            print(&mut login, &source).await;
            login.fresh(&source).await.unwrap();
            assert_eq!(begun.elapsed().as_secs(), seconds);
        }
        login.fresh(&source).await.unwrap();
        login.succeeded();
        print(&mut login, &source).await;
        let asked = Instant::now();
        login.fresh(&source).await.unwrap();
        assert_eq!(asked.elapsed().as_secs(), 60);
    }
}
