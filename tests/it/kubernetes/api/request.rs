//! A request to the API server: its path and query.

use std::collections::HashMap;

use hyper::Uri;

use super::faults::Verb;
use super::selector::Selector;
use super::store::{Key, Scope};

/// The kinds that are served: group and version, plural, kind.
const KINDS: [(&str, &str, &str); 21] = [
    ("v1", "events", "Event"),
    ("apps/v1", "statefulsets", "StatefulSet"),
    ("apps/v1", "deployments", "Deployment"),
    ("kubeflow.org/v1", "notebooks", "Notebook"),
    ("kubeflow.org/v1beta1", "workspaces", "Workspace"),
    ("agents.x-k8s.io/v1beta1", "sandboxes", "Sandbox"),
    ("workspace.devfile.io/v1alpha2", "devworkspaces", "DevWorkspace"),
    ("ray.io/v1", "rayclusters", "RayCluster"),
    ("kubevirt.io/v1", "virtualmachines", "VirtualMachine"),
    ("v1", "pods", "Pod"),
    ("v1", "services", "Service"),
    ("v1", "namespaces", "Namespace"),
    ("v1", "secrets", "Secret"),
    ("v1", "serviceaccounts", "ServiceAccount"),
    ("discovery.k8s.io/v1", "endpointslices", "EndpointSlice"),
    ("rbac.authorization.k8s.io/v1", "clusterroles", "ClusterRole"),
    (
        "rbac.authorization.k8s.io/v1",
        "clusterrolebindings",
        "ClusterRoleBinding",
    ),
    ("rbac.authorization.k8s.io/v1", "roles", "Role"),
    ("rbac.authorization.k8s.io/v1", "rolebindings", "RoleBinding"),
    ("authentication.k8s.io/v1", "tokenreviews", "TokenReview"),
    ("authorization.k8s.io/v1", "subjectaccessreviews", "SubjectAccessReview"),
];

/// A path that is served.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) version: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) namespace: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) subresource: Option<String>,
}

impl Place {
    /// `None` for a path that no kind has.
    pub(crate) fn of(path: &str) -> Option<Self> {
        let path = path.strip_prefix("/api/").or_else(|| path.strip_prefix("/apis/"))?;
        let at = |version: &str| path.strip_prefix(version)?.strip_prefix('/');
        KINDS.iter().find_map(|&(version, plural, kind)| {
            let segments: Vec<_> = at(version)?.split('/').map(str::to_owned).collect();
            let (namespace, rest) = match segments.as_slice() {
                [word, namespace, inside, ..] if word == "namespaces" && inside != "finalize" => {
                    (Some(namespace.clone()), segments.get(2..)?)
                }
                all => (None, all),
            };
            (rest.first()? == plural).then(|| Self {
                version,
                kind,
                plural,
                namespace,
                name: rest.get(1).cloned(),
                subresource: rest.get(2).cloned(),
            })
        })
    }

    /// The object, when the path names one.
    pub(crate) fn key(&self) -> Option<Key> {
        Some(Key {
            plural: self.plural.to_owned(),
            namespace: self.namespace.clone().unwrap_or_default(),
            name: self.name.clone()?,
        })
    }

    /// The path of an object that is written without one.
    pub(crate) fn key_of(object: &serde_json::Value) -> Option<Key> {
        let (.., plural, _) = KINDS
            .iter()
            .find(|(version, _, kind)| object["kind"] == *kind && object["apiVersion"] == *version)?;
        let metadata = &object["metadata"];
        Some(Key {
            plural: (*plural).to_owned(),
            namespace: metadata["namespace"].as_str().unwrap_or_default().to_owned(),
            name: metadata["name"].as_str()?.to_owned(),
        })
    }
}

/// The part behind the question mark.
#[derive(Debug)]
pub(crate) struct Query(HashMap<String, String>);

impl Query {
    pub(crate) fn of(uri: &Uri) -> Self {
        let pairs = uri.query().unwrap_or_default().split('&');
        Self(
            pairs
                .filter_map(|pair| pair.split_once('='))
                .map(|(key, value)| (decoded(key), decoded(value)))
                .collect(),
        )
    }

    /// A value that is there and not empty.
    pub(crate) fn value(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }

    pub(crate) fn number(&self, key: &str) -> Option<u64> {
        self.value(key)?.parse().ok()
    }

    pub(crate) fn is_on(&self, key: &str) -> bool {
        matches!(self.value(key), Some("true" | "1"))
    }

    pub(crate) fn verb(&self, place: &Place) -> Verb {
        if place.plural == "tokenreviews" {
            Verb::TokenReview
        } else if place.plural == "subjectaccessreviews" {
            Verb::AccessReview
        } else if place.name.is_some() {
            Verb::Other
        } else if self.is_on("watch") {
            Verb::Watch
        } else if self.value("continue").is_some() {
            Verb::Page
        } else {
            Verb::List
        }
    }

    /// `None` when the selector is malformed.
    pub(crate) fn scope(&self, place: &Place) -> Option<Scope> {
        Some(Scope {
            plural: place.plural.to_owned(),
            namespace: place.namespace.clone(),
            selector: Selector::parse(self.value("labelSelector").unwrap_or_default())?,
            field: match self.value("fieldSelector") {
                Some(selector) => Some(
                    selector
                        .split_once('=')
                        .map(|(path, value)| (path.into(), value.into()))?,
                ),
                None => None,
            },
        })
    }
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [rest.next().unwrap(), rest.next().unwrap()];
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            other => other,
        });
    }
    String::from_utf8(bytes).unwrap()
}
