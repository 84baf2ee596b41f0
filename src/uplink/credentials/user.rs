//! The credentials of a kubeconfig's user: its token, password or certificate, or the output of its plugin.

use std::env;
use std::io::{self, IsTerminal as _};
use std::path::Path;

use anyhow::{Context, anyhow, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::process::Command;
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::authorization::Credentials;
use super::exec_credential::{self, VERSIONS};
use super::kubeconfig::{Cluster, Exec, ResolvedContext, User};
use super::process;
use crate::base::file;
use crate::base::secret::Secret;
use crate::base::text::printable;
use crate::uplink::dial::tls::KeyPair;

/// The standard input of this process, as a plugin may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::uplink) enum Input {
    /// A terminal, at which a plugin can ask the user.
    Terminal,
    /// Anything else.
    NoTerminal,
    /// The stream of ssh, even if it is a terminal.
    OfSsh,
}

impl Input {
    /// Returns that of a program which leaves it to plugins.
    pub(in crate::uplink) fn own() -> Self {
        match io::stdin().is_terminal() {
            true => Self::Terminal,
            false => Self::NoTerminal,
        }
    }
}

/// Gets the credentials of a user, which may be empty.
pub(in crate::uplink) async fn obtain(
    resolved: &ResolvedContext,
    deadline: Instant,
    input: Input,
) -> anyhow::Result<Credentials> {
    let Some(user) = &resolved.user else {
        return Ok(Credentials::default());
    };
    let stated = stated(&resolved.user_name, user)?;
    let mut credentials = match &user.exec {
        Some(exec) if stated == Credentials::default() => {
            let plugin = Plugin::new(exec, resolved, input)?;
            Box::pin(plugin.run(deadline)).await?.of_program()
        }
        Some(_) | None => stated,
    };
    if credentials != Credentials::default() {
        credentials.context = Some(resolved.context.clone());
    }
    Ok(credentials)
}

/// Returns the credentials that need no plugin, over which they take precedence.
fn stated(name: &str, user: &User) -> anyhow::Result<Credentials> {
    // kubectl has had none since 1.26.
    ensure!(
        user.auth_provider.is_none(),
        "the user {name} of the kubeconfig has an auth-provider, which Kubernetes has removed: use an exec plugin"
    );
    let certificate = certificate(name, user)?;
    let token = user.token.as_ref().filter(|token| !token.expose().is_empty());
    let token = token.map(|token| Credentials::of_token(&format!("the user {name} of the kubeconfig"), token.expose()));
    let token = match (user.token_file.as_deref().map(Credentials::of_file), token) {
        (Some(Err(_)) | None, Some(token)) => Some(token?),
        (read, _) => read.transpose()?,
    };
    let credentials = match (token, user.username.as_ref().filter(|username| !username.is_empty())) {
        (Some(_), Some(_)) => bail!("the user {name} of the kubeconfig has a token and a username: remove one of them"),
        (token, None) => token.unwrap_or_default(),
        (None, Some(username)) => {
            let password = user.password.as_ref().map_or("", Secret::expose);
            Credentials::basic(username, password).with_context(|| {
                format!(
                    "username or password of the user {name} of the kubeconfig holds a character that cannot be sent"
                )
            })?
        }
    };
    Ok(Credentials {
        certificate,
        ..credentials
    })
}

/// Returns the credentials that need no plugin, and checks that a plugin could be run, without running it.
///
/// # Errors
/// The same as of [`obtain`].
pub(in crate::uplink) fn check(resolved: &ResolvedContext) -> anyhow::Result<Credentials> {
    let Some(user) = &resolved.user else {
        return Ok(Credentials::default());
    };
    let credentials = stated(&resolved.user_name, user)?;
    if let Some(exec) = user.exec.as_ref().filter(|_| credentials == Credentials::default()) {
        let plugin = Plugin::new(exec, resolved, Input::own())?;
        let program = Path::new(plugin.command.as_std().get_program());
        let path = env::var_os("PATH").unwrap_or_default();
        // An absolute path replaces the folder.
        let is_there = env::split_paths(&path).any(|folder| folder.join(program).is_file()) || program.is_file();
        ensure!(is_there, missing(exec));
    }
    Ok(credentials)
}

/// A credential plugin that can be run.
struct Plugin<'a> {
    exec: &'a Exec,
    /// The version of its protocol.
    version: &'a str,
    command: Command,
    /// True if it may ask the user at the terminal on stdin.
    is_interactive: bool,
}

