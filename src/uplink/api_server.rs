//! The API server of a cluster: its address, the way to it, and the credentials for it, as kubectl finds them.

use std::env;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};
use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::credentials::kubeconfig::{Cluster, MissingContext, ResolvedContext, User};
use super::credentials::user::Input;
use super::credentials::{Credentials, Files, user};
use super::dial::deadline::Deadline;
use super::dial::forward::ForwardProxy;
use super::dial::io::BoxedIo;
use super::dial::server::HttpServer;
use super::dial::tls::{Connector, Peer, Verifier};
use super::dial::url::{ProxyUrl, Scheme};
use crate::base::secret::Secret;
use crate::base::text::{chain, printable};

/// The source of the API server's address and of the credentials for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterLogin {
    /// The kubeconfig file; `None` for those of KUBECONFIG or `~/.kube/config`, or, without them, for the pod's service
    /// account.
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The context of a kubeconfig; `None` for its current one.
    pub(crate) context: Option<String>,
}

impl ClusterLogin {
    /// Returns the name of the source, and the context that it names.
    fn resolve(&self) -> anyhow::Result<(String, ResolvedContext)> {
        let (files, origin) = match (&self.kubeconfig, env::var("KUBECONFIG")) {
            (Some(file), _) => (Files::One(file.clone()), file.display().to_string()),
            (None, Ok(listed)) if !listed.is_empty() => (Files::of_environment(), format!("KUBECONFIG={listed}")),
            (None, _) => (Files::of_environment(), "~/.kube/config".to_owned()),
        };
        let missing = match files.resolve(self.context.as_deref()) {
            Err(fault) if fault.is::<MissingContext>() && self.kubeconfig.is_none() => fault,
            resolved => return Ok((origin, resolved.context("the kubeconfig")?.for_server())),
        };
        match ResolvedContext::of_pod(Path::new(SERVICE_ACCOUNT), |name| env::var(name).ok()) {
            Some(context) => Ok(("the service account of the pod".to_owned(), context)),
            None => Err(missing.context("there is neither a kubeconfig with a context nor a pod's service account")),
        }
    }

    /// Returns the source and the address of the API server, for the log; `None` if there is neither a kubeconfig with a context
    /// nor a pod's service account. Nothing is sent, and no plugin is run.
    ///
    /// # Errors
    /// The reason why they cannot be used.
    pub(crate) fn check(&self) -> Result<Option<(String, String)>, String> {
        let checked = match self.resolve() {
            Err(fault) if fault.is::<MissingContext>() && self.kubeconfig.is_none() => return Ok(None),
            resolved => resolved.and_then(|(origin, context)| {
                let credentials = user::check(&context)?;
                let server = ApiServer::new(context, credentials).with_context(|| origin.clone())?;
                Ok((origin, server.url("")))
            }),
        };
        checked.map(Some).map_err(|fault| chain(fault.as_ref()))
    }
}

/// An API server, and the credentials for it.
pub(crate) struct ApiServer {
    context: ResolvedContext,
    http: HttpServer,
    /// The path before that of each request, without a slash at its end.
    path: String,
    /// The fields that name the user to impersonate.
    impersonation: HeaderMap,
    /// The current credentials, and when they were obtained.
    current: Mutex<(Credentials, Instant)>,
    /// The permit to renew them.
    renewal: Semaphore,
}

impl ApiServer {
    /// Finds the API server, and obtains the credentials for it within that time.
    ///
    /// # Errors
    /// The reason why there are none, or why they cannot be used.
    pub(crate) async fn find(login: &ClusterLogin, timeout: Duration) -> Result<Self, String> {
        let found = async {
            let (origin, context) = login.resolve()?;
            let credentials = Box::pin(user::obtain(&context, Deadline::after(timeout).at, Input::own())).await?;
            Self::new(context, credentials).context(origin)
        };
        found.await.map_err(|fault: anyhow::Error| chain(fault.as_ref()))
    }

    fn new(context: ResolvedContext, credentials: Credentials) -> anyhow::Result<Self> {
        let name = printable(&context.context, MAX_NAME);
        let cluster = context.cluster.as_ref();
        let cluster = cluster.with_context(|| format!("its context {name} has no cluster, or one that it lacks"))?;
        let (http, path) =
            reach(cluster, &credentials).with_context(|| format!("the cluster of its context {name}"))?;
        Ok(Self {
            impersonation: context
                .user
                .as_ref()
                .map_or_else(|| Ok(HeaderMap::new()), impersonation)?,
            http,
            path,
            current: Mutex::new((credentials, Instant::now())),
            renewal: Semaphore::new(1),
            context,
        })
    }

    /// Returns the namespace of the context, or of the pod.
    pub(crate) fn namespace(&self) -> &str {
        self.context.namespace.as_deref().unwrap_or("default")
    }

