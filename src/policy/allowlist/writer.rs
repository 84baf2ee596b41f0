//! Changes the allowlist: the static targets all at once, the Services of the cluster one by one.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use parking_lot::{Mutex, MutexGuard};
use tracing::warn;

use super::host_keys::TargetKeys;
use super::static_target::StaticTarget;
use super::table::{Allowlist, ClusterView, Options, Route, Shard, Statics, Table, shard_of};
use super::target::{DialsIn, Endpoints, STATIC, Target, TargetId, TargetRules};
use super::wake::WakeRequests;
use super::workload::Workloads;
use crate::base::authority::Authority;
use crate::tunnel::limits::Limits;

/// A Service on the allowlist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceTarget {
    /// Its identity.
    pub id: TargetId,
    /// The ports that clients may ask for: the Service's own and the alias.
    pub ports: [u16; 2],
    /// Its endpoints.
    pub endpoints: Endpoints,
    /// Its rules.
    pub rules: TargetRules,
}

/// A change of one Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adds the Service to the allowlist, or updates it.
    Set(Box<ServiceTarget>),
    /// Lets no new tunnel to the Service begin, if it is there, until it is set or removed.
    Await(TargetId),
    /// Removes the Service from the allowlist, if it is there.
    Remove(TargetId),
}

/// The writer of an allowlist. Its clones exclude each other by a lock.
#[derive(Clone, Debug)]
pub struct Writer {
    allowlist: Arc<Allowlist>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// The authorities of static targets that a Service claims too.
    shadowing: BTreeSet<Authority>,
    /// The rules of the last target, which most targets share.
    rules: Arc<TargetRules>,
}

impl Writer {
    /// Creates an empty allowlist and its writer.
    pub fn new() -> (Self, Arc<Allowlist>) {
        let allowlist = Arc::new(Allowlist::default());
        let writer = Self {
            allowlist: Arc::clone(&allowlist),
            state: Arc::default(),
        };
        (writer, allowlist)
    }

    /// Replaces all static targets.
    ///
    /// A target that stays keeps its tunnels, and they get its new limits. The tunnels of a removed one end.
    pub fn publish(&mut self, targets: &[StaticTarget], limits: &Limits) {
        let mut state = self.state();
        let mut table = self.allowlist.table();
        let mut gone = Statics::clone(&table.statics);
        let mut statics = Statics::with_capacity(targets.len());
        let mut has_other_users = false;
        for target in targets {
            let rules = state.share(TargetRules {
                limits: limits.of_target(&target.limits, target.ssh_only),
                allowed_clients: target.allowed_clients.clone().map(Arc::new),
                user_lists: target.user_lists().map(Arc::new),
                owner: None,
                uid: None,
                alias: None,
                is_awaited: false,
                dials_in: target.dials_in.clone().map(DialsIn::from),
                workloads: Workloads::default(),
                stopped: None,
                host_keys: target.host_keys.clone().map(TargetKeys::Files),
            });
            let endpoints = Endpoints {
                proxy_header: target.send_proxy_header,
                ..Endpoints::from(target.addresses.clone())
            };
            let published = match gone.remove(&target.name) {
                Some(published) => {
                    has_other_users |= published.update(endpoints, &rules);
                    published
                }
                None => {
                    let id = TargetId {
                        namespace: STATIC.into(),
                        service: target.name.to_string().into(),
                    };
                    Arc::new(Target::new(id, endpoints, rules))
                }
            };
            statics.insert(target.name.clone(), published);
        }
        table.statics = Arc::new(statics);
        self.store(&mut state, table);
        self.notify_user_lists(has_other_users);
        // After the store: a client whose tunnel ends must not get another one at once.
        gone.values().for_each(|target| target.remove());
    }

    /// Makes absent names of these namespaces, `None` for all, unknown and not forbidden until the list of Services is
    /// complete.
    pub fn await_services(&self, namespaces: Option<Vec<Box<str>>>) {
        if namespaces.as_ref().is_some_and(Vec::is_empty) {
            return;
        }
        let mut state = self.state();
        let mut table = self.allowlist.table();
        match namespaces {
            // If all are expected already, no list of some is needed.
            Some(namespaces) if table.complete || !table.awaited.is_empty() => table.awaited.extend(namespaces),
            Some(_) | None => table.awaited.clear(),
        }
        table.complete = false;
        self.store(&mut state, table);
    }

