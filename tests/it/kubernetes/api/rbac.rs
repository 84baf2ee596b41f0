//! The permissions of a user, by the roles and bindings in the store: as the RBAC authorizer of Kubernetes finds them.

use serde_json::{Value, json};

use super::Shared;
use super::selector::Selector;
use super::store::{Key, Scope, Store};

/// The status of a SubjectAccessReview.
pub(crate) fn status(shared: &Shared, spec: &Value) -> Value {
    let store = shared.store();
    let namespace = spec["resourceAttributes"]["namespace"].as_str().unwrap_or_default();
    let of_namespace = bindings(&store, "rolebindings", Some(namespace));
    let mut missing = None;
    for binding in bindings(&store, "clusterrolebindings", None)
        .into_iter()
        .chain(of_namespace)
    {
        let Some(subject) = subject(&binding, spec) else {
            continue;
        };
        let role = &binding["roleRef"];
        let Some(rules) = rules(&store, role, namespace) else {
            missing = Some(format!("RBAC: {}", dangling(role)));
            continue;
        };
        if rules.iter().any(|rule| allows(rule, &spec["resourceAttributes"])) {
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            let (kind, name, role_kind) = (text(&binding["kind"]), name(&binding), text(&role["kind"]));
            let reason = format!(
                "RBAC: allowed by {kind} {name:?} of {role_kind} {} to {subject}",
                role["name"]
            );
            return json!({"allowed": true, "reason": reason});
        }
    }
    match missing {
        // The authorizer has no error then, but a reason.
        Some(reason) => json!({"allowed": false, "reason": reason}),
        None => json!({"allowed": false}),
    }
}

fn bindings(store: &Store, plural: &str, namespace: Option<&str>) -> Vec<Value> {
    store.list(&Scope {
        plural: plural.to_owned(),
        namespace: namespace.map(str::to_owned),
        selector: Selector::parse("").unwrap(),
        field: None,
    })
}

fn name(binding: &Value) -> String {
    let name = binding["metadata"]["name"].as_str().unwrap();
    match binding["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{name}/{namespace}"),
        None => name.to_owned(),
    }
}

/// The subject of the binding that the user is, in words.
fn subject(binding: &Value, spec: &Value) -> Option<String> {
    let is_in = |group: &Value| spec["groups"].as_array().is_some_and(|groups| groups.contains(group));
    let is_meant = |subject: &&Value| match subject["kind"].as_str() {
        Some("User") => subject["name"] == spec["user"],
        Some("Group") => is_in(&subject["name"]),
        Some("ServiceAccount") => {
            let namespace = subject["namespace"].as_str().unwrap_or_default();
            let name = subject["name"].as_str().unwrap();
            spec["user"] == format!("system:serviceaccount:{namespace}:{name}")
        }
        _ => false,
    };
    let found = binding["subjects"].as_array()?.iter().find(is_meant)?;
    Some(format!("{} {}", found["kind"].as_str()?, found["name"]))
}

fn rules(store: &Store, role: &Value, namespace: &str) -> Option<Vec<Value>> {
    let (plural, namespace) = match role["kind"].as_str()? {
        "Role" => ("roles", namespace),
        _ => ("clusterroles", ""),
    };
    let key = Key {
        plural: plural.to_owned(),
        namespace: namespace.to_owned(),
        name: role["name"].as_str()?.to_owned(),
    };
    Some(store.object(&key)?["rules"].as_array().cloned().unwrap_or_default())
}

fn dangling(role: &Value) -> String {
    let kind = role["kind"].as_str().unwrap_or_default().to_lowercase();
    format!("{kind}.rbac.authorization.k8s.io {} not found", role["name"])
}

fn allows(rule: &Value, attributes: &Value) -> bool {
    let has = |field: &str, wanted: &str| {
        let texts = rule[field].as_array().into_iter().flatten();
        texts.into_iter().any(|text| text == "*" || text == wanted)
    };
    let text = |field: &str| attributes[field].as_str().unwrap_or_default().to_owned();
    let resource = match text("subresource") {
        none if none.is_empty() => text("resource"),
        subresource => format!("{}/{subresource}", text("resource")),
    };
    let names = rule["resourceNames"].as_array().filter(|names| !names.is_empty());
    has("verbs", &text("verb"))
        && has("apiGroups", &text("group"))
        && has("resources", &resource)
        && names.is_none_or(|names| names.contains(&attributes["name"]))
}
