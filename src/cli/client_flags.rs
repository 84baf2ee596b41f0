//! The settings of a client: flags go before the environment, and both before the entry of the client's file.

use std::collections::BTreeSet;
use std::env;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::FalseyValueParser;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, FromArgMatches, ValueEnum};
use switchboard::client::configuration::{self, Configuration, Entry};
use switchboard::client::credentials::{self, Source};
use switchboard::client::{self, ForwardProxy, Identity, ProxyUrl, Report, Scheme, Trust};
use switchboard::protocol::resume::window;

mod credential_flags;

use self::credential_flags::{CredentialFlags, source_of, variable};
use crate::cli::output::to_stderr;
use crate::cli::proxy::SecretUrl;

/// The way to a proxy, and how to log in there.
#[derive(Args, Clone)]
pub(crate) struct ClientFlags {
    // The first: it looks before the values are taken.
    #[command(flatten)]
    typed: Typed,
    /// The proxy: http://HOST[:PORT] or https://HOST[:PORT], with USER:PASSWORD@ if it requires a password
    #[arg(
        long,
        env = "SWITCHBOARD_PROXY",
        value_name = "URL",
        hide_env_values = true,
        value_parser = SecretUrl
    )]
    pub(crate) proxy: Option<ProxyUrl>,
    /// Read the proxy of a name from this file, where no flag and no variable has one [default: ~/.config/switchboard/config.yaml]
    #[arg(long, env = "SWITCHBOARD_CLIENT_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Trust the certificates of this PEM file instead of the system's for an https:// proxy
    #[arg(long, env = "SWITCHBOARD_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Show this client certificate (PEM, with its intermediate certificates) to an https:// proxy that asks for one
    #[arg(long, env = "SWITCHBOARD_CERT", value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// The private key of --cert (PEM, not encrypted)
    #[arg(long, env = "SWITCHBOARD_KEY", value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Expect this name in the proxy's certificate, and ask for it, instead of the host of the URL
    #[arg(long, env = "SWITCHBOARD_SERVER_NAME", value_name = "NAME")]
    server_name: Option<String>,
    /// Do not go through the proxy that HTTPS_PROXY, HTTP_PROXY or ALL_PROXY names (NO_PROXY exempts hosts)
    #[arg(long, env = "SWITCHBOARD_NO_ENV_PROXY", value_parser = FalseyValueParser::new())]
    no_env_proxy: bool,
    #[command(flatten, next_help_heading = "Credentials")]
    credentials: CredentialFlags,
    #[command(flatten, next_help_heading = "Sessions")]
    session: SessionFlags,
}

