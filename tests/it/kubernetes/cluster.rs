//! A cluster as its administrator sees it, real or fake: two namespaces of the test's own, and a proxy whose service
//! account has the rights that the chart gives and no others. Everything goes when the scenario ends, however it ends.

use std::any::type_name;
use std::fs;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::Request;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::config::{Cluster as ClusterEntry, KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, Config};
use serde_json::{Value, json};

use super::api::{ADMINISTRATOR, Api as FakeApi, Fault, Verb};
use super::lab::{self, API, Lab, Program};
use super::objects::{namespace, with};
use super::pods::Pods;
use super::proxy::{Proxy, eventually, settings};
use super::uplink;

/// The ground of a scenario.
#[derive(Debug)]
pub(crate) struct Ground {
    pub(crate) proxy: Proxy,
    cluster: Cluster,
    /// The two namespaces.
    pub(crate) here: String,
    pub(crate) there: String,
    directory: PathBuf,
    _pods: Pods,
}

/// The ground of a scenario without a proxy: a service account that may review, and follow roles and bindings.
#[derive(Debug)]
pub(crate) struct Reviewing {
    cluster: Cluster,
    /// The namespace.
    pub(crate) here: String,
    /// With the credentials of that account.
    pub(crate) kubeconfig: PathBuf,
}

struct Cluster {
    client: Client,
    kubeconfig: Kubeconfig,
    fake: Option<FakeApi>,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").finish_non_exhaustive()
    }
}

/// Runs a scenario in a network of its own, with these keys of `allowlist.kubernetes`. To be called as [`lab::run`] is.
pub(crate) fn run<F: AsyncFnOnce(&Ground)>(kubernetes: &[(&str, Value)], scenario: F) {
    let test = lab::test_name(type_name::<F>());
    lab::run_as(test, async |lab| {
        Box::pin(within(&lab, kubernetes, None, scenario)).await
    });
}

/// Runs a scenario with that permission of users. To be called as [`lab::run`] is.
pub(crate) fn run_with_permission<F: AsyncFnOnce(&Ground)>(permission: &Value, scenario: F) {
    let pods = [("pods", json!({"enabled": true}))];
    let access = json!({
        "mode": "enforce", "cleartext": "allow",
        "kubernetes": {"enabled": true, "recheck": "1d", "permission": permission},
    });
    lab::run_as(lab::test_name(type_name::<F>()), async |lab| {
        Box::pin(within(&lab, &pods, Some(access), scenario)).await;
    });
}

/// Runs a scenario with users and tickets, in which the API server is ended and started. To be called as [`lab::run`] is.
pub(crate) fn run_restarting<F: AsyncFnOnce(&Ground)>(scenario: F) {
    let access = json!({
        "mode": "enforce", "cleartext": "allow", "kubernetes": {"enabled": true, "recheck": "1d"},
        "tickets": {"enabled": true},
    });
    let program = Program {
        arguments: &[
            lab::test_name(type_name::<F>()),
            "--exact",
            "--nocapture",
            "--test-threads=1",
        ],
        timeout: TIMEOUT,
        namespaces: &lab::NAMESPACES,
    };
    lab::run_program(program, async |lab| {
        Box::pin(within(&lab, &[], Some(access), scenario)).await;
    });
}

/// Runs a scenario that needs no proxy. To be called as [`lab::run`] is.
pub(crate) fn run_reviewing<F: AsyncFnOnce(&Reviewing)>(scenario: F) {
    let test = lab::test_name(type_name::<F>());
    lab::run_as(test, async |lab| {
        let cluster = Cluster::connect(lab.directory()).await;
        let name = unique_name();
        let mut setup = setup(&name, &[]);
        setup.extend(rights_to_review(&name));
        for object in &setup {
            cluster.apply(object).await;
        }
        let kubeconfig = cluster.proxys_kubeconfig(lab.directory(), &name).await;
        let here = format!("{name}-a");
        let reviewing = Reviewing {
            cluster,
            here,
            kubeconfig,
        };
        let done = unwound(Box::pin(scenario(&reviewing))).await;
        for object in setup.iter().rev() {
            reviewing.delete(object).await;
        }
        if let Err(panic) = done {
            resume_unwind(panic);
        }
    });
}

fn unique_name() -> String {
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    format!("switchboard-test-{:x}", nanos % 0x0100_0000_0000)
}

