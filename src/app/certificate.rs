//! Looks at the files of the certificates while the process runs, and makes known what it finds.

use std::sync::Arc;

use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::{error, info};

use crate::tls::Look;
use crate::tunnel::World;

/// Looks again and again, for ever.
pub async fn follow(world: Arc<World>) {
    loop {
        sleep(world.tls.poll()).await;
        let looking = Arc::clone(&world);
        // It reads files, which may be on a disk that hangs.
        match spawn_blocking(move || looking.tls.look()).await {
            Ok(look) => tell(&look, &world),
            Err(error) => error!(%error, "cannot look at the certificates"),
        }
    }
}

/// Makes known what one look has found.
pub fn tell(look: &Look, world: &World) {
    match look {
        Look::Unchanged => {}
        Look::Loaded => {
            let expiries = world.tls.expiries();
            world.metrics.tls_expiries(&expiries);
            info!(certificates = expiries.len(), "certificates loaded");
        }
        Look::Faulty(faults) => {
            world.metrics.tls_reload_failures.inc();
            for fault in faults {
                error!("{fault}: the certificates stay as they were");
            }
        }
    }
}
