//! Changes the allowlist: the configuration's targets as a whole, the cluster's one by one.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tracing::warn;

use super::static_target::StaticTarget;
use super::table::{Route, Shard, Statics, Table, shard_of};
use super::target::{ClientNames, Endpoints, Target, TargetId};
use super::{Allowlist, Options};
use crate::authority::Authority;
use crate::limits::Limits;
use crate::limits::TargetLimits;

/// A Service as it should be on the allowlist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceTarget {
    /// Who it is.
    pub id: TargetId,
    /// Its shortest name, `svc.ns`, as [`Suffixes::cut`](super::Suffixes::cut) leaves it. No two have one.
    pub name: Box<str>,
    /// The ports that clients may ask for: the Service's own and the alias.
    pub ports: [u16; 2],
    /// Where it is.
    pub endpoints: Endpoints,
    /// What bounds it.
    pub limits: TargetLimits,
    /// Who may have tunnels to it, by a name in the client's certificate; `None` is everybody.
    pub allowed_clients: Option<ClientNames>,
}

/// What has become of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is on the allowlist like that.
    Set(Box<ServiceTarget>),
    /// It is not, or no longer.
    Remove(TargetId),
}

/// Who may change the allowlist. Its clones take turns.
#[derive(Clone, Debug)]
pub struct Writer {
    allowlist: Arc<Allowlist>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    statics: HashMap<TargetId, Arc<Target>>,
    services: HashMap<Arc<TargetId>, Service>,
    /// The configuration's names by what [`Suffixes::cut`](super::Suffixes::cut) leaves of them.
    static_names: HashMap<Box<str>, Vec<Authority>>,
    /// The configuration's names that some Service would answer to, too.
    shadowing: BTreeSet<Authority>,
    /// The last ones that were used: most targets have the same.
    limits: Arc<TargetLimits>,
}

#[derive(Debug)]
struct Service {
    target: Arc<Target>,
    name: Arc<str>,
}

impl Writer {
    /// An empty allowlist and its writer.
    pub fn new() -> (Self, Arc<Allowlist>) {
        let allowlist = Arc::new(Allowlist::default());
        let writer = Self {
            allowlist: Arc::clone(&allowlist),
            state: Arc::default(),
        };
        (writer, allowlist)
    }

    /// Puts these targets in the place of all others that the configuration named.
    ///
    /// A target that stays keeps its tunnels, which follow its new limits; one that goes ends them.
    pub fn publish(&mut self, targets: &[StaticTarget], limits: &Limits) {
        let mut state = self.state();
        let mut statics = Statics::with_capacity(targets.len());
        let mut known = HashMap::with_capacity(targets.len());
        for target in targets {
            let id = TargetId {
                namespace: STATIC.into(),
                service: target.name.to_string().into(),
            };
            let limits = state.shared(limits.of_target(&target.limits));
            let endpoints = Endpoints {
                proxy_header: target.send_proxy_header,
                ..Endpoints::from(target.addresses.clone())
            };
            let shared = match state.statics.remove(&id) {
                Some(shared) => {
                    shared.update(endpoints, limits);
                    shared
                }
                None => Arc::new(Target::new(Arc::new(id.clone()), endpoints, limits)),
            };
            shared.admit(target.allowed_clients.as_ref());
            statics.insert(target.name.clone(), Arc::clone(&shared));
            known.insert(id, shared);
        }
        let mut table = self.allowlist.table();
        table.statics = Arc::new(statics);
        state.look_for_shadows(&table);
        self.store(&state, table);
        // Only now: who is told to go must not find the way back in.
        for gone in std::mem::replace(&mut state.statics, known).into_values() {
            gone.revoke();
        }
    }

    /// From now on a name that is not on the allowlist may be so before the list is complete.
    pub fn await_services(&self) {
        let state = self.state();
        let mut table = self.allowlist.table();
        table.complete = false;
        self.store(&state, table);
    }

    /// Whether all that may be asked for is known.
    pub fn is_complete(&self) -> bool {
        self.allowlist.table().complete
    }

    /// How Services are named and left. What is on the allowlist stays.
    pub fn configure(&self, options: Options) {
        let mut state = self.state();
        let mut table = self.allowlist.table();
        table.options = options;
        state.look_for_shadows(&table);
        self.store(&state, table);
    }

    /// Puts these Services in the place of all others. They are served from now on; as long as the list is not complete,
    /// or [confirmed](Self::confirm) to be, a name that is not on it may be on the allowlist all the same.
    pub fn replace(&self, targets: Vec<ServiceTarget>, is_complete: bool) {
        let mut state = self.state();
        let mut gone: HashMap<_, _> = state.services.keys().map(|id| (Arc::clone(id), ())).collect();
        for target in &targets {
            gone.remove(&target.id);
        }
        let gone = gone.into_keys().map(|id| Change::Remove((*id).clone()));
        let set = targets.into_iter().map(|target| Change::Set(Box::new(target)));
        self.change(&mut state, gone.chain(set), is_complete);
        // A second time there is nobody left to tell.
        self.allowlist.completed.set(()).ok();
    }

    /// The list is complete: a name that is not on it is not on the allowlist.
    pub fn confirm(&self) {
        self.change(&mut self.state(), [], true);
    }

