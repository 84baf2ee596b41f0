//! Reads kubeconfig files: a context, its cluster and its user, merged as kubectl merges them.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail, ensure};
use serde::Deserialize;
use zeroize::Zeroizing;

use crate::base::secret::Secret;
use crate::base::text::printable;
use crate::base::{file, platform};

/// The kubeconfig files to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Files {
    /// One file, which has to exist.
    One(PathBuf),
    /// The files of KUBECONFIG, or the file in the home folder. Missing files are skipped.
    Listed(Vec<PathBuf>),
}

/// No kubeconfig names a context. kubectl takes the service account of its pod then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::uplink) enum MissingContext {
    /// There is no file.
    #[error("no file is found: give --kubeconfig FILE, or set KUBECONFIG")]
    File,
    /// None of the files names one.
    #[error("it has no current context: give --context NAME, or set one with `kubectl config use-context`")]
    Current,
}

/// A context, with its cluster and its user.
#[derive(Clone, Default)]
pub(in crate::uplink) struct ResolvedContext {
    /// The name of the context.
    pub(in crate::uplink) context: String,
    pub(in crate::uplink) namespace: Option<String>,
    /// The name of the user.
    pub(in crate::uplink) user_name: String,
    /// The cluster; `None` if the context names none that is there.
    pub(in crate::uplink) cluster: Option<Cluster>,
    /// The user; `None` if the context names none that is there, which is nobody for kubectl.
    pub(in crate::uplink) user: Option<User>,
}

impl ResolvedContext {
    /// Returns the service account of the pod, whose files are in that folder; `None` outside a pod.
    pub(in crate::uplink) fn of_pod(folder: &Path, variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let [host, port] = ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"].map(variable);
        let (host, port) = host
            .zip(port)
            .filter(|(host, port)| !host.is_empty() && !port.is_empty())?;
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        let [token, authority, namespace] = ["token", "ca.crt", "namespace"].map(|name| folder.join(name));
        let user = User {
            token_file: Some(token).filter(|path| path.is_file()),
            ..User::default()
        };
        let cluster = Cluster {
            server: Some(format!("https://{host}:{port}")),
            certificate_authority: Some(authority).filter(|path| path.exists()),
            ..Cluster::default()
        };
        let namespace = fs::read_to_string(namespace).unwrap_or_default();
        user.token_file.is_some().then(|| Self {
            namespace: Some(namespace.trim().to_owned()).filter(|name| !name.is_empty()),
            cluster: Some(cluster),
            user: Some(user),
            ..Self::default()
        })
    }

    /// Returns the context for requests to its API server: without TLS the user is only impersonated, and no secret is sent.
    pub(in crate::uplink) fn for_server(mut self) -> Self {
        let server = self.cluster.as_ref().and_then(|cluster| cluster.server.as_deref());
        if !server.is_some_and(|server| server.starts_with("https://")) {
            self.user = self.user.map(|user| User {
                as_user: user.as_user,
                as_uid: user.as_uid,
                as_groups: user.as_groups,
                as_user_extra: user.as_user_extra,
                ..User::default()
            });
        }
        self
    }

    /// Returns the user.
    ///
    /// # Errors
    /// The context names none, or one that is not there.
    pub(super) fn known_user(&self) -> anyhow::Result<&User> {
        let shown = printable(&self.context, MAX_NAME);
        ensure!(!self.user_name.is_empty(), "its context {shown} has no user");
        let user = self.user.as_ref();
        user.with_context(|| format!("it has no user {}, which its context {shown} names", self.user_name))
    }
}

/// An API server.
#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(in crate::uplink) struct Cluster {
    pub(in crate::uplink) server: Option<String>,
    pub(in crate::uplink) tls_server_name: Option<String>,
    pub(in crate::uplink) insecure_skip_tls_verify: Option<bool>,
    pub(in crate::uplink) certificate_authority: Option<PathBuf>,
    pub(in crate::uplink) certificate_authority_data: Option<String>,
    pub(in crate::uplink) proxy_url: Option<String>,
    pub(super) disable_compression: Option<bool>,
    extensions: Option<Vec<Extension>>,
}

#[derive(Clone, Deserialize)]
struct Extension {
    name: Option<String>,
    extension: Option<serde_json::Value>,
}

impl Cluster {
    /// Returns the cluster's configuration for plugins, from the extension that is reserved for it.
    pub(super) fn exec_config(&self) -> Option<&serde_json::Value> {
        let extensions = self.extensions.as_deref().unwrap_or_default();
        let reserved = extensions
            .iter()
            .find(|extension| extension.name.as_deref() == Some("client.authentication.k8s.io/exec"));
        reserved?.extension.as_ref()
    }
}

