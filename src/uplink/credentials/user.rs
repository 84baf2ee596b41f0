//! The credentials of a kubeconfig's user: its token, password or certificate, or the output of its plugin.

use std::io;
use std::path::Path;

use anyhow::{Context, anyhow, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::process::Command;
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::authorization::Credentials;
use super::exec_credential::{self, VERSIONS};
use super::kubeconfig::{Cluster, ContextCredentials, Exec, User};
use super::process;
use crate::base::file;
use crate::base::secret::Secret;
use crate::base::text::printable;
use crate::uplink::dial::tls::KeyPair;

/// Gets the credentials of a user. As in kubectl, a token takes precedence over a password, and both over a plugin.
pub(super) async fn obtain(resolved: &ContextCredentials, deadline: Instant) -> anyhow::Result<Credentials> {
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
        Credentials::of_token(&format!("the user {name} of the kubeconfig"), token.expose())?
    } else if let Some(username) = user.username.as_ref().filter(|username| !username.is_empty()) {
        let password = user.password.as_ref().map_or("", Secret::expose);
        Credentials::basic(username, password).with_context(|| {
            format!("username or password of the user {name} of the kubeconfig holds a character that cannot be sent")
        })?
    } else if let Some(exec) = &user.exec {
        Box::pin(run_plugin(exec, resolved, deadline)).await?.of_program()
    } else {
        Credentials::default()
    };
    credentials.certificate = credentials.certificate.or(certificate);
    ensure!(
        credentials != Credentials::default(),
        "the user {name} of the kubeconfig has no credentials"
    );
    credentials.context = Some(resolved.context.clone());
    Ok(credentials)
}

/// Runs a credential plugin.
async fn run_plugin(exec: &Exec, resolved: &ContextCredentials, deadline: Instant) -> anyhow::Result<Credentials> {
    let path = exec.command.as_deref().filter(|command| !command.is_empty());
    let user = &resolved.user_name;
    let path =
        path.with_context(|| format!("the user {user} of the kubeconfig has an exec section without a command"))?;
    let program = printable(path, MAX_NAME);
    let version = exec.api_version.as_deref().unwrap_or_default();
    ensure!(
        VERSIONS.contains(&version),
        "the plugin {program} has apiVersion {}, which is neither client.authentication.k8s.io/v1 nor v1beta1",
        printable(version, MAX_NAME)
    );
    ensure!(
        exec.interactive_mode.as_deref() != Some("Always"),
        "the plugin {program} demands a terminal (interactiveMode: Always), and stdin belongs to ssh: it cannot be run here"
    );
    let cluster = match &resolved.cluster {
        _ if exec.provide_cluster_info != Some(true) => None,
        Some(cluster) => Some((cluster, encoded_authority(cluster)?)),
        None => bail!(
            "the context {} of the kubeconfig has no cluster",
            printable(&resolved.context, MAX_NAME)
        ),
    };
    let variables = exec.env.iter().flatten();
    let mut command = Command::new(path);
    command
        .args(exec.args.iter().flatten().map(Secret::expose))
        .envs(variables.map(|variable| (&variable.name, variable.value.expose())))
        .env("KUBERNETES_EXEC_INFO", exec_credential::information(version, cluster));
    let printed = process::output(command, deadline).await;
    let read = printed.and_then(|printed| exec_credential::read(&printed, version));
    let is_missing = |fault: &io::Error| fault.kind() == io::ErrorKind::NotFound;
    read.map_err(|fault| match fault.downcast_ref().is_some_and(is_missing) {
        true => anyhow!("there is no credential plugin {program}{}", hint(exec)),
        false => fault.context(format!("the credential plugin {program}")),
    })
}

/// Returns how to install a plugin, in one line.
fn hint(exec: &Exec) -> String {
    let hint = exec.install_hint.as_deref().unwrap_or_default();
    let words: Vec<_> = hint.split_whitespace().collect();
    match words.is_empty() {
        true => String::new(),
        false => format!(": {}", printable(&words.join(" "), MAX_HINT)),
    }
}

/// Returns the user's client certificate from the data or the files. Data take precedence.
fn certificate(name: &str, user: &User) -> anyhow::Result<Option<KeyPair>> {
    let certificate = match &user.client_certificate_data {
        Some(data) if !data.is_empty() => Some(decode("client-certificate-data", data)?),
        Some(_) | None => user.client_certificate.as_deref().map(read).transpose()?,
    };
    let key = match &user.client_key_data {
        Some(data) if !data.expose().is_empty() => Some(decode("client-key-data", data.expose())?),
        Some(_) | None => user.client_key.as_deref().map(read).transpose()?,
    };
    ensure!(
        certificate.is_some() == key.is_some(),
        "the user {name} of the kubeconfig has a client certificate without its key, or a key without its certificate"
    );
    let key = key.map(Secret::from);
    let pair = certificate.zip(key);
    Ok(pair.map(|(certificate, key)| KeyPair { certificate, key }))
}

/// Returns a cluster's authority in the encoding for plugins.
fn encoded_authority(cluster: &Cluster) -> anyhow::Result<Option<String>> {
    match (&cluster.certificate_authority_data, &cluster.certificate_authority) {
        (Some(data), _) if !data.is_empty() => Ok(Some(data.clone())),
        (_, Some(path)) => read(path).map(|pem| Some(STANDARD.encode(pem))),
        (_, None) => Ok(None),
    }
}

/// Decodes a base64 value of a kubeconfig. It may have line ends.
fn decode(field: &str, data: &str) -> anyhow::Result<String> {
    let data: Zeroizing<Vec<u8>> = Zeroizing::new(data.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect());
    let decoded = STANDARD.decode(data.as_slice()).ok();
    let text = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
    text.with_context(|| format!("the {field} of the kubeconfig is not base64"))
}

/// Reads a file that a kubeconfig names.
fn read(path: &Path) -> anyhow::Result<String> {
    let bytes = file::read(path, MAX_FILE_BYTES).map_err(anyhow::Error::new);
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).map_err(|_| anyhow!("it is not text")));
    text.with_context(|| format!("cannot read {}, which the kubeconfig names", path.display()))
}

/// The maximum size of a file: a chain of certificates.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// The maximum number of characters of a name in a message.
const MAX_NAME: usize = 120;
/// The maximum number of characters of an installHint.
const MAX_HINT: usize = 200;
