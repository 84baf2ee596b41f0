//! Joins Services with their EndpointSlices and Namespaces into targets. It has no I/O and no clock.
//!
//! An event marks the Services that it affects, and [`ClusterObjects::recompute`] computes the targets of the marked
//! ones: the cost of an event does not grow with the cluster. The result depends only on the objects, not on the order
//! of events.

mod awaited;
mod entry;
mod names;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(crate) use self::awaited::AwaitedList;
use self::awaited::AwaitedLists;
use self::entry::{Entry, pod_id};
use self::names::PodNames;
use super::address_filter::AddressFilter;
use super::endpoints::{self, Selection};
use super::notices::ServiceNotice;
use crate::kubernetes::objects::annotations::{
    AnnotationError, dials_in, effective_limits, find_unmet, host_keys, workloads,
};
use crate::kubernetes::objects::model::{Key, Kind, Object, Pod, Service, ServicePort, Slice};
use crate::kubernetes::options::Options;
use crate::policy::allowlist::{Change, DialsIn, ServiceTarget, TargetId, TargetKeys, TargetRules};
use crate::tunnel::limits::Limits;

/// The operator's policy for turning Services into targets. They may change at runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TargetPolicy {
    /// The settings of the cluster.
    pub(crate) options: Options,
    /// The addresses that may be dialled.
    pub(crate) filter: AddressFilter,
    /// The limits of tunnels and targets.
    pub(crate) limits: Limits,
}

impl TargetPolicy {
    /// Creates the policy of these settings.
    pub(crate) fn new(options: &Options, limits: &Limits) -> Self {
        Self {
            options: options.clone(),
            filter: AddressFilter::new(&options.allowed_cidrs),
            limits: *limits,
        }
    }
}

/// The result of [`ClusterObjects::recompute`].
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TargetUpdates {
    /// The changes of the allowlist.
    pub(crate) changes: Vec<Change>,
    /// The new notices.
    pub(crate) notices: Vec<ServiceNotice>,
}

/// The known objects of the cluster.
#[derive(Debug)]
pub(crate) struct ClusterObjects {
    policy: TargetPolicy,
    services: BTreeMap<Key, Entry>,
    /// The Services of slices whose names are [not derived](is_derived) from their Service's.
    strays: BTreeMap<Key, Box<str>>,
    namespaces: BTreeSet<Box<str>>,
    /// The further names of pods.
    names: PodNames,
    /// The Services that were marked since the last [`recompute`](Self::recompute).
    dirty: BTreeSet<Key>,
    /// The lists that are missing. The targets that one may have or decide about stay, and no new tunnel to them begins.
    awaited: AwaitedLists,
}

impl ClusterObjects {
    /// Creates it without objects.
    pub(crate) fn new(policy: TargetPolicy) -> Self {
        Self {
            policy,
            services: BTreeMap::new(),
            strays: BTreeMap::new(),
            namespaces: BTreeSet::new(),
            names: PodNames::default(),
            dirty: BTreeSet::new(),
            awaited: AwaitedLists::default(),
        }
    }

    /// Returns the policy in effect.
    pub(crate) fn policy(&self) -> &TargetPolicy {
        &self.policy
    }

    /// Changes the policy, and marks all Services.
    pub(crate) fn configure(&mut self, policy: TargetPolicy) {
        self.policy = policy;
        self.dirty.extend(self.services.keys().cloned());
    }

    /// Forgets the current notices, which are therefore given again.
    pub(crate) fn forget_notices(&mut self) {
        self.services
            .values_mut()
            .for_each(|entry| entry.notices = Box::default());
    }

    /// Sets the lists that are missing, and marks all Services.
    pub(crate) fn await_lists(&mut self, awaited: impl IntoIterator<Item = AwaitedList>) {
        self.awaited = AwaitedLists(awaited.into_iter().collect());
        self.dirty.extend(self.services.keys().cloned());
    }

