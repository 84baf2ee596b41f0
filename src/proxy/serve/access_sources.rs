//! Creates the sources that authenticate and authorize users, and follows their changes.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use tracing::{error, info, warn};

use crate::base::follow::{READ_TIMEOUT, ReadFailure, ReloadResult};
use crate::daemon::threads::run_within;
use crate::daemon::vital::keep_running;
use crate::kubernetes::{
    ApiReviewer, BackgroundRuntime, SecretTable, WatchContext, report_cluster, watch_rbac, watch_secret,
};
use crate::policy::access::files::passwords::key_secret::KeySecret;
use crate::policy::access::files::passwords::{UserFault, Users};
use crate::policy::access::files::ssh_authorities::AuthorityKeys;
use crate::policy::access::tickets::Tickets;
use crate::policy::access::{
    self, Access, Contents, FollowedFile, KeySecretOptions, Reviewer, SecretName, Sources, TicketOptions, oidc,
};
use crate::proxy::config::Config;
use crate::proxy::connection::Shared;

/// The sources of users and rights, for as long as they are configured.
#[derive(Debug, Default)]
pub(super) struct AccessSources {
    /// The options, their kubeconfig, and whether users are authenticated.
    applied: Option<(access::Options, Option<PathBuf>, bool)>,
    issuers: SourceSlot<Vec<access::Issuer>, Arc<oidc::Issuers>>,
    users: SourceSlot<access::UserFileOptions, UserFile<Users>>,
    ssh_authorities: SourceSlot<access::UserFileOptions, UserFile<AuthorityKeys>>,
    /// The tickets, with their options and the kubeconfig.
    tickets: SourceSlot<(TicketOptions, Option<PathBuf>), ClusterTable<Tickets>>,
    /// The keys of the cluster, likewise.
    key_secret: SourceSlot<(KeySecretOptions, Option<PathBuf>), ClusterTable<KeySecret>>,
    /// The watch of roles and bindings, replaced when the settings change.
    watch: Option<BackgroundRuntime>,
}

/// A source and the settings that it was made from. While the settings are the same, the source stays: its keys and
/// users apply even if their file or server cannot be read.
type SourceSlot<O, T> = Option<(O, T)>;

/// Returns the source of these settings: the slot's, if it has the same settings, or a new source.
fn keep_or<'a, O: Clone + PartialEq, T>(
    slot: &'a mut SourceSlot<O, T>,
    settings: Option<&O>,
    make: impl FnOnce(&O) -> Option<T>,
) -> Option<&'a T> {
    if slot.as_ref().map(|(own, _)| own) != settings {
        *slot = None;
        *slot = settings.and_then(|settings| Some((settings.clone(), make(settings)?)));
    }
    slot.as_ref().map(|(_, source)| source)
}

/// A file about users, followed until this is dropped.
#[derive(Debug)]
struct UserFile<T> {
    file: Arc<FollowedFile<T>>,
    _following: AbortOnDropHandle<()>,
}

/// The table of a Secret of the cluster, followed until this is dropped.
#[derive(Debug)]
struct ClusterTable<T> {
    table: Arc<T>,
    _watch: BackgroundRuntime,
    _reporting: AbortOnDropHandle<()>,
}

impl AccessSources {
    /// Applies the settings, if they have changed, also to open tunnels. The files about users are read again in any case.
    pub(super) fn apply(&mut self, config: &Config, shared: &Arc<Shared>) {
        if let Some((_, users)) = &self.users {
            users.file.read_again();
        }
        if let Some((_, authorities)) = &self.ssh_authorities {
            authorities.file.read_again();
        }
        let kubeconfig = &config.access_kubeconfig;
        let applied = (config.access.clone(), kubeconfig.clone(), config.proves_users());
        if self.applied.as_ref() == Some(&applied) {
            return;
        }
        let options = &config.access;
        let asked = Some(options).filter(|_| config.proves_users());
        if options.reads_cluster() && asked.is_some() {
            tokio::spawn(report_cluster("access", kubeconfig.clone()));
        }
        let sources = self.sources(asked, kubeconfig, shared);
        let watch = asked.and_then(|options| rbac_of(options, kubeconfig, shared));
        shared.access.apply(options.clone(), sources);
        self.watch = watch;
        self.applied = Some(applied);
    }

