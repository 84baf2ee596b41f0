//! Somebody who has come and has not said what they want: who they are, and how long they may wait.

use std::future::Future;
use std::sync::Arc;

use tokio::time::Instant;

use crate::connect::{Options, Refused};
use crate::drain::Drain;
use crate::limits::clients::Client;
use crate::limits::unfinished::{Unfinished, Waiting};
use crate::net::proxy_header::Addresses;
use crate::net::transport::Transport;
use crate::outcome::Refusal;

/// When a connection came, and whose it is.
#[derive(Debug)]
pub struct Arrival {
    /// When.
    pub accepted: Instant,
    /// Between which addresses.
    pub passage: Addresses,
    /// Whose it is.
    pub client: Arc<Client>,
    /// Whether it may ask: it comes as seldom as it has to, and is still who may come.
    pub welcome: Result<(), Refusal>,
}

impl Arrival {
    /// That of a further request on the same connection, which counts as a connect. Who comes too often is not judged:
    /// `is_trusted` may have signatures to check.
    pub fn again(&self, is_trusted: impl FnOnce() -> bool) -> Self {
        let judged = |()| is_trusted().then_some(()).ok_or(Refusal::CertificateLapsed);
        Self {
            accepted: Instant::now(),
            passage: self.passage,
            welcome: self.client.connects().and_then(judged),
            client: Arc::clone(&self.client),
        }
    }

    /// Where it waits, with those of its client and with `all`.
    pub fn waits<'a>(&'a self, all: &'a Unfinished, options: &'a Options, drain: &'a Drain) -> WaitingRoom<'a, 2> {
        WaitingRoom::new([&self.client.unfinished, all], options, drain)
    }
}

/// Where those wait who have not said what they want, and those who have yet to read why they may not have it.
#[derive(Clone, Copy, Debug)]
pub struct WaitingRoom<'a, const N: usize> {
    crowds: [&'a Unfinished; N],
    options: &'a Options,
    drain: &'a Drain,
}

impl<'a, const N: usize> WaitingRoom<'a, N> {
    /// One that is shared with these crowds, until nobody is heard any more.
    pub fn new(crowds: [&'a Unfinished; N], options: &'a Options, drain: &'a Drain) -> Self {
        Self { crowds, options, drain }
    }

    /// Completes when a client that came at `accepted` has taken too long for its request, or others have come who want
    /// to be heard, or it could have no tunnel any more.
    pub async fn late(self, accepted: Instant) -> Refusal {
        let waiting = Waiting::among(self.crowds);
        tokio::select! {
            refusal = self.options.late(accepted) => refusal,
            () = waiting.sent_away() => Refusal::Crowded,
            () = self.drain.clone().stopped() => Refusal::Draining,
        }
    }

    /// Lets the client read its refusal, as long as there is room for its connection.
    pub async fn part(self, refused: Refused<impl Transport>) {
        if refused.lingers() && refused.refusal != Refusal::Crowded {
            self.leave(refused.close()).await;
        }
    }

    /// Lets the client take note of a close, as long as there is room for its connection.
    pub async fn leave(self, close: impl Future<Output = ()>) {
        let waiting = Waiting::among(self.crowds);
        tokio::select! {
            // First: it says that this is the end.
            biased;
            () = close => {}
            () = waiting.sent_away() => {}
            () = self.drain.clone().ended() => {}
        }
    }
}
