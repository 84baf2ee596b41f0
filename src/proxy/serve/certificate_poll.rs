//! Polls the files of the certificates, and reports what each poll finds.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tracing::{error, info, warn};

use crate::net::tls::Reloaded;
use crate::proxy::connection::Shared;

/// Polls for as long as the process runs.
pub(super) async fn watch(shared: Arc<Shared>) {
    // The warnings of the configuration have most of them; some have become true since it was read.
    remark(&shared);
    let reading = Arc::new(());
    loop {
        sleep(shared.tls.poll()).await;
        // Each read that is stuck holds one.
        if Arc::strong_count(&reading) > MOST_STUCK {
            continue;
        }
        let (polled, reads) = (Arc::clone(&shared), Arc::clone(&reading));
        // Blocking: the files may be on a mount that hangs.
        let poll = spawn_blocking(move || {
            let _reads = reads;
            log_and_count(&polled.tls.reload(), &polled);
            remark(&polled);
        });
        match timeout(LONGEST_READ, poll).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => error!(%error, "cannot poll the certificates"),
            Err(_) => {
                shared.metrics.tls_reload_failures.inc();
                error!("the certificates were not read within 10s, a file of them may be on a mount that hangs");
            }
        }
    }
}

/// Logs and counts the result of one poll.
pub(super) fn log_and_count(reloaded: &Reloaded, shared: &Shared) {
    match reloaded {
        Reloaded::Unchanged => {}
        Reloaded::Loaded => {
            let expiries = shared.tls.expiries();
            shared.metrics.tls_expiries(&expiries);
            shared.metrics.tls_next_updates(&shared.tls.next_updates());
            shared.access.certificates_changed(&shared.tls);
            info!(certificates = expiries.len(), "certificates loaded");
        }
        Reloaded::Faulty(faults) => {
            shared.metrics.tls_reload_failures.inc();
            for fault in faults {
                error!("{fault}: the certificates stay as they were");
            }
        }
        Reloaded::Postponed(reason) => warn!("{reason}: the certificates are read again at the next poll"),
    }
}

/// Logs what has become true since the last time, such as that a certificate has expired.
fn remark(shared: &Shared) {
    for remark in shared.tls.new_remarks() {
        warn!("{remark}");
    }
}

/// A local file is read within milliseconds.
const LONGEST_READ: Duration = Duration::from_secs(10);
/// The reads that may be stuck at a time.
const MOST_STUCK: usize = 4;
