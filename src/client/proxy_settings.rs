//! The settings for a proxy: the flags of `connect` and `config`, their variables, and an entry of the client's file.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{FalseyValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Args, ValueEnum};
use serde::de::Error;
use serde::{Deserialize, Deserializer};

use crate::base::values;
use crate::base::yaml::forms::{self, Schema, Timeout};
use crate::protocol::resume::window;
use crate::uplink::credentials::{Files, Source};
use crate::uplink::dial::url::{ProxyUrl, ProxyUrlError};

/// The way to a proxy, and how to log in there. `None` and `false` are the default of `connect`.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(default, rename = "names, proxy", deny_unknown_fields)]
pub struct ProxySettings {
    /// Patterns of the names that are reached through the proxy; none if a flag or a variable names the proxy.
    #[arg(skip)]
    #[serde(deserialize_with = "forms::list::<Pattern, _, _>")]
    pub names: Vec<String>,
    /// The proxy: http://HOST[:PORT] or https://HOST[:PORT], with USER:PASSWORD@ if it requires a password; behind a load
    /// balancer of HTTP, wss://HOST[:PORT]/PATH
    #[arg(
        long,
        env = "SWITCHBOARD_PROXY",
        value_name = "URL",
        hide_env_values = true,
        value_parser = SecretUrl("--proxy <URL>' or SWITCHBOARD_PROXY")
    )]
    #[serde(deserialize_with = "secret_url")]
    pub proxy: Option<ProxyUrl>,
    /// Read the proxy of a name from this file, unless a flag or a variable sets it [default: ~/.config/switchboard/config.yaml]
    #[arg(long, env = "SWITCHBOARD_CLIENT_CONFIG", value_name = "FILE")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// Trust the certificates of this PEM file instead of the system's for an https:// proxy
    #[arg(long, env = "SWITCHBOARD_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Present this client certificate (PEM, with its intermediate certificates) to an https:// proxy that requests one
    #[arg(long, env = "SWITCHBOARD_CERT", value_name = "FILE", requires = "key")]
    pub cert: Option<PathBuf>,
    /// The private key of --cert (PEM, not encrypted)
    #[arg(long, env = "SWITCHBOARD_KEY", value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
    /// Expect this name in the proxy's certificate, and send it as SNI, instead of the URL's host
    #[arg(long, env = "SWITCHBOARD_SERVER_NAME", value_name = "NAME")]
    pub server_name: Option<String>,
    /// Write the host keys that the proxy publishes into this file, or `none` [default: ~/.ssh/switchboard_known_hosts]
    #[arg(long, env = "SWITCHBOARD_KNOWN_HOSTS", value_name = "FILE")]
    pub known_hosts: Option<PathBuf>,
    /// Ignore the forward proxy of HTTPS_PROXY, HTTP_PROXY or ALL_PROXY (NO_PROXY exempts hosts)
    #[arg(long, env = "SWITCHBOARD_NO_ENV_PROXY", value_parser = FalseyValueParser::new())]
    pub no_env_proxy: bool,
    /// Send the bearer token in this file
    #[arg(long, env = "SWITCHBOARD_TOKEN_FILE", value_name = "FILE", help_heading = CREDENTIALS)]
    pub token_file: Option<PathBuf>,
    /// Send the bearer token that this line for `sh -c` prints, bare or as an ExecCredential
    #[arg(long, env = "SWITCHBOARD_TOKEN_COMMAND", value_name = "COMMAND", help_heading = CREDENTIALS)]
    pub token_command: Option<String>,
    /// Send the credentials of this kubeconfig's user [default: KUBECONFIG or ~/.kube/config, with --context]
    #[arg(long, env = "SWITCHBOARD_KUBECONFIG", value_name = "FILE", help_heading = CREDENTIALS)]
    pub kubeconfig: Option<PathBuf>,
    /// Send the credentials of this context's user, not the current one's
    #[arg(long, env = "SWITCHBOARD_CONTEXT", value_name = "NAME", help_heading = CREDENTIALS)]
    pub context: Option<String>,
    /// Allow credentials in clear text to an http:// proxy that is not on this host
    #[arg(
        long,
        env = "SWITCHBOARD_ALLOW_CLEARTEXT",
        value_parser = FalseyValueParser::new(),
        help_heading = CREDENTIALS
    )]
    pub allow_cleartext: bool,
    /// Continue the session over another connection when its own is lost, if the target has an anchor [default: auto]
    #[arg(long, env = "SWITCHBOARD_RESUME", value_name = "WHEN", help_heading = SESSIONS)]
    pub resume: Option<Resume>,
    /// Start no workload of a target that is asleep: for editors, which reconnect by themselves
    #[arg(long, env = "SWITCHBOARD_NO_WAKE", value_parser = FalseyValueParser::new(), help_heading = SESSIONS)]
    pub no_wake: bool,
    /// How long a session waits for another connection [default: 24h]
    #[arg(long, env = "SWITCHBOARD_GRACE", value_name = "DURATION", value_parser = values::timeout, help_heading = SESSIONS)]
    #[serde(deserialize_with = "forms::some::<Timeout, _>")]
    pub grace: Option<Duration>,
    /// Keep up to this many unacknowledged bytes of each direction, 4KiB to 64MiB, also without a connection [default: 2MiB]
    #[arg(long, env = "SWITCHBOARD_WINDOW", value_name = "SIZE", value_parser = window, help_heading = SESSIONS)]
    #[serde(deserialize_with = "forms::some::<Window, _>")]
    pub window: Option<u32>,
}