/// The credentials of a user.
#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(in crate::uplink) struct User {
    pub(super) token: Option<Secret>,
    #[serde(rename = "tokenFile")]
    pub(in crate::uplink) token_file: Option<PathBuf>,
    pub(super) client_certificate: Option<PathBuf>,
    pub(super) client_certificate_data: Option<String>,
    pub(super) client_key: Option<PathBuf>,
    pub(super) client_key_data: Option<Secret>,
    pub(super) username: Option<String>,
    pub(super) password: Option<Secret>,
    pub(super) exec: Option<Exec>,
    pub(super) auth_provider: Option<serde::de::IgnoredAny>,
    /// The user to impersonate.
    #[serde(rename = "as")]
    pub(in crate::uplink) as_user: Option<String>,
    pub(in crate::uplink) as_uid: Option<String>,
    pub(in crate::uplink) as_groups: Option<Vec<String>>,
    pub(in crate::uplink) as_user_extra: Option<BTreeMap<String, Vec<String>>>,
}

/// A credential plugin.
#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Exec {
    pub(super) api_version: Option<String>,
    pub(super) command: Option<String>,
    // Both may hold a client's secret.
    pub(super) args: Option<Vec<Secret>>,
    pub(super) env: Option<Vec<Variable>>,
    pub(super) install_hint: Option<String>,
    pub(super) provide_cluster_info: Option<bool>,
    pub(super) interactive_mode: Option<String>,
}

/// A variable of a plugin's environment.
#[derive(Clone, Deserialize)]
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) value: Secret,
}

#[derive(Default, Deserialize)]
struct Context {
    cluster: Option<String>,
    user: Option<String>,
    namespace: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Kubeconfig {
    clusters: Option<Vec<NamedEntry<Cluster>>>,
    users: Option<Vec<NamedEntry<User>>>,
    contexts: Option<Vec<NamedEntry<Context>>>,
    current_context: Option<String>,
}

/// An entry of one of the lists.
#[derive(Deserialize)]
struct NamedEntry<T> {
    name: String,
    #[serde(rename = "cluster", alias = "user", alias = "context")]
    value: Option<T>,
}

/// All files merged: the first entry of each name wins, as does the first current context.
#[derive(Default)]
struct MergedKubeconfig {
    clusters: BTreeMap<String, Cluster>,
    users: BTreeMap<String, User>,
    contexts: BTreeMap<String, Context>,
    current_context: Option<String>,
}

impl Files {
    /// Returns the files that kubectl reads without a flag.
    pub(crate) fn of_environment() -> Self {
        let listed = env::var_os("KUBECONFIG").unwrap_or_default();
        let mut files: Vec<_> = env::split_paths(&listed).collect();
        files.retain(|file| !file.as_os_str().is_empty());
        if files.is_empty() {
            files.extend(platform::home().map(|home| home.join(".kube").join("config")));
        }
        Self::Listed(files)
    }

    /// Returns the cluster and the user of a context; `None` is the current one. Errors quote names, and no other
    /// value.
    ///
    /// # Errors
    /// [`MissingContext`], or a fault of the files.
    pub(in crate::uplink) fn resolve(&self, context: Option<&str>) -> anyhow::Result<ResolvedContext> {
        let mut merged = self.merge()?;
        let context = match context {
            Some(name) => name.to_owned(),
            None => merged.current_context.take().ok_or(MissingContext::Current)?,
        };
        let Some(found) = merged.contexts.remove(&context) else {
            let known = names(merged.contexts.keys());
            bail!("it has no context {} (it has {known})", printable(&context, MAX_NAME));
        };
        let user_name = found.user.unwrap_or_default();
        Ok(ResolvedContext {
            context,
            namespace: found.namespace.filter(|name| !name.is_empty()),
            user: merged.users.remove(&user_name),
            user_name: printable(&user_name, MAX_NAME),
            cluster: found.cluster.and_then(|name| merged.clusters.remove(&name)),
        })
    }

    fn paths(&self) -> &[PathBuf] {
        match self {
            Self::One(path) => std::slice::from_ref(path),
            Self::Listed(paths) => paths,
        }
    }

