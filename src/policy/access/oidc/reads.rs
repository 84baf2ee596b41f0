//! Blocking reads of files, beside the tasks: of those that hang, a few at most.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// The reads of one issuer's files. They may be on a mount that hangs.
#[derive(Debug, Default)]
pub(super) struct Reads {
    /// Each read that is under way holds one.
    under_way: Arc<()>,
}

impl Reads {
    /// Runs a read.
    ///
    /// # Errors
    /// What the read says; or it takes longer than 5 s, or earlier ones still hang.
    pub(super) async fn run<T, F>(&self, read: F) -> Result<T, Box<str>>
    where
        T: Send + 'static,
        F: FnOnce() -> Result<T, Box<str>> + Send + 'static,
    {
        // A thread cannot be ended: without this, a mount that hangs would take them all.
        if Arc::strong_count(&self.under_way) > MOST_STUCK {
            return Err("earlier readings of its file still hang".into());
        }
        let under_way = Arc::clone(&self.under_way);
        let reading = spawn_blocking(move || {
            let _under_way = under_way;
            read()
        });
        match timeout(LONGEST, reading).await {
            Ok(Ok(read)) => read,
            Ok(Err(error)) => Err(error.to_string().into()),
            Err(_) => Err("its file was not read within 5s".into()),
        }
    }
}

/// A local file is read within milliseconds.
const LONGEST: Duration = Duration::from_secs(5);
/// The reads that may hang at a time.
const MOST_STUCK: usize = 4;

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn reads_that_hang_are_few() {
        let reads = Reads::default();
        let mut hung = Vec::new();
        for _ in 0..MOST_STUCK {
            let (release, held) = mpsc::channel::<()>();
            let (started, starts) = tokio::sync::oneshot::channel();
            let read = reads.run(move || {
                started.send(()).ok();
                held.recv().map_err(|_| "released".into())
            });
            tokio::select! {
                biased;
                _ = read => panic!("it does not hang"),
                _ = starts => {}
            }
            hung.push(release);
        }
        let refused = reads.run(|| Ok(())).await;
        assert_eq!(refused.unwrap_err(), "earlier readings of its file still hang".into());
        drop(hung);
        while Arc::strong_count(&reads.under_way) > 1 {
            tokio::task::yield_now().await;
        }
        assert!(reads.run(|| Ok(())).await.is_ok());
    }
}
