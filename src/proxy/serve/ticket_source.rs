//! The tickets of the cluster, and what follows them.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::task::AbortHandle;
use tracing::error;

use crate::kubernetes::{Origin, TicketWatch};
use crate::policy::access::TicketOptions;
use crate::policy::access::tickets::Tickets;
use crate::proxy::connection::Shared;

/// The tickets by their settings. They are followed until it is dropped.
#[derive(Debug)]
pub(super) struct TicketSource {
    /// The options and the kubeconfig.
    pub(super) settings: (TicketOptions, Option<PathBuf>),
    pub(super) tickets: Arc<Tickets>,
    _watch: TicketWatch,
    telling: AbortHandle,
}

impl TicketSource {
    /// Starts to follow; `None` without a thread for it, and then no ticket is accepted.
    pub(super) fn start(settings: (TicketOptions, Option<PathBuf>), shared: &Arc<Shared>) -> Option<Self> {
        let (options, kubeconfig) = &settings;
        let tickets = Arc::new(Tickets::new(options.ttl));
        let origin = Origin {
            kubeconfig: kubeconfig.clone(),
            metrics: shared.metrics.clone(),
            watches: shared.access.watches(),
        };
        let watch = TicketWatch::start(origin, options, Arc::clone(&tickets));
        let watch = watch
            .inspect_err(|error| error!(%error, "cannot follow tickets: none is accepted"))
            .ok()?;
        let (access, mut changed) = (Arc::clone(&shared.access), tickets.changed());
        let telling = tokio::spawn(async move {
            while changed.changed().await.is_ok() {
                access.tickets_changed();
            }
        });
        Some(Self {
            settings,
            tickets,
            _watch: watch,
            telling: telling.abort_handle(),
        })
    }
}

impl Drop for TicketSource {
    fn drop(&mut self) {
        self.telling.abort();
    }
}
