//! The conditions of `/readyz`: named, and met by dropping their guard.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Named conditions. The process is ready when all are met.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    conditions: Arc<Mutex<BTreeMap<&'static str, bool>>>,
    note: Arc<Mutex<String>>,
}

impl Readiness {
    /// Adds a condition, which is met when the guard is dropped. A name must not have two guards at a time.
    pub fn require(&self, name: &'static str) -> Condition {
        self.set(name, false);
        Condition {
            readiness: self.clone(),
            name,
        }
    }

    /// Adds a condition that is never met: the process stays not ready.
    pub fn withdraw(&self, name: &'static str) {
        self.set(name, false);
    }

    /// Sets the line that `/readyz` has before its conditions.
    pub fn set_note(&self, note: String) {
        *self.note.lock() = note;
    }

    /// Returns that line; it is empty where none was set.
    pub fn note(&self) -> String {
        self.note.lock().clone()
    }

    /// Returns every condition and whether it is met, in order of name.
    pub fn conditions(&self) -> Vec<(&'static str, bool)> {
        let conditions = self.conditions.lock();
        conditions.iter().map(|(&name, &met)| (name, met)).collect()
    }

    fn set(&self, name: &'static str, met: bool) {
        self.conditions.lock().insert(name, met);
    }
}

/// A condition that is not met yet. Its drop meets it.
#[derive(Debug)]
#[must_use = "its drop meets the condition"]
pub struct Condition {
    readiness: Readiness,
    name: &'static str,
}

impl Drop for Condition {
    fn drop(&mut self) {
        self.readiness.set(self.name, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_is_ready_from_the_last_met_condition_until_withdrawn() {
        let readiness = Readiness::default();
        let (listener, allowlist) = (readiness.require("listener"), readiness.require("allowlist"));
        drop(listener);
        assert_eq!(readiness.conditions(), [("allowlist", false), ("listener", true)]);
        drop(allowlist);
        assert_eq!(readiness.conditions(), [("allowlist", true), ("listener", true)]);
        readiness.withdraw("shutdown");
        assert!(readiness.conditions().contains(&("shutdown", false)));
    }
}
