//! The kinds of objects that decide what a user may do, or whether there is one.

use crate::policy::access::Change;

/// A kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Role,
    RoleBinding,
    ClusterRole,
    ClusterRoleBinding,
    ServiceAccount,
}

impl Kind {
    pub(super) const ALL: [Self; 5] = [
        Self::Role,
        Self::RoleBinding,
        Self::ClusterRole,
        Self::ClusterRoleBinding,
        Self::ServiceAccount,
    ];

    /// The plural name of the API, also the field `kind` of log lines.
    pub(super) fn plural(self) -> &'static str {
        match self {
            Self::Role => "roles",
            Self::RoleBinding => "rolebindings",
            Self::ClusterRole => "clusterroles",
            Self::ClusterRoleBinding => "clusterrolebindings",
            Self::ServiceAccount => "serviceaccounts",
        }
    }

    /// The API group; empty for the core group.
    pub(super) fn group(self) -> &'static str {
        match self {
            Self::Role | Self::RoleBinding | Self::ClusterRole | Self::ClusterRoleBinding => {
                "rbac.authorization.k8s.io"
            }
            Self::ServiceAccount => "",
        }
    }

    /// What an object that was created, changed or deleted may change. A new or changed ServiceAccount changes no answer.
    pub(super) fn change(self, object: &Identity, is_deleted: bool) -> Option<Change> {
        match self {
            Self::Role | Self::RoleBinding => match &object.namespace {
                Some(namespace) => Some(Change::Namespace(namespace.clone())),
                None => Some(Change::Everywhere),
            },
            Self::ClusterRole | Self::ClusterRoleBinding => Some(Change::Everywhere),
            Self::ServiceAccount => is_deleted.then(|| Change::UserGone(object.uid.clone())),
        }
    }

    /// The path of the API, with the beginning of its query.
    pub(super) fn path(self) -> String {
        match self.group() {
            "" => format!("/api/v1/{}?", self.plural()),
            group => format!("/apis/{group}/v1/{}?", self.plural()),
        }
    }
}

/// What tells an object from all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) namespace: Option<Box<str>>,
    pub(super) uid: Box<str>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_paths_and_says_what_it_changes() {
        let object = Identity {
            namespace: Some("team-a".into()),
            uid: "u".into(),
        };
        let of_namespace = Some(Change::Namespace("team-a".into()));
        let gone = Some(Change::UserGone("u".into()));
        let everywhere = Some(Change::Everywhere);
        for (kind, path, changed, deleted) in [
            (
                Kind::Role,
                "/apis/rbac.authorization.k8s.io/v1/roles",
                &of_namespace,
                &of_namespace,
            ),
            (
                Kind::RoleBinding,
                "/apis/rbac.authorization.k8s.io/v1/rolebindings",
                &of_namespace,
                &of_namespace,
            ),
            (
                Kind::ClusterRole,
                "/apis/rbac.authorization.k8s.io/v1/clusterroles",
                &everywhere,
                &everywhere,
            ),
            (
                Kind::ClusterRoleBinding,
                "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
                &everywhere,
                &everywhere,
            ),
            (Kind::ServiceAccount, "/api/v1/serviceaccounts", &None, &gone),
        ] {
            assert_eq!(kind.path(), format!("{path}?"));
            assert_eq!(kind.change(&object, false), *changed, "{kind:?}");
            assert_eq!(kind.change(&object, true), *deleted, "{kind:?}");
        }
    }
}
