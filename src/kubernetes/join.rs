//! Joins Services with their EndpointSlices and Namespaces into what the allowlist should hold. No I/O, no time.
//!
//! An event marks the Services that it concerns, and [`Join::settle`] works out what has become of those: the cost of
//! an event does not grow with the cluster.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use super::annotations::{AnnotationFault, above_ceiling, grant, unsatisfiable};
use super::endpoints::dialable;
use super::guards::{Class, Guards};
use super::model::{Key, Kind, Object, ServiceFacts, ServicePort, SliceFacts};
use crate::allowlist::{Change, ServiceTarget, Suffixes, TargetId};
use crate::limits::Limits;

/// What the operator says about all Services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    /// What their names may end in.
    pub(crate) suffixes: Arc<Suffixes>,
    /// The port that leads to each of them, besides its own.
    pub(crate) alias_port: u16,
    /// What may be dialled.
    pub(crate) guards: Guards,
    /// What bounds their tunnels.
    pub(crate) limits: Limits,
    /// Whether only the Services of known Namespaces count.
    pub(crate) gated: bool,
    /// Whether clients can show certificates.
    pub(crate) knows_clients: bool,
}

/// What settling has come to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Settled {
    /// What the allowlist has to be told.
    pub(crate) changes: Vec<Change>,
    /// What an operator or a tenant may want to know.
    pub(crate) notes: Vec<Note>,
}

/// Something to know about a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// It is on the allowlist now.
    Added(Key),
    /// It is no longer.
    Removed(Key),
    /// An annotation does not do what it says.
    Annotation(Key, AnnotationFault),
    /// An endpoint is not dialled.
    Refused(Key, SocketAddr, Class),
    /// It is an ExternalName.
    External(Key),
    /// Its name belongs to an older Service.
    Outdone {
        /// The younger one.
        loser: Key,
        /// The older one.
        winner: Key,
        /// The name.
        name: Box<str>,
    },
}

/// All that is known of the cluster.
#[derive(Debug)]
pub(crate) struct Join {
    rules: Rules,
    services: BTreeMap<Key, Entry>,
    /// Which Service each slice is of.
    owners: BTreeMap<Key, Box<str>>,
    namespaces: BTreeSet<Box<str>>,
    /// Who claims a name besides the Service whose it is by right: only Services with dots in their names can, and no
    /// real API server has those.
    claims: HashMap<Box<str>, Vec<Key>>,
    dirty: BTreeSet<Key>,
}

/// What is known of one Service; there may be slices of it before it exists, and after.
#[derive(Debug, Default)]
struct Entry {
    facts: Option<Box<ServiceFacts>>,
    slices: Vec<(Box<str>, Box<SliceFacts>)>,
    is_listed: bool,
    /// What has been told of it: only news are told. Of most there is nothing to tell.
    told: Option<Box<Told>>,
}

#[derive(Debug)]
struct Told(Vec<Note>);

impl Join {
    /// Nothing known.
    pub(crate) fn new(rules: Rules) -> Self {
        Self {
            rules,
            services: BTreeMap::new(),
            owners: BTreeMap::new(),
            namespaces: BTreeSet::new(),
            claims: HashMap::new(),
            dirty: BTreeSet::new(),
        }
    }

    /// Changes the rules for all that is known.
    pub(crate) fn configure(&mut self, rules: Rules) {
        self.rules = rules;
        self.claims.clear();
        self.dirty.extend(self.services.keys().cloned());
    }

    /// An object is there, or has changed.
    pub(crate) fn put(&mut self, key: Key, object: Object) {
        match object {
            Object::Service(facts) => {
                let entry = self.services.entry(key.clone()).or_default();
                if entry.facts.as_ref() != Some(&facts) {
                    entry.facts = Some(facts);
                    self.dirty.insert(key);
                }
            }
            Object::Slice(facts) => self.put_slice(&key, facts),
            Object::Namespace => {
                if self.namespaces.insert(key.name.clone()) {
                    self.mark_namespace(&key.name);
                }
            }
        }
    }

    /// An object is gone.
    pub(crate) fn remove(&mut self, kind: Kind, key: &Key) {
        match kind {
            Kind::Service => {
                if let Some(entry) = self.services.get_mut(key)
                    && entry.facts.take().is_some()
                {
                    self.dirty.insert(key.clone());
                }
            }
            Kind::Slice => {
                if let Some(service) = self.owners.remove(key) {
                    self.drop_slice(key, &service);
                }
            }
            Kind::Namespace => {
                if self.namespaces.remove(&key.name) {
                    self.mark_namespace(&key.name);
                }
            }
        }
    }