/// The rights that the chart adds when the cluster decides who may go where, and has tickets.
fn rights_to_review(name: &str) -> [Value; 3] {
    let rights = "rbac.authorization.k8s.io";
    let metadata =
        |suffix: &str| json!({"name": format!("{name}-{suffix}"), "labels": {"switchboard.dev/test": "true"}});
    let binding = |suffix: &str, role: &str| {
        json!({
            "apiVersion": format!("{rights}/v1"), "kind": "ClusterRoleBinding", "metadata": metadata(suffix),
            "roleRef": {"apiGroup": rights, "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": "switchboard", "namespace": format!("{name}-a")}],
        })
    };
    let followed = ["roles", "rolebindings", "clusterroles", "clusterrolebindings"];
    let rules = json!([
        {"apiGroups": [rights], "resources": followed, "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["serviceaccounts"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["switchboard-tickets"], "verbs": ["list", "watch"]},
    ]);
    [
        json!({
            "apiVersion": format!("{rights}/v1"), "kind": "ClusterRole", "metadata": metadata("follow"), "rules": rules,
        }),
        binding("follow", &format!("{name}-follow")),
        binding("review", "system:auth-delegator"),
    ]
}

async fn within(lab: &Lab, kubernetes: &[(&str, Value)], access: Option<Value>, scenario: impl AsyncFnOnce(&Ground)) {
    let cluster = Cluster::connect(lab.directory()).await;
    let name = unique_name();
    let mut setup = setup(&name, kubernetes);
    let mut settings = settings(kubernetes);
    if let Some(access) = access {
        setup.extend(rights_to_review(&name));
        settings = with(settings, "/access", access);
        settings = with(settings, "/allowlist/listing", "users".into());
        if settings.pointer("/access/tickets").is_some() {
            let secret = format!("{name}-a/switchboard-tickets");
            settings = with(settings, "/access/tickets/secret", secret.into());
        }
    }
    for object in &setup {
        cluster.apply(object).await;
    }
    let kubeconfig = cluster.proxys_kubeconfig(lab.directory(), &name).await;
    let settings = with(settings, "/allowlist/kubernetes/kubeconfig", kubeconfig.to_str().into());
    let ground = Ground {
        proxy: Proxy::start(lab, &settings).await,
        cluster,
        here: format!("{name}-a"),
        there: format!("{name}-b"),
        directory: lab.directory().to_owned(),
        _pods: Pods::start().await,
    };
    let done = unwound(async {
        eventually("the proxy is ready", async || ground.proxy.is_ready().await).await;
        Box::pin(scenario(&ground)).await;
    })
    .await;
    for object in setup.iter().rev() {
        ground.delete(object).await;
    }
    if let Err(panic) = done {
        eprintln!("--- the proxy said:\n{}\n---", ground.proxy.messages());
        resume_unwind(panic);
    }
}

/// The preparations of a scenario, in order.
fn setup(name: &str, kubernetes: &[(&str, Value)]) -> Vec<Value> {
    let labels = json!({"switchboard.dev/test": "true"});
    let rights = "rbac.authorization.k8s.io";
    // As in the chart.
    let mut rules = json!([
        {"apiGroups": [""], "resources": ["services", "namespaces"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]},
    ]);
    let of_key = |key: &str| match key {
        "wake" => Some(json!({
            "apiGroups": ["apps"], "resources": ["statefulsets/scale", "deployments/scale"], "verbs": ["get", "patch"],
        })),
        "pods" => Some(json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]})),
        "events" => Some(json!({"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]})),
        _ => None,
    };
    let further = kubernetes.iter().filter_map(|(key, _)| of_key(key));
    let kinds = kubernetes.iter().filter(|(key, _)| *key == "workload_kinds");
    let of_kind = |kind: &Value| {
        let resource = kind["resource"].as_str().unwrap();
        let [plural, group] = [0, 2].map(|part| resource.splitn(3, '.').nth(part).unwrap());
        json!({"apiGroups": [group], "resources": [plural], "verbs": ["get", "patch"]})
    };
    let of_kinds = kinds.flat_map(|(_, kinds)| kinds.as_array().unwrap().iter().map(of_kind));
    rules.as_array_mut().unwrap().extend(further.chain(of_kinds));
    let metadata = json!({"name": name, "labels": labels});
    vec![
        namespace(&format!("{name}-a"), &labels),
        namespace(&format!("{name}-b"), &labels),
        json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": "switchboard", "namespace": format!("{name}-a")},
        }),
        json!({
            "apiVersion": format!("{rights}/v1"), "kind": "ClusterRole", "metadata": metadata, "rules": rules,
        }),
        json!({
            "apiVersion": format!("{rights}/v1"), "kind": "ClusterRoleBinding", "metadata": metadata,
            "roleRef": {"apiGroup": rights, "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": "switchboard", "namespace": format!("{name}-a")}],
        }),
    ]
}

