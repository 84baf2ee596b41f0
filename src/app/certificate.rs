//! Looks at the files of the certificates while the process runs, and makes known what it finds.

use std::sync::Arc;

use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::{error, info};

use crate::tls::Look;
use crate::tunnel::Shared;

/// Looks again and again, for ever.
pub async fn follow(shared: Arc<Shared>) {
    loop {
        sleep(shared.tls.poll()).await;
        let looking = Arc::clone(&shared);
        // It reads files, which may be on a disk that hangs.
        match spawn_blocking(move || looking.tls.look()).await {
            Ok(look) => tell(&look, &shared),
            Err(error) => error!(%error, "cannot look at the certificates"),
        }
    }
}

/// Makes known what one look has found.
pub fn tell(look: &Look, shared: &Shared) {
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
