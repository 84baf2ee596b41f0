//! ssh that ends while there is no connection: most often its own keepalives have timed out, so its user is told which settings
//! decide on that.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use super::Session;

impl<R, W> Session<'_, R, W>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    /// Whether stdout has no reader any more: ssh is gone, perhaps without a signal. If so, and not by Ctrl-C, the user is told.
    pub(super) fn notice_abandoned(&mut self) -> bool {
        let is_abandoned = self.local.is_abandoned;
        if !is_abandoned.is_some_and(|is_abandoned| is_abandoned(&self.local.stdout)) {
            return false;
        }
        let now = Instant::now();
        // Ctrl-C signals ssh and this process together, and ssh may be seen to be gone before the signal.
        if now >= *self.abandoned.get_or_insert(now) + SIGNALLED && !self.exit.is_interrupted() {
            self.ssh_has_left();
        }
        true
    }

    /// ssh has left, and not by its user's Ctrl-C. Without a connection it has most often given up.
    pub(super) fn ssh_has_left(&mut self) {
        let unanswered = self.driver.session().unanswered_since();
        let silence = unanswered.map(|since| Instant::from_std(since).elapsed());
        self.report.left(silence.filter(|silence| *silence >= self.patience));
    }
}

/// A signal to both is known to this process that long after ssh's end, at most.
const SIGNALLED: Duration = Duration::from_millis(200);