/// How the session of ssh outlives its connection.
#[derive(Args, Clone)]
struct SessionFlags {
    /// Whether the session goes on over another connection when its own is lost, where the target has an anchor [default: auto]
    #[arg(long, env = "SWITCHBOARD_RESUME", value_name = "WHEN")]
    resume: Option<Resume>,
    /// How long a session waits for another connection [default: 24h]
    #[arg(long, env = "SWITCHBOARD_GRACE", value_name = "DURATION", value_parser = humantime::parse_duration)]
    grace: Option<Duration>,
    /// How much of each direction is kept to be sent again, 4KiB to 64MiB: what is read while there is no connection [default: 1MiB]
    #[arg(long, env = "SWITCHBOARD_WINDOW", value_name = "SIZE", value_parser = window)]
    window: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Resume {
    /// Where the target announces an anchor
    Auto,
    /// Never
    Off,
}

/// The arguments that the command line has, and not the environment.
#[derive(Clone, Debug, Default)]
struct Typed(BTreeSet<String>);

impl Typed {
    fn has(&self, name: &str) -> bool {
        self.0.contains(name)
    }
}

impl FromArgMatches for Typed {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_typed = |name: &&clap::Id| matches.value_source(name.as_str()) == Some(ValueSource::CommandLine);
        Ok(Self(
            matches
                .ids()
                .filter(is_typed)
                .map(|name| name.as_str().to_owned())
                .collect(),
        ))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Typed {
    fn augment_args(command: clap::Command) -> clap::Command {
        command
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        command
    }
}

impl ClientFlags {
    /// The settings of a tunnel to `target`.
    pub(crate) fn into_options(self, target: String) -> anyhow::Result<client::Options> {
        let (proxy, entry) = self.proxy_and_entry(&target)?;
        self.refuse_unused_trust(&proxy)?;
        let credentials = self.credential_options(&proxy, &entry)?;
        let no_env_proxy = self.no_env_proxy || entry.no_env_proxy;
        let forward = match no_env_proxy {
            true => None,
            false => ForwardProxy::from_environment(&proxy, |name| env::var_os(name))
                .map_err(|fault| clap::Error::raw(ErrorKind::ValueValidation, fault))?,
        };
        let identity = self.cert.zip(self.key).or(entry.cert.zip(entry.key));
        let resume = self.session.resume.unwrap_or(if entry.resume == Some(false) {
            Resume::Off
        } else {
            Resume::Auto
        });
        let default = client::Settings::default();
        let session = (resume == Resume::Auto).then(|| client::Settings {
            window: self.session.window.or(entry.window).unwrap_or(default.window),
            grace: self.session.grace.or(entry.grace).unwrap_or(default.grace),
            ..default
        });
        Ok(client::Options {
            proxy,
            forward,
            trust: Trust {
                ca: self.ca.or(entry.ca),
                server_name: self.server_name.or(entry.server_name),
                identity: identity.map(|(certificate, key)| Identity { certificate, key }),
            },
            credentials,
            target,
            timeout: client::DEFAULT_TIMEOUT,
            session,
            wait: None,
            verbose: false,
        })
    }

    /// The proxy, and the file's settings for it. With a proxy of a flag or a variable the file is not read: its
    /// credentials are for another one.
    fn proxy_and_entry(&self, target: &str) -> anyhow::Result<(ProxyUrl, Entry)> {
        if let Some(proxy) = &self.proxy {
            return Ok((proxy.clone(), Entry::default()));
        }
        let file = self
            .config
            .clone()
            .or_else(|| configuration::default_path(|name| env::var_os(name)));
        let entry = match &file {
            Some(path) => self
                .configuration(path)?
                .and_then(|configuration| configuration.entry(target)),
            None => None,
        };
        entry.ok_or_else(|| {
            let place = file.map(|file| format!(", or write an entry with its name into {}", file.display()));
            let missing = format!(
                "there is no proxy for the target: give --proxy URL or set SWITCHBOARD_PROXY{}",
                place.unwrap_or_default()
            );
            clap::Error::raw(ErrorKind::MissingRequiredArgument, missing).into()
        })
    }

    fn configuration(&self, path: &std::path::Path) -> Result<Option<Configuration>, Report> {
        let (configuration, report) = Configuration::read(path, self.config.is_some())?;
        report.lines().for_each(|(_, line)| to_stderr(line));
        Ok(configuration)
    }

    /// Refuses certificates for a proxy without TLS, which would check none: a user could think that it does.
    fn refuse_unused_trust(&self, proxy: &ProxyUrl) -> Result<(), clap::Error> {
        if proxy.scheme() == Scheme::Https {
            return Ok(());
        }
        let flags = [
            ("ca", self.ca.is_some()),
            ("cert", self.cert.is_some()),
            ("server_name", self.server_name.is_some()),
        ];
        for (name, _) in flags.into_iter().filter(|(_, is_given)| *is_given) {
            let flag = name.replace('_', "-");
            let what = format!("is for an https:// proxy, and {proxy} is none: nothing is encrypted or verified there");
            if self.typed.has(name) {
                return Err(clap::Error::raw(
                    ErrorKind::ArgumentConflict,
                    format!("--{flag} {what}"),
                ));
            }
            to_stderr(format_args!("switchboard: SWITCHBOARD_{} {what}", name.to_uppercase()));
        }
        Ok(())
    }

