//! Reads one CONNECT and answers it: the 200 or the refusal is written here, and only here.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::authority::Authority;
use crate::net::transport::Transport;
use crate::outcome::{Denial, Refusal};

pub mod head;
mod http1;
pub mod http2;

/// How long a request head may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// From the accept to the end of the head.
    pub head: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(10),
        }
    }
}

impl Options {
    /// When a head that has been awaited since `accepted` is late.
    pub fn deadline(&self, accepted: Instant) -> Instant {
        accepted + self.head
    }

    /// Completes when a head that has been awaited since `accepted` is late.
    pub async fn late(&self, accepted: Instant) -> Refusal {
        sleep_until(self.deadline(accepted)).await;
        Refusal::HeadTimeout
    }
}

/// A client that has its 200.
#[derive(Debug)]
pub struct Established<D, T> {
    /// The client's end, as it was.
    pub stream: D,
    /// What the client sent behind its head, at most 16 KiB together with it.
    pub early: Vec<u8>,
    /// What the caller answered.
    pub answer: T,
}

/// A client that has its refusal.
#[derive(Debug)]
pub struct Refused<D> {
    /// Why.
    pub refusal: Refusal,
    /// `None` when there was nobody to tell.
    client: Option<D>,
}

impl<D: Transport> Refused<D> {
    /// Whether there is a connection to close.
    pub fn lingers(&self) -> bool {
        self.client.is_some()
    }

    /// Closes the connection without a look at what came behind the head: with keep-alive those bytes would be taken
    /// for another request (RFC 9931 section 6).
    pub async fn close(self) {
        if let Some(mut stream) = self.client {
            stream.close_gently().await;
        }
    }
}

/// Somebody who asks for one tunnel, whatever is spoken.
pub trait Client: Sized + Send {
    /// What it is once it has its 200.
    type Transport: Transport;

    /// Which HTTP it speaks: `1` or `2`.
    const HTTP: &'static str;

    /// Reads until it is known what it asks for, or why it is refused.
    fn read_head(&mut self) -> impl Future<Output = Result<Authority, Refusal>> + Send;

    /// Completes when it has left, before it was answered.
    fn leaves(&mut self) -> impl Future<Output = ()> + Send;

    /// Sends the 200. Beside the client's end it gives the bytes that were read of the tunnel already.
    fn confirm(self) -> impl Future<Output = Result<(Self::Transport, Vec<u8>), Refusal>> + Send;

    /// Sends the refusal. What it gives back has to be closed gently.
    fn refuse(self, denial: &Denial) -> impl Future<Output = Option<Self::Transport>> + Send;
}

/// A client that speaks HTTP/1; `read` was taken from its end already.
pub fn http1<D: Transport>(end: D, read: Vec<u8>) -> impl Client<Transport = D> {
    http1::Client::new(end, read)
}

/// Refuses a client that has not been asked what it wants.
pub async fn refuse<D: Transport>(end: D, refusal: Refusal) -> Refused<D> {
    Refused {
        refusal,
        client: http1(end, Vec::new()).refuse(&refusal.into()).await,
    }
}

/// Reads a CONNECT, asks `answer` about its target, and tells the client what came of it. `read` was taken from the
/// stream already.
///
/// `late` says when the head has taken too long; it is dropped as soon as the head is complete.
///
/// A client that leaves while `answer` is under way ends it: that future is dropped.
///
/// # Errors
/// The refusal, which the client has been told.
pub async fn handshake<C: Client, T>(
    mut client: C,
    late: impl Future<Output = Refusal>,
    answer: impl AsyncFnOnce(Authority) -> Result<T, Denial>,
) -> Result<Established<C::Transport, T>, Refused<C::Transport>> {
    let head = {
        let late = pin!(late);
        tokio::select! {
            biased;
            head = client.read_head() => head,
            refusal = late => Err(refusal),
        }
    };
    let answered = match head {
        Err(refusal) => Err(refusal.into()),
        Ok(authority) => tokio::select! {
            biased;
            answered = answer(authority) => answered,
            () = client.leaves() => Err(Refusal::ClientLeft.into()),
        },
    };
    match answered {
        Ok(answer) => match client.confirm().await {
            Ok((stream, early)) => Ok(Established { stream, early, answer }),
            Err(refusal) => Err(Refused { refusal, client: None }),
        },
        Err(denial) => Err(Refused {
            refusal: denial.refusal,
            client: client.refuse(&denial).await,
        }),
    }
}
