//! Tells when roles, bindings or ServiceAccounts of the cluster have changed, so that what users may do is asked again.
//!
//! What a role grants is not read: the API server knows how all of it adds up, and is asked. So only the metadata of the
//! objects is listed and watched, and only what tells two versions of it apart is kept.

use std::io;
use std::sync::Arc;

use kube::Client;
use tokio::task::JoinSet;

use self::kind::Kind;
use self::known::{Known, Object};
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::follower::{Collection, Origin, Subject, keep_following};
use crate::kubernetes::api::thread::Thread;
use crate::policy::access::Change;

mod kind;
mod known;

/// Follows roles, bindings and ServiceAccounts on a thread of its own, until it is dropped.
#[derive(Debug)]
pub struct RbacWatch {
    _thread: Thread,
}

impl RbacWatch {
    /// Starts to follow, whether the API server answers or not. `changed` is called on the thread for each change, and for
    /// none that the first lists tell.
    ///
    /// # Errors
    /// The thread or its runtime cannot be started.
    pub fn start(origin: Origin, changed: impl Fn(Change) + Send + Sync + 'static) -> io::Result<Self> {
        for failure in Failure::ALL {
            origin.metrics.watch_errors.zero([failure.label()]);
        }
        let thread = Thread::start("rbac", follow(origin, Arc::new(changed)))?;
        Ok(Self { _thread: thread })
    }
}

/// What is told of each change.
type Changed = Arc<dyn Fn(Change) + Send + Sync>;

/// The objects of one kind.
struct Objects {
    subject: Subject,
    kind: Kind,
    known: Known,
    changed: Changed,
}

impl Objects {
    fn new(kind: Kind, changed: Changed) -> Self {
        let subject = Subject {
            kind: kind.plural(),
            group: kind.group(),
            accept: [METADATA_LIST, METADATA],
            page: PAGE,
            role: "the ClusterRole",
            effect: "changed access rights are seen only at `access.kubernetes.recheck`",
            is_optional: true,
        };
        Self {
            subject,
            kind,
            known: Known::new(kind),
            changed,
        }
    }
}

impl Collection for Objects {
    type Object = Object;

    fn subject(&self) -> &Subject {
        &self.subject
    }

    fn path(&self, _client: &Client) -> String {
        self.kind.path()
    }

    fn read(&self, json: &str) -> Result<Object, serde_json::Error> {
        serde_json::from_str(json)
    }

    fn list(&mut self, objects: Vec<Object>) {
        for change in self.known.list(objects.into_iter()) {
            (self.changed)(change);
        }
    }

    fn apply(&mut self, object: Object, is_deleted: bool) {
        if let Some(change) = self.known.apply(object, is_deleted) {
            (self.changed)(change);
        }
    }
}

/// Runs a follower for each kind, and restarts one that panics. It has then forgotten what it knew.
async fn follow(origin: Origin, changed: Changed) {
    let mut followers = JoinSet::new();
    for kind in Kind::ALL {
        let (told, restarted) = (Arc::clone(&changed), Arc::clone(&changed));
        let objects = move || Objects::new(kind, Arc::clone(&told));
        followers.spawn(keep_following(objects, origin.clone(), move || {
            restarted(Change::Everywhere)
        }));
    }
    // None of them returns.
    while followers.join_next().await.is_some() {}
}

/// Without the rules and subjects. A server that does not know this answers with the whole objects.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
/// Objects a page: metadata of a kilobyte or less each.
const PAGE: usize = 500;