    /// Makes absent names of the pods of these namespaces, `None` for all, unknown and not forbidden, and of others not.
    pub fn await_pods(&self, namespaces: Vec<Option<Box<str>>>) {
        if self.allowlist.table.load().awaited_pods != namespaces {
            let mut state = self.state();
            let mut table = self.allowlist.table();
            table.awaited_pods = namespaces;
            self.store(&mut state, table);
        }
    }

    /// Returns the targets, in no order.
    pub fn targets(&self) -> Vec<Arc<Target>> {
        self.allowlist.all()
    }

    /// Returns the wake requests of targets.
    pub fn wakes(&self) -> &WakeRequests {
        &self.allowlist.wakes
    }

    /// Returns whether all targets are known, so that an absent name is forbidden.
    pub fn is_complete(&self) -> bool {
        self.allowlist.table().complete
    }

    /// Changes the options. The targets stay.
    pub fn configure(&self, options: Options) {
        let mut state = self.state();
        let mut table = self.allowlist.table();
        table.options = options;
        self.store(&mut state, table);
    }

    /// Replaces all Services. Only a complete list, or [`Self::confirm`] later, makes an absent name forbidden.
    pub fn replace(&self, targets: Vec<ServiceTarget>, is_complete: bool) {
        let mut state = self.state();
        let table = self.allowlist.table();
        let mut gone: HashSet<_> = table.services().map(|target| target.id()).collect();
        for target in &targets {
            gone.remove(&target.id);
        }
        let gone = gone.into_iter().map(|id| Change::Remove(id.clone()));
        let set = targets.into_iter().map(|target| Change::Set(Box::new(target)));
        self.change(&mut state, gone.chain(set), is_complete);
        // An error means that it is set already.
        self.allowlist.completed.set(()).ok();
    }

    /// Confirms that the list of Services is complete: from now on an absent name is forbidden.
    pub fn confirm(&self) {
        self.change(&mut self.state(), [], true);
    }

    /// Sets since when the Services have not been confirmed by the API server, in seconds since 1970; `None` if they are.
    pub fn set_unconfirmed(&self, since: Option<f64>) {
        let since = since.map(|seconds| UNIX_EPOCH + Duration::from_secs_f64(seconds));
        *self.allowlist.unconfirmed_since.lock() = since;
    }

    /// Sets the cluster that is watched, for remarks about its Services.
    pub fn set_cluster(&self, cluster: Box<dyn ClusterView>) {
        *self.allowlist.cluster.lock() = Some(cluster);
    }

    /// Removes all Services, because no cluster is watched any more.
    pub fn remove_cluster(&self) {
        self.replace(Vec::new(), true);
        self.set_unconfirmed(None);
        *self.allowlist.cluster.lock() = None;
    }

    /// Applies changes of some Services.
    pub fn apply(&self, changes: impl IntoIterator<Item = Change>) {
        self.change(&mut self.state(), changes, false);
    }

    fn change(&self, state: &mut State, changes: impl IntoIterator<Item = Change>, completes: bool) {
        let mut edit = Edit {
            table: self.allowlist.table(),
            shards: HashMap::new(),
            has_other_users: false,
            gone: Vec::new(),
        };
        for change in changes {
            match change {
                Change::Set(target) => {
                    let ServiceTarget {
                        id,
                        ports,
                        endpoints,
                        rules,
                    } = *target;
                    edit.set(id, ports, endpoints, state.share(rules));
                }
                Change::Await(id) => edit.set_awaited(&id),
                Change::Remove(id) => edit.remove(&id),
            }
        }
        let (has_other_users, gone) = (edit.has_other_users, edit.gone);
        let (mut table, edited) = (edit.table, !edit.shards.is_empty());
        for (index, shard) in edit.shards {
            if let Some(current) = table.shards.get_mut(index) {
                *current = Arc::new(shard);
            }
        }
        let keeps_removed = table.options.keeps_removed;
        if edited || (completes && !table.complete) {
            table.complete |= completes;
            if table.complete {
                table.awaited.clear();
            }
            self.store(state, table);
        }
        self.notify_user_lists(has_other_users);
        if !keeps_removed {
            gone.iter().for_each(|target| target.remove());
        }
    }

    /// Notifies the tunnels if the lists of users have changed. Called after the update: a tunnel that the old lists
    /// admitted is notified.
    fn notify_user_lists(&self, changed: bool) {
        if changed {
            self.allowlist.user_lists.send_replace(());
        }
    }

