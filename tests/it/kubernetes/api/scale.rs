//! The subresource `scale` of workloads.

use hyper::Method;
use serde_json::{Value, json};

use super::Shared;
use super::answer::{self, Answer};
use super::store::Key;

/// Reads or changes the number of replicas. A change from another resource version is a conflict.
pub(crate) fn answer(shared: &Shared, key: &Key, method: &Method, patch: &Value) -> Answer {
    let Some(mut workload) = shared.store().object(key).cloned() else {
        return answer::refusal(404, "not found");
    };
    if *method == Method::PATCH {
        let expected = &patch["metadata"]["resourceVersion"];
        if expected.is_string() && *expected != workload["metadata"]["resourceVersion"] {
            return answer::refusal(409, "the object has been modified");
        }
        workload["spec"]["replicas"] = patch["spec"]["replicas"].clone();
        workload = shared.put(key.clone(), workload);
    }
    let metadata = &workload["metadata"];
    let scale = json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1",
        "metadata": {"name": key.name, "namespace": key.namespace, "resourceVersion": metadata["resourceVersion"]},
        "spec": {"replicas": workload["spec"]["replicas"]},
    });
    answer::json(200, &scale)
}
