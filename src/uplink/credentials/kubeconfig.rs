//! Reads kubeconfig files: a context, its cluster and its user, merged as kubectl merges them.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail, ensure};
use serde::Deserialize;
use zeroize::Zeroizing;

use crate::base::file;
use crate::base::secret::Secret;
use crate::base::text::printable;

/// The kubeconfig files to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Files {
    /// One file, which has to exist.
    One(PathBuf),
    /// The files of KUBECONFIG, or the file in the home folder. Missing files are skipped.
    Listed(Vec<PathBuf>),
}

/// The credentials of a context.
pub(super) struct ContextCredentials {
    /// The name of the context.
    pub(super) context: String,
    /// The name of the user.
    pub(super) user_name: String,
    pub(super) cluster: Option<Cluster>,
    pub(super) user: User,
}

/// An API server.
#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(super) struct Cluster {
    pub(super) server: Option<String>,
    pub(super) tls_server_name: Option<String>,
    pub(super) insecure_skip_tls_verify: Option<bool>,
    pub(super) certificate_authority: Option<PathBuf>,
    pub(super) certificate_authority_data: Option<String>,
    pub(super) proxy_url: Option<String>,
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
pub(super) struct User {
    pub(super) token: Option<Secret>,
    #[serde(rename = "tokenFile")]
    pub(super) token_file: Option<PathBuf>,
    pub(super) client_certificate: Option<PathBuf>,
    pub(super) client_certificate_data: Option<String>,
    pub(super) client_key: Option<PathBuf>,
    pub(super) client_key_data: Option<Secret>,
    pub(super) username: Option<String>,
    pub(super) password: Option<Secret>,
    pub(super) exec: Option<Exec>,
    pub(super) auth_provider: Option<serde::de::IgnoredAny>,
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
    /// Returns the cluster and the user of a context; `None` is the current one. Errors quote names, and no other
    /// value.
    pub(super) fn resolve(&self, context: Option<&str>) -> anyhow::Result<ContextCredentials> {
        let mut merged = self.merge()?;
        let context = match context {
            Some(name) => name.to_owned(),
            None => merged.current_context.take().context(NO_CONTEXT)?,
        };
        let shown = printable(&context, MAX_NAME);
        let Some(found) = merged.contexts.remove(&context) else {
            let known = names(merged.contexts.keys());
            bail!("it has no context {shown} (it has {known})");
        };
        let user_name = found.user.filter(|name| !name.is_empty());
        let user_name = user_name.with_context(|| format!("its context {shown} has no user"))?;
        let Some(user) = merged.users.remove(&user_name) else {
            let user = printable(&user_name, MAX_NAME);
            bail!("it has no user {user}, which its context {shown} names");
        };
        let cluster = found.cluster.and_then(|name| merged.clusters.remove(&name));
        Ok(ContextCredentials {
            context,
            user_name: printable(&user_name, MAX_NAME),
            cluster,
            user,
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
            match file::read(path, MAX_FILE_BYTES).map(Zeroizing::new) {
                Ok(bytes) => merged.add(parse(&bytes, path)?, path.parent().unwrap_or(Path::new(""))),
                Err(error) if error.kind() == io::ErrorKind::NotFound && matches!(self, Self::Listed(_)) => continue,
                Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
            }
            found = true;
        }
        ensure!(found, "no file is found: give --kubeconfig FILE, or set KUBECONFIG");
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
    read.map(Option::unwrap_or_default).map_err(|error| {
        let at = error.location().map(|at| format!(":{}:{}", at.line(), at.column()));
        anyhow!("{}{}: not a kubeconfig", path.display(), at.unwrap_or_default())
    })
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

const NO_CONTEXT: &str = "it has no current context: give --context NAME";
/// Some hundred clusters with their certificates.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// Maximum number of characters of a name in a message.
const MAX_NAME: usize = 80;
/// Maximum number of names in a message.
const MAX_NAMES: usize = 8;
