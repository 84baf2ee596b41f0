//! A fake Kubernetes API server over HTTPS, which lists and watches as a real one does and fails as a scenario wants
//! it.
//!
//! Objects are JSON as it was written: what no real server would accept can be served as well.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use self::credentials::Credentials;
use self::faults::Script;
pub(crate) use self::faults::{Cut, Fault, Verb};
use self::request::Place;
pub(crate) use self::reviews::Token;
use self::reviews::{Reviews, UnderWay};
use self::serve::Page;
use self::store::{Key, Store};

#[path = "api/answer.rs"]
mod answer;
#[path = "api/credentials.rs"]
mod credentials;
#[path = "api/faults.rs"]
mod faults;
#[path = "api/merge.rs"]
mod merge;
#[path = "api/rbac.rs"]
mod rbac;
#[path = "api/request.rs"]
mod request;
#[path = "api/reviews.rs"]
mod reviews;
#[path = "api/scale.rs"]
mod scale;
#[path = "api/selector.rs"]
mod selector;
#[path = "api/serve.rs"]
mod serve;
#[path = "api/store.rs"]
mod store;
#[path = "api/watch.rs"]
mod watch_stream;

/// The server, its state, and the hand of the scenario in it.
#[derive(Debug)]
pub(crate) struct Api {
    shared: Arc<Shared>,
    address: SocketAddr,
    credentials: Mutex<Credentials>,
    certificate_name: Mutex<String>,
    running: Mutex<Option<JoinHandle<()>>>,
}

/// The state that connections share.
#[derive(Debug)]
pub(crate) struct Shared {
    store: Mutex<Store>,
    revision: watch::Sender<u64>,
    script: Mutex<Script>,
    access: Mutex<Access>,
    reviews: Mutex<Reviews>,
    pages: Mutex<HashMap<String, Page>>,
    /// Objects that are written after the next read of the one before.
    later: Mutex<Vec<Value>>,
    is_frozen: watch::Sender<bool>,
    cut: watch::Sender<Option<Cut>>,
    /// The number of watches that have lasted as long as they were to.
    watches_over: AtomicUsize,
}

/// The rights of each token but the administrator's.
#[derive(Debug)]
struct Access {
    tokens: HashSet<String>,
    /// The plurals that may be listed and watched.
    readable: HashSet<&'static str>,
    /// The namespaces without a Role for the proxy, and the number of its refusals there.
    forbidden: HashMap<String, usize>,
}

/// A copy of the state, to come back to.
#[derive(Clone, Debug)]
pub(crate) struct Backup(Store);

impl Api {
    /// A server that is told its address, and does not serve before it is [opened](Self::open).
    pub(crate) fn new(directory: &Path, address: SocketAddr) -> Self {
        let credentials = Credentials::new(directory, address);
        credentials.write_token(FIRST_TOKEN);
        let access = Access {
            tokens: HashSet::from([FIRST_TOKEN.to_owned()]),
            readable: HashSet::from(READABLE),
            forbidden: HashMap::new(),
        };
        Self {
            shared: Arc::new(Shared {
                store: Mutex::default(),
                revision: watch::Sender::default(),
                script: Mutex::default(),
                access: Mutex::new(access),
                reviews: Mutex::default(),
                pages: Mutex::default(),
                later: Mutex::default(),
                is_frozen: watch::Sender::default(),
                cut: watch::Sender::default(),
                watches_over: AtomicUsize::default(),
            }),
            address,
            credentials: Mutex::new(credentials),
            certificate_name: Mutex::new(address.ip().to_string()),
            running: Mutex::default(),
        }
    }

