//! Why there are no credentials, in sentences. None of them quotes a secret or what a program has printed.

use std::io;
use std::path::PathBuf;

use super::authorization::TokenFault;
use super::exec_credential::OutputFault;
use super::kubeconfig::KubeconfigFault;
use super::process::ProcessFault;
use crate::client::dial::tls::{CaError, IdentityError};

/// The reason for which there are no credentials.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialError {
    /// The file of `--token-file` cannot be read.
    #[error("cannot read the token in {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// What a file or variable holds is no token.
    #[error("the token in {origin} cannot be sent")]
    Token {
        /// The file or the variable.
        origin: String,
        /// Its fault.
        #[source]
        fault: TokenFault,
    },
    /// The command of `--token-command` gave none.
    #[error("the command of --token-command")]
    Command {
        /// Its fault.
        #[source]
        fault: ProgramFault,
    },
    /// The kubeconfig leads to no user.
    #[error("the kubeconfig")]
    Kubeconfig(#[source] KubeconfigFault),
    /// A file that the kubeconfig names cannot be read.
    #[error("cannot read {}, which the kubeconfig names", path.display())]
    Named {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The user has nothing that a proxy could be shown.
    #[error("the user {0} of the kubeconfig has no credentials")]
    Nothing(String),
    /// The user has a part of a client certificate.
    #[error(
        "the user {0} of the kubeconfig has a client certificate without its key, or a key without its certificate"
    )]
    HalfPair(String),
    /// A field of the kubeconfig that is to be base64 is not.
    #[error("the {field} of the kubeconfig is not base64")]
    Encoding {
        /// The field.
        field: &'static str,
    },
    /// User and password cannot be sent.
    #[error("username or password of the user {0} of the kubeconfig holds a character that cannot be sent")]
    Password(String),
    /// kubectl has had no such plugins since 1.26.
    #[error("the user {0} of the kubeconfig has an auth-provider, which Kubernetes has removed: use an exec plugin")]
    AuthProvider(String),
    /// The plugin's protocol is not known.
    #[error(
        "the plugin {program} has apiVersion {version}, which is neither client.authentication.k8s.io/v1 nor v1beta1"
    )]
    PluginVersion {
        /// The program.
        program: String,
        /// The version.
        version: String,
    },
    /// The plugin must have stdin, which is ssh's stream.
    #[error(
        "the plugin {0} demands a terminal (interactiveMode: Always), and stdin belongs to ssh: it cannot be run here"
    )]
    Interactive(String),
    /// The user has an exec section without a command.
    #[error("the user {0} of the kubeconfig has an exec section without a command")]
    NoCommand(String),
    /// The plugin is not installed.
    #[error("there is no credential plugin {program}{}{hint}", if hint.is_empty() { "" } else { ": " })]
    MissingPlugin {
        /// The program.
        program: String,
        /// What the kubeconfig says about how to install it.
        hint: String,
    },
    /// The plugin gave no credentials.
    #[error("the credential plugin {program}")]
    Plugin {
        /// The program.
        program: String,
        /// Its fault.
        #[source]
        fault: ProgramFault,
    },
    /// The context has no cluster, or no file has it.
    #[error("the context {0} of the kubeconfig has no cluster")]
    NoCluster(String),
    /// A token for an audience is given to ServiceAccounts only.
    #[error(
        "--audience needs the token of a ServiceAccount (TokenRequest gives it to no other), and the user {user} has {identity}"
    )]
    NoServiceAccount {
        /// The user of the kubeconfig.
        user: String,
        /// Its identity.
        identity: String,
    },
    /// The API server did not give what it was asked for.
    #[error("the API server {server} gave no {wanted}")]
    Api {
        /// Its address.
        server: String,
        /// What it was asked for.
        wanted: &'static str,
        /// The fault.
        #[source]
        fault: Box<ApiFault>,
    },
    /// The proxy is reached in clear.
    #[error(
        "each host on the way to an http:// proxy can read and use a credential: use https://, or --allow-cleartext \
         where the way is encrypted otherwise"
    )]
    Cleartext,
    /// A client certificate is shown in TLS.
    #[error("the user has a client certificate and no token, and only an https:// proxy can be shown one")]
    CertificateInClear,
}

/// The fault of a program that was to print credentials.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub enum ProgramFault {
    /// It did not end well.
    Process(ProcessFault),
    /// It printed something else.
    Output(OutputFault),
    /// It printed no token.
    #[error("what it printed is no token")]
    Token(#[source] TokenFault),
}

/// The reason for which an API server gave no token.
#[derive(Debug, thiserror::Error)]
pub enum ApiFault {
    /// The kubeconfig's server is no URL.
    #[error("its address is no URL such as https://api.example.com:6443")]
    Address,
    /// The kubeconfig's server is http://.
    #[error("a token sent over http:// can be read on the way: its address must begin with https://")]
    Cleartext,
    /// The cluster has insecure-skip-tls-verify.
    #[error("insecure-skip-tls-verify would send the token to a server that has not proved its name")]
    Unverified,
    /// The cluster has a proxy-url.
    #[error("proxy-url is not supported here")]
    ProxyUrl,
    /// The cluster's authority cannot be read.
    #[error("its certificate authority")]
    Authority(#[source] Box<CredentialError>),
    /// The cluster's authority is of no use.
    #[error("its certificate authority")]
    Roots(#[source] CaError),
    /// The cluster has no authority, nor has the system.
    #[error("the kubeconfig has no certificate authority for it, and the system has none")]
    NoRoots,
    /// The user's certificate is of no use.
    #[error("the client certificate")]
    Identity(#[source] IdentityError),
    /// rustls refused the configuration.
    #[error("cannot set TLS up")]
    Setup(#[source] rustls::Error),
    /// No connection.
    #[error("cannot connect to it")]
    Connect(#[source] io::Error),
    /// The TLS handshake failed.
    #[error("the TLS handshake with it failed")]
    Tls(#[source] io::Error),
    /// The exchange broke off, or was no HTTP.
    #[error("its answer broke off, or is no HTTP")]
    Http(#[source] hyper::Error),
    /// The answer is over 256 KiB.
    #[error("its answer is too long")]
    Long,
    /// No answer in time.
    #[error("it did not answer in time")]
    Deadline,
    /// A status other than 2xx.
    #[error("it answered {code}{}{message}", if message.is_empty() { "" } else { ": " })]
    Status {
        /// The status code.
        code: u16,
        /// The message of its Status object.
        message: String,
    },
    /// The answer is no TokenRequest with a token.
    #[error("its answer holds no token")]
    Format,
}
