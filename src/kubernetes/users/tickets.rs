//! Follows the tickets of the cluster: a Secret that operators write, and certificate signing requests of users.
//!
//! Of a request nothing is ever signed. The API server writes the user that makes it into it, which no user can do for
//! another one: so it is a note of a user's own, in the API server's hand.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::sleep;

use self::request::SigningRequests;
use self::secret::OneSecret;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::follower::{Origin, keep_following};
use crate::kubernetes::api::thread::Thread;
use crate::policy::access::TicketOptions;
use crate::policy::access::tickets::{Requests, Tickets};

mod request;
mod secret;

/// Follows tickets on a thread of its own, until it is dropped.
#[derive(Debug)]
pub struct TicketWatch {
    _thread: Thread,
}

impl TicketWatch {
    /// Starts to follow, whether the API server answers or not, and keeps `tickets` equal to what there is.
    ///
    /// # Errors
    /// The thread or its runtime cannot be started.
    pub fn start(origin: Origin, options: &TicketOptions, tickets: Arc<Tickets>) -> io::Result<Self> {
        for failure in Failure::ALL {
            origin.metrics.watch_errors.zero([failure.label()]);
        }
        let work = follow(origin, options.clone(), tickets);
        Ok(Self {
            _thread: Thread::start("tickets", work)?,
        })
    }
}

/// Follows both, and restarts what panics.
async fn follow(origin: Origin, options: TicketOptions, tickets: Arc<Tickets>) {
    let secret = || OneSecret::new(options.secret.clone(), Arc::clone(&tickets));
    let changed = Arc::new(Notify::new());
    let requests = Arc::new(Mutex::new(Requests::new(options.ttl)));
    let signing_requests = || SigningRequests::new(Arc::clone(&requests), Arc::clone(&changed));
    tokio::join!(
        keep_following(secret, origin.clone(), || {}),
        keep_following(signing_requests, origin, || {}),
        publish(&requests, &changed, &tickets),
    );
}

/// Puts the tickets of requests in force. Those that come together are one change.
async fn publish(requests: &Mutex<Requests>, changed: &Notify, tickets: &Tickets) {
    loop {
        changed.notified().await;
        sleep(TOGETHER).await;
        tickets.replace_requests(&mut requests.lock());
    }
}

const TOGETHER: Duration = Duration::from_millis(20);