impl<'a> Plugin<'a> {
    fn new(exec: &'a Exec, resolved: &ResolvedContext, input: Input) -> anyhow::Result<Self> {
        let path = exec.command.as_deref().filter(|command| !command.is_empty());
        let user = &resolved.user_name;
        let path =
            path.with_context(|| format!("the user {user} of the kubeconfig has an exec section without a command"))?;
        let program = program(exec);
        let version = exec.api_version.as_deref().unwrap_or_default();
        ensure!(
            VERSIONS.contains(&version),
            "the plugin {program} has apiVersion {}, which is neither client.authentication.k8s.io/v1 nor v1beta1",
            printable(version, MAX_NAME)
        );
        let default = (version != VERSIONS[0]).then_some("IfAvailable");
        let is_interactive = match (exec.interactive_mode.as_deref().or(default), input) {
            (Some("Never"), _) | (Some("IfAvailable"), Input::NoTerminal | Input::OfSsh) => false,
            (Some("IfAvailable" | "Always"), Input::Terminal) => true,
            (Some("Always"), Input::NoTerminal) => {
                bail!("the plugin {program} demands a terminal (interactiveMode: Always), and standard input is none")
            }
            (Some("Always"), Input::OfSsh) => bail!(
                "the plugin {program} demands a terminal (interactiveMode: Always), and stdin belongs to ssh: it cannot be run here"
            ),
            _ => bail!("the plugin {program} has no valid interactiveMode: it is Never, IfAvailable or Always"),
        };
        let cluster = match &resolved.cluster {
            _ if exec.provide_cluster_info != Some(true) => None,
            Some(cluster) => Some((cluster, authority(cluster)?.map(|pem| STANDARD.encode(pem)))),
            None => bail!(
                "the context {} of the kubeconfig has no cluster",
                printable(&resolved.context, MAX_NAME)
            ),
        };
        let information = exec_credential::information(version, is_interactive, cluster);
        let variables = exec.env.iter().flatten();
        let mut command = Command::new(path);
        command
            .args(exec.args.iter().flatten().map(Secret::expose))
            .envs(variables.map(|variable| (&variable.name, variable.value.expose())))
            .env("KUBERNETES_EXEC_INFO", information);
        Ok(Self {
            exec,
            version,
            command,
            is_interactive,
        })
    }

    async fn run(self, deadline: Instant) -> anyhow::Result<Credentials> {
        let printed = process::output(self.command, self.is_interactive, deadline).await;
        let read = printed.and_then(|printed| exec_credential::read(&printed, self.version));
        let is_missing = |fault: &io::Error| fault.kind() == io::ErrorKind::NotFound;
        read.map_err(|fault| match fault.downcast_ref().is_some_and(is_missing) {
            true => anyhow!(missing(self.exec)),
            false => fault.context(format!("the credential plugin {}", program(self.exec))),
        })
    }
}

fn program(exec: &Exec) -> String {
    printable(exec.command.as_deref().unwrap_or_default(), MAX_NAME)
}

/// Returns the sentence about a plugin that is not there.
fn missing(exec: &Exec) -> String {
    format!("there is no credential plugin {}{}", program(exec), hint(exec))
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

/// Returns the user's client certificate.
fn certificate(name: &str, user: &User) -> anyhow::Result<Option<KeyPair>> {
    let data = user.client_certificate_data.as_deref();
    let certificate = pem("client-certificate", data, user.client_certificate.as_deref())?;
    let data = user.client_key_data.as_ref().map(Secret::expose);
    let key = pem("client-key", data, user.client_key.as_deref())?;
    ensure!(
        certificate.is_some() == key.is_some(),
        "the user {name} of the kubeconfig has a client certificate without its key, or a key without its certificate"
    );
    let (certificate, key) = (certificate.map(text).transpose()?, key.map(text).transpose()?);
    let pair = certificate.zip(key.map(Secret::from));
    Ok(pair.map(|(certificate, key)| KeyPair { certificate, key }))
}

/// Returns a cluster's authority as PEM; `None` for the system's.
pub(in crate::uplink) fn authority(cluster: &Cluster) -> anyhow::Result<Option<Vec<u8>>> {
    let data = cluster.certificate_authority_data.as_deref();
    pem("certificate-authority", data, cluster.certificate_authority.as_deref())
}

/// Returns the value of a field, which is in the kubeconfig or in a file.
fn pem(field: &str, data: Option<&str>, path: Option<&Path>) -> anyhow::Result<Option<Vec<u8>>> {
    match (data.filter(|data| !data.is_empty()), path) {
        (Some(_), Some(_)) => bail!("the kubeconfig has both {field} and {field}-data: remove one of them"),
        (Some(data), None) => decode(field, data).map(Some),
        (None, path) => path.map(read).transpose(),
    }
}

/// Returns PEM as text, which credentials of a plugin are, too.
fn text(bytes: Vec<u8>) -> anyhow::Result<String> {
    let text = String::from_utf8(bytes).ok();
    text.context("the client certificate or its key is not PEM (`openssl x509 -inform der` and `openssl pkey -inform der` convert)")
}

/// Decodes a base64 value of a kubeconfig. It may have line ends.
fn decode(field: &str, data: &str) -> anyhow::Result<Vec<u8>> {
    let data: Zeroizing<Vec<u8>> = Zeroizing::new(data.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect());
    let decoded = STANDARD.decode(data.as_slice()).ok();
    decoded.with_context(|| format!("the {field}-data of the kubeconfig is not base64"))
}

/// Reads a file that a kubeconfig names.
fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let bytes = file::read(path, MAX_FILE_BYTES);
    bytes.with_context(|| format!("cannot read {}, which the kubeconfig names", path.display()))
}

/// The maximum size of a file: a chain of certificates.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// The maximum number of characters of a name in a message.
const MAX_NAME: usize = 120;
/// The maximum number of characters of an installHint.
const MAX_HINT: usize = 200;