    /// Returns the sources of these settings; no sources without settings.
    fn sources(
        &mut self,
        options: Option<&access::Options>,
        kubeconfig: &Option<PathBuf>,
        shared: &Arc<Shared>,
    ) -> Sources {
        let reviewer = |own| -> Arc<dyn Reviewer> { Arc::new(ApiReviewer::new(own, kubeconfig.clone())) };
        let issuers = options.map(|options| &options.oidc);
        let users = options.and_then(|options| options.users.as_ref());
        let tickets = options.and_then(|options| options.tickets.clone());
        let tickets = tickets.map(|options| (options, kubeconfig.clone()));
        let users = keep_or(&mut self.users, users, |own| Some(file_of(own, "users", shared)));
        let authorities = options.and_then(|options| options.ssh_authorities.as_ref());
        let authorities = keep_or(&mut self.ssh_authorities, authorities, |own| {
            Some(file_of(own, "ssh_authorities", shared))
        });
        let tickets = keep_or(&mut self.tickets, tickets.as_ref(), |(options, kubeconfig)| {
            let tickets = Arc::new(Tickets::new(options.ttl));
            let changed = (tickets.changed(), Access::tickets_changed as fn(&Access));
            table_of(tickets, (&options.secret, kubeconfig), changed, shared)
        });
        let keys = options.and_then(|options| options.ssh_keys.clone());
        let keys = keys.map(|options| (options, kubeconfig.clone()));
        let keys = keep_or(&mut self.key_secret, keys.as_ref(), |(options, kubeconfig)| {
            let keys = Arc::new(KeySecret::new(options.username_prefix.clone()));
            let changed = (keys.changed(), Access::key_secret_changed as fn(&Access));
            table_of(keys, (&options.secret, kubeconfig), changed, shared)
        });
        Sources {
            issuers: keep_or(&mut self.issuers, issuers, |own| issuers_of(own)).cloned(),
            users: users.map(|own| Arc::clone(&own.file)),
            ssh_authorities: authorities.map(|own| Arc::clone(&own.file)),
            tickets: tickets.map(|own| Arc::clone(&own.table)),
            key_secret: keys.map(|own| Arc::clone(&own.table)),
            reviewer: options.and_then(|options| options.kubernetes.as_ref()).map(reviewer),
        }
    }
}

/// Follows the targets' lists of users for as long as the process runs.
pub(super) fn follow_user_lists(shared: &Arc<Shared>) {
    let shared = Arc::clone(shared);
    tokio::spawn(keep_running("the task that follows lists of users", move || {
        let (access, mut user_lists) = (Arc::clone(&shared.access), shared.allowlist.user_lists_changed());
        async move {
            // First for the change that a panic may have taken.
            access.user_lists_changed();
            while user_lists.changed().await.is_ok() {
                access.user_lists_changed();
            }
        }
    }));
}

fn issuers_of(issuers: &[access::Issuer]) -> Option<Arc<oidc::Issuers>> {
    (!issuers.is_empty()).then(|| Arc::new(oidc::Issuers::new(issuers)))
}

/// Follows the file of a setting of `access`.
fn file_of<T: Contents>(options: &access::UserFileOptions, key: &'static str, shared: &Arc<Shared>) -> UserFile<T> {
    let access = Arc::clone(&shared.access);
    let what = format!("the {key} of {}", options.file.display());
    follow_file(options, move |file, found| {
        match &found {
            Ok(found) => log_unread(found, &what),
            Err(error) => warn!("{what} were {error}: they stay as they were"),
        }
        if found == Ok(ReloadResult::Loaded) {
            info!(entries = file.len(), "{key} loaded");
            access.users_changed();
        }
    })
}

