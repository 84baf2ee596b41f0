//! The further names that annotations give to pods without a Service. A name is within the namespace; a pod that is called so
//! has it before others, and of two pods with one annotation neither has it.

use std::collections::{BTreeMap, BTreeSet};

use crate::kubernetes::objects::annotations::AnnotationError;
use crate::kubernetes::objects::model::Key;

/// The pods, by the names in their annotations.
#[derive(Debug, Default)]
pub(super) struct PodNames {
    names: BTreeMap<Key, Box<str>>,
    /// The keys of pods.
    pods: BTreeMap<Key, BTreeSet<Key>>,
}

impl PodNames {
    /// Sets the name in a pod's annotation, if it has one. Returns the other pods that get or lose a name.
    pub(super) fn put(&mut self, pod: &Key, name: Option<Box<str>>) -> Vec<Key> {
        // Of a name that is the pod's own, too, the annotation changes nothing.
        let name = name.filter(|name| Key::of_pod(&pod.namespace, name) != *pod);
        if self.names.get(pod) == name.as_ref() {
            return self.only_with_name_of(pod).into_iter().collect();
        }
        let mut concerned = self.remove(pod);
        if let Some(name) = name {
            let key = Key::new(&pod.namespace, &name);
            concerned.extend(self.only(&key));
            self.pods.entry(key).or_default().insert(pod.clone());
            self.names.insert(pod.clone(), name);
        }
        concerned
    }

    /// Forgets a pod. Returns the other pods that get or lose a name.
    pub(super) fn remove(&mut self, pod: &Key) -> Vec<Key> {
        let mut concerned: Vec<_> = self.only_with_name_of(pod).into_iter().collect();
        if let Some(name) = self.names.remove(pod) {
            let name = Key::new(&pod.namespace, &name);
            if let Some(pods) = self.pods.get_mut(&name) {
                pods.remove(pod);
                if pods.is_empty() {
                    self.pods.remove(&name);
                }
            }
            concerned.extend(self.only(&name));
        }
        concerned
    }

    /// Returns the one pod with a name in its annotation. Of several none has the name, whichever of them goes.
    fn only(&self, name: &Key) -> Option<Key> {
        let pods = self.pods.get(name).filter(|pods| pods.len() == 1)?;
        pods.first().cloned()
    }

    fn only_with_name_of(&self, pod: &Key) -> Option<Key> {
        self.only(&Key::new(&pod.namespace, pod.pod_name()?))
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
        let own = Some(Key::of_pod(&pod.namespace, name)).filter(is_known);
        let mut pods = self.pods.get(&Key::new(&pod.namespace, name)).into_iter().flatten();
        let other = own.or_else(|| pods.find(|other| *other != pod).cloned());
        match other.as_ref().and_then(Key::pod_name) {
            None => Ok(Some(name.clone())),
            Some(other) => {
                let reason = format!("the pod {other} has the name {name}, too, so this one does not get it");
                Err(AnnotationError::new("name", reason))
            }
        }
    }
}