    /// Notes that a list is there, and marks the Services that waited for it: those of its namespace, or all.
    pub(crate) fn end_await(&mut self, kind: Kind, namespace: Option<&str>) {
        match (self.awaited.remove(kind, namespace), namespace) {
            (false, _) => {}
            (true, Some(namespace)) => self.mark_namespace(namespace),
            (true, None) => self.dirty.extend(self.services.keys().cloned()),
        }
    }

    /// Keeps a pod that may be gone, for its tunnels, without an address: another pod may have that by now.
    pub(crate) fn withhold(&mut self, pod: &Key) {
        if let Some(entry) = self.services.get_mut(pod) {
            let slices = entry.slices.iter_mut();
            slices.for_each(|(_, slice)| slice.endpoints = Box::default());
            self.dirty.insert(pod.clone());
        }
    }

    /// Adds an object, or changes it.
    pub(crate) fn put(&mut self, key: Key, object: Object) {
        match object {
            Object::Service(service) => {
                let entry = self.services.entry(key.clone()).or_default();
                if entry.service.as_ref() != Some(&service) {
                    entry.service = Some(service);
                    self.dirty.insert(key);
                }
            }
            Object::Slice(slice) => self.put_slice(&key, *slice),
            Object::Pod(pod) => {
                let Pod {
                    uid,
                    is_terminating,
                    service,
                    slice,
                } = *pod;
                let entry = self.services.entry(key.clone()).or_default();
                let has_moved = entry.put("", slice) || self.names.is_terminating(&key) != is_terminating;
                if has_moved || entry.uid.as_ref() != Some(&uid) || entry.service.as_deref() != Some(&service) {
                    let name = service.annotations.name.clone();
                    (entry.uid, entry.service) = (Some(uid), Some(Box::new(service)));
                    self.dirty.extend(self.names.put(&key, name, is_terminating));
                    self.dirty.insert(key);
                }
            }
            Object::Namespace => {
                if self.namespaces.insert(key.name.clone()) {
                    self.mark_namespace(&key.name);
                }
            }
        }
    }

    /// Removes an object.
    pub(crate) fn remove(&mut self, kind: Kind, key: &Key) {
        match kind {
            Kind::Service | Kind::Pod => {
                if let Some(entry) = self.services.get_mut(key)
                    && entry.service.take().is_some()
                {
                    if entry.uid.take().is_some() {
                        entry.slices.clear();
                        self.dirty.extend(self.names.remove(key));
                    }
                    self.dirty.insert(key.clone());
                }
            }
            Kind::Slice => {
                if let Some(owner) = self.owner(key) {
                    self.drop_slice(key, owner);
                }
            }
            Kind::Namespace => {
                if self.namespaces.remove(&key.name) {
                    self.mark_namespace(&key.name);
                }
            }
        }
    }

    /// Returns the known objects of a kind, in one namespace or in all.
    pub(crate) fn keys(&self, kind: Kind, namespace: Option<&str>) -> Vec<Key> {
        let within = |key: &&Key| namespace.is_none_or(|namespace| *key.namespace == *namespace);
        match kind {
            Kind::Service | Kind::Pod => {
                let known = self.services.iter().filter(|(_, entry)| entry.service.is_some());
                let known = known.filter(|(_, entry)| entry.uid.is_some() == (kind == Kind::Pod));
                known.map(|(key, _)| key).filter(within).cloned().collect()
            }
            Kind::Slice => {
                let known = self.services.iter().filter(|(_, entry)| entry.uid.is_none());
                let known = known.filter(|(service, _)| within(service));
                let slices = known.flat_map(|(service, entry)| entry.slices.iter().map(move |slice| (service, slice)));
                slices.map(|(service, (name, _))| sibling_key(service, name)).collect()
            }
            Kind::Namespace => self.namespaces.iter().map(|name| Key::new("", name)).collect(),
        }
    }

    /// Returns whether the allowlist has targets in a namespace, or in any: of pods, if these are the kind, or else of Services.
    pub(crate) fn has_targets(&self, kind: Kind, namespace: Option<&str>) -> bool {
        let mut targets = self.services.iter().filter(|(_, entry)| entry.is_listed);
        targets.any(|(key, _)| {
            key.pod_name().is_some() == (kind == Kind::Pod)
                && namespace.is_none_or(|namespace| *key.namespace == *namespace)
        })
    }

