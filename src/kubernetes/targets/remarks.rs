//! Remarks about a Service from what the watches have seen: why it is not on the allowlist, and what does not apply as written.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::MutexGuard;

use super::join::ClusterObjects;
use super::notices::ServiceNotice;
use super::reconciler::{IdleReconciler, Reconciler};
use crate::kubernetes::objects::annotations::dials_in;
use crate::kubernetes::objects::model::{Key, Service, Slice, State};
use crate::policy::allowlist::{ClusterView, NoRemarks, TargetId};

/// The objects of the running reconciler.
#[derive(Debug)]
pub(super) struct Remarks {
    idle: IdleReconciler,
    /// True if the last wait for it was in vain. None waits again before a look-up succeeds: a page has thousands of targets.
    was_busy: AtomicBool,
}

impl Remarks {
    /// Creates the remarks of this reconciler.
    pub(super) fn new(idle: IdleReconciler) -> Self {
        Self {
            idle,
            was_busy: AtomicBool::new(false),
        }
    }

    /// Returns the reconciler between two of its steps; `None` if one takes long.
    fn idle(&self) -> Option<MutexGuard<'_, Option<Box<Reconciler>>>> {
        let wait = match self.was_busy.load(Ordering::Relaxed) {
            true => Duration::ZERO,
            false => STEP_TIMEOUT,
        };
        let idle = self.idle.try_lock_for(wait);
        self.was_busy.store(idle.is_none(), Ordering::Relaxed);
        idle
    }
}

impl ClusterView for Remarks {
    fn remarks(&self, id: &TargetId) -> Result<Vec<String>, NoRemarks> {
        let idle = self.idle();
        let reconciler = idle.as_ref().and_then(|idle| idle.as_deref());
        let cluster = reconciler.ok_or(NoRemarks::Busy)?.cluster();
        let has_pods = cluster.policy().options.pods.enabled;
        let key = match id.service.split_once('.') {
            Some(_) if id.is_pod() => Key::new(&id.namespace, &id.service),
            Some((pod, namespace)) if has_pods && *id.namespace == *TargetId::POD_DOMAIN => Key::of_pod(namespace, pod),
            _ => Key::new(&id.namespace, id.service_name()),
        };
        Ok(remarks(cluster, &key))
    }

    fn unlisted(&self) -> Vec<String> {
        let idle = self.idle();
        let reconciler = idle.as_ref().and_then(|idle| idle.as_deref());
        reconciler.into_iter().flat_map(Reconciler::unlisted).collect()
    }
}

/// Returns the remarks about a Service; none if it is on the allowlist with a ready endpoint and without a notice.
fn remarks(cluster: &ClusterObjects, key: &Key) -> Vec<String> {
    let Key { namespace, name } = key;
    let options = &cluster.policy().options;
    let (namespaces, setting) = match key.pod_name() {
        Some(_) if !options.pods.namespaces.is_empty() => (&options.pods.namespaces, "pods.namespaces"),
        _ => (&options.namespaces, "namespaces"),
    };
    if !namespaces.is_empty() && !namespaces.contains(namespace) {
        let names = namespaces.join(", ");
        return vec![format!(
            "the Namespace {namespace} is not watched: `allowlist.kubernetes.{setting}` has {names}"
        )];
    }
    let slices = cluster.slices(key);
    let Some((service, notices)) = cluster.service(key) else {
        let claimants: Vec<_> = cluster.claimants(key).collect();
        return match key.pod_name() {
            Some(pod) if claimants.len() > 1 => {
                let (count, first) = (
                    claimants.len(),
                    claimants.chunks(MAX_CLAIMANTS).next().unwrap_or_default(),
                );
                let first = first.join(", ");
                vec![format!(
                    "{count} pods have the name {pod} in their annotation `name`, so none gets it: {first}"
                )]
            }
            Some(pod) => vec![format!(
                "no pod of this name is seen, or it is none that can be a target: kubectl get pod {pod} \
                 --namespace {namespace} --output yaml"
            )],
            None => unseen(key, slices, &options.selector),
        };
    };
    let warnings = notices.iter().filter_map(|notice| notice.note().into_warning());
    let mut remarks: Vec<_> = warnings.collect();
    if let Some(selector) = options
        .namespace_selector
        .as_ref()
        .filter(|_| !cluster.selects(namespace))
    {
        remarks.push(format!(
            "the Namespace has no labels of `allowlist.kubernetes.namespace_selector`, {selector}: \
             kubectl get namespace {namespace} --show-labels"
        ));
    }
    let is_refused = |notice: &ServiceNotice| matches!(notice, ServiceNotice::EndpointForbidden(..));
    let has_slices = key.pod_name().is_none() && !dials_in(&service.annotations, &cluster.policy().limits);
    if has_slices && !notices.iter().any(is_refused) {
        remarks.extend(without_endpoint(service, slices).map(|why| {
            format!(
                "{why}: kubectl get endpointslices \
             --namespace {namespace} --selector kubernetes.io/service-name={name} --output yaml"
            )
        }));
    }
    remarks
}

/// Returns the remarks about a name of which the watch has no Service: it lists only those that the selector selects.
fn unseen(Key { namespace, name }: &Key, slices: &[(Box<str>, Slice)], selector: &str) -> Vec<String> {
    let labels = slices.iter().map(|(_, slice)| &*slice.other_label);
    let why = match (slices, labels.into_iter().find(|label| !label.is_empty())) {
        (_, Some(label)) => {
            format!("the Service has the label {label}, and `allowlist.kubernetes.selector` is {selector}")
        }
        ([], None) => format!("no Service of this name is seen: `allowlist.kubernetes.selector` is {selector}"),
        (_, None) => {
            format!("the Service has EndpointSlices, and no labels of `allowlist.kubernetes.selector`, {selector}")
        }
    };
    let look = format!("its labels: kubectl get service {name} --namespace {namespace} --show-labels");
    vec![why, look]
}

/// Returns why a Service has no endpoint to dial; `None` if it has one, or no port.
fn without_endpoint(service: &Service, slices: &[(Box<str>, Slice)]) -> Option<String> {
    let port = service.port.as_ref()?;
    let has_port = |slice: &&Slice| super::endpoints::port_of(slice, port).is_some();
    let with_port = || slices.iter().map(|(_, slice)| slice).filter(has_port);
    let mut endpoints = with_port().flat_map(|slice| &slice.endpoints);
    let is_ready = endpoints.any(|endpoint| endpoint.state != State::NotReady || service.publishes_not_ready);
    match slices.iter().map(|(_, slice)| slice.endpoints.len()).sum() {
        0 => Some("it has no endpoint: its selector matches no pod, or nothing is running".to_owned()),
        _ if with_port().next().is_none() => Some(format!("no EndpointSlice has its port {}", port.number)),
        count if !is_ready => Some(format!("none of its {count} endpoints is ready at its port")),
        _ => None,
    }
}

/// The longest wait for the end of a step of the reconciler.
const STEP_TIMEOUT: Duration = Duration::from_millis(500);
/// The most pods that a remark names.
const MAX_CLAIMANTS: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_look_ups_during_one_long_step_the_first_one_waits() {
        let remarks = Remarks::new(IdleReconciler::default());
        let step = remarks.idle.lock();
        assert!(remarks.idle().is_none());
        assert!(remarks.was_busy.load(Ordering::Relaxed));
        // Each would wait half a second: this test would take hours.
        for _ in 0..10_000 {
            assert!(remarks.idle().is_none());
        }
        drop(step);
        assert!(remarks.idle().is_some() && !remarks.was_busy.load(Ordering::Relaxed));
    }
}
