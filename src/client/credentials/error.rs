//! Why there are no credentials, in sentences. None of them quotes a secret or what a program has printed.

use std::io;
use std::path::PathBuf;

use super::authorization::TokenFault;
use super::exec_credential::OutputFault;
use super::kubeconfig::KubeconfigFault;
use super::process::ProcessFault;

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