    /// The known objects of a kind, in one namespace or in all.
    pub(crate) fn keys(&self, kind: Kind, namespace: Option<&str>) -> Vec<Key> {
        let within = |key: &&Key| namespace.is_none_or(|namespace| *key.namespace == *namespace);
        match kind {
            Kind::Service => {
                let known = self.services.iter().filter(|(_, entry)| entry.facts.is_some());
                known.map(|(key, _)| key).filter(within).cloned().collect()
            }
            Kind::Slice => self.owners.keys().filter(within).cloned().collect(),
            Kind::Namespace => self.namespaces.iter().map(|name| namespace_key(name)).collect(),
        }
    }

    /// Every known object, for a snapshot.
    pub(crate) fn objects(&self) -> impl Iterator<Item = (Key, Object)> {
        let services = self.services.iter().flat_map(|(key, entry)| {
            let service = entry.facts.clone().map(|facts| (key.clone(), Object::Service(facts)));
            let slices = entry.slices.iter().map(|(name, facts)| {
                let key = Key {
                    namespace: key.namespace.clone(),
                    name: name.clone(),
                };
                (key, Object::Slice(facts.clone()))
            });
            service.into_iter().chain(slices)
        });
        let namespaces = self.namespaces.iter();
        services.chain(namespaces.map(|name| (namespace_key(name), Object::Namespace)))
    }

    /// How many names several Services claim.
    pub(crate) fn contested(&self) -> usize {
        let claimants = self.claims.keys().map(|name| self.claimants(name).count());
        claimants.filter(|claimants| *claimants > 1).count()
    }

    /// Works out what has become of the Services that were marked since the last time.
    pub(crate) fn settle(&mut self) -> Settled {
        let mut settled = Settled::default();
        for key in self.dirty.clone() {
            self.claim(&key);
        }
        for key in std::mem::take(&mut self.dirty) {
            self.settle_one(&key, &mut settled);
        }
        settled
    }