    fn merge(&self) -> anyhow::Result<MergedKubeconfig> {
        let mut merged = MergedKubeconfig::default();
        let mut found = false;
        for path in self.paths() {
            let read = match path.as_os_str() == OsStr::new("/dev/null") {
                // The usual name for a file without entries.
                true => Ok(Vec::new()),
                false => file::read(path, MAX_FILE_BYTES),
            };
            match read.map(Zeroizing::new) {
                Ok(bytes) => merged.add(parse(&bytes, path)?, path.parent().unwrap_or(Path::new(""))),
                Err(error) if error.kind() == io::ErrorKind::NotFound && matches!(self, Self::Listed(_)) => continue,
                Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
            }
            found = true;
        }
        ensure!(found, MissingContext::File);
        Ok(merged)
    }
}

impl MergedKubeconfig {
    /// Adds the entries of a file in `folder` whose names are new.
    fn add(&mut self, file: Kubeconfig, folder: &Path) {
        for named in file.clusters.unwrap_or_default() {
            let mut cluster = named.value.unwrap_or_default();
            anchor(&mut cluster.certificate_authority, folder);
            self.clusters.entry(named.name).or_insert(cluster);
        }
        for named in file.users.unwrap_or_default() {
            let mut user = named.value.unwrap_or_default();
            for path in [&mut user.token_file, &mut user.client_certificate, &mut user.client_key] {
                anchor(path, folder);
            }
            if let Some(command) = user.exec.as_mut().and_then(|exec| exec.command.as_mut())
                && command.contains('/')
            {
                // Anything else is looked for in PATH.
                *command = folder.join(&*command).to_string_lossy().into_owned();
            }
            self.users.entry(named.name).or_insert(user);
        }
        for named in file.contexts.unwrap_or_default() {
            let context = named.value.unwrap_or_default();
            self.contexts.entry(named.name).or_insert(context);
        }
        let current = file.current_context.filter(|name| !name.is_empty());
        self.current_context = self.current_context.take().or(current);
    }
}

fn parse(bytes: &[u8], path: &Path) -> anyhow::Result<Kubeconfig> {
    // An empty file is one without entries, as it is for kubectl.
    if bytes.trim_ascii().is_empty() {
        return Ok(Kubeconfig::default());
    }
    let read: Result<Option<Kubeconfig>, _> = serde_saphyr::from_slice(bytes);
    // The parser's own message shows the line, which may hold a token.
    let read = read.map(Option::unwrap_or_default).map_err(|error| {
        let at = error.location().map(|at| format!(":{}:{}", at.line(), at.column()));
        anyhow!("{}{}: not a kubeconfig", path.display(), at.unwrap_or_default())
    })?;
    let twice = repeated(read.clusters.as_deref()).or(repeated(read.users.as_deref()));
    match twice.or(repeated(read.contexts.as_deref())) {
        Some(name) => bail!("{}: it has {name} twice in a list", path.display()),
        None => Ok(read),
    }
}

/// Returns a name that two entries of a list have. kubectl refuses such a file.
fn repeated<T>(entries: Option<&[NamedEntry<T>]>) -> Option<String> {
    let mut names = BTreeSet::new();
    let twice = entries
        .iter()
        .copied()
        .flatten()
        .find(|entry| !names.insert(&entry.name));
    twice.map(|entry| printable(&entry.name, MAX_NAME))
}

/// Resolves a path against the folder of its file. An empty path becomes `None`.
fn anchor(path: &mut Option<PathBuf>, folder: &Path) {
    *path = path
        .take()
        .filter(|path| !path.as_os_str().is_empty())
        .map(|path| folder.join(path));
}

fn names<'a>(known: impl Iterator<Item = &'a String>) -> String {
    let known: Vec<_> = known
        .take(MAX_NAMES + 1)
        .map(|name| printable(name, MAX_NAME))
        .collect();
    match known.len() {
        0 => "none".to_owned(),
        1..=MAX_NAMES => known.join(", "),
        _ => format!("{}, …", known.get(..MAX_NAMES).unwrap_or_default().join(", ")),
    }
}

/// Some hundred clusters with their certificates.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// Maximum number of characters of a name in a message.
const MAX_NAME: usize = 80;
/// Maximum number of names in a message.
const MAX_NAMES: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_account_of_a_pod_is_a_context_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let of_pod = |host: &str| {
            let variable = |name: &str| Some(if name.ends_with("HOST") { host } else { "443" }.to_owned());
            ResolvedContext::of_pod(folder.path(), variable)
        };
        assert!(of_pod("10.0.0.1").is_none(), "a pod without a token");
        fs::write(folder.path().join("token"), "abc").unwrap();
        let bare = of_pod("10.0.0.1").unwrap();
        assert_eq!(bare.cluster.unwrap().server.unwrap(), "https://10.0.0.1:443");
        assert_eq!(bare.namespace, None);
        fs::write(folder.path().join("namespace"), "team-a\n").unwrap();
        fs::write(folder.path().join("ca.crt"), "").unwrap();
        let whole = of_pod("fd00::1").unwrap();
        let cluster = whole.cluster.unwrap();
        assert_eq!(cluster.server.unwrap(), "https://[fd00::1]:443");
        assert_eq!(cluster.certificate_authority, Some(folder.path().join("ca.crt")));
        assert_eq!(whole.namespace.as_deref(), Some("team-a"));
        assert!(of_pod("").is_none());
    }
}