    /// The file that a client of it reads.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        lock(&self.credentials).kubeconfig()
    }

    /// Serves, with a new certificate.
    pub(crate) fn open(&self) {
        let acceptor = lock(&self.credentials).acceptor(&lock(&self.certificate_name));
        let listener = bind(self.address);
        let task = tokio::spawn(accept(listener, acceptor, Arc::clone(&self.shared)));
        assert!(lock(&self.running).replace(task).is_none(), "it is open");
    }

    /// Refuses connections, and drops those that there are.
    pub(crate) async fn close(&self) {
        let running = lock(&self.running).take();
        if let Some(running) = running {
            running.abort();
            // It ends as cancelled.
            running.await.unwrap_err();
        }
    }

    /// Creates the object or replaces it.
    pub(crate) fn put(&self, object: Value) {
        let key = Place::key_of(&object).unwrap_or_else(|| panic!("of no known kind: {object}"));
        self.shared.put(key, object);
    }

    /// Replaces the object when it is read next, after the answer.
    pub(crate) fn put_after_read(&self, object: Value) {
        lock(&self.shared.later).push(object);
    }

    /// Applies a Secret on the server's side, as that field manager.
    pub(crate) fn apply(&self, manager: &str, secret: &Value) {
        self.put(merge::applied(self.object(secret), manager, secret));
    }

    /// The object of that kind and name, as it is kept.
    pub(crate) fn object(&self, like: &Value) -> Option<Value> {
        self.shared.store().object(&Place::key_of(like).unwrap()).cloned()
    }

    /// The objects of that plural in a namespace.
    pub(crate) fn objects(&self, plural: &str, namespace: &str) -> Vec<Value> {
        let keys = self.shared.store().inside(namespace);
        let keys = keys.iter().filter(|key| key.plural == plural);
        let store = self.shared.store();
        keys.filter_map(|key| store.object(key).cloned()).collect()
    }

    /// Deletes it.
    pub(crate) fn delete(&self, object: &Value) {
        let key = Place::key_of(object).unwrap();
        assert!(self.shared.delete(&key).is_some(), "it is not there: {object}");
    }

    /// Fails the next requests of that kind.
    pub(crate) fn fail(&self, verb: Verb, fault: Fault, times: usize) {
        self.shared.script().fail(verb, fault, times);
    }

    /// The same, and nothing else from now on.
    pub(crate) fn fail_only(&self, verb: Verb, fault: Fault, times: usize) {
        self.shared.script().fail_only(verb, fault, times);
    }

    /// Fails no more.
    pub(crate) fn heal(&self) {
        self.shared.script().heal();
    }

    /// The number of requests of that kind so far.
    pub(crate) fn seen(&self, verb: Verb) -> usize {
        self.shared.script().seen(verb)
    }

    /// The number of watches that have come to their end.
    pub(crate) fn watches_over(&self) -> usize {
        self.shared.watches_over.load(Ordering::Relaxed)
    }

    /// Knows that token from now on, or as another one.
    pub(crate) fn know(&self, text: &str, token: Token) {
        self.shared.reviews().tokens.insert(text.to_owned(), token);
    }

    /// Knows it no more.
    pub(crate) fn forget(&self, text: &str) {
        assert!(self.shared.reviews().tokens.remove(text).is_some(), "it is not known");
    }

    /// The greatest number of token reviews that were under way at once, since the last time it was asked for.
    pub(crate) fn most_reviews(&self) -> usize {
        self.shared.reviews().take_most()
    }

    /// The `User-Agent` of the last review.
    pub(crate) fn reviewers_agent(&self) -> String {
        self.shared.reviews().agent.clone()
    }

    /// Ends every watch that is open.
    pub(crate) fn cut(&self, cut: Cut) {
        self.shared.cut.send_replace(Some(cut));
    }

    /// Accepts connections and requests, and says nothing to any, until it is thawed.
    pub(crate) fn freeze(&self, is_frozen: bool) {
        self.shared.is_frozen.send_replace(is_frozen);
    }

    /// Another token is right, and the old ones are wrong. The file follows when it is told.
    pub(crate) fn rotate_token(&self, token: &str) {
        self.shared.access().tokens = HashSet::from([token.to_owned()]);
    }

    /// Replaces the token in the token file.
    pub(crate) fn write_token(&self, token: &str) {
        lock(&self.credentials).write_token(token);
    }

    /// Takes the right to list and watch that, or gives it back.
    pub(crate) fn allow(&self, plural: &'static str, is_allowed: bool) {
        let mut access = self.shared.access();
        if is_allowed {
            access.readable.insert(plural);
        } else {
            access.readable.remove(plural);
        }
    }

    /// Takes the right to list and watch in that namespace, as its deletion does with the Role in it, or gives it back.
    pub(crate) fn allow_namespace(&self, namespace: &str, is_allowed: bool) {
        let mut access = self.shared.access();
        if is_allowed {
            access.forbidden.remove(namespace);
        } else {
            access.forbidden.insert(namespace.to_owned(), 0);
        }
    }

    /// The number of refusals in that namespace, since the right was taken.
    pub(crate) fn refusals(&self, namespace: &str) -> usize {
        self.shared
            .access()
            .forbidden
            .get(namespace)
            .copied()
            .unwrap_or_default()
    }

    /// The next certificate is signed by a new authority, and the file of the old one is replaced.
    pub(crate) fn renew_authority(&self) {
        lock(&self.credentials).renew_authority();
    }

    /// The next certificate is for that name.
    pub(crate) fn certify(&self, name: &str) {
        name.clone_into(&mut lock(&self.certificate_name));
    }

    /// The name that a certificate should have.
    pub(crate) fn name(&self) -> String {
        self.address.ip().to_string()
    }

    /// Forgets past changes and pages: older revisions are told 410.
    pub(crate) fn compact(&self) {
        self.shared.store().compact();
        self.shared.pages().clear();
    }

    /// Loses the objects whose namespace and name are picked, with no event that says so.
    pub(crate) fn lose(&self, is_lost: impl Fn(&str, &str) -> bool) {
        self.shared.store().lose(|key| is_lost(&key.namespace, &key.name));
    }

    pub(crate) fn backup(&self) -> Backup {
        Backup(self.shared.store().clone())
    }

    /// As a restored etcd does it: older objects, and lower revisions. Only for a closed server.
    pub(crate) fn restore(&self, backup: Backup) {
        assert!(lock(&self.running).is_none(), "it is open");
        *self.shared.store() = backup.0;
    }
}

