//! An anchor that dials in: connects to each replica of the proxy, which then opens streams to it.

use std::sync::Arc;

use tokio::time::{sleep, timeout};

use self::coverage::{Backoff, DialResult};
pub(super) use self::coverage::{Coverage, RESULTS};
use crate::base::boxed::boxed;
use crate::uplink::credential_cache::CachedLogin;

mod coverage;
mod registration;
mod transport;

/// Keeps a connection to each replica until the anchor stops.
pub(super) async fn run(coverage: Arc<Coverage>) {
    let shared = Arc::clone(coverage.shared());
    let keep = async {
        let (mut login, mut backoff) = (CachedLogin::default(), Backoff::default());
        loop {
            coverage.missing().await;
            let result = coverage.dial(&mut login).await;
            shared.metrics.dial_in.dials.count([result.label()]);
            let pause = backoff.after(&result);
            match result {
                DialResult::New(connection) => {
                    let (opened, replica) = *connection;
                    let coverage = Arc::clone(&coverage);
                    let serve = async move { boxed(registration::serve(opened, replica, &coverage)).await };
                    shared.tasks.spawn(serve);
                    sleep(pause).await;
                }
                // After a change a replica may be missing, so the next dial is sooner. No change shortens the pause
                // after a failed dial.
                DialResult::Surplus => {
                    if timeout(pause, coverage.changed()).await.is_ok() {
                        sleep(backoff.restart()).await;
                    }
                }
                DialResult::Failed(_) => sleep(pause).await,
            }
        }
    };
    tokio::select! {
        () = shared.stopping.cancelled() => {}
        () = keep => {}
    }
}
