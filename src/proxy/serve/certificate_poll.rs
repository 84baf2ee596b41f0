//! Polls the files of the certificates, and reports what each poll finds.

use std::sync::Arc;

use tokio::sync::Notify;
use tracing::{error, info, warn};

use super::access_sources::log_unread;
use crate::base::follow::{ReadFailure, ReadPool, ReloadResult, follow};
use crate::net::tls::FileError;
use crate::proxy::connection::Shared;

/// Polls for as long as the process runs.
pub(super) async fn watch(shared: Arc<Shared>) {
    // The configuration's warnings had most remarks; others have become true since the configuration was read.
    remark(&shared);
    let polled = Arc::clone(&shared);
    let poll = move || {
        log_and_count(&polled.tls.reload(), &polled);
        remark(&polled);
    };
    let never = Notify::new();
    follow(|| shared.tls.poll(), &never, poll, |error| unread(error, &shared)).await;
}

/// Reads the files once, for settings that have changed. If that hangs, the next poll reads them.
pub(super) async fn read(reads: &ReadPool, shared: &Arc<Shared>) {
    let own = Arc::clone(shared);
    let read = reads.run(move || log_and_count(&own.tls.reload(), &own)).await;
    read.unwrap_or_else(|error| unread(error, shared));
}

fn unread(error: ReadFailure, shared: &Shared) {
    shared.metrics.tls_reload_failures.inc();
    error!("the certificates were {error}: they stay as they were");
}

/// Logs and counts the result of one reading.
fn log_and_count(reloaded: &ReloadResult<FileError>, shared: &Shared) {
    log_unread(reloaded, "the certificates");
    match reloaded {
        ReloadResult::Unchanged | ReloadResult::Deferred(_) => {}
        ReloadResult::Loaded => {
            let expiries = shared.tls.expiries();
            shared.metrics.tls_timestamps(&expiries, &shared.tls.next_updates());
            shared.access.certificates_changed(&shared.tls);
            info!(certificates = expiries.len(), "certificates loaded");
        }
        ReloadResult::Invalid(_) => shared.metrics.tls_reload_failures.inc(),
    }
}

/// Logs what has become true since the last time, such as that a certificate has expired.
fn remark(shared: &Shared) {
    for remark in shared.tls.new_remarks() {
        warn!("{remark}");
    }
}