impl Ground {
    /// Creates the object, or makes it be so.
    pub(crate) async fn apply(&self, object: &Value) {
        self.cluster.apply(object).await;
    }

    /// The object of that kind and name.
    pub(crate) async fn get(&self, like: &Value) -> Value {
        let name = like["metadata"]["name"].as_str().unwrap();
        let object = self.cluster.api(like).get(name).await;
        serde_json::to_value(object.unwrap_or_else(|error| panic!("{error}: {like}"))).unwrap()
    }

    /// Creates the pod, or makes it be so, with its status, which no kubelet writes.
    pub(crate) async fn apply_pod(&self, pod: &Value) {
        self.apply(pod).await;
        if self.is_real() {
            let name = pod["metadata"]["name"].as_str().unwrap();
            let status = json!({"status": pod["status"]});
            let how = PatchParams::default();
            let patched = self
                .cluster
                .api(pod)
                .patch_status(name, &how, &Patch::Merge(&status))
                .await;
            patched.unwrap_or_else(|error| panic!("{error}: {pod}"));
        }
    }

    /// Deletes the pod at once, as no kubelet ends it.
    pub(crate) async fn delete_pod(&self, pod: &Value) {
        let name = pod["metadata"]["name"].as_str().unwrap();
        let deleted = self
            .cluster
            .api(pod)
            .delete(name, &DeleteParams::default().grace_period(0))
            .await;
        deleted.unwrap_or_else(|error| panic!("{error}: {pod}"));
    }

    /// Defines a kind at a real API server, unless it is defined: its `spec` may be anything.
    pub(crate) async fn define(&self, kind: &str, resource: &str) {
        let mut parts = resource.splitn(3, '.');
        let [plural, version, group] = [(); 3].map(|()| parts.next().unwrap());
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.{group}"), "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"}},
            "spec": {
                "group": group, "scope": "Namespaced", "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind},
                "versions": [{
                    "name": version, "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
                }],
            },
        });
        if self.is_real() {
            let name = definition["metadata"]["name"].as_str().unwrap();
            if self.cluster.api(&definition).get(name).await.is_err() {
                self.apply(&definition).await;
            }
            let object =
                json!({"apiVersion": format!("{group}/{version}"), "kind": kind, "metadata": {"namespace": self.here}});
            eventually("it is served", async || {
                self.cluster.api(&object).list(&ListParams::default()).await.is_ok()
            })
            .await;
        }
    }

    /// The Events of a namespace.
    pub(crate) async fn events(&self, namespace: &str) -> Vec<Value> {
        let like = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"namespace": namespace}});
        let events = self.cluster.api(&like).list(&ListParams::default()).await.unwrap();
        events
            .items
            .iter()
            .map(|event| serde_json::to_value(event).unwrap())
            .collect()
    }

    /// Deletes it.
    pub(crate) async fn delete(&self, object: &Value) {
        self.cluster.delete(object).await;
    }

    /// A token of a service account for the proxy.
    pub(crate) async fn token(&self, account: &str) -> String {
        self.cluster.token(&self.here, account, &["switchboard"]).await
    }

    /// Returns whether the API server is a real one.
    pub(crate) fn is_real(&self) -> bool {
        self.cluster.fake.is_none()
    }

    /// Ends the API server, as a machine that fails does.
    pub(crate) async fn stop_api(&self) {
        match &self.cluster.fake {
            Some(fake) => fake.close().await,
            None => uplink::run_script(&self.directory, "down.sh apiserver").await,
        }
    }

    /// Starts it; the result is complete when its script is. The fake one refuses for a moment, as a real one does.
    pub(crate) fn start_api(&self) -> impl Future<Output = ()> + use<> {
        if let Some(fake) = &self.cluster.fake {
            fake.fail_only(Verb::List, Fault::Status(403), FORBIDDEN);
            fake.open();
        }
        let (is_real, directory) = (self.is_real(), self.directory.clone());
        async move {
            if is_real {
                uplink::run_script(&directory, "up.sh").await;
            }
        }
    }

    /// Returns whether `/readyz` of the API server says ok.
    pub(crate) async fn is_api_ready(&self) -> bool {
        let request = Request::get("/readyz").body(Vec::new()).unwrap();
        self.cluster.fake.is_some() || self.cluster.client.request_text(request).await.is_ok()
    }
}

/// Refusals of the fake API server after its start: one for each watch.
const FORBIDDEN: usize = 8;
/// The deadline of twenty restarts.
const TIMEOUT: Duration = Duration::from_secs(3600);

impl Reviewing {
    /// Creates the object, or makes it be so.
    pub(crate) async fn apply(&self, object: &Value) {
        self.cluster.apply(object).await;
    }