    /// Returns the known Services of an object: a Service itself, a slice's Service, or those of a Namespace.
    pub(crate) fn services_of(&self, kind: Kind, key: &Key) -> Vec<Key> {
        let mut services = match kind {
            Kind::Service | Kind::Pod => vec![key.clone()],
            Kind::Slice => self.owner(key).into_iter().collect(),
            Kind::Namespace => self.within(&key.name).cloned().collect(),
        };
        services.retain(|key| self.services.get(key).is_some_and(|entry| entry.service.is_some()));
        services
    }

    /// Returns the known slices of a Service, whether the Service is known or not.
    pub(super) fn slices(&self, key: &Key) -> &[(Box<str>, Slice)] {
        self.services.get(key).map_or(&[], |entry| &entry.slices)
    }

    /// Returns a known Service with its current notices.
    pub(super) fn service(&self, key: &Key) -> Option<(&Service, &[ServiceNotice])> {
        let entry = self.services.get(key)?;
        Some((entry.service.as_deref()?, &entry.notices))
    }

    /// Returns every known object but pods, for a snapshot: after a restart the address of a pod may be another's.
    pub(crate) fn objects(&self) -> impl Iterator<Item = (Key, Object)> {
        let services = self.services.iter().filter(|(_, entry)| entry.uid.is_none());
        let services = services.flat_map(|(key, entry)| {
            let service = entry.service.clone();
            let service = service.map(|service| (key.clone(), Object::Service(service)));
            let slices = entry.slices.iter();
            let slices = slices.map(|(name, slice)| (sibling_key(key, name), Object::Slice(Box::new(slice.clone()))));
            service.into_iter().chain(slices)
        });
        let namespaces = self.namespaces.iter();
        services.chain(namespaces.map(|name| (Key::new("", name), Object::Namespace)))
    }

    /// Computes the targets of all Services that were marked since the last call.
    pub(crate) fn recompute(&mut self) -> TargetUpdates {
        let mut updates = TargetUpdates::default();
        for key in std::mem::take(&mut self.dirty) {
            let Some(entry) = self.services.get(&key) else {
                continue;
            };
            let is_known = entry.service.is_some();
            match self.awaited.decide_about(&key, is_known) {
                // Only the list can say whether it is gone.
                true if !is_known => updates.changes.extend(entry.targets(&key).map(Change::Await)),
                true if !entry.is_listed => {}
                is_awaited => self.settle_one(&key, is_awaited, &mut updates),
            }
        }
        // A name that one target gives up may be another's now.
        updates
            .changes
            .sort_by_key(|change| !matches!(change, Change::Remove(_)));
        updates
    }

    fn put_slice(&mut self, key: &Key, slice: Slice) {
        let owner = sibling_key(key, &slice.service);
        if let Some(former) = self.owner(key).filter(|former| *former != owner) {
            self.drop_slice(key, former);
        }
        let entry = self.services.entry(owner.clone()).or_default();
        if entry.put(&key.name, slice) {
            if !is_derived(&key.name, &owner.name) {
                self.strays.insert(key.clone(), owner.name.clone());
            }
            self.dirty.insert(owner);
        }
    }

    fn drop_slice(&mut self, key: &Key, owner: Key) {
        self.strays.remove(key);
        if let Some(entry) = self.services.get_mut(&owner)
            && let Ok(at) = entry.find(&key.name)
        {
            entry.slices.remove(at);
            entry.slices.shrink_to_fit();
            self.dirty.insert(owner);
        }
    }