    /// The source of credentials: of the command line, the URL, the environment or the file, in this order.
    fn credential_options(&self, proxy: &ProxyUrl, entry: &Entry) -> Result<credentials::Options, clap::Error> {
        let flags = &self.credentials;
        let conflict = |message: &str| clap::Error::raw(ErrorKind::ArgumentConflict, message);
        let typed = flags
            .source(|name| self.typed.has(name))
            .map_err(|()| conflict(SEVERAL_FLAGS))?;
        let source = match typed {
            Some(_) if proxy.has_credentials() => return Err(conflict(TWO_CREDENTIALS)),
            Some(typed) => typed,
            None if proxy.has_credentials() => Source::None,
            None => {
                let set = flags.source(|_| true).map_err(|()| conflict(SEVERAL_VARIABLES))?;
                let token = || {
                    let token = variable("SWITCHBOARD_TOKEN")?;
                    Some(Source::Token(token.to_string_lossy().into_owned().into()))
                };
                set.or_else(token).or_else(|| source_of(entry)).unwrap_or(Source::None)
            }
        };
        Ok(credentials::Options {
            source,
            cleartext: flags.allow_cleartext || entry.allow_cleartext,
            timeout: credentials::DEFAULT_TIMEOUT,
        })
    }

    /// The arguments that make `connect` do the same wherever it is started, but for the token of the environment.
    pub(crate) fn to_words(&self) -> std::io::Result<Vec<String>> {
        let Self { cert, key, ca, .. } = self;
        let (credentials, session) = (&self.credentials, &self.session);
        let mut words = Vec::new();
        let mut push = |flag: &str, value: Option<String>| {
            if let Some(value) = value {
                words.extend([format!("--{flag}"), value]);
            }
        };
        push("proxy", self.proxy.as_ref().map(ToString::to_string));
        for (flag, file) in [
            ("config", &self.config),
            ("ca", ca),
            ("cert", cert),
            ("key", key),
            ("token-file", &credentials.token_file),
            ("kubeconfig", &credentials.kubeconfig),
        ] {
            push(flag, file.as_ref().map(path_text).transpose()?);
        }
        push("server-name", self.server_name.clone());
        push("token-command", credentials.token_command.clone());
        push("context", credentials.context.clone());
        push(
            "resume",
            session
                .resume
                .filter(|resume| *resume == Resume::Off)
                .map(|_| "off".to_owned()),
        );
        push(
            "grace",
            session
                .grace
                .map(|grace| humantime::format_duration(grace).to_string().replace(' ', "")),
        );
        push("window", session.window.map(|window| format!("{window}B")));
        for (flag, is_set) in [
            ("--no-env-proxy", self.no_env_proxy),
            ("--allow-cleartext", credentials.allow_cleartext),
        ] {
            words.extend(is_set.then(|| flag.to_owned()));
        }
        Ok(words)
    }
}

/// The whole path of a file, as text.
fn path_text(path: &PathBuf) -> std::io::Result<String> {
    let whole = std::path::absolute(path)?.into_os_string();
    whole
        .into_string()
        .map_err(|_| std::io::Error::other(format!("{} is not UTF-8", path.display())))
}

const TWO_CREDENTIALS: &str =
    "the proxy's URL has a user, and an option names other credentials: only one of them can be sent";
const SEVERAL_FLAGS: &str =
    "--token-file, --token-command and --kubeconfig or --context cannot be used with each other";
const SEVERAL_VARIABLES: &str = "SWITCHBOARD_TOKEN_FILE, SWITCHBOARD_TOKEN_COMMAND and SWITCHBOARD_KUBECONFIG \
                                 or SWITCHBOARD_CONTEXT cannot be used with each other";
