//! A target that is reached, and what a tunnel to it holds.

use std::sync::Arc;

use crate::policy::access::Grant;
use crate::policy::allowlist::Target;
use crate::protocol::end_notice::Marker;
use crate::proxy::http::Refusals;
use crate::tunnel::dial::Upstream;
use crate::tunnel::drain::Open;
use crate::tunnel::limits::budget::Budgets;
use crate::tunnel::limits::clients::Client;
use crate::tunnel::limits::slots::Slot;
use crate::tunnel::limits::users::User;
use crate::tunnel::outcome::Denial;

/// A connected target, and the slots that the tunnel to it takes.
pub(super) struct Reached {
    pub(super) target: Arc<Target>,
    pub(super) holdings: Box<Holdings>,
    pub(super) upstream: Upstream,
    /// The tunnel counts as open before its client has the 200: a drain cuts it from then on.
    pub(super) open: Open,
}

/// What bounds the tunnels of one client, or of one user where users are known: an office behind one address is not one
/// user.
#[derive(Debug)]
pub(super) enum Account {
    Client(Arc<Client>),
    User(Arc<User>),
}

impl Account {
    pub(super) fn take_slot(&self) -> Result<Slot, Denial> {
        match self {
            Self::Client(client) => client.take_slot(),
            Self::User(user) => user.take_slot(),
        }
    }

    pub(super) fn budgets(&self) -> &Budgets {
        match self {
            Self::Client(client) => &client.budgets,
            Self::User(user) => &user.budgets,
        }
    }
}

/// The slots and rights that a tunnel holds for as long as it runs. Boxed, since nothing of it is needed while it idles.
#[derive(Debug)]
pub(super) struct Holdings {
    /// Those of the process, of the account and of the target.
    pub(super) _slots: [Slot; 3],
    pub(super) account: Account,
    /// The right of its user to reach the target; `None` where every client may.
    pub(super) grant: Option<Grant>,
    /// How its client reads that the target is no SSH server.
    pub(super) refusals: Refusals,
    /// What the notice of its end begins with, if its client asks for one.
    pub(super) end_marker: Option<Marker>,
}
