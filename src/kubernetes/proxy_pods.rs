//! The pods of a proxy, for the programs of operators: lists them by their labels, and forwards a port of each through the
//! API server, with the operator's permissions.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use k8s_openapi::api::core::v1 as core;
use kube::Api;
use kube::api::{ListParams, Portforwarder};
use tokio::io::DuplexStream;
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};

use super::api::failure::{ApiError, Failure};
use super::api::requests::{self, RESPONSE_TIMEOUT, failure_of};
use crate::base::values;
use crate::uplink::api_server::ClusterLogin;
use crate::uplink::credentials::DEFAULT_TIMEOUT;

/// Which pods: arguments of the programs of operators.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSelector {
    /// The pods of this namespace [default: the context's]
    #[arg(long, short = 'n', value_name = "NAME", value_parser = values::object_name)]
    namespace: Option<String>,
    /// The pods with these labels [default: app.kubernetes.io/name=switchboard]
    #[arg(long, short = 'l', value_name = "LABELS")]
    selector: Option<String>,
    /// Use this context instead of the current one
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Use this kubeconfig [default: KUBECONFIG or ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The admin port of the pods [default: the container port named metrics or admin, or else 9090]
    #[arg(long, value_name = "PORT", value_parser = values::port)]
    pod_port: Option<u16>,
}

/// The pods that match a selector, and the API client to reach them.
#[derive(Clone, Debug)]
pub(crate) struct Pods {
    api: Api<core::Pod>,
    selector: String,
    port: Option<u16>,
}

/// A pod of a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pod {
    /// Its name.
    pub(crate) name: String,
    /// Its admin port.
    pub(crate) port: u16,
    /// Its phase if that is not `Running`: its port cannot be reached yet.
    pub(crate) waits: Option<String>,
}

impl Pods {
    /// Reads the kubeconfig. The API server is not asked yet.
    ///
    /// # Errors
    /// [`Failure::Credentials`].
    pub(crate) async fn connect(selector: &PodSelector) -> Result<Self, ApiError> {
        let login = ClusterLogin {
            kubeconfig: selector.kubeconfig.clone(),
            context: selector.context.clone(),
        };
        let client = requests::connect(login, OPERATOR, DEFAULT_TIMEOUT).await?;
        let namespace = selector.namespace.as_deref().unwrap_or(client.default_namespace());
        Ok(Self {
            api: Api::namespaced(client.clone(), namespace),
            selector: selector.selector.clone().unwrap_or_else(|| USUAL_SELECTOR.to_owned()),
            port: selector.pod_port,
        })
    }

    /// Returns the pods that have not ended, sorted by name. Pods that are being deleted are included: they drain.
    ///
    /// # Errors
    /// The API server does not answer, refuses, or lists more than [`MAX_PODS`] such pods.
    pub(crate) async fn list(&self) -> Result<Vec<Pod>, ApiError> {
        let all = ListParams::default().labels(&self.selector);
        let listed = answer(Box::pin(self.api.list(&all))).await?;
        let mut pods: Vec<_> = listed.into_iter().filter_map(|pod| read(pod, self.port)).collect();
        if pods.len() > MAX_PODS {
            let reason = format!("{} pods match the selector, which are more than {MAX_PODS}", pods.len());
            return Err(ApiError::new(Failure::Refused, reason));
        }
        pods.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(pods)
    }

    /// Connects to a port of a pod. Each connection needs its own WebSocket: the protocol carries one connection per port
    /// that the request names (pkg/kubelet/cri/streaming/portforward/websocket.go of Kubernetes).
    ///
    /// # Errors
    /// The API server does not answer, or refuses. [`PortForward::broken`] reports that the pod cannot be reached.
    pub(crate) async fn forward(&self, pod: &str, port: u16) -> Result<PortForward, ApiError> {
        let mut forwarder = answer(Box::pin(self.api.portforward(pod, &[port]))).await?;
        Ok(PortForward {
            port,
            stream: forwarder.take_stream(port),
            forwarder: Some(forwarder),
        })
    }
}

/// Waits for a response of the API server, with a timeout.
async fn answer<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, ApiError> {
    match timeout(RESPONSE_TIMEOUT, request).await {
        Ok(answer) => answer.map_err(|error| refused(&error)),
        Err(_) => Err(ApiError::new(Failure::Timeout, "no answer in time")),
    }
}