impl Shared {
    fn store(&self) -> MutexGuard<'_, Store> {
        lock(&self.store)
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        lock(&self.script)
    }

    fn access(&self) -> MutexGuard<'_, Access> {
        lock(&self.access)
    }

    fn reviews(&self) -> MutexGuard<'_, Reviews> {
        lock(&self.reviews)
    }

    /// Counts a token review until the guard is dropped. Access reviews are not only asked for requests: those of rights in
    /// use have bounds of their own.
    fn under_way(self: &Arc<Self>, verb: Verb) -> Option<UnderWay> {
        (verb == Verb::TokenReview).then(|| UnderWay::begin(Arc::clone(self)))
    }

    fn pages(&self) -> MutexGuard<'_, HashMap<String, Page>> {
        lock(&self.pages)
    }

    fn put(&self, key: Key, object: Value) -> Value {
        let object = self.store().put(key, object);
        self.tell();
        object
    }

    fn put_after_read(&self, read: &Key) {
        let later = |object: &mut Value| Place::key_of(object).as_ref() == Some(read);
        let object = lock(&self.later).extract_if(.., later).next();
        if let Some(object) = object {
            self.put(read.clone(), object);
        }
    }

    fn delete(&self, key: &Key) -> Option<Value> {
        let object = {
            let mut store = self.store();
            if key.plural == "namespaces" {
                for key in store.inside(&key.name) {
                    store.delete(&key);
                }
            }
            store.delete(key)
        };
        self.tell();
        object
    }

    fn tell(&self) {
        self.revision.send_replace(self.store().revision());
    }

    /// Waits for as long as the server is frozen.
    async fn thawed(&self) {
        let mut is_frozen = self.is_frozen.subscribe();
        is_frozen.wait_for(|is_frozen| !is_frozen).await.unwrap();
    }
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, shared: Arc<Shared>) {
    // Dropped with this task, and with it every connection.
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        connections.spawn(serve_connection(stream, acceptor.clone(), Arc::clone(&shared)));
        while connections.try_join_next().is_some() {}
    }
}

async fn serve_connection(stream: TcpStream, acceptor: TlsAcceptor, shared: Arc<Shared>) {
    shared.thawed().await;
    // A client that does not like the certificate leaves here.
    let Ok(stream) = acceptor.accept(stream).await else {
        return;
    };
    let service = service_fn(|request| {
        let shared = Arc::clone(&shared);
        async { Ok::<_, std::convert::Infallible>(serve::answer(shared, request).await) }
    });
    // How a connection ends is of no interest: scenarios cut them.
    http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await
        .ok();
}

fn bind(address: SocketAddr) -> TcpListener {
    let socket = TcpSocket::new_v4().unwrap();
    // Connections of the server before it may still be in TIME_WAIT.
    socket.set_reuseaddr(true).unwrap();
    socket.bind(address).unwrap();
    socket.listen(1024).unwrap()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

/// The token that may everything.
pub(crate) const ADMINISTRATOR: &str = "administrator";

const FIRST_TOKEN: &str = "first";
/// Reviews are not read but asked for.
const READABLE: [&str; 21] = [
    "workspaces",
    "sandboxes",
    "devworkspaces",
    "rayclusters",
    "virtualmachines",
    "pods",
    "statefulsets",
    "deployments",
    "notebooks",
    "events",
    "secrets",
    "services",
    "endpointslices",
    "namespaces",
    "serviceaccounts",
    "roles",
    "rolebindings",
    "clusterroles",
    "clusterrolebindings",
    "tokenreviews",
    "subjectaccessreviews",
];