    /// Changes some Services.
    pub fn apply(&self, changes: impl IntoIterator<Item = Change>) {
        self.change(&mut self.state(), changes, false);
    }

    /// Sets the number of names that several Services claim.
    pub fn set_contested(&self, names: usize) {
        self.allowlist.set_contested(names);
    }

    fn change(&self, state: &mut State, changes: impl IntoIterator<Item = Change>, completes: bool) {
        let mut edit = Edit::new(self.allowlist.table());
        let mut gone = Vec::new();
        for change in changes {
            match change {
                Change::Set(target) => state.set(*target, &mut edit),
                Change::Remove(id) => gone.extend(state.remove(&id, &mut edit)),
            }
        }
        let names = edit.names;
        let (mut table, edited) = (edit.table, !edit.shards.is_empty());
        for (index, shard) in edit.shards {
            if let Some(place) = table.shards.get_mut(index) {
                *place = Arc::new(shard);
            }
        }
        let keeps_removed = table.options.keeps_removed;
        table.services = state.services.len();
        if edited || (completes && !table.complete) {
            table.complete |= completes;
            for name in names {
                state.look_for_shadows_of(&name, &table);
            }
            self.store(state, table);
        }
        if !keeps_removed {
            gone.iter().for_each(|target| target.revoke());
        }
    }

    fn store(&self, state: &State, table: Table) {
        self.allowlist.store(table, state.shadowing.len());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    fn set(&mut self, wanted: ServiceTarget, edit: &mut Edit) {
        let name: Arc<str> = wanted.name.into();
        let limits = self.shared(wanted.limits);
        let target = match self.services.get_mut(&wanted.id) {
            Some(service) => {
                service.target.update(wanted.endpoints, limits);
                if service.name != name {
                    edit.remove(&service.name, &service.target);
                    service.name = Arc::clone(&name);
                }
                Arc::clone(&service.target)
            }
            None => {
                let id = Arc::new(wanted.id);
                let target = Arc::new(Target::new(Arc::clone(&id), wanted.endpoints, limits));
                let service = Service {
                    target: Arc::clone(&target),
                    name: Arc::clone(&name),
                };
                self.services.insert(id, service);
                target
            }
        };
        target.admit(wanted.allowed_clients.as_ref());
        edit.set(
            name,
            Route {
                target,
                ports: wanted.ports,
            },
        );
    }

    fn shared(&mut self, limits: TargetLimits) -> Arc<TargetLimits> {
        if *self.limits != limits {
            self.limits = Arc::new(limits);
        }
        Arc::clone(&self.limits)
    }

    fn remove(&mut self, id: &TargetId, edit: &mut Edit) -> Option<Arc<Target>> {
        let service = self.services.remove(id)?;
        edit.remove(&service.name, &service.target);
        Some(service.target)
    }

    fn look_for_shadows(&mut self, table: &Table) {
        self.static_names.clear();
        for name in table.statics.keys() {
            let short = table.options.suffixes.cut(name.host()).into();
            self.static_names.entry(short).or_default().push(name.clone());
        }
        let names: Vec<_> = self.static_names.keys().cloned().collect();
        self.shadowing.retain(|name| table.statics.contains_key(name));
        for name in names {
            self.look_for_shadows_of(&name, table);
        }
    }

    fn look_for_shadows_of(&mut self, name: &str, table: &Table) {
        for name in self.static_names.get(name).into_iter().flatten() {
            match table.service(name) {
                None => {
                    self.shadowing.remove(name);
                }
                Some(service) => {
                    if self.shadowing.insert(name.clone()) {
                        let service = service.id();
                        warn!(%name, %service, "the configuration and a Service claim one name: the configuration has it");
                    }
                }
            }
        }
    }
}

/// A table on its way to the next one: only the shards that change are copied.
struct Edit {
    table: Table,
    shards: HashMap<usize, Shard>,
    names: Vec<Arc<str>>,
}

impl Edit {
    fn new(table: Table) -> Self {
        Self {
            table,
            shards: HashMap::new(),
            names: Vec::new(),
        }
    }

    fn set(&mut self, name: Arc<str>, route: Route) {
        let same = |known: &Route| Arc::ptr_eq(&known.target, &route.target) && known.ports == route.ports;
        let is_there = match self.shards.get(&shard_of(&name)) {
            Some(shard) => shard.get(&name).is_some_and(same),
            None => self.table.route(&name).is_some_and(same),
        };
        if !is_there {
            self.names.push(Arc::clone(&name));
            self.shard(&name).insert(name, route);
        }
    }

    /// Unless the name belongs to another by now.
    fn remove(&mut self, name: &Arc<str>, target: &Arc<Target>) {
        let shard = self.shard(name);
        if shard.get(name).is_some_and(|known| Arc::ptr_eq(&known.target, target)) {
            shard.remove(name);
        }
        self.names.push(Arc::clone(name));
    }

    fn shard(&mut self, name: &str) -> &mut Shard {
        let index = shard_of(name);
        self.shards.entry(index).or_insert_with(|| {
            let shard = self.table.shards.get(index);
            shard.map(|shard| Shard::clone(shard)).unwrap_or_default()
        })
    }
}

/// The namespace of targets that the configuration names.
const STATIC: &str = "static";