    fn put_slice(&mut self, key: &Key, facts: Box<SliceFacts>) {
        let Key { namespace, name } = key;
        let service = facts.service.clone();
        let owner = self.owners.insert(key.clone(), service.clone());
        if let Some(owner) = owner.filter(|owner| *owner != service) {
            self.drop_slice(key, &owner);
        }
        let owner = Key {
            namespace: namespace.clone(),
            name: service,
        };
        let entry = self.services.entry(owner.clone()).or_default();
        match entry.slices.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) if *known == facts => return,
            Some((_, known)) => *known = facts,
            None => {
                // Most Services have one.
                entry.slices.reserve_exact(1);
                entry.slices.push((name.clone(), facts));
                // The order of events must not show.
                entry.slices.sort_by(|(one, _), (other, _)| one.cmp(other));
            }
        }
        self.dirty.insert(owner);
    }

    fn drop_slice(&mut self, key: &Key, service: &str) {
        let owner = Key {
            namespace: key.namespace.clone(),
            name: service.into(),
        };
        if let Some(entry) = self.services.get_mut(&owner) {
            entry.slices.retain(|(name, _)| *name != key.name);
            self.dirty.insert(owner);
        }
    }

    fn mark_namespace(&mut self, namespace: &str) {
        let first = Key {
            namespace: namespace.into(),
            name: Box::default(),
        };
        let within = self.services.range(first..).map(|(key, _)| key);
        let within = within.take_while(|key| *key.namespace == *namespace);
        self.dirty.extend(within.cloned());
    }

    /// Claims a Service's name, or gives it up, and marks all who claim it too.
    fn claim(&mut self, key: &Key) {
        let is_eligible = self.eligible(key).is_some();
        if is_plain(key) && self.claims.is_empty() {
            return;
        }
        let name = self.name(key);
        let others: Vec<Key> = self.claimants(&name).cloned().collect();
        if !is_plain(key) {
            let claimants = self.claims.entry(name.clone()).or_default();
            claimants.retain(|claimant| claimant != key);
            if is_eligible {
                claimants.push(key.clone());
            } else if claimants.is_empty() {
                self.claims.remove(&name);
            }
        }
        self.dirty.extend(others);
    }

    /// The shortest name of a Service.
    fn name(&self, key: &Key) -> Box<str> {
        let name = format!("{}.{}", key.name, key.namespace);
        self.rules.suffixes.cut(&name).into()
    }

    /// All who claim a name.
    fn claimants(&self, name: &str) -> impl Iterator<Item = &Key> {
        let by_right = name.split_once('.').and_then(|(service, namespace)| {
            let key = Key {
                namespace: namespace.into(),
                name: service.into(),
            };
            let (key, _) = self.services.get_key_value(&key).filter(|_| is_plain(&key))?;
            self.eligible(key).map(|_| key)
        });
        by_right.into_iter().chain(self.claims.get(name).into_iter().flatten())
    }

    /// The facts of a Service that may be on the allowlist, and its port.
    fn eligible(&self, key: &Key) -> Option<(&ServiceFacts, &ServicePort)> {
        let facts = self.services.get(key)?.facts.as_deref()?;
        let admitted = !self.rules.gated || self.namespaces.contains(&key.namespace);
        let port = facts.port.as_ref().filter(|_| admitted)?;
        Some((facts, port))
    }

    /// The oldest claimant of a name.
    fn winner(&self, name: &str) -> Option<&Key> {
        let created = |key: &Key| {
            let facts = self.services.get(key).and_then(|entry| entry.facts.as_ref());
            facts.map_or(u64::MAX, |facts| facts.created)
        };
        let claimants = self.claimants(name);
        claimants.map(|key| (created(key), key)).min().map(|(_, key)| key)
    }

    fn settle_one(&mut self, key: &Key, settled: &mut Settled) {
        let mut told = Vec::new();
        let wanted = self.wanted(key, &mut told);
        let Some(entry) = self.services.get_mut(key) else {
            return;
        };
        match wanted {
            Some(target) => {
                if !entry.is_listed {
                    settled.notes.push(Note::Added(key.clone()));
                }
                entry.is_listed = true;
                settled.changes.push(Change::Set(Box::new(target)));
            }
            None if entry.is_listed => {
                entry.is_listed = false;
                settled.notes.push(Note::Removed(key.clone()));
                settled.changes.push(Change::Remove(target_id(key)));
            }
            None => {}
        }
        settled.notes.extend(
            told.iter()
                .filter(|note| !entry.told.as_ref().is_some_and(|known| known.0.contains(note)))
                .cloned(),
        );
        entry.told = (!told.is_empty()).then(|| Box::new(Told(told)));
        if entry.facts.is_none() && entry.slices.is_empty() {
            self.services.remove(key);
        }
    }

    fn wanted(&self, key: &Key, told: &mut Vec<Note>) -> Option<ServiceTarget> {
        let entry = self.services.get(key)?;
        if let Some(facts) = &entry.facts {
            let note = |fault| Note::Annotation(key.clone(), fault);
            let above_ceiling = above_ceiling(&facts.annotations, &self.rules.limits);
            let unsatisfiable = unsatisfiable(&facts.annotations, self.rules.knows_clients);
            let faults = facts.faults.iter().cloned();
            told.extend(faults.chain(above_ceiling).chain(unsatisfiable).map(note));
            told.extend(facts.external.then(|| Note::External(key.clone())));
        }
        let (facts, port) = self.eligible(key)?;
        let name = self.name(key);
        let winner = (!self.claims.is_empty()).then(|| self.winner(&name)).flatten();
        if let Some(winner) = winner.filter(|winner| *winner != key) {
            told.push(Note::Outdone {
                loser: key.clone(),
                winner: winner.clone(),
                name,
            });
            return None;
        }
        let mut refused = Vec::new();
        let endpoints = dialable(facts, port, &entry.slices, &self.rules.guards, &mut refused);
        let refused = refused.into_iter().take(MOST_REFUSED_TOLD);
        told.extend(refused.map(|(address, class)| Note::Refused(key.clone(), address, class)));
        Some(ServiceTarget {
            id: target_id(key),
            name,
            ports: [port.number, self.rules.alias_port],
            endpoints,
            limits: grant(&facts.annotations, &self.rules.limits),
            allowed_clients: facts.annotations.allowed_clients.clone(),
        })
    }
}

/// Whether its name is `svc.ns` without further dots: no other such Service can claim that, and nothing is cut off it.
fn is_plain(key: &Key) -> bool {
    !key.namespace.contains('.') && !key.name.contains('.')
}

fn target_id(key: &Key) -> TargetId {
    TargetId {
        namespace: key.namespace.clone(),
        service: key.name.clone(),
    }
}

fn namespace_key(name: &str) -> Key {
    Key {
        namespace: Box::default(),
        name: name.into(),
    }
}

/// A tenant may have a thousand addresses refused; the log need not hold them all.
const MOST_REFUSED_TOLD: usize = 3;

#[cfg(test)]
mod tests;
