//! Kubernetes objects as JSON: a plain one of each kind, and a way to make it odd.

use serde_json::{Value, json};

/// A Service that may be reached, with the one port 22. It selects no pods: its slices are written by hand.
pub(crate) fn service(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": namespace, "name": name, "labels": {"switchboard.dev/expose": "true"}},
        "spec": {
            "type": "ClusterIP",
            "ports": [{"name": "ssh", "port": 22, "targetPort": 22, "protocol": "TCP"}],
        },
    })
}

/// A slice of that Service, with ready endpoints at port 22.
pub(crate) fn slice(namespace: &str, service: &str, addresses: &[&str]) -> Value {
    let endpoints: Vec<_> = addresses.iter().map(|address| endpoint(address, "ready")).collect();
    let is_v6 = addresses.iter().any(|address| address.contains(':'));
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "namespace": namespace, "name": format!("{service}-1"),
            "labels": {"kubernetes.io/service-name": service, "endpointslice.kubernetes.io/managed-by": "tests"},
        },
        "addressType": if is_v6 { "IPv6" } else { "IPv4" },
        "endpoints": endpoints,
        "ports": [{"name": "ssh", "port": 22, "protocol": "TCP"}],
    })
}

/// One endpoint: `ready`, `unready`, `serving` (while it terminates), `gone` (terminates and serves no more) or
/// `unknown`.
pub(crate) fn endpoint(address: &str, condition: &str) -> Value {
    let conditions = match condition {
        "ready" => json!({"ready": true, "serving": true, "terminating": false}),
        "unready" => json!({"ready": false, "serving": false, "terminating": false}),
        "serving" => json!({"ready": false, "serving": true, "terminating": true}),
        "gone" => json!({"ready": false, "serving": false, "terminating": true}),
        "unknown" => json!({}),
        other => panic!("{other} is no condition of an endpoint"),
    };
    json!({"addresses": [address], "conditions": conditions})
}

/// A pod that may be reached, ready at that address, with its sshd at port 22.
pub(crate) fn pod(namespace: &str, name: &str, address: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "labels": {"switchboard.dev/expose": "true"}},
        "spec": {"containers": [{"name": "main", "image": "sshd"}]},
        "status": {
            "phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}

/// The namespace, with labels.
pub(crate) fn namespace(name: &str, labels: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
}

/// A Role for SSH to these Services; to all of its namespace without any.
pub(crate) fn role(namespace: &str, name: &str, services: &[&str]) -> Value {
    let mut rule = json!({"apiGroups": [""], "resources": ["services/ssh"], "verbs": ["create"]});
    if !services.is_empty() {
        rule["resourceNames"] = json!(services);
    }
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"namespace": namespace, "name": name}, "rules": [rule],
    })
}

/// A RoleBinding that gives a Role to a user.
pub(crate) fn role_binding(namespace: &str, name: &str, role: &str, user: &str) -> Value {
    let group = "rbac.authorization.k8s.io";
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"namespace": namespace, "name": name},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": role},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    })
}

/// The object with another value at that JSON pointer. The last step may be new.
pub(crate) fn with(mut object: Value, pointer: &str, value: Value) -> Value {
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    let parent = object.pointer_mut(parent).unwrap_or_else(|| panic!("no {pointer}"));
    if let Value::Array(items) = parent {
        items[field.parse::<usize>().unwrap()] = value;
    } else {
        parent[field] = value;
    }
    object
}

/// The Service with annotations under the usual prefix.
pub(crate) fn annotated(service: Value, annotations: &[(&str, &str)]) -> Value {
    let prefixed = annotations
        .iter()
        .map(|(key, value)| (format!("switchboard.dev/{key}"), json!(value)));
    with(service, "/metadata/annotations", Value::Object(prefixed.collect()))
}