/// Reads the file, waiting at most [`READ_TIMEOUT`], and follows it. Every reading is reported, even the first and late
/// ones.
fn follow_file<T: Contents, R>(options: &access::UserFileOptions, report: R) -> UserFile<T>
where
    R: Fn(&FollowedFile<T>, Result<ReloadResult<UserFault>, ReadFailure>) + Clone + Send + Sync + 'static,
{
    let file = FollowedFile::empty(&options.file).with_prefix(options.username_prefix.clone());
    let file = Arc::new(file);
    let (first, own) = (Arc::clone(&file), Arc::clone(&file));
    let report = move |found| report(&own, found);
    let report_first = report.clone();
    if !run_within(READ_TIMEOUT, move || report_first(Ok(first.reload()))) {
        report(Err(ReadFailure::NoThread));
    }
    let own = Arc::clone(&file);
    let follow = move || Arc::clone(&own).follow(report.clone());
    let following = tokio::spawn(keep_running("the task that follows a file about users", follow));
    UserFile {
        file,
        _following: AbortOnDropHandle::new(following),
    }
}

/// Starts to follow a Secret, and calls the function after each change of the table; `None` without a thread for it, and then no
/// entry is accepted.
fn table_of<T: SecretTable>(
    table: Arc<T>,
    (secret, kubeconfig): (&SecretName, &Option<PathBuf>),
    (changed, apply): (watch::Receiver<u64>, fn(&Access)),
    shared: &Arc<Shared>,
) -> Option<ClusterTable<T>> {
    let watch = watch_secret(origin(kubeconfig.clone(), shared), secret.clone(), Arc::clone(&table));
    let watch = watch
        .inspect_err(|error| error!(%error, "cannot follow {}: none is accepted", T::ENTRIES))
        .ok()?;
    let access = Arc::clone(&shared.access);
    let reporting = tokio::spawn(keep_running("the task that follows a Secret", move || {
        let (access, mut changed) = (Arc::clone(&access), changed.clone());
        async move {
            // First for the change that a panic may have taken.
            apply(&access);
            while changed.changed().await.is_ok() {
                apply(&access);
            }
        }
    }));
    Some(ClusterTable {
        table,
        _watch: watch,
        _reporting: AbortOnDropHandle::new(reporting),
    })
}

fn origin(kubeconfig: Option<PathBuf>, shared: &Shared) -> WatchContext {
    WatchContext {
        kubeconfig,
        metrics: shared.metrics.cluster.clone(),
        watches: shared.access.watches(),
    }
}

/// Follows roles and bindings, if the settings say so.
fn rbac_of(options: &access::Options, kubeconfig: &Option<PathBuf>, shared: &Arc<Shared>) -> Option<BackgroundRuntime> {
    if !options.kubernetes.as_ref()?.watch_rbac {
        return None;
    }
    let access = Arc::clone(&shared.access);
    let origin = origin(kubeconfig.clone(), shared);
    let watch = watch_rbac(origin, move |change| access.changed(&change));
    watch
        .inspect_err(
            |error| error!(%error, "cannot follow roles and bindings: rights are reviewed again at `recheck` only"),
        )
        .ok()
}

/// Logs that a source could not be read again, or that it has faults: `what`, such as `the users`, stay as they were.
pub(super) fn log_unread<F: Display>(found: &ReloadResult<F>, what: &str) {
    match found {
        ReloadResult::Unchanged | ReloadResult::Loaded => {}
        ReloadResult::Invalid(faults) => {
            for fault in faults {
                error!("{fault}: {what} stay as they were");
            }
        }
        ReloadResult::Deferred(reason) => warn!("{reason}: {what} stay as they were"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_reading_of_a_file_of_users_is_reported_as_all_others() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("users");
        std::fs::write(&file, "# none yet\n").unwrap();
        let (sender, reported) = std::sync::mpsc::channel();
        let options = access::UserFileOptions {
            file,
            username_prefix: None,
        };
        let own: UserFile<Users> =
            follow_file(&options, move |users, found| sender.send((users.len(), found)).unwrap());
        // Read before the function returns, so that nothing is waited for.
        assert_eq!(reported.try_recv(), Ok((0, Ok(ReloadResult::Loaded))));
        assert!(own.file.is_empty());
    }
}
