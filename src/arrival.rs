//! Somebody who has come and has not said what they want: who they are, and how long they may wait.

use std::sync::Arc;

use tokio::time::Instant;

use crate::clients::Client;
use crate::connect::{Options, Refused};
use crate::crowd::{Crowd, Waiting};
use crate::end::End;
use crate::outcome::Refusal;
use crate::proxy_header::Passage;

/// When a connection came, and whose it is.
#[derive(Debug)]
pub struct Arrival {
    /// When.
    pub accepted: Instant,
    /// Between which addresses.
    pub passage: Passage,
    /// Whose it is.
    pub client: Arc<Client>,
    /// Whether it comes as seldom as it has to.
    pub paced: Result<(), Refusal>,
}

impl Arrival {
    /// That of a further request on the same connection, which counts as a connect.
    pub fn again(&self) -> Self {
        Self {
            accepted: Instant::now(),
            passage: self.passage,
            paced: self.client.connects(),
            client: Arc::clone(&self.client),
        }
    }
}

/// Completes when the client has taken too long for its request, or others have come who want to be heard.
pub async fn late<const N: usize>(accepted: Instant, unfinished: [&Crowd; N], options: &Options) -> Refusal {
    let waiting = Waiting::among(unfinished);
    tokio::select! {
        refusal = options.late(accepted) => refusal,
        () = waiting.sent_away() => Refusal::Crowded,
    }
}

/// Lets the client read its refusal, as long as there is room for its connection.
pub async fn part<const N: usize>(refused: Refused<impl End>, unfinished: [&Crowd; N]) {
    if refused.lingers() && refused.refusal != Refusal::Crowded {
        let waiting = Waiting::among(unfinished);
        tokio::select! {
            () = refused.close() => {}
            () = waiting.sent_away() => {}
        }
    }
}