/// When a session goes on over another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Resume {
    /// If the target announces an anchor
    Auto,
    /// Never
    Off,
}

impl ProxySettings {
    /// Returns the source of credentials among the settings for which `is_meant` is true; `None` if there is none.
    ///
    /// # Errors
    /// Several are set.
    pub fn source(&self, is_meant: impl Fn(&str) -> bool) -> Result<Option<Source>, AmbiguousCredentials> {
        let file = self.token_file.as_ref().filter(|_| is_meant("token_file"));
        let command = self.token_command.as_ref().filter(|_| is_meant("token_command"));
        let is_kubeconfig =
            (self.kubeconfig.is_some() && is_meant("kubeconfig")) || (self.context.is_some() && is_meant("context"));
        let kubeconfig = is_kubeconfig.then(|| Source::Context {
            files: self.kubeconfig.clone().map_or_else(Files::of_environment, Files::One),
            context: self.context.clone(),
        });
        let named = [
            file.cloned().map(Source::TokenFile),
            command.cloned().map(Source::TokenCommand),
            kubeconfig,
        ];
        let mut named = named.into_iter().flatten();
        match (named.next(), named.next()) {
            (source, None) => Ok(source),
            (_, Some(_)) => Err(AmbiguousCredentials),
        }
    }
}

/// Returns whether a path is the word for no file.
pub fn is_none(path: &Path) -> bool {
    path.as_os_str() == "none"
}

/// Several settings name a source of credentials each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AmbiguousCredentials;

/// Returns a variable of the environment; `None` if it is empty, too.
pub fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

/// Reads a URL of the file. The error quotes no part of the URL, because that part may be the password.
fn secret_url<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ProxyUrl>, D::Error> {
    let url = String::deserialize(deserializer)?.parse();
    url.map(Some).map_err(D::Error::custom)
}

/// The parser of a URL of the command line: clap's own parser would print an invalid URL, with its password. The text
/// is the flag and the variable for the message, which has the opening quote already.
#[derive(Clone, Debug)]
pub struct SecretUrl(pub &'static str);

impl TypedValueParser for SecretUrl {
    type Value = ProxyUrl;

    fn parse_ref(&self, command: &clap::Command, _: Option<&Arg>, value: &OsStr) -> Result<ProxyUrl, clap::Error> {
        // A URL that is not UTF-8 has no valid host.
        let parsed = value.to_str().map_or(Err(ProxyUrlError::BadHost), str::parse);
        parsed.map_err(|fault| {
            let message = format!("invalid value for '{}: {fault}\n", self.0);
            clap::Error::raw(ErrorKind::ValueValidation, message).with_cmd(command)
        })
    }
}

fn pattern(text: &str) -> Result<String, &'static str> {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_*?:[]!".contains(&byte);
    match !text.is_empty() && text.bytes().all(is_of_name) {
        true => Ok(text.to_owned()),
        false => Err("expected a pattern of names such as `*.svc.cluster.local`"),
    }
}

forms::forms! {
    Pattern: String = pattern, Schema::Text;
    Window: u32 = window, Schema::Amount("");
}

const CREDENTIALS: &str = "Credentials";
const SESSIONS: &str = "Sessions";
