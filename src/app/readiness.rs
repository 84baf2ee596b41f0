//! What must be true before traffic may come: named conditions, met by dropping their guard.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Named conditions. Ready means that all are met.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    conditions: Arc<Mutex<BTreeMap<&'static str, bool>>>,
}

impl Readiness {
    /// Not ready until the guard is dropped. A name is used once at a time.
    pub fn await_for(&self, name: &'static str) -> Pending {
        self.set(name, false);
        Pending {
            readiness: self.clone(),
            name,
        }
    }

    /// Not ready from now on, for ever.
    pub fn withdraw(&self, name: &'static str) {
        self.set(name, false);
    }

    /// Whether all are met.
    pub fn is_ready(&self) -> bool {
        self.conditions().into_iter().all(|(_, met)| met)
    }

    /// Every condition and whether it is met, in order of name.
    pub fn conditions(&self) -> Vec<(&'static str, bool)> {
        let conditions = self.conditions.lock();
        conditions.iter().map(|(&name, &met)| (name, met)).collect()
    }

    fn set(&self, name: &'static str, met: bool) {
        self.conditions.lock().insert(name, met);
    }
}

/// One condition that is not met yet; dropping it meets it.
#[derive(Debug)]
#[must_use = "dropping it means that the condition is met"]
pub struct Pending {
    readiness: Readiness,
    name: &'static str,
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.readiness.set(self.name, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_ready_when_the_last_guard_is_gone_until_withdrawn() {
        let readiness = Readiness::default();
        let (listener, allowlist) = (readiness.await_for("listener"), readiness.await_for("allowlist"));
        drop(listener);
        assert_eq!(readiness.conditions(), [("allowlist", false), ("listener", true)]);
        assert!(!readiness.is_ready());
        drop(allowlist);
        assert!(readiness.is_ready());
        readiness.withdraw("shutdown");
        assert!(!readiness.is_ready());
    }
}
