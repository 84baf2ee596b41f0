//! Brings what proves users and decides about their rights, and follows what changes it.

use std::sync::Arc;

use tokio::task::JoinSet;
use tracing::{error, info, warn};

use super::ticket_source::TicketSource;
use crate::base::follow::{LONGEST, NotRead, Reloaded};
use crate::daemon::threads::run_within;
use crate::daemon::vital::supervise;
use crate::kubernetes::{ApiReviewer, Origin, RbacWatch, report_cluster};
use crate::policy::access::passwords::UserFault;
use crate::policy::access::{self, Access, Mode, Reviewer, Sources, oidc, passwords};
use crate::proxy::config::Config;
use crate::proxy::connection::Shared;

/// The sources of users and rights, for as long as they are configured.
#[derive(Debug, Default)]
pub(super) struct Users {
    applied: Option<access::Options>,
    sources: Sources,
    /// Dropped with the settings that it follows.
    _watch: Option<RbacWatch>,
    /// What follows the file of users.
    following: JoinSet<()>,
    /// What follows the tickets.
    tickets: Option<TicketSource>,
}

impl Users {
    /// Applies the settings, if they are others than before. Tunnels that run are judged by them. The file of users is read
    /// again in any case.
    pub(super) fn apply(&mut self, config: &Config, shared: &Arc<Shared>) {
        if let Some(users) = &self.sources.users {
            users.read_again();
        }
        if self.applied.as_ref() == Some(&config.access) {
            return;
        }
        let options = &config.access;
        let is_asked = options.mode != Mode::Open;
        if is_asked && options.reads_cluster() {
            tokio::spawn(report_cluster("access", options.kubeconfig.clone()));
        }
        let mut before = std::mem::take(self);
        let (sources, watch) = match is_asked {
            true => (before.sources(options, shared), watch(options, shared)),
            false => (Sources::default(), None),
        };
        shared.access.apply(options.clone(), sources.clone());
        *self = Self {
            applied: Some(options.clone()),
            following: match sources.users {
                Some(_) => before.following,
                None => JoinSet::new(),
            },
            tickets: before.tickets.filter(|_| sources.tickets.is_some()),
            sources,
            _watch: watch,
        };
    }

    /// The sources of these settings. Those whose own settings are as before go on: their keys and users are in force,
    /// whether or not their file or server can be read at the moment.
    fn sources(&mut self, options: &access::Options, shared: &Arc<Shared>) -> Sources {
        let applied = self.applied.as_ref();
        let has_same_issuers = applied.is_some_and(|before| before.oidc == options.oidc);
        let has_same_users = applied.is_some_and(|before| before.users == options.users);
        let issuers = self.sources.issuers.take().filter(|_| has_same_issuers);
        let users = self.sources.users.take().filter(|_| has_same_users);
        if users.is_none() {
            self.following = JoinSet::new();
        }
        Sources {
            reviewer: options.kubernetes.as_ref().map(|own| {
                let reviewer: Arc<dyn Reviewer> = Arc::new(ApiReviewer::new(own, options.kubeconfig.clone()));
                reviewer
            }),
            issuers: issuers.or_else(|| issuers_of(options)),
            users: users.or_else(|| users_of(options, shared, &mut self.following)),
            tickets: self.tickets(options, shared),
        }
    }
}

impl Users {
    /// The tickets of these settings, and what follows them. With the settings as before, those that are known stay.
    fn tickets(&mut self, options: &access::Options, shared: &Arc<Shared>) -> Option<Arc<access::tickets::Tickets>> {
        let settings = options.tickets.clone().map(|own| (own, options.kubeconfig.clone()));
        let same = self
            .tickets
            .take()
            .filter(|own| Some(&own.settings) == settings.as_ref());
        self.tickets = same.or_else(|| TicketSource::start(settings?, shared));
        self.tickets.as_ref().map(|own| Arc::clone(&own.tickets))
    }
}

/// Has the rights in use checked for as long as the process runs.
pub(super) fn keep_checking(shared: &Arc<Shared>) {
    let access = Arc::clone(&shared.access);
    let check = move || {
        let access = Arc::clone(&access);
        tokio::spawn(async move { access.keep_checking().await })
    };
    // Otherwise no right would ever be taken back again.
    tokio::spawn(async { supervise("the task that checks rights again", check, || {}).await });
    let (access, mut user_lists) = (Arc::clone(&shared.access), shared.allowlist.user_lists_changed());
    tokio::spawn(async move {
        while user_lists.changed().await.is_ok() {
            access.user_lists_changed();
        }
    });
}

fn issuers_of(options: &access::Options) -> Option<Arc<oidc::Issuers>> {
    match oidc::Issuers::new(&options.oidc) {
        Ok(issuers) => Some(issuers).filter(|issuers| !issuers.is_empty()).map(Arc::new),
        Err(faults) => {
            // The configuration was checked: a file has changed since.
            for fault in faults {
                error!("{fault}: no token of the issuers is accepted");
            }
            None
        }
    }
}

fn users_of(
    options: &access::Options,
    shared: &Arc<Shared>,
    following: &mut JoinSet<()>,
) -> Option<Arc<passwords::Users>> {
    let users = Arc::new(passwords::Users::empty(options.users.as_ref()?));
    let (first, followed) = (Arc::clone(&users), Arc::clone(&users));
    run_within(LONGEST, move || log(&first, &Ok(first.reload())));
    let access = Arc::clone(&shared.access);
    following.spawn(Arc::clone(&users).follow(move |found| {
        log(&followed, &found);
        if found == Ok(Reloaded::Loaded) {
            access.users_changed();
        }
    }));
    Some(users)
}

/// Follows roles and bindings, if the settings say so.
fn watch(options: &access::Options, shared: &Arc<Shared>) -> Option<RbacWatch> {
    if !options.kubernetes.as_ref()?.watch_rbac {
        return None;
    }
    let access: Arc<Access> = Arc::clone(&shared.access);
    let origin = Origin {
        kubeconfig: options.kubeconfig.clone(),
        metrics: shared.metrics.clone(),
        watches: access.watches(),
    };
    let watch = RbacWatch::start(origin, move |change| access.changed(&change));
    watch
        .inspect_err(
            |error| error!(%error, "cannot follow roles and bindings: rights are asked about again at `recheck`"),
        )
        .ok()
}

fn log(users: &passwords::Users, found: &Result<Reloaded<UserFault>, NotRead>) {
    match found {
        Ok(Reloaded::Unchanged) => {}
        Ok(Reloaded::Loaded) => info!(users = users.len(), "users loaded"),
        Ok(Reloaded::Faulty(faults)) => {
            for fault in faults {
                error!("{fault}: the users stay as they were");
            }
        }
        Ok(Reloaded::Postponed(reason)) => warn!("{reason}: the users stay as they were"),
        Err(error) => warn!("the file of users was {error}: they stay as they were"),
    }
}
