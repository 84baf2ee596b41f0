//! The credentials of a kubeconfig's user: its token, password or certificate, or those that its plugin prints.

use std::io;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::process::Command;
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::authorization::Authorization;
use super::error::{CredentialError, ProgramFault};
use super::exec_credential::{self, Version};
use super::kubeconfig::{Cluster, Exec, Resolved, User};
use super::process::{self, ProcessFault};
use super::{Credentials, bearer, of_file};
use crate::base::file;
use crate::base::secret::Secret;
use crate::base::text::printable;
use crate::client::dial::tls::KeyPair;

/// Gets the credentials of a user. A token goes before a password, and both before a plugin, as for kubectl.
pub(super) async fn obtain(resolved: &Resolved, deadline: Instant) -> Result<Credentials, CredentialError> {
    let (name, user) = (&resolved.user_name, &resolved.user);
    if user.auth_provider.is_some() {
        return Err(CredentialError::AuthProvider(name.clone()));
    }
    let certificate = certificate(name, user)?;
    let mut credentials = if let Some(path) = &user.token_file {
        of_file(path)?
    } else if let Some(token) = user.token.as_ref().filter(|token| !token.expose().is_empty()) {
        bearer(&format!("the user {name} of the kubeconfig"), token.expose())?
    } else if let Some(username) = user.username.as_ref().filter(|username| !username.is_empty()) {
        let password = user.password.clone().unwrap_or_else(|| Secret::from(String::new()));
        let basic = Authorization::basic(username, &password);
        Credentials {
            authorization: Some(basic.ok_or_else(|| CredentialError::Password(name.clone()))?),
            certificate: None,
        }
    } else if let Some(exec) = &user.exec {
        Box::pin(Plugin::of(exec, resolved)?.run(deadline)).await?
    } else {
        Credentials::default()
    };
    credentials.certificate = credentials.certificate.or(certificate);
    if credentials == Credentials::default() {
        return Err(CredentialError::Nothing(name.clone()));
    }
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
    fn of(exec: &'a Exec, resolved: &Resolved) -> Result<Self, CredentialError> {
        let command = exec.command.as_deref().filter(|command| !command.is_empty());
        let command = command.ok_or_else(|| CredentialError::NoCommand(resolved.user_name.clone()))?;
        let named = exec.api_version.as_deref().unwrap_or_default();
        let version = Version::named(named).ok_or_else(|| CredentialError::PluginVersion {
            program: shown(command),
            version: printable(named, LONGEST_NAME),
        })?;
        if exec.interactive_mode.as_deref() == Some("Always") {
            return Err(CredentialError::Interactive(shown(command)));
        }
        let cluster = match &resolved.cluster {
            _ if exec.provide_cluster_info != Some(true) => None,
            Some(cluster) => Some((cluster, encoded_authority(cluster)?)),
            None => return Err(CredentialError::NoCluster(printable(&resolved.context, LONGEST_NAME))),
        };
        Ok(Self {
            exec,
            version,
            command,
            information: exec_credential::information(version, cluster),
        })
    }

    async fn run(&self, deadline: Instant) -> Result<Credentials, CredentialError> {
        let mut command = Command::new(self.command);
        command.args(self.arguments().iter().map(Secret::expose));
        let variables = self.variables().iter();
        command
            .envs(variables.map(|variable| (&variable.name, variable.value.expose())))
            .env("KUBERNETES_EXEC_INFO", &self.information);
        let fault = |fault| CredentialError::Plugin {
            program: shown(self.command),
            fault,
        };
        match process::output(command, deadline).await {
            Ok(printed) => {
                exec_credential::read(&printed, self.version).map_err(|error| fault(ProgramFault::Output(error)))
            }
            Err(ProcessFault::Start(error)) if error.kind() == io::ErrorKind::NotFound => {
                Err(CredentialError::MissingPlugin {
                    program: shown(self.command),
                    hint: self.hint(),
                })
            }
            Err(error) => Err(fault(ProgramFault::Process(error))),
        }
    }

    /// How to install it, in one line.
    fn hint(&self) -> String {
        let hint = self.exec.install_hint.as_deref().unwrap_or_default();
        let words: Vec<_> = hint.split_whitespace().collect();
        printable(&words.join(" "), LONGEST_HINT)
    }

    fn arguments(&self) -> &[Secret] {
        self.exec.args.as_deref().unwrap_or_default()
    }

    fn variables(&self) -> &[super::kubeconfig::Variable] {
        self.exec.env.as_deref().unwrap_or_default()
    }
}

/// The client certificate of the user, from the data or the files. Data go before a file.
fn certificate(name: &str, user: &User) -> Result<Option<KeyPair>, CredentialError> {
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
        (Some(_), None) | (None, Some(_)) => Err(CredentialError::HalfPair(name.to_owned())),
    }
}

/// The authority of a cluster as plugins are told it.
fn encoded_authority(cluster: &Cluster) -> Result<Option<String>, CredentialError> {
    match (&cluster.certificate_authority_data, &cluster.certificate_authority) {
        (Some(data), _) if !data.is_empty() => Ok(Some(data.clone())),
        (_, Some(path)) => read(path).map(|pem| Some(STANDARD.encode(pem))),
        (_, None) => Ok(None),
    }
}

/// A text of a kubeconfig in base64. It may have line ends.
fn decode(field: &'static str, data: &str) -> Result<String, CredentialError> {
    let data: Zeroizing<Vec<u8>> = Zeroizing::new(data.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect());
    let decoded = STANDARD.decode(data.as_slice()).ok();
    let text = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
    text.ok_or(CredentialError::Encoding { field })
}

/// A file that a kubeconfig names.
fn read(path: &Path) -> Result<String, CredentialError> {
    let failed = |source| CredentialError::Named {
        path: PathBuf::from(path),
        source,
    };
    let bytes = file::read(path, LARGEST).map_err(failed)?;
    String::from_utf8(bytes).map_err(|_| failed(io::Error::new(io::ErrorKind::InvalidData, "it is no text")))
}

/// The name of a program for a message.
fn shown(command: &str) -> String {
    printable(command, LONGEST_NAME)
}

/// A chain of certificates.
const LARGEST: u64 = 1 << 20;
/// Characters of a name in a message.
const LONGEST_NAME: usize = 120;
/// Characters of an installHint.
const LONGEST_HINT: usize = 200;
