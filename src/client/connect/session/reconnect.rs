//! Reconnects a session: the pause, the attempt, and the proof over the new tunnel.

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{sleep_until, timeout};

use super::{ClientSession, FarEnd, SessionExit, detect, error, handshake};
use crate::client::connect::attempt::{self, Tunnel};
use crate::protocol::resume::HANDSHAKE_TIMEOUT;
use crate::protocol::resume::driver::{Attachment, HandshakeOutput};
use crate::protocol::resume::handshake::client_handshake::{ClientHandshake, HandshakeError, ResumptionSecrets};
use crate::uplink::credential_cache::CachedLogin;
use crate::uplink::dial::io::BoxedIo;
use crate::uplink::error::ClientError;

impl<R, W> ClientSession<'_, R, W>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    /// Makes one attempt to attach the session to another tunnel.
    ///
    /// # Errors
    /// The attempt has failed, or the session ended first.
    pub(super) async fn reconnect(&mut self, login: &mut CachedLogin) -> Result<Attachment<BoxedIo>, SessionExit> {
        self.pause().await?;
        let options = self.options;
        // The attempt takes the dialer and watches the path itself: a change must not end the attempt.
        let mut dialer = std::mem::take(&mut self.dialer);
        dialer.set_again(self.backoff.timeout());
        self.note_use();
        let idle = (self.clock)().duration_since(self.moved.1).unwrap_or_default();
        dialer.session = self.secrets.as_ref().map(|secrets| (secrets.id, idle));
        let opened = self
            .run_detached(Box::pin(attempt::open(options, login, &mut dialer)))
            .await;
        self.dialer = dialer;
        let Tunnel { stream, early, .. } = opened??;
        login.succeeded();
        match self.secrets.clone() {
            Some(secrets) => Box::pin(self.resume(secrets, stream, early)).await,
            None => self.restart(stream, early).await,
        }
    }

    /// Waits for the next attempt, unless it is due at once: the host has slept or is in another network, or ssh leaves.
    async fn pause(&mut self) -> Result<(), SessionExit> {
        let until = self.backoff.next();
        let was_leaving = self.is_leaving;
        while self.is_leaving == was_leaving {
            let exit = tokio::select! {
                () = sleep_until(until) => break,
                exit = self.step(None) => exit,
            };
            match exit {
                None => {}
                Some(SessionExit::Detached(ClientError::Moved(_))) => {
                    self.backoff.next();
                    break;
                }
                Some(exit) => return Err(exit),
            }
        }
        Ok(())
    }

    /// Runs `work` while the session waits for a connection.
    ///
    /// # Errors
    /// The session ended, or left its path, first.
    async fn run_detached<T>(&mut self, work: impl Future<Output = T>) -> Result<T, SessionExit> {
        tokio::pin!(work);
        loop {
            let exit = tokio::select! {
                done = &mut work => return Ok(done),
                exit = self.step(None) => exit,
            };
            if let Some(exit) = exit {
                return Err(exit);
            }
        }
    }

    /// Proves the session over a tunnel.
    async fn resume(
        &mut self,
        secrets: ResumptionSecrets,
        stream: BoxedIo,
        early: Vec<u8>,
    ) -> Result<Attachment<BoxedIo>, SessionExit> {
        let received = self.driver.session().received();
        let handshake = ClientHandshake::resume(secrets, received).map_err(HandshakeError::from)?;
        let resumed = timeout(HANDSHAKE_TIMEOUT, handshake::resume(stream, early, handshake));
        let proved = self.run_detached(Box::pin(resumed)).await?;
        let (stream, attached) = proved.map_err(|_| error::unanswered())??;
        // The previous connection has served, as it has delivered bytes of an upload.
        if attached.received > self.delivered {
            self.delivered = attached.received;
            self.backoff.reset();
        }
        let output = HandshakeOutput {
            answer: Vec::new(),
            received: attached.received,
            rest: &attached.rest,
        };
        self.report.connected();
        Ok(self.driver.attach(stream, output))
    }

    /// Begins once more with the same bytes, as the anchor never answered.
    async fn restart(&mut self, stream: BoxedIo, early: Vec<u8>) -> Result<Attachment<BoxedIo>, SessionExit> {
        self.driver.session_mut().restart().map_err(error::violated)?;
        match self.run_detached(Box::pin(detect(stream, early))).await?? {
            FarEnd::Anchor { stream, handshake } => Ok(self.begin(stream, handshake)),
            FarEnd::Plain { .. } => Err(HandshakeError::NoAnchor.into()),
            FarEnd::Broken { error, .. } => Err(ClientError::from(error).into()),
        }
    }
}