fn refused(error: &kube::Error) -> ApiError {
    if let kube::Error::Api(status) = error {
        let failure = Failure::from_status(status.code).unwrap_or(Failure::Malformed);
        return ApiError::new(failure, format!("{}: {}", status.code, status.message));
    }
    ApiError::caused(failure_of(error), error)
}

/// A connection to a port of a pod.
pub(crate) struct PortForward {
    port: u16,
    forwarder: Option<Portforwarder>,
    stream: Option<DuplexStream>,
}

impl PortForward {
    /// Takes its byte stream; `None` after the first call.
    pub(crate) fn stream(&mut self) -> Option<DuplexStream> {
        self.stream.take()
    }

    /// Waits until the node reports that the port cannot be forwarded, and returns its message.
    pub(crate) async fn broken(&mut self) -> String {
        let forwarder = self.forwarder.as_mut();
        let told = forwarder.and_then(|forwarder| forwarder.take_error(self.port));
        if let Some(told) = told
            && let Some(words) = told.await
        {
            return words;
        }
        // The connection ended without an error message: its reader sees the end.
        std::future::pending().await
    }
}

impl Drop for PortForward {
    fn drop(&mut self) {
        let (Some(forwarder), Ok(runtime)) = (self.forwarder.take(), Handle::try_current()) else {
            return;
        };
        self.stream = None;
        // Both sides end a WebSocket with a Close. If the peer sends none in time, the task is aborted.
        runtime.spawn(async move {
            sleep(CLOSE_TIMEOUT).await;
            forwarder.abort();
        });
    }
}

/// Reads a pod; `None` if it has ended.
fn read(pod: core::Pod, port: Option<u16>) -> Option<Pod> {
    let phase = pod.status.and_then(|status| status.phase).unwrap_or_default();
    if matches!(&*phase, "Succeeded" | "Failed") {
        return None;
    }
    let containers = pod.spec.into_iter().flat_map(|spec| spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.unwrap_or_default());
    let named = ports.find(|port| matches!(port.name.as_deref(), Some("metrics" | "admin")));
    let named = named.and_then(|port| u16::try_from(port.container_port).ok());
    Some(Pod {
        name: pod.metadata.name?,
        port: port.or(named).unwrap_or(ADMIN_PORT),
        waits: (phase != "Running").then_some(phase),
    })
}

/// The `User-Agent` of the operators' programs, as audit logs show it.
const OPERATOR: &str = concat!("switchboard-operator/", env!("CARGO_PKG_VERSION"));
/// With more, the selector most likely matches other pods, too.
const MAX_PODS: usize = 256;
/// The labels of the chart and of the kustomization.
const USUAL_SELECTOR: &str = "app.kubernetes.io/name=switchboard";
const ADMIN_PORT: u16 = 9090;
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(pod: Value, port: Option<u16>) -> Option<Pod> {
        super::read(serde_json::from_value(pod).unwrap(), port)
    }

    #[test]
    fn the_admin_port_of_a_pod_is_the_one_that_is_named() {
        let pod = |ports: Value| json!({"metadata": {"name": "a"}, "spec": {"containers": [{}, {"ports": ports}]}, "status": {"phase": "Running"}});
        let web = json!({"name": "web", "containerPort": 8080});
        let metrics = json!({"name": "metrics", "containerPort": 9091});
        for (ports, asked, found) in [
            (json!([web, metrics]), None, 9091),
            (json!([web, metrics]), Some(1), 1),
            (json!([web]), None, 9090),
            (json!([{"containerPort": 1}]), None, 9090),
        ] {
            let read = read(pod(ports.clone()), asked).unwrap();
            assert_eq!((&*read.name, read.port, read.waits), ("a", found, None), "{ports}");
        }
    }

    #[test]
    fn a_pod_that_has_ended_is_none_and_one_that_does_not_run_yet_waits() {
        let pod = |phase: &str| read(json!({"metadata": {"name": "a"}, "status": {"phase": phase}}), None);
        assert_eq!((pod("Succeeded"), pod("Failed")), (None, None));
        assert_eq!(pod("Pending").unwrap().waits.as_deref(), Some("Pending"));
        assert_eq!(pod("Running").unwrap().waits, None);
    }
}
