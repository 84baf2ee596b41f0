//! A kind of workload that annotations of a Service can name: where its objects are, and how one is started.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::base::values::{domain, is_label, is_name};
use crate::base::yaml::forms::{self, Schema};

/// A kind of workload, which only the operator's file defines: an annotation names a kind, and an object of its Service's
/// namespace.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename = "name, resource", deny_unknown_fields)]
pub struct WorkloadKind {
    /// Its name in annotations.
    #[serde(deserialize_with = "forms::one::<KindName, _>")]
    pub name: Box<str>,
    /// The resource of its objects.
    #[serde(deserialize_with = "forms::one::<ResourceName, _>")]
    pub resource: Resource,
    /// The merge patch (RFC 7396) that starts an object; `None` if none can be started.
    #[serde(default, deserialize_with = "forms::some::<Patch, _>")]
    pub patch: Option<Value>,
    /// The annotation of an object that gets the time of the last use; `None` if there is none.
    #[serde(default, deserialize_with = "forms::some::<AnnotationName, _>")]
    pub activity: Option<Box<str>>,
}

/// A resource of an API group, with a subresource or without: `sandboxes.v1beta1.agents.x-k8s.io`, `deployments.v1.apps/scale`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    plural: Box<str>,
    version: Box<str>,
    group: Box<str>,
    /// With its slash; empty without one.
    subresource: Box<str>,
}

impl WorkloadKind {
    /// Returns the kinds that need no configuration.
    pub(super) fn shipped() -> Vec<Self> {
        let kind = |name: &str, [group, subresource]: [&str; 2], patch| Self {
            name: name.into(),
            resource: Resource {
                plural: format!("{name}s").into(),
                version: "v1".into(),
                group: group.into(),
                subresource: subresource.into(),
            },
            patch: Some(patch),
            activity: None,
        };
        let scaled = ["apps", "/scale"];
        // The controller of Notebooks keeps a Notebook with this annotation at 0 replicas.
        let resume = json!({"metadata": {"annotations": {"kubeflow-resource-stopped": null}}});
        vec![
            kind("statefulset", scaled, json!({"spec": {"replicas": 1}})),
            kind("deployment", scaled, json!({"spec": {"replicas": 1}})),
            Self {
                // Kubeflow's culler compares it with its CULL_IDLE_TIME.
                activity: Some("notebooks.kubeflow.org/last-activity".into()),
                ..kind("notebook", ["kubeflow.org", ""], resume)
            },
        ]
    }
}

impl Resource {
    /// Returns the path of an object, or of its subresource.
    pub(in crate::kubernetes) fn path(&self, namespace: &str, name: &str) -> String {
        self.object_path(namespace, name) + &self.subresource
    }

    /// Returns the path of an object itself.
    pub(in crate::kubernetes) fn object_path(&self, namespace: &str, name: &str) -> String {
        let Self {
            plural, version, group, ..
        } = self;
        format!("/apis/{group}/{version}/namespaces/{namespace}/{plural}/{name}")
    }
}

/// Parses `PLURAL.VERSION.GROUP`, as kubectl does, or `PLURAL.VERSION.GROUP/SUBRESOURCE`.
impl FromStr for Resource {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (resource, subresource) = text.find('/').map_or((text, ""), |slash| text.split_at(slash));
        let mut parts = resource.splitn(3, '.');
        match [parts.next(), parts.next(), parts.next()] {
            [Some(plural), Some(version), Some(group)]
                if is_label(plural)
                    && is_label(version)
                    && version.starts_with('v')
                    && domain(group).is_ok_and(|known| *known == *group)
                    && subresource.strip_prefix('/').is_none_or(is_label) =>
            {
                Ok(Self {
                    plural: plural.into(),
                    version: version.into(),
                    group: group.into(),
                    subresource: subresource.into(),
                })
            }
            _ => Err("expected RESOURCE.VERSION.GROUP such as `sandboxes.v1beta1.agents.x-k8s.io`, or with `/scale`"),
        }
    }
}

/// The permissions for wakes and reports, as the rules of a Role in YAML.
#[derive(Debug)]
pub(super) struct NeededRules<'a> {
    pub(super) kinds: &'a [WorkloadKind],
    pub(super) wakes: bool,
    pub(super) reports_activity: bool,
}