    fn store(&self, state: &mut State, table: Table) {
        state.shadowed_services(&table);
        self.allowlist.store(table, state.shadowing.len());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    /// Returns the rules, in the allocation of the last target's rules if both are equal.
    fn share(&mut self, rules: TargetRules) -> Arc<TargetRules> {
        if *self.rules != rules {
            self.rules = Arc::new(rules);
        }
        Arc::clone(&self.rules)
    }

    /// Finds the static targets whose names a Service claims too, and logs those that are new.
    fn shadowed_services(&mut self, table: &Table) {
        let claimed = |name: &Authority| table.service(name).map(|service| (name.clone(), service.id()));
        let mut shadowing = BTreeSet::new();
        for (name, service) in table.statics.keys().filter_map(claimed) {
            if !self.shadowing.contains(&name) {
                warn!(%name, %service, "a static target and a Service claim one name, and the static target has it");
            }
            shadowing.insert(name);
        }
        self.shadowing = shadowing;
    }
}

/// The next table while it is made from the current one: a shard is copied when it is first changed.
struct Edit {
    /// The current table.
    table: Table,
    /// The shards that change, by their index.
    shards: HashMap<usize, Shard>,
    /// True if other users than before may reach a target.
    has_other_users: bool,
    /// The targets that are no longer there.
    gone: Vec<Arc<Target>>,
}

/// Returns the further name of a target, as clients request it.
fn alias(id: &TargetId, rules: &TargetRules) -> Option<String> {
    let alias = rules.alias.as_deref()?;
    Some(TargetId::of_pod(&id.namespace, alias).short_name())
}

fn alias_of(target: &Target) -> Option<String> {
    alias(target.id(), &target.rules())
}

impl Edit {
    /// Adds a Service. One that is there already is updated, so that it keeps its tunnels. Another pod of the same name is
    /// another target.
    fn set(&mut self, id: TargetId, ports: [u16; 2], endpoints: Endpoints, rules: Arc<TargetRules>) {
        let name = id.short_name();
        let alias = alias(&id, &rules);
        let known = self.route(&name).filter(|route| !route.is_alias).cloned();
        let former = known.as_ref().and_then(|known| alias_of(&known.target));
        if let Some(former) = former.filter(|former| alias.as_ref() != Some(former)) {
            self.drop_name(&former, &id);
        }
        let target = match known {
            Some(known) if known.target.rules().uid == rules.uid => {
                let was_named = alias_of(&known.target) == alias;
                self.has_other_users |= known.target.update(endpoints, &rules);
                if known.ports == ports && was_named {
                    return;
                }
                known.target
            }
            other => {
                self.gone.extend(other.map(|route| route.target));
                Arc::new(Target::new(id, endpoints, rules))
            }
        };
        // A name of its own is never taken from another target.
        let is_free = |alias: &String| self.route(alias).is_none_or(|route| route.is_alias);
        let alias = alias.filter(is_free).map(|alias| (alias, true));
        for (name, is_alias) in alias.into_iter().chain([(name, false)]) {
            let route = Route {
                target: Arc::clone(&target),
                ports,
                is_alias,
            };
            self.shard(&name).insert(name.into(), route);
        }
    }

    /// Lets no new tunnel begin, until the Service is set again.
    fn set_awaited(&mut self, id: &TargetId) {
        let route = self.route(&id.short_name());
        if let Some(target) = route.map(|route| &route.target).filter(|target| target.id() == id) {
            let rules = TargetRules {
                is_awaited: true,
                ..TargetRules::clone(&target.rules())
            };
            target.update(Endpoints::clone(&target.endpoints()), &Arc::new(rules));
        }
    }

    /// Removes a Service, if it is there.
    fn remove(&mut self, id: &TargetId) {
        let removed = self.drop_name(&id.short_name(), id);
        if let Some(alias) = removed.as_deref().and_then(alias_of) {
            self.drop_name(&alias, id);
        }
        self.gone.extend(removed);
    }

    /// Removes a name of a target, unless another one has got it by now: a pod without a Service, or one of a Service in a
    /// namespace `pod`.
    fn drop_name(&mut self, name: &str, id: &TargetId) -> Option<Arc<Target>> {
        self.route(name).filter(|route| route.target.id() == id)?;
        self.shard(name).remove(name).map(|route| route.target)
    }

    fn route(&self, name: &str) -> Option<&Route> {
        match self.shards.get(&shard_of(name)) {
            Some(shard) => shard.get(name),
            None => self.table.route(name),
        }
    }

    fn shard(&mut self, name: &str) -> &mut Shard {
        let index = shard_of(name);
        self.shards.entry(index).or_insert_with(|| {
            let shard = self.table.shards.get(index);
            shard.map(|shard| Shard::clone(shard)).unwrap_or_default()
        })
    }
}
