//! Tunnels with users: a target, and an API server that is a table.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use switchboard::base::secret::Secret;
use switchboard::policy::access::{
    AUTHENTICATED, Access, Action, Decision, Kubernetes, Method, Mode, NoAnswer, Options, Review, ReviewError,
    Reviewer, Sources, User, Verdict,
};
use switchboard::policy::allowlist::{Endpoints, ServiceTarget, StaticTarget, TargetId, TargetRules, Writer};
use switchboard::protocol::jwt::Jwt;
use switchboard::proxy::connection::{Port, Shared};
use switchboard::tunnel::drain::DrainController;
use switchboard::tunnel::limits::{Limits, TargetLimits};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::harness::DEADLINE;
use crate::harness::page::Page;
use crate::harness::shared::{connect, connect_to, shared};

/// The API server: the users of tokens, and what each may do.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    pub(crate) tokens: parking_lot::Mutex<HashMap<String, &'static str>>,
    /// User and `namespace/name`.
    pub(crate) allowed: parking_lot::Mutex<HashSet<(String, String)>>,
    pub(crate) is_away: AtomicBool,
    pub(crate) token_reviews: AtomicUsize,
    pub(crate) access_reviews: AtomicUsize,
    /// While it is held, no token review is answered.
    pub(crate) proofs: tokio::sync::Mutex<()>,
    /// While it is held, no access review is answered.
    pub(crate) answers: tokio::sync::Mutex<()>,
}

impl Cluster {
    pub(crate) fn allow(&self, user: &str, service: &str) {
        self.allowed.lock().insert((user.to_owned(), service.to_owned()));
    }

    pub(crate) fn forbid(&self, user: &str, service: &str) {
        self.allowed.lock().remove(&(user.to_owned(), service.to_owned()));
    }

    fn answer<T>(&self, answer: T) -> Result<T, ReviewError> {
        match self.is_away.load(Ordering::Relaxed) {
            true => Err(ReviewError {
                kind: NoAnswer::Silence,
                message: "no answer".into(),
            }),
            false => Ok(answer),
        }
    }
}

impl Reviewer for Cluster {
    fn review_token<'a>(&'a self, token: &'a Secret, _jwt: Option<&'a Jwt>) -> Review<'a, Verdict> {
        Box::pin(async {
            self.token_reviews.fetch_add(1, Ordering::Relaxed);
            drop(self.proofs.lock().await);
            let tokens = self.tokens.lock();
            self.answer(match tokens.get(token.expose()) {
                Some(name) => Verdict::Authenticated(Arc::new(user(name))),
                None => Verdict::Rejected("the token is not valid".into()),
            })
        })
    }

    fn review_access<'a>(&'a self, user: &'a User, action: &'a Action) -> Review<'a, Decision> {
        Box::pin(async move {
            self.access_reviews.fetch_add(1, Ordering::Relaxed);
            drop(self.answers.lock().await);
            let asked = (user.name.to_string(), format!("{}/{}", action.namespace, action.name));
            let allowed = self.allowed.lock().contains(&asked);
            self.answer(Decision {
                allowed,
                complete: true,
                reason: if allowed {
                    "RoleBinding \"ssh\"".into()
                } else {
                    "".into()
                },
            })
        })
    }
}

pub(crate) fn user(name: &str) -> User {
    User {
        name: name.into(),
        uid: Some(format!("uid-{name}").into()),
        groups: vec!["developers".into(), AUTHENTICATED.into()],
        extra: BTreeMap::new(),
        method: Method::TokenReview,
        expires: None,
    }
}

/// A proxy with the targets `a.team:22` and `b.team:22` of the cluster and `box.local:22` of its own.
pub(crate) struct World {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) target: TcpListener,
    pub(crate) writer: Writer,
    /// Taken by what drains.
    pub(crate) conductor: Option<DrainController>,
}

impl World {
    pub(crate) async fn new(mode: Mode, change: impl FnOnce(&mut Options)) -> Self {
        let target = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = target.local_addr().unwrap();
        let cluster = Arc::new(Cluster::default());
        cluster
            .tokens
            .lock()
            .extend([("alices".to_owned(), "alice"), ("bobs".to_owned(), "bob")]);
        cluster.allow("alice", "team/a");
        let mut options = Options {
            mode,
            kubernetes: Some(Kubernetes::default()),
            ..Options::default()
        };
        change(&mut options);
        let sources = Sources {
            reviewer: Some(Arc::clone(&cluster) as Arc<dyn Reviewer>),
            ..Sources::default()
        };
        let (mut writer, allowlist) = Writer::new();
        let limits = Limits::default();
        writer.replace(vec![service("a", address), service("b", address)], true);
        let own: StaticTarget = format!("box.local:22={address}").parse().unwrap();
        writer.publish(&[own], &limits);
        let (conductor, drain) = DrainController::new();
        let open = shared(allowlist, drain);
        let shared = Shared {
            access: Access::new(options, sources, &open.metrics.access),
            ..open
        };
        Self {
            cluster,
            shared: Arc::new(shared),
            target,
            writer,
            conductor: Some(conductor),
        }
    }

    /// A connection to the proxy, and the task that serves it.
    pub(crate) async fn connect(&self) -> (TcpStream, JoinHandle<()>) {
        connect(&self.shared).await
    }

    pub(crate) async fn connect_to(&self, listener: TcpListener, port: Port) -> (TcpStream, JoinHandle<()>) {
        connect_to(&self.shared, listener, port).await
    }

    /// The head of the answer to a request, and its connection.
    pub(crate) async fn ask(&self, request: &str) -> (String, TcpStream) {
        let (mut client, _serving) = self.connect().await;
        client.write_all(request.as_bytes()).await.unwrap();
        let answer = head(&mut client).await;
        (answer, client)
    }

    pub(crate) fn page(&self) -> Page {
        Page::parse(&self.shared.metrics.encode().unwrap())
    }

    /// Waits for a value on the page.
    pub(crate) async fn counts(&self, series: &str, value: f64) {
        let counted = async {
            while self.page().value(series) != value {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(DEADLINE, counted).await.unwrap();
    }
}

/// Reads to the end of a head.
pub(crate) async fn head(client: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let read = async {
        while !answer.ends_with(b"\r\n\r\n") {
            match client.read_u8().await {
                Ok(byte) => answer.push(byte),
                Err(_) => break,
            }
        }
    };
    timeout(DEADLINE, read).await.unwrap();
    String::from_utf8(answer).unwrap()
}

/// A Service of `team` with one endpoint.
pub(crate) fn service(name: &str, address: SocketAddr) -> ServiceTarget {
    ServiceTarget {
        id: TargetId {
            namespace: "team".into(),
            service: name.into(),
        },
        ports: [22, 22],
        endpoints: Endpoints::from(vec![address]),
        rules: TargetRules {
            limits: TargetLimits {
                ssh_only: false,
                ..TargetLimits::default()
            },
            ..TargetRules::default()
        },
    }
}
