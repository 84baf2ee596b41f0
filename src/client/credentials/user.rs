//! The credentials of a kubeconfig's user: its token, password or certificate, or those that its plugin prints.

use std::io;
use std::path::Path;

use anyhow::{Context, anyhow, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::process::Command;
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::authorization::{Authorization, Credentials};
use super::exec_credential::{self, Version};
use super::kubeconfig::{Cluster, Exec, Resolved, User};
use super::process;
use crate::base::file;
use crate::base::secret::Secret;
use crate::base::text::printable;
use crate::client::dial::tls::KeyPair;

/// Gets the credentials of a user. A token goes before a password, and both before a plugin, as for kubectl.
pub(super) async fn obtain(resolved: &Resolved, deadline: Instant) -> anyhow::Result<Credentials> {
    let (name, user) = (&resolved.user_name, &resolved.user);
    // kubectl has had none since 1.26.
    ensure!(
        user.auth_provider.is_none(),
        "the user {name} of the kubeconfig has an auth-provider, which Kubernetes has removed: use an exec plugin"
    );
    let certificate = certificate(name, user)?;
    let mut credentials = if let Some(path) = &user.token_file {
        Credentials::of_file(path)?
    } else if let Some(token) = user.token.as_ref().filter(|token| !token.expose().is_empty()) {
        Credentials::bearer(&format!("the user {name} of the kubeconfig"), token.expose())?
    } else if let Some(username) = user.username.as_ref().filter(|username| !username.is_empty()) {
        let password = user.password.clone().unwrap_or_else(|| Secret::from(String::new()));
        let basic = Authorization::basic(username, &password);
        let basic = basic.with_context(|| {
            format!("username or password of the user {name} of the kubeconfig holds a character that cannot be sent")
        })?;
        Credentials {
            authorization: Some(basic),
            certificate: None,
        }
    } else if let Some(exec) = &user.exec {
        Box::pin(Plugin::of(exec, resolved)?.run(deadline)).await?
    } else {
        Credentials::default()
    };
    credentials.certificate = credentials.certificate.or(certificate);
    ensure!(
        credentials != Credentials::default(),
        "the user {name} of the kubeconfig has no credentials"
    );
    Ok(credentials)
}

/// A credential plugin that can be run.
struct Plugin<'a> {
    exec: &'a Exec,
    version: Version,
    command: &'a str,
    /// What it is told in KUBERNETES_EXEC_INFO.
    information: String,
}

impl<'a> Plugin<'a> {
    fn of(exec: &'a Exec, resolved: &Resolved) -> anyhow::Result<Self> {
        let command = exec.command.as_deref().filter(|command| !command.is_empty());
        let user = &resolved.user_name;
        let command = command
            .with_context(|| format!("the user {user} of the kubeconfig has an exec section without a command"))?;
        let named = exec.api_version.as_deref().unwrap_or_default();
        let program = printable(command, LONGEST_NAME);
        let version = Version::named(named).with_context(|| {
            let version = printable(named, LONGEST_NAME);
            format!(
                "the plugin {program} has apiVersion {version}, which is neither client.authentication.k8s.io/v1 nor v1beta1"
            )
        })?;
        ensure!(
            exec.interactive_mode.as_deref() != Some("Always"),
            "the plugin {program} demands a terminal (interactiveMode: Always), and stdin belongs to ssh: it cannot be run here"
        );
        let cluster = match &resolved.cluster {
            _ if exec.provide_cluster_info != Some(true) => None,
            Some(cluster) => Some((cluster, encoded_authority(cluster)?)),
            None => bail!(
                "the context {} of the kubeconfig has no cluster",
                printable(&resolved.context, LONGEST_NAME)
            ),
        };
        Ok(Self {
            exec,
            version,
            command,
            information: exec_credential::information(version, cluster),
        })
    }

    async fn run(&self, deadline: Instant) -> anyhow::Result<Credentials> {
        let mut command = Command::new(self.command);
        command.args(self.exec.args.iter().flatten().map(Secret::expose));
        let variables = self.exec.env.iter().flatten();
        command
            .envs(variables.map(|variable| (&variable.name, variable.value.expose())))
            .env("KUBERNETES_EXEC_INFO", &self.information);
        let printed = process::output(command, deadline).await;
        let read = printed.and_then(|printed| exec_credential::read(&printed, self.version));
        let program = printable(self.command, LONGEST_NAME);
        let is_missing = |fault: &io::Error| fault.kind() == io::ErrorKind::NotFound;
        read.map_err(|fault| match fault.downcast_ref().is_some_and(is_missing) {
            true => anyhow!("there is no credential plugin {program}{}", self.hint()),
            false => fault.context(format!("the credential plugin {program}")),
        })
    }

    /// How to install it, in one line.
    fn hint(&self) -> String {
        let hint = self.exec.install_hint.as_deref().unwrap_or_default();
        let words: Vec<_> = hint.split_whitespace().collect();
        match words.is_empty() {
            true => String::new(),
            false => format!(": {}", printable(&words.join(" "), LONGEST_HINT)),
        }
    }
}

/// The client certificate of the user, from the data or the files. Data go before a file.
fn certificate(name: &str, user: &User) -> anyhow::Result<Option<KeyPair>> {
    let certificate = match &user.client_certificate_data {
        Some(data) if !data.is_empty() => Some(decode("client-certificate-data", data)?),
        Some(_) | None => user.client_certificate.as_deref().map(read).transpose()?,
    };
    let key = match &user.client_key_data {
        Some(data) if !data.expose().is_empty() => Some(decode("client-key-data", data.expose())?),
        Some(_) | None => user.client_key.as_deref().map(read).transpose()?,
    };
    match (certificate, key) {
        (Some(certificate), Some(key)) => Ok(Some(KeyPair {
            certificate,
            key: key.into(),
        })),
        (None, None) => Ok(None),
        (Some(_), None) | (None, Some(_)) => bail!(
            "the user {name} of the kubeconfig has a client certificate without its key, or a key without its certificate"
        ),
    }
}

/// The authority of a cluster as plugins are told it.
fn encoded_authority(cluster: &Cluster) -> anyhow::Result<Option<String>> {
    match (&cluster.certificate_authority_data, &cluster.certificate_authority) {
        (Some(data), _) if !data.is_empty() => Ok(Some(data.clone())),
        (_, Some(path)) => read(path).map(|pem| Some(STANDARD.encode(pem))),
        (_, None) => Ok(None),
    }
}

/// A text of a kubeconfig in base64. It may have line ends.
fn decode(field: &str, data: &str) -> anyhow::Result<String> {
    let data: Zeroizing<Vec<u8>> = Zeroizing::new(data.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect());
    let decoded = STANDARD.decode(data.as_slice()).ok();
    let text = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
    text.with_context(|| format!("the {field} of the kubeconfig is not base64"))
}

/// A file that a kubeconfig names.
fn read(path: &Path) -> anyhow::Result<String> {
    let bytes = file::read(path, LARGEST).map_err(anyhow::Error::new);
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).map_err(|_| anyhow!("it is no text")));
    text.with_context(|| format!("cannot read {}, which the kubeconfig names", path.display()))
}

/// A chain of certificates.
const LARGEST: u64 = 1 << 20;
/// Characters of a name in a message.
const LONGEST_NAME: usize = 120;
/// Characters of an installHint.
const LONGEST_HINT: usize = 200;
