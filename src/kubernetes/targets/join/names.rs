//! The further names that annotations give to pods without a Service. A name is within the namespace. A pod that is called so
//! has it before others; of several pods with one annotation the one that is not being deleted, and else none.

use std::collections::{BTreeMap, BTreeSet};

use crate::kubernetes::objects::annotations::AnnotationError;
use crate::kubernetes::objects::model::Key;

/// The pods, by the names in their annotations.
#[derive(Debug, Default)]
pub(super) struct PodNames {
    names: BTreeMap<Key, Box<str>>,
    /// The keys of pods.
    pods: BTreeMap<Key, BTreeSet<Key>>,
    /// The pods that are being deleted.
    terminating: BTreeSet<Key>,
}

impl PodNames {
    /// Returns whether a pod is being deleted, as [`put`](Self::put) was given.
    pub(super) fn is_terminating(&self, pod: &Key) -> bool {
        self.terminating.contains(pod)
    }

    /// Sets the name in a pod's annotation, if it has one. Returns the other pods that get or lose a name.
    pub(super) fn put(&mut self, pod: &Key, name: Option<Box<str>>, is_terminating: bool) -> Vec<Key> {
        // Of a name that is the pod's own, too, the annotation changes nothing.
        let name = name.filter(|name| Key::of_pod(&pod.namespace, name) != *pod);
        if self.names.get(pod) == name.as_ref() && self.is_terminating(pod) == is_terminating {
            return self.holder_of_name_of(pod).into_iter().collect();
        }
        let mut concerned = self.remove(pod);
        if is_terminating {
            self.terminating.insert(pod.clone());
        }
        if let Some(name) = name {
            let key = Key::new(&pod.namespace, &name);
            concerned.extend(self.holder(&key));
            self.pods.entry(key.clone()).or_default().insert(pod.clone());
            self.names.insert(pod.clone(), name);
            concerned.extend(self.holder(&key));
        }
        concerned
    }

    /// Forgets a pod. Returns the other pods that get or lose a name.
    pub(super) fn remove(&mut self, pod: &Key) -> Vec<Key> {
        let mut concerned: Vec<_> = self.holder_of_name_of(pod).into_iter().collect();
        self.terminating.remove(pod);
        if let Some(name) = self.names.remove(pod) {
            let name = Key::new(&pod.namespace, &name);
            if let Some(pods) = self.pods.get_mut(&name) {
                pods.remove(pod);
                if pods.is_empty() {
                    self.pods.remove(&name);
                }
            }
            concerned.extend(self.holder(&name));
        }
        concerned
    }

    /// Returns the one pod with a name in its annotation. Of several it is the one that is not being deleted: a pod and the one
    /// that replaces it have the annotation of one template.
    fn holder(&self, name: &Key) -> Option<Key> {
        let pods = self.pods.get(name)?;
        let mut staying = pods.iter().filter(|pod| !self.is_terminating(pod));
        let holder = match (staying.next(), staying.next()) {
            (None, _) => pods.first().filter(|_| pods.len() == 1),
            (staying, None) => staying,
            _ => None,
        };
        holder.cloned()
    }

    fn holder_of_name_of(&self, pod: &Key) -> Option<Key> {
        self.holder(&Key::new(&pod.namespace, pod.pod_name()?))
    }

    /// Returns the name that a pod has by its annotation; `None` without one.
    ///
    /// # Errors
    /// Another pod has the name, too. `is_known` returns whether there is a pod of that key.
    pub(super) fn alias(
        &self,
        pod: &Key,
        is_known: impl Fn(&Key) -> bool,
    ) -> Result<Option<Box<str>>, AnnotationError> {
        let Some(name) = self.names.get(pod) else {
            return Ok(None);
        };
        let key = Key::new(&pod.namespace, name);
        if !is_known(&Key::of_pod(&pod.namespace, name)) && self.holder(&key).as_ref() == Some(pod) {
            return Ok(Some(name.clone()));
        }
        if self.is_terminating(pod) {
            return Ok(None);
        }
        // It names no pod: of several others the named one may go, and a notice to all is due again for each that comes.
        let reason = format!("another pod has the name {name}, too, so this one does not get it");
        Err(AnnotationError::new("name", reason))
    }

    /// Returns the pods with this name, of a pod, in their annotations.
    pub(super) fn claimants(&self, name: &Key) -> impl Iterator<Item = &str> {
        let key = name.pod_name().map(|own| Key::new(&name.namespace, own));
        let pods = key.and_then(|key| self.pods.get(&key)).into_iter().flatten();
        pods.filter_map(Key::pod_name)
    }
}