    /// Returns the URL of a request for this path with its query.
    pub(crate) fn url(&self, path_and_query: &str) -> String {
        format!("{}{}{path_and_query}", self.http.url, self.path)
    }

    /// Connects to it.
    ///
    /// # Errors
    /// The reason.
    pub(crate) async fn connect(&self) -> Result<BoxedIo, String> {
        let is_direct = self.http.forward.is_none();
        self.http
            .connect(if is_direct { CONNECT_TIMEOUT } else { PROXY_TIMEOUT })
            .await
    }

    /// Returns the header fields of a request that name the user.
    ///
    /// # Errors
    /// A plugin that has to run again gives no credentials.
    pub(crate) async fn fields(&self) -> Result<HeaderMap, String> {
        let mut fields = self.impersonation.clone();
        let credentials = self.credentials().await.map_err(|fault| chain(fault.as_ref()))?;
        let own = credentials.authorization.as_ref().map(Secret::expose);
        if let Some(text) = self.http.url.authorization().or(own) {
            let value = HeaderValue::from_str(text).map_err(|_| "the credential cannot be sent")?;
            fields.insert(AUTHORIZATION, value);
        }
        Ok(fields)
    }

    /// Returns the credentials. Like client-go, it reads a file again after a minute, and runs a plugin again when its
    /// credentials expire.
    async fn credentials(&self) -> anyhow::Result<Credentials> {
        if let Some(usable) = self.usable() {
            return Ok(usable);
        }
        let _permit = self.renewal.acquire().await?;
        if let Some(usable) = self.usable() {
            return Ok(usable);
        }
        let deadline = Deadline::after(PLUGIN_TIMEOUT).at;
        let renewed = Box::pin(user::obtain(&self.context, deadline, Input::own())).await;
        let mut current = self.current.lock();
        *current = match renewed {
            Ok(renewed) => (renewed, Instant::now()),
            // A file may be missing for a moment.
            Err(_) if !current.0.is_of_program => (current.0.clone(), Instant::now()),
            Err(fault) => return Err(fault),
        };
        Ok(current.0.clone())
    }

    fn usable(&self) -> Option<Credentials> {
        let (credentials, obtained) = &*self.current.lock();
        let is_file = self.context.user.as_ref().is_some_and(|user| user.token_file.is_some());
        let is_due = match credentials.is_of_program {
            true => credentials.expires.is_some_and(|end| end <= SystemTime::now() + EARLY),
            false => is_file && obtained.elapsed() >= MAX_FILE_AGE,
        };
        (!is_due).then(|| credentials.clone())
    }
}

/// Returns a cluster's server with the way to it, and the path of its URL.
fn reach(cluster: &Cluster, credentials: &Credentials) -> anyhow::Result<(HttpServer, String)> {
    let authority = user::authority(cluster)?;
    let is_insecure = cluster.insecure_skip_tls_verify == Some(true);
    let server = cluster.server.as_deref().filter(|server| !server.is_empty());
    let server = server.context("it has no server")?;
    // Without a scheme there is no path, and no TLS.
    let (scheme, rest) = server.split_once("://").unwrap_or(("http", server));
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let path = path.trim_end_matches('/');
    let url = format!("{scheme}://{host}").parse::<ProxyUrl>().ok();
    let has_scheme = server.contains("://");
    let url = url.filter(|_| (has_scheme || path.is_empty()) && format!("http://a{path}").parse::<http::Uri>().is_ok());
    let url = url.context("its server is not a URL that begins with http:// or https://, nor HOST:PORT")?;
    let forward = match cluster.proxy_url.as_deref().filter(|url| !url.is_empty()) {
        Some(proxy) => Some(ForwardProxy::of_cluster(proxy).context("its proxy-url")?),
        None => ForwardProxy::for_server(&url)?,
    };
    let name = cluster.tls_server_name.as_deref().filter(|name| !name.is_empty());
    ensure!(
        !(is_insecure && authority.is_some()),
        "it has a certificate authority and insecure-skip-tls-verify: remove one of them"
    );
    let verifier = || match authority {
        _ if is_insecure => Ok(Verifier::of_none(Peer::API_SERVER)),
        Some(pem) => Verifier::of_text(&pem, Peer::API_SERVER).context("its certificate authority"),
        None => Verifier::of_system(Peer::API_SERVER),
    };
    let certificate = credentials.certificate.as_ref();
    let tls = match url.scheme() {
        Scheme::Http => None,
        Scheme::Https => Some(Connector::for_server(
            name.unwrap_or(url.host()),
            verifier()?,
            certificate,
        )?),
    };
    let http = HttpServer {
        url,
        forward,
        tls,
        is_local: false,
    };
    Ok((http, path.to_owned()))
}

