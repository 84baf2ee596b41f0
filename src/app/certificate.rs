//! Polls the files of the certificates, and reports what each poll finds.

use std::sync::Arc;

use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::{error, info};

use crate::tls::Look;
use crate::tunnel::Shared;

/// Polls for as long as the process runs.
pub(super) async fn watch(shared: Arc<Shared>) {
    loop {
        sleep(shared.tls.poll()).await;
        let polled = Arc::clone(&shared);
        // Blocking: the files may be on a disk that hangs.
        match spawn_blocking(move || polled.tls.look()).await {
            Ok(look) => report(&look, &shared),
            Err(error) => error!(%error, "cannot poll the certificates"),
        }
    }
}

/// Logs and counts the result of one poll.
pub(super) fn report(look: &Look, shared: &Shared) {
    match look {
        Look::Unchanged => {}
        Look::Loaded => {
            let expiries = shared.tls.expiries();
            shared.metrics.tls_expiries(&expiries);
            info!(certificates = expiries.len(), "certificates loaded");
        }
        Look::Faulty(faults) => {
            shared.metrics.tls_reload_failures.inc();
            for fault in faults {
                error!("{fault}: the certificates stay as they were");
            }
        }
    }
}
