//! Reconnects a session: the pause, and the attempt.

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::sleep_until;

use super::{ClientSession, SessionExit};
use crate::client::connect::attempt;
use crate::uplink::credential_cache::CachedLogin;
use crate::uplink::error::ClientError;

impl<R, W> ClientSession<'_, R, W>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    /// Makes one attempt to resume the session over another tunnel.
    pub(super) async fn reconnect(&mut self, login: &mut CachedLogin) -> Result<SessionExit, ClientError> {
        if let Err(left) = self.pause().await {
            return left;
        }
        let options = self.options;
        // The attempt takes the dialer and watches the path itself: a change must not end the attempt.
        let mut dialing = std::mem::take(&mut self.dialer);
        dialing.set_again(self.backoff.timeout());
        let opened = self.beside(Box::pin(attempt::open(options, login, &mut dialing))).await;
        self.dialer = dialing;
        let (stream, early) = match opened {
            Ok(opened) => opened?,
            Err(left) => return left,
        };
        login.succeeded();
        Box::pin(self.resume(stream, early)).await
    }

    /// Waits for the next attempt, unless it is due at once: the host has slept or is in another network, or ssh leaves.
    async fn pause(&mut self) -> Result<(), Result<SessionExit, ClientError>> {
        let until = self.backoff.next();
        let was_leaving = self.is_leaving;
        while self.is_leaving == was_leaving {
            let step = tokio::select! {
                () = sleep_until(until) => break,
                step = self.step(None) => step,
            };
            match step.transpose() {
                None => {}
                Some(Err(ClientError::Moved(_))) => {
                    self.backoff.next();
                    break;
                }
                Some(left) => return Err(left),
            }
        }
        Ok(())
    }

    /// Runs `work` while the session waits for a connection.
    ///
    /// # Errors
    /// The session ended, or left its path, first.
    pub(super) async fn beside<T>(
        &mut self,
        work: impl Future<Output = T>,
    ) -> Result<T, Result<SessionExit, ClientError>> {
        tokio::pin!(work);
        loop {
            let step = tokio::select! {
                done = &mut work => return Ok(done),
                step = self.step(None) => step,
            };
            if let Some(left) = step.transpose() {
                return Err(left);
            }
        }
    }
}