/// Returns the header fields for the user to impersonate.
fn impersonation(user: &User) -> anyhow::Result<HeaderMap> {
    let mut fields = HeaderMap::new();
    let mut add = |name: &str, value: &str| {
        let name = HeaderName::try_from(name).context("a name of as-user-extra cannot be sent")?;
        fields.append(
            name,
            HeaderValue::from_str(value).context("a value of `as` cannot be sent")?,
        );
        anyhow::Ok(())
    };
    let named = user.as_user.as_deref().filter(|name| !name.is_empty());
    named.map_or(Ok(()), |name| add("impersonate-user", name))?;
    user.as_uid.iter().try_for_each(|uid| add("impersonate-uid", uid))?;
    let mut groups = user.as_groups.iter().flatten();
    groups.try_for_each(|group| add("impersonate-group", group))?;
    for (name, values) in user.as_user_extra.iter().flatten() {
        let name = format!("impersonate-extra-{}", utf8_percent_encode(name, NO_TOKEN));
        values.iter().try_for_each(|value| add(&name, value))?;
    }
    ensure!(
        named.is_some() || fields.is_empty(),
        "its user has as-uid, as-groups or as-user-extra without `as`"
    );
    Ok(fields)
}

/// The folder of the pod's service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// For TCP and TLS. A server that comes back during an attempt is found after this timeout and one backoff.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1500);
/// The same through a forward proxy, which looks the name up, and connects itself.
const PROXY_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest run of a plugin for further credentials.
const PLUGIN_TIMEOUT: Duration = Duration::from_secs(15);
/// How long before their end the credentials of a plugin are renewed.
const EARLY: Duration = Duration::from_secs(10);
/// How long the token of a file is used.
const MAX_FILE_AGE: Duration = Duration::from_secs(60);
/// The maximum number of characters of a name in a message.
const MAX_NAME: usize = 80;
/// All but the unreserved characters of a URL, which a field's name can have. The API server decodes them.
const NO_TOKEN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    use tempfile::TempDir;
    use tokio::time::advance;

    async fn server(folder: &TempDir, user: &str) -> ApiServer {
        let path = folder.path().join("config");
        let text = format!(
            "clusters: [{{name: c, cluster: {{server: 'https://127.0.0.1:1'}}}}]\nusers: [{{name: u, user: {user}}}]\n\
             contexts: [{{name: x, context: {{cluster: c, user: u}}}}]\ncurrent-context: x\n"
        );
        fs::write(&path, text).unwrap();
        let login = ClusterLogin {
            kubeconfig: Some(path),
            context: None,
        };
        ApiServer::find(&login, PLUGIN_TIMEOUT).await.unwrap()
    }

    async fn shown(server: &ApiServer) -> String {
        let fields = server.fields().await.unwrap();
        fields[AUTHORIZATION].to_str().unwrap().to_owned()
    }

    #[tokio::test(start_paused = true)]
    async fn the_token_of_a_file_is_read_again_after_a_minute_and_kept_without_the_file() {
        let folder = TempDir::new().unwrap();
        let token = folder.path().join("token");
        fs::write(&token, "one\n").unwrap();
        let server = server(&folder, "{tokenFile: token}").await;
        fs::write(&token, "two\r\n").unwrap();
        for (seconds, expected) in [(0, "Bearer one"), (59, "Bearer one"), (1, "Bearer two")] {
            advance(Duration::from_secs(seconds)).await;
            assert_eq!(shown(&server).await, expected);
        }
        fs::remove_file(&token).unwrap();
        advance(MAX_FILE_AGE).await;
        assert_eq!(shown(&server).await, "Bearer two");
    }

    #[tokio::test]
    async fn a_plugin_runs_again_when_its_credentials_expire() {
        for (expires, runs) in [("2001-01-01T00:00:00Z", 3), ("2090-01-01T00:00:00Z", 1), ("never", 1)] {
            let folder = TempDir::new().unwrap();
            let script = format!(
                "#!/bin/sh\necho run >> {}/runs\necho '{{\"apiVersion\": \"client.authentication.k8s.io/v1\", \"kind\": \
                 \"ExecCredential\", \"status\": {{\"token\": \"t\", \"expirationTimestamp\": \"{expires}\"}}}}'\n",
                folder.path().display()
            );
            fs::write(folder.path().join("plugin"), script).unwrap();
            let exec = format!(
                "{{exec: {{apiVersion: client.authentication.k8s.io/v1, command: sh, args: [{}/plugin], interactiveMode: Never}}}}",
                folder.path().display()
            );
            let server = server(&folder, &exec).await;
            for _ in 0..2 {
                assert_eq!(shown(&server).await, "Bearer t");
            }
            let counted = fs::read_to_string(folder.path().join("runs")).unwrap();
            assert_eq!(counted.lines().count(), runs, "{expires}");
        }
    }
}