    /// Returns the Service of a known slice, mostly by the slice's name: there is no map of all slices.
    fn owner(&self, key: &Key) -> Option<Key> {
        if let Some(service) = self.strays.get(key) {
            return Some(sibling_key(key, service));
        }
        let has_slice = |service: &Key| {
            let entry = self.services.get(service);
            entry.is_some_and(|entry| entry.find(&key.name).is_ok())
        };
        let ends = key.name.match_indices('-').map(|(end, _)| end);
        let mut services = ends.filter_map(|end| Some(sibling_key(key, key.name.get(..end)?)));
        services.find(has_slice)
    }

    fn mark_namespace(&mut self, namespace: &str) {
        let within: Vec<_> = self.within(namespace).cloned().collect();
        self.dirty.extend(within);
    }

    /// Returns the Services of a Namespace that are known or have slices.
    fn within(&self, namespace: &str) -> impl Iterator<Item = &Key> {
        let from = self.services.range(Key::new(namespace, "")..).map(|(key, _)| key);
        from.take_while(move |key| *key.namespace == *namespace)
    }

    /// Returns a Service and its port for SSH; `None` if it must not be on the allowlist.
    fn eligible(&self, key: &Key) -> Option<(&Service, &ServicePort)> {
        let service = self.services.get(key)?.service.as_deref()?;
        let port = service.port.as_ref().filter(|_| self.selects(&key.namespace))?;
        Some((service, port))
    }

    /// Returns whether the Namespace has the labels of the selector of Namespaces, if there is one, or may have them.
    pub(super) fn selects(&self, namespace: &str) -> bool {
        self.policy.options.namespace_selector.is_none()
            || self.namespaces.contains(namespace)
            || self.awaited.has(Kind::Namespace, "")
    }

    /// Computes the target of a Service, and what follows for its pods. It takes no new tunnel if it is awaited.
    fn settle_one(&mut self, key: &Key, is_awaited: bool, updates: &mut TargetUpdates) {
        let mut notices = Vec::new();
        let mut target = self.target(key, &mut notices);
        if let Some(target) = &mut target {
            target.rules.is_awaited = is_awaited;
        }
        let pods = target.as_ref().map(|target| self.pods(key, target)).unwrap_or_default();
        let Some(entry) = self.services.get_mut(key) else {
            return;
        };
        let listed = std::mem::replace(&mut entry.pods, pods.keys().cloned().collect());
        let gone = listed.iter().filter(|pod| !pods.contains_key(*pod));
        updates.changes.extend(gone.map(|pod| Change::Remove(pod_id(key, pod))));
        match target {
            Some(target) => {
                if !entry.is_listed {
                    updates.notices.push(ServiceNotice::Added(key.clone(), target.ports[0]));
                }
                entry.is_listed = true;
                let targets = [target].into_iter().chain(pods.into_values());
                updates
                    .changes
                    .extend(targets.map(|target| Change::Set(Box::new(target))));
            }
            None if entry.is_listed => {
                entry.is_listed = false;
                updates.notices.push(ServiceNotice::Removed(key.clone()));
                updates.changes.push(Change::Remove(key.target_id()));
            }
            None => {}
        }
        let new = notices.iter().filter(|notice| !entry.notices.contains(notice));
        updates.notices.extend(new.cloned());
        entry.notices = notices.into();
        if entry.service.is_none() && entry.slices.is_empty() {
            self.services.remove(key);
        }
    }

