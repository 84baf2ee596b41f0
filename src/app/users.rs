//! Brings what proves users and decides about their rights, and follows what changes it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::{error, info, warn};

use crate::access::{self, Access, Kubernetes, Mode, Reviewer, Sources, oidc, passwords};
use crate::config::Config;
use crate::kubernetes::{ApiReviewer, RbacWatch};
use crate::tunnel::Shared;

/// The sources of users and rights, for as long as they are configured.
#[derive(Debug, Default)]
pub(super) struct Users {
    applied: Option<(access::Options, Option<PathBuf>)>,
    /// Dropped with the settings that it follows.
    _watch: Option<RbacWatch>,
    _following: JoinSet<()>,
}

impl Users {
    /// Applies the settings, if they are others than before. Tunnels that run are judged by them.
    pub(super) fn apply(&mut self, config: &Config, shared: &Arc<Shared>) {
        let kubeconfig = config.kubernetes.as_ref().and_then(|own| own.kubeconfig.clone());
        let settings = Some((config.access.clone(), kubeconfig));
        if self.applied == settings {
            return;
        }
        let options = config.access.clone();
        let is_asked = options.mode != Mode::Open;
        let knows_certificates = options.kubernetes.as_ref().is_some_and(|own| own.certificates);
        shared.tls.keep_certificates(is_asked && knows_certificates);
        let mut following = JoinSet::new();
        let (sources, watch) = match is_asked {
            true => (sources(config, shared, &mut following), watch(config, shared)),
            false => (Sources::default(), None),
        };
        shared.access.apply(options, sources);
        *self = Self {
            applied: settings,
            _watch: watch,
            _following: following,
        };
    }
}

/// Has the rights in use checked for as long as the process runs.
pub(super) fn keep_checking(shared: &Arc<Shared>) {
    let access = Arc::clone(&shared.access);
    tokio::spawn(async move {
        loop {
            let checked = Arc::clone(&access);
            // It ends by a panic only, a defect: then no right would ever be taken back again.
            let checking = tokio::spawn(async move { checked.keep_checking().await });
            if checking.await.is_err_and(|error| error.is_panic()) {
                error!("the checks of rights have ended by a defect, and begin anew");
            }
            sleep(RESTART).await;
        }
    });
    let (access, mut user_lists) = (Arc::clone(&shared.access), shared.allowlist.user_lists_changed());
    tokio::spawn(async move {
        while user_lists.changed().await.is_ok() {
            access.user_lists_changed();
        }
    });
}

fn sources(config: &Config, shared: &Arc<Shared>, following: &mut JoinSet<()>) -> Sources {
    let options = &config.access;
    let issuers = match oidc::Issuers::new(&options.oidc) {
        Ok(issuers) => Some(issuers).filter(|issuers| !issuers.is_empty()),
        Err(faults) => {
            // The configuration was checked: a file has changed since.
            for fault in faults {
                error!("{fault}: no token of the issuers is accepted");
            }
            None
        }
    };
    let users = options.users.as_ref().map(|path| {
        let users = Arc::new(passwords::Users::empty(path));
        log(&users.reload());
        let (access, followed) = (Arc::clone(&shared.access), Arc::clone(&users));
        following.spawn(async move {
            let report = |reloaded: &passwords::Reloaded| {
                log(reloaded);
                if let passwords::Reloaded::Loaded { .. } = reloaded {
                    access.users_changed();
                }
            };
            followed.follow(report).await;
        });
        users
    });
    let reviewer = options.kubernetes.as_ref().map(|own| {
        let reviewer: Arc<dyn Reviewer> = Arc::new(ApiReviewer::new(own, fallback(config)));
        reviewer
    });
    Sources {
        reviewer,
        issuers: issuers.map(Arc::new),
        users,
    }
}

/// The kubeconfig of the allowlist, where `access` has none of its own.
fn fallback(config: &Config) -> Option<PathBuf> {
    config.kubernetes.as_ref().and_then(|own| own.kubeconfig.clone())
}

/// Follows roles and bindings, if the settings say so.
fn watch(config: &Config, shared: &Arc<Shared>) -> Option<RbacWatch> {
    let Kubernetes {
        kubeconfig, watch_rbac, ..
    } = config.access.kubernetes.as_ref()?;
    if !watch_rbac {
        return None;
    }
    let access: Arc<Access> = Arc::clone(&shared.access);
    let kubeconfig = kubeconfig.clone().or_else(|| fallback(config));
    let watch = RbacWatch::start(kubeconfig, shared.metrics.clone(), move |change| {
        access.changed(&change)
    });
    watch
        .inspect_err(
            |error| error!(%error, "cannot follow roles and bindings: rights are asked about again at `recheck`"),
        )
        .ok()
}

fn log(reloaded: &passwords::Reloaded) {
    match reloaded {
        passwords::Reloaded::Unchanged => {}
        passwords::Reloaded::Loaded { users } => info!(users, "users loaded"),
        passwords::Reloaded::Faulty(faults) => {
            for fault in faults {
                error!("{fault}: the users stay as they were");
            }
        }
        passwords::Reloaded::Postponed(reason) => warn!("{reason}: the users are read again at the next poll"),
    }
}

/// Before what a defect has ended begins anew.
const RESTART: Duration = Duration::from_secs(1);
