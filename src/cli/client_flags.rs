//! The settings of a client: flags take precedence over the environment, and both over the entry of the client's file.

use std::env;
use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, ValueHint};
use switchboard::client;
use switchboard::client::configuration::{self, Configuration};
use switchboard::client::known_hosts::{HostKeyOutput, KnownHosts};
use switchboard::client::proxy_settings::{ProxySettings, Resume, is_none, variable};
use switchboard::uplink::credentials::{self, Source};
use switchboard::uplink::{self, ClientCertPaths, ForwardProxy, ProxyUrl, Scheme, Trust};

use super::output::to_stderr;

/// The settings of a client, and the arguments and variables that some of them come from.
pub(crate) struct ClientFlags {
    pub(crate) settings: ProxySettings,
    pub(crate) given: ArgMatches,
}

impl ClientFlags {
    /// Returns whether that setting was given on the command line, and not by the environment.
    pub(super) fn is_typed(&self, name: &str) -> bool {
        self.given.value_source(name) == Some(ValueSource::CommandLine)
    }

    /// Returns the settings of a tunnel to `target`.
    pub(crate) fn options(&self, target: String) -> anyhow::Result<client::Options> {
        let (proxy, entry) = self.proxy_and_entry(&target)?;
        self.refuse_unused_trust(&proxy)?;
        let credentials = self.credential_options(&proxy, &entry)?;
        let own = self.settings.clone();
        let forward = match own.no_env_proxy || entry.no_env_proxy {
            true => None,
            false => ForwardProxy::from_environment(&proxy, |name| env::var_os(name))
                .map_err(|fault| clap::Error::raw(ErrorKind::ValueValidation, fault))?,
        };
        let identity = own.cert.zip(own.key).or(entry.cert.zip(entry.key));
        let default = client::Settings::default();
        let session = (own.resume.or(entry.resume) != Some(Resume::Off)).then(|| client::Settings {
            window: own.window.or(entry.window).unwrap_or(default.window),
            grace: own.grace.or(entry.grace).unwrap_or(default.grace),
            ..default
        });
        let uplink = uplink::Options {
            proxy,
            forward,
            trust: Trust {
                ca: own.ca.or(entry.ca),
                server_name: own.server_name.or(entry.server_name),
                identity: identity.map(|(certificate, key)| ClientCertPaths { certificate, key }),
            },
            credentials,
            timeout: uplink::DEFAULT_TIMEOUT,
        };
        let file = own.known_hosts.or(entry.known_hosts).or_else(KnownHosts::default_file);
        let known_hosts = file
            .filter(|file| !is_none(file))
            .map(|file| KnownHosts::new(file, &target));
        Ok(client::Options {
            uplink,
            target,
            host_keys: known_hosts.map(HostKeyOutput::File),
            session,
            wait: None,
            verbose: false,
            output: client::UserOutput::default(),
            no_wake: own.no_wake || entry.no_wake,
        })
    }

    /// Returns the proxy, and the file's settings for it. If a flag or a variable names the proxy, the file is not
    /// read, because its credentials are for other proxies.
    fn proxy_and_entry(&self, target: &str) -> anyhow::Result<(ProxyUrl, ProxySettings)> {
        if let Some(proxy) = &self.settings.proxy {
            return Ok((proxy.clone(), ProxySettings::default()));
        }
        let demanded = self.settings.config.clone();
        let is_demanded = demanded.is_some();
        let file = demanded.or_else(configuration::default_path);
        let mut place = String::new();
        if let Some(file) = file {
            let (configuration, report) = Configuration::read(&file, is_demanded)?;
            report.lines().for_each(to_stderr);
            if let Some(entry) = configuration.entry(target)
                && let Some(proxy) = &entry.proxy
            {
                return Ok((proxy.clone(), entry.clone()));
            }
            place = format!(", or write an entry with its name into {}", file.display());
        }
        let missing = format!("there is no proxy for the target: give --proxy URL or set SWITCHBOARD_PROXY{place}");
        Err(clap::Error::raw(ErrorKind::MissingRequiredArgument, missing).into())
    }

