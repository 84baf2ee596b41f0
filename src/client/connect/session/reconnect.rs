//! The way from a connection that is lost to the next one: the pause, and the attempt.

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep_until};

use super::Session;
use super::error::SessionError;
use super::outcome::{Interruption, Left};
use crate::client::ClientError;
use crate::client::connect::attempt;
use crate::client::connect::login::Login;

impl<R, W> Session<'_, R, W>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    /// One attempt to go on over another tunnel.
    pub(super) async fn reconnect(&mut self, login: &mut Login) -> Result<Left, ClientError> {
        if let Err(interruption) = self.pause().await {
            return interruption.into_result();
        }
        let options = self.options;
        // The attempt watches the network itself: a change must not end it.
        let mut dialing = std::mem::take(&mut self.dialing);
        dialing.set_pace(self.backoff.pace());
        let opened = self.beside(Box::pin(attempt::open(options, login, &mut dialing))).await;
        self.dialing = dialing;
        let opened = match opened {
            Ok(opened) => opened?,
            Err(interruption) => return interruption.into_result(),
        };
        login.has_opened();
        let carried = opened.carry(|stream, early| self.resume(stream, early));
        Box::pin(carried).await
    }

    /// Waits for the next attempt, unless it is due at once: the host has slept or is in another network, or ssh leaves.
    async fn pause(&mut self) -> Result<(), Interruption> {
        let until = Instant::now() + self.backoff.pause();
        let was_leaving = self.is_leaving;
        while self.is_leaving == was_leaving {
            let step = tokio::select! {
                () = sleep_until(until) => break,
                step = self.step(None) => step,
            };
            match step {
                Ok(None) => {}
                Ok(Some(left)) => return Err(Interruption::Left(left)),
                Err(ClientError::Session(SessionError::Slept | SessionError::Moved)) => break,
                Err(error) => return Err(Interruption::Failed(error)),
            }
        }
        Ok(())
    }

    /// Does a piece of work, while the session goes on without a connection.
    pub(super) async fn beside<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Interruption> {
        tokio::pin!(work);
        loop {
            let step = tokio::select! {
                done = &mut work => return Ok(done),
                step = self.step(None) => step,
            };
            match step {
                Ok(None) => {}
                Ok(Some(left)) => return Err(Interruption::Left(left)),
                Err(error) => return Err(Interruption::Failed(error)),
            }
        }
    }
}
