//! The permission that a user needs for a target, and the object that it names.

use serde::{Deserialize, Deserializer, Serialize};

use crate::base::yaml::forms::{self, Schema};
use crate::policy::allowlist::Target;

/// The permission that opens a target. See [`Action`](crate::policy::access::Action), whose names the API server knows.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename = "verb, resource", deny_unknown_fields)]
pub struct Permission {
    /// The verb.
    #[serde(deserialize_with = "forms::one::<PermissionPart, _>")]
    pub verb: Box<str>,
    /// The API group; empty for the core group.
    #[serde(default, deserialize_with = "forms::one::<PermissionPartOrNone, _>")]
    pub group: Box<str>,
    /// The resource.
    #[serde(deserialize_with = "forms::one::<PermissionPart, _>")]
    pub resource: Box<str>,
    /// The subresource; it may be empty.
    #[serde(default, deserialize_with = "forms::one::<PermissionPartOrNone, _>")]
    pub subresource: Box<str>,
    /// The object of the review.
    #[serde(default, skip_serializing)]
    pub name: NamedObject,
}

/// The object that a review names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NamedObject {
    /// The one with the name of the target's Service. No pod has it: `pods` are reviewed as all pods of the namespace. For a
    /// pod without a Service it is the pod's name, and `services` are `pods`.
    #[default]
    Service,
    /// The target's pod; all pods of the namespace for a Service.
    Pod,
    /// The one that the label `owner` of the Service or pod names; all objects of the namespace without that label.
    Owner,
}

/// `create services/ssh`, of the Service by its name.
impl Default for Permission {
    fn default() -> Self {
        Self {
            verb: "create".into(),
            group: "".into(),
            resource: "services".into(),
            subresource: "ssh".into(),
            name: NamedObject::Service,
        }
    }
}

impl Permission {
    /// `create pods/portforward` in the namespace: what `kubectl port-forward` needs.
    pub fn port_forward() -> Self {
        Self {
            resource: "pods".into(),
            subresource: "portforward".into(),
            ..Self::default()
        }
    }

    /// `create services/anchor`: what an anchor that dials in needs.
    pub fn anchor() -> Self {
        Self {
            subresource: "anchor".into(),
            ..Self::default()
        }
    }

    /// Returns whether it is of pods of the core group.
    fn is_of_pods(&self) -> bool {
        &*self.resource == "pods" && self.group.is_empty()
    }

    /// Returns the permission in a review about a target, and the name; empty for all objects of the namespace.
    pub(in crate::policy::access) fn for_target(&self, target: &Target) -> (Self, Box<str>) {
        let (id, rules) = (target.id(), target.rules());
        let mut permission = self.clone();
        let name = match self.name {
            NamedObject::Owner => rules.owner.clone().unwrap_or_default(),
            NamedObject::Service if rules.uid.is_some() => {
                if self.group.is_empty() && &*self.resource == "services" {
                    permission.resource = "pods".into();
                }
                id.pod_name().unwrap_or_default().into()
            }
            NamedObject::Service if self.is_of_pods() => Box::default(),
            NamedObject::Service => id.service_name().into(),
            NamedObject::Pod => id.pod_name().unwrap_or_default().into(),
        };
        (permission, name)
    }

    /// Checks that the API server can know what it names, as far as that can be known without asking it.
    ///
    /// # Errors
    /// The key that is wrong, and the reason.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let Self { resource, group, .. } = self;
        match self.name {
            _ if resource.contains('.') => Err((
                "resource",
                "the resource has no dot: what follows it is the `group`".to_owned(),
            )),
            _ if group.is_empty() && !CORE.split(' ').any(|known| known == &**resource) => Err((
                "resource",
                format!("`{resource}` is no resource of the core group: its API group is missing, as `group`"),
            )),
            NamedObject::Pod if !self.is_of_pods() => Err((
                "name",
                "`pod` is for the resource `pods`: nothing else has its name".to_owned(),
            )),
            NamedObject::Owner if group.is_empty() && matches!(&**resource, "pods" | "services") => Err((
                "name",
                format!("`owner` is the object that runs the pods, and not one of the {resource}"),
            )),
            NamedObject::Service | NamedObject::Pod | NamedObject::Owner => Ok(()),
        }
    }
}

forms::forms! {
    KnownPermission: Permission = known_permission, Schema::Words(&["ssh", "port-forward"]);
    PermissionPart: Box<str> = part, Schema::Pattern("^[a-z][-a-z0-9.]*$");
    PermissionPartOrNone: Box<str> = |text: &str| if text.is_empty() { Ok(Box::default()) } else { part(text) },
        Schema::Pattern("^([a-z][-a-z0-9.]*)?$");
}

/// Reads a word, or a map with the parts of the permission.
pub(super) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Permission, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename = "any of")]
    enum PermissionForm {
        #[serde(rename = "a single value", deserialize_with = "forms::one::<KnownPermission, _>")]
        Word(Permission),
        #[serde(rename = "a map")]
        Parts(Permission),
    }
    let (PermissionForm::Word(permission) | PermissionForm::Parts(permission)) =
        PermissionForm::deserialize(deserializer)?;
    Ok(permission)
}

fn known_permission(text: &str) -> Result<Permission, &'static str> {
    match text {
        "ssh" => Ok(Permission::default()),
        "port-forward" => Ok(Permission::port_forward()),
        _ => Err("expected `ssh`, `port-forward`, or a map with `verb`, `group`, `resource`, `subresource` and `name`"),
    }
}

/// Parses a verb, a group, a resource or a subresource, as in a rule of a Role.
fn part(text: &str) -> Result<Box<str>, &'static str> {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    match text {
        "*" => Err("a review is about one thing: `*` is for the rule of a Role"),
        text if text.contains('/') => Err("expected one part: what follows the `/` is the `subresource`"),
        text if text.starts_with(|first: char| first.is_ascii_lowercase()) && text.bytes().all(is_inner) => {
            Ok(text.into())
        }
        _ => Err("expected lower case letters, digits, `-` and `.`, such as `services`"),
    }
}

/// The resources of the core group in a namespace (Kubernetes 1.36), as the chart's `_refuse.tpl` has them.
const CORE: &str = "bindings configmaps endpoints events limitranges namespaces persistentvolumeclaims pods podtemplates \
    replicationcontrollers resourcequotas secrets serviceaccounts services";