    /// Refuses flags of TLS for a proxy without TLS, and warns of such variables: a user may rely on them.
    fn refuse_unused_trust(&self, proxy: &ProxyUrl) -> Result<(), clap::Error> {
        let is_unused = |name: &&str| proxy.scheme() == Scheme::Http && self.given.contains_id(name);
        for name in ["ca", "cert", "server_name"].into_iter().filter(is_unused) {
            let flag = name.replace('_', "-");
            let what =
                format!("is for an https:// proxy, and {proxy} is not one: nothing is encrypted or verified there");
            if self.is_typed(name) {
                let message = format!("--{flag} {what}");
                return Err(clap::Error::raw(ErrorKind::ArgumentConflict, message));
            }
            to_stderr(format_args!("switchboard: SWITCHBOARD_{} {what}", name.to_uppercase()));
        }
        Ok(())
    }

    /// Returns the source of credentials from the command line, the environment or the file, in this order. `None` if
    /// the URL has credentials, which take precedence over the environment.
    fn credential_options(&self, proxy: &ProxyUrl, entry: &ProxySettings) -> Result<credentials::Options, clap::Error> {
        let settings = &self.settings;
        let conflict = |message: &str| clap::Error::raw(ErrorKind::ArgumentConflict, message);
        let typed = settings.source(|name| self.is_typed(name));
        let typed = typed.map_err(|_| conflict(SEVERAL_FLAGS))?;
        let source = match typed {
            Some(_) if proxy.has_credentials() => return Err(conflict(TWO_CREDENTIALS)),
            typed if typed.is_some() || proxy.has_credentials() => typed,
            _ => {
                let set = settings.source(|_| true).map_err(|_| conflict(SEVERAL_VARIABLES))?;
                let token = || {
                    let token = variable("SWITCHBOARD_TOKEN")?;
                    Some(Source::Token(token.to_string_lossy().into_owned().into()))
                };
                // Never ambiguous: the reader of the file refuses an entry with several sources.
                let of_entry = || entry.source(|_| true).ok().flatten();
                set.or_else(token).or_else(of_entry)
            }
        };
        Ok(credentials::Options {
            source,
            cleartext: settings.allow_cleartext || entry.allow_cleartext,
            timeout: credentials::DEFAULT_TIMEOUT,
        })
    }

    /// Returns the flags and variables of `connect` for which `is_meant` is true as arguments, with absolute paths, but not
    /// SWITCHBOARD_TOKEN.
    pub(crate) fn to_words(&self, is_meant: impl Fn(&str) -> bool) -> std::io::Result<Vec<String>> {
        let given = &self.given;
        let mut words = Vec::new();
        for argument in ProxySettings::augment_args(Command::default()).get_arguments() {
            let (name, flag) = (argument.get_id().as_str(), argument.get_long().unwrap_or_default());
            if !is_meant(name) {
                continue;
            }
            if !argument.get_action().takes_values() {
                words.extend(given.get_flag(name).then(|| format!("--{flag}")));
                continue;
            }
            for value in given.get_raw(name).into_iter().flatten() {
                let is_path = argument.get_value_hint() == ValueHint::AnyPath && value != "none";
                let whole: OsString = match is_path {
                    true => std::path::absolute(value)?.into(),
                    false => value.into(),
                };
                let not_text = |_| std::io::Error::other(format!("{} is not UTF-8", value.display()));
                words.extend([format!("--{flag}"), whole.into_string().map_err(not_text)?]);
            }
        }
        Ok(words)
    }
}

const TWO_CREDENTIALS: &str =
    "the proxy's URL has a user, and an option names other credentials: only one of them can be sent";
const SEVERAL_FLAGS: &str =
    "--token-file, --token-command and --kubeconfig or --context cannot be used with each other";
const SEVERAL_VARIABLES: &str = "SWITCHBOARD_TOKEN_FILE, SWITCHBOARD_TOKEN_COMMAND and SWITCHBOARD_KUBECONFIG \
                                 or SWITCHBOARD_CONTEXT cannot be used with each other";