    /// Deletes it.
    pub(crate) async fn delete(&self, object: &Value) {
        self.cluster.delete(object).await;
    }

    /// A token of a service account; without audiences it is for the API server.
    pub(crate) async fn token(&self, account: &str, audiences: &[&str]) -> String {
        self.cluster.token(&self.here, account, audiences).await
    }
}

impl Cluster {
    async fn connect(directory: &Path) -> Self {
        let (fake, kubeconfig) = match uplink::kubeconfig() {
            Some(kubeconfig) => {
                uplink::inside(directory).await;
                (None, through_uplink(kubeconfig))
            }
            None => {
                let fake = FakeApi::new(directory, API);
                fake.open();
                let user = json!({"user": {"token": ADMINISTRATOR}, "name": "switchboard"});
                let file = fs::read_to_string(fake.kubeconfig()).unwrap();
                let file = with(serde_json::from_str(&file).unwrap(), "/users/0", user);
                (Some(fake), serde_json::from_value(file).unwrap())
            }
        };
        let config = Config::from_custom_kubeconfig(kubeconfig.clone(), &KubeConfigOptions::default()).await;
        Self {
            client: Client::try_from(config.unwrap()).unwrap(),
            kubeconfig,
            fake,
        }
    }

    fn api(&self, object: &Value) -> Api<DynamicObject> {
        let version = object["apiVersion"].as_str().unwrap();
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let kind = GroupVersionKind::gvk(group, version, object["kind"].as_str().unwrap());
        let resource = ApiResource::from_gvk(&kind);
        match object["metadata"]["namespace"].as_str() {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        }
    }

    async fn delete(&self, object: &Value) {
        let name = object["metadata"]["name"].as_str().unwrap();
        let deleted = self.api(object).delete(name, &DeleteParams::default()).await;
        deleted.unwrap_or_else(|error| panic!("{error}: {object}"));
    }

    async fn token(&self, namespace: &str, account: &str, audiences: &[&str]) -> String {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600, "audiences": audiences},
        });
        let request = Request::post(path)
            .header("Content-Type", "application/json")
            .body(request.to_string().into_bytes());
        let answer: Value = self.client.request(request.unwrap()).await.unwrap();
        answer["status"]["token"].as_str().unwrap().to_owned()
    }

    async fn apply(&self, object: &Value) {
        let name = object["metadata"]["name"].as_str().unwrap();
        let how = PatchParams::apply("switchboard-test").force();
        let applied = self.api(object).patch(name, &how, &Patch::Apply(object)).await;
        applied.unwrap_or_else(|error| panic!("{error}: {object}"));
    }

    /// The same server, with a token of the service account.
    async fn proxys_kubeconfig(&self, directory: &Path, name: &str) -> PathBuf {
        let token = self.token(&format!("{name}-a"), "switchboard", &[]).await;
        let file = serde_json::to_value(&self.kubeconfig).unwrap();
        let context = file["current-context"].clone();
        let contexts = file["contexts"].as_array().unwrap().iter();
        let current = contexts.clone().find(|entry| entry["name"] == context).unwrap();
        let user = json!({"name": current["context"]["user"], "user": {"token": token}});
        let path = directory.join("proxy.kubeconfig");
        fs::write(&path, with(file, "/users", json!([user])).to_string()).unwrap();
        path
    }
}

/// The server is reached inside the test's network, and is still known by its name.
fn through_uplink(mut kubeconfig: Kubeconfig) -> Kubeconfig {
    let server = uplink::server(&kubeconfig);
    let host = server.host().unwrap().trim_matches(['[', ']']).to_owned();
    for ClusterEntry {
        server: address,
        tls_server_name,
        proxy_url,
        ..
    } in kubeconfig
        .clusters
        .iter_mut()
        .filter_map(|entry| entry.cluster.as_mut())
    {
        *address = Some(format!("{}://{API}", server.scheme_str().unwrap_or("https")));
        tls_server_name.get_or_insert_with(|| host.clone());
        *proxy_url = None;
    }
    kubeconfig
}

/// Its result, or the panic that it ended in.
async fn unwound<T>(scenario: impl Future<Output = T>) -> std::thread::Result<T> {
    let mut scenario = pin!(scenario);
    poll_fn(
        |context| match catch_unwind(AssertUnwindSafe(|| scenario.as_mut().poll(context))) {
            Ok(Poll::Ready(done)) => Poll::Ready(Ok(done)),
            Ok(Poll::Pending) => Poll::Pending,
            Err(panic) => Poll::Ready(Err(panic)),
        },
    )
    .await
}