    /// Returns the target of a Service; `None` if it must not be listed. Adds its notices to `notices`.
    fn target(&self, key: &Key, notices: &mut Vec<ServiceNotice>) -> Option<ServiceTarget> {
        let entry = self.services.get(key)?;
        if let Some(service) = &entry.service {
            let unmet = find_unmet(&service.annotations, &self.policy.limits, &self.policy.options);
            let faults = service.faults.iter().cloned().chain(unmet);
            let faults = faults.chain(self.alias(key).err());
            notices.extend(faults.map(|fault| ServiceNotice::Annotation(key.clone(), fault)));
            notices.extend(service.external.then(|| ServiceNotice::ExternalName(key.clone())));
        }
        let (service, port) = self.eligible(key)?;
        let dials_in = dials_in(&service.annotations, &self.policy.limits);
        let Selection {
            endpoints,
            refused,
            unusable,
        } = match dials_in {
            true => Selection::default(),
            false => endpoints::select(service, port, &entry.slices, &self.policy.filter),
        };
        let refused = refused.into_iter().take(MAX_REFUSED_NOTED);
        notices.extend(refused.map(|(address, class)| ServiceNotice::EndpointForbidden(key.clone(), address, class)));
        let unusable = unusable.into_iter().take(MAX_REFUSED_NOTED);
        notices.extend(unusable.map(|slice| ServiceNotice::SliceUnusable(key.clone(), slice)));
        Some(ServiceTarget {
            id: key.target_id(),
            ports: [port.number, self.policy.options.alias_port],
            endpoints,
            rules: TargetRules {
                limits: effective_limits(&service.annotations, &self.policy.limits),
                allowed_clients: service.annotations.allowed_clients.clone().map(Arc::new),
                user_lists: service.annotations.user_lists.as_deref().cloned().map(Arc::new),
                owner: service.owner.clone(),
                dials_in: dials_in.then(DialsIn::default),
                workloads: workloads(&service.annotations, &self.policy.options, dials_in),
                stopped: service.annotations.stopped,
                host_keys: host_keys(&service.annotations, &self.policy.limits).map(TargetKeys::Annotation),
                uid: entry.uid.clone(),
                alias: self.alias(key).unwrap_or_default(),
                is_awaited: false,
            },
        })
    }

    /// Returns the further name of a pod, if it has one.
    ///
    /// # Errors
    /// Another pod has the name, too.
    fn alias(&self, key: &Key) -> Result<Option<Box<str>>, AnnotationError> {
        let is_known = |pod: &Key| self.services.get(pod).is_some_and(|entry| entry.service.is_some());
        self.names.alias(key, is_known)
    }

    /// Returns the pods that have the name of this one in their annotations.
    pub(super) fn claimants(&self, pod: &Key) -> impl Iterator<Item = &str> {
        self.names.claimants(pod)
    }

    /// Returns the target of each pod of a listed Service that has a name of its own, by that name. It has the Service's
    /// rules, and limits of its own; it exists while it runs, so there is nothing to wake.
    fn pods(&self, key: &Key, target: &ServiceTarget) -> BTreeMap<Box<str>, ServiceTarget> {
        let (Some((service, port)), None) = (self.eligible(key), &target.rules.dials_in) else {
            return BTreeMap::new();
        };
        // `a.b.pod` is the pod `a` of the namespace `b`, which no Service of a namespace `pod` may take from it.
        if self.policy.options.pods.enabled && key.namespace == TargetId::POD_DOMAIN.into() {
            return BTreeMap::new();
        }
        let slices = self.services.get(key).map_or(&[][..], |entry| &entry.slices);
        let mut rules = target.rules.clone();
        rules.workloads.wake = None;
        let mut pods = endpoints::of_pods(port, slices);
        if self.awaited.has(Kind::Slice, &key.namespace) {
            let listed = self.services.get(key).into_iter().flat_map(|entry| &entry.pods);
            listed.for_each(|pod| _ = pods.entry(pod.clone()).or_default());
        }
        let pods = pods.into_iter().map(|(pod, slices)| {
            let target = ServiceTarget {
                id: pod_id(key, &pod),
                ports: target.ports,
                endpoints: endpoints::select(service, port, &slices, &self.policy.filter).endpoints,
                rules: rules.clone(),
            };
            (pod, target)
        });
        pods.collect()
    }
}

/// Returns whether a slice's name is `service-…`, as Kubernetes generates it.
fn is_derived(slice: &str, service: &str) -> bool {
    slice.strip_prefix(service).is_some_and(|rest| rest.starts_with('-'))
}

/// Returns the key of another object in the same namespace.
fn sibling_key(key: &Key, name: &str) -> Key {
    Key::new(&key.namespace, name)
}

/// Notices per Service about refused endpoints, and about unusable slices: a tenant may have thousands.
const MAX_REFUSED_NOTED: usize = 3;

#[cfg(test)]
mod tests;
