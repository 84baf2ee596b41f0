//! Polls the files of the certificates, and reports what each poll finds.

use std::sync::Arc;

use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::{error, info};

use crate::tls::Reload;
use crate::tunnel::Shared;

/// Polls for as long as the process runs.
pub(super) async fn watch(shared: Arc<Shared>) {
    loop {
        sleep(shared.tls.poll()).await;
        let polled = Arc::clone(&shared);
        // Blocking: the files may be on a disk that hangs.
        match spawn_blocking(move || polled.tls.reload()).await {
            Ok(reload) => report(&reload, &shared),
            Err(error) => error!(%error, "cannot poll the certificates"),
        }
    }
}

/// Logs and counts the result of one poll.
pub(super) fn report(reload: &Reload, shared: &Shared) {
    match reload {
        Reload::Unchanged => {}
        Reload::Loaded => {
            let expiries = shared.tls.expiries();
            shared.metrics.tls_expiries(&expiries);
            info!(certificates = expiries.len(), "certificates loaded");
        }
        Reload::Faulty(faults) => {
            shared.metrics.tls_reload_failures.inc();
            for fault in faults {
                error!("{fault}: the certificates stay as they were");
            }
        }
    }
}