impl fmt::Display for NeededRules<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut groups = BTreeMap::<&str, Vec<String>>::new();
        for WorkloadKind {
            resource,
            patch,
            activity,
            ..
        } in self.kinds
        {
            let started = (self.wakes && patch.is_some()).then_some(&*resource.subresource);
            let reported = (self.reports_activity && activity.is_some()).then_some("");
            let names = groups.entry(&resource.group).or_default();
            for subresource in started.into_iter().chain(reported) {
                let name = format!("{}{subresource}", resource.plural);
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        let groups = groups.iter().filter(|(_, names)| !names.is_empty());
        let rules = groups.map(|(group, names)| {
            let names = names.join(", ");
            format!("{{apiGroups: [{group}], resources: [{names}], verbs: [get, patch]}}")
        });
        f.write_str(&rules.collect::<Vec<_>>().join(", "))
    }
}

forms::forms! {
    KindName: Box<str> = name, Schema::Pattern("^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$");
    ResourceName: Resource = str::parse::<Resource>,
        Schema::Pattern("^[a-z0-9][-a-z0-9]*\\.v[a-z0-9]*\\.[a-z0-9][-a-z0-9.]*(/[a-z]+)?$");
    Patch: Value = patch, Schema::Pattern("^\\s*\\{");
    AnnotationName: Box<str> = annotation_name, Schema::Pattern("^[-A-Za-z0-9_./]+$");
}

fn name(text: &str) -> Result<Box<str>, &'static str> {
    match is_label(text) {
        true => Ok(text.into()),
        false => Err("expected lower case letters, digits and `-`, such as `sandbox`"),
    }
}

fn patch(text: &str) -> Result<Value, &'static str> {
    let patch = serde_json::from_str::<Value>(text).ok();
    let patch = patch.filter(|patch| patch.is_object() && patch.get("metadata").is_none_or(Value::is_object));
    patch.filter(|patch| !is_empty(patch)).ok_or(PATCH)
}

/// Returns whether a patch sets nothing.
fn is_empty(patch: &Value) -> bool {
    patch.as_object().is_some_and(|fields| fields.values().all(is_empty))
}

fn annotation_name(text: &str) -> Result<Box<str>, &'static str> {
    let is_inner = |character: char| character.is_ascii_alphanumeric() || "-_./".contains(character);
    match is_name(text, MAX_ANNOTATION) && text.chars().all(is_inner) {
        true => Ok(text.into()),
        false => Err("expected the name of an annotation, such as `notebooks.kubeflow.org/last-activity`"),
    }
}

const PATCH: &str = "expected a merge patch in JSON, such as `{\"spec\": {\"paused\": false}}`";
/// In bytes: a DNS subdomain, a slash and 63 more.
const MAX_ANNOTATION: usize = 253 + 1 + 63;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_is_named_as_kubectl_names_it() {
        for (text, path) in [
            (
                "sandboxes.v1beta1.agents.x-k8s.io",
                "/apis/agents.x-k8s.io/v1beta1/namespaces/n/sandboxes/a",
            ),
            (
                "deployments.v1.apps/scale",
                "/apis/apps/v1/namespaces/n/deployments/a/scale",
            ),
        ] {
            assert_eq!(text.parse::<Resource>().unwrap().path("n", "a"), path);
        }
        for text in [
            "",
            "sandboxes",
            "sandboxes.agents.x-k8s.io",
            "sandboxes.v1beta1.",
            "Sandboxes.v1.x.io",
            "a.v1.x.io/",
            "a.v1.x.io/b/c",
            "../a.v1.x.io",
            "a.v1.x..io",
        ] {
            text.parse::<Resource>().unwrap_err();
        }
    }

    #[test]
    fn a_patch_sets_something_and_leaves_metadata_an_object() {
        for text in [
            r#"{"spec": {"a": null}}"#,
            r#"{"metadata": {"labels": {"a": "b"}}}"#,
            r#"{"a": []}"#,
        ] {
            patch(text).unwrap();
        }
        for text in [
            "{}",
            r#"{"spec": {}}"#,
            r#"{"spec": {"a": {}}, "metadata": {}}"#,
            r#"{"metadata": "x"}"#,
            r#"{"metadata": null}"#,
            r#"{"metadata": [], "spec": {"a": 1}}"#,
            "[]",
            "{",
        ] {
            patch(text).unwrap_err();
        }
    }

    #[test]
    fn the_rules_are_those_of_the_kinds_in_use() {
        let rules = |wakes, reports_activity| {
            let kinds = &WorkloadKind::shipped();
            let needed = NeededRules {
                kinds,
                wakes,
                reports_activity,
            };
            needed.to_string()
        };
        let scale = "{apiGroups: [apps], resources: [statefulsets/scale, deployments/scale], verbs: [get, patch]}";
        let notebooks = "{apiGroups: [kubeflow.org], resources: [notebooks], verbs: [get, patch]}";
        assert_eq!(rules(false, false), "");
        assert_eq!(rules(false, true), notebooks);
        for reports in [false, true] {
            assert_eq!(rules(true, reports), format!("{scale}, {notebooks}"));
        }
    }
}
