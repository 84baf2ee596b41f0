//! Decides about a user and a target where no question is needed, and words the question and the refusal.

use super::evidence::brief;
use super::options::Kubernetes;
use super::reviewer::Action;
use super::user::{AUTHENTICATED, User};
use crate::policy::allowlist::{Target, UserLists};
use crate::tunnel::outcome::{Denial, Refusal};

/// A user's rights to a target.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rights<'a> {
    user: &'a User,
    target: &'a Target,
}

/// What decides about them.
#[derive(Debug)]
pub(super) enum Basis {
    /// The lists of the target, with their answer.
    Lists(bool),
    /// The API server, by this question.
    Ask(Action),
    /// Nothing: no user can reach the target.
    Nothing,
}

impl<'a> Rights<'a> {
    /// The rights of this user to this target.
    pub(super) fn of(user: &'a User, target: &'a Target) -> Self {
        Self { user, target }
    }

    /// What decides about them. Lists of the target replace the question to the API server, and a static target is no
    /// object of the cluster, even if a Service has its name.
    pub(super) fn basis(&self, kubernetes: Option<&Kubernetes>) -> Basis {
        if let Some(lists) = self.target.user_lists() {
            return Basis::Lists(self.is_listed(&lists));
        }
        let id = self.target.id();
        let Some(Kubernetes { check, .. }) = kubernetes.filter(|_| !id.is_static()) else {
            return Basis::Nothing;
        };
        Basis::Ask(Action {
            verb: check.verb.clone(),
            group: check.group.clone(),
            resource: check.resource.clone(),
            subresource: check.subresource.clone(),
            namespace: id.namespace.clone(),
            name: if check.is_of_the_service() {
                id.service.clone()
            } else {
                "".into()
            },
        })
    }

    fn is_listed(&self, lists: &UserLists) -> bool {
        let is_member = |group: &str| group == AUTHENTICATED || self.user.groups.iter().any(|own| **own == *group);
        lists.users.contains(&self.user.name) || lists.groups.iter().any(|group| is_member(group))
    }

    /// The refusal of a user that the target's lists do not name.
    pub(super) fn unlisted(&self) -> Denial {
        self.denial()
            .with_details("neither allowed_users nor allowed_groups names the user")
    }

    /// The refusal of a user whose ticket is for another target.
    pub(super) fn narrowed(&self, ticket: &str) -> Denial {
        self.denial()
            .with_details(&format!("the ticket is for {} alone", brief(ticket)))
    }

    /// The refusal of a target that has no lists and is not the API server's to decide about.
    pub(super) fn unreachable(&self) -> Denial {
        self.denial()
            .with_details("the target names no allowed_users and no allowed_groups")
    }

    /// The refusal of a user that the API server does not allow to do that.
    pub(super) fn missing(&self, action: &Action) -> Denial {
        self.denial().with_details(&format!("needs {action}"))
    }

    fn denial(&self) -> Denial {
        let id = self.target.id();
        let target = match id.is_static() {
            true => brief(&id.service),
            false => format!("{}.{}", brief(&id.service), brief(&id.namespace)),
        };
        let phrase = format!("{} may not ssh to {target}", brief(&self.user.name));
        Denial::with_phrase(Refusal::NotAuthorized, &phrase)
    }
}

/// The reason of a decision by the lists of a target.
pub(super) const BY_LIST: &str = "named by the target";
