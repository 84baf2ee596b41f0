//! The source of a client's credentials, by flags and variables.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use clap::builder::FalseyValueParser;
use switchboard::base::platform;
use switchboard::client::configuration::Entry;
use switchboard::client::credentials::{Files, Source};

#[derive(Args, Clone)]
pub(super) struct CredentialFlags {
    /// Send the bearer token in this file
    #[arg(long, env = "SWITCHBOARD_TOKEN_FILE", value_name = "FILE")]
    pub(super) token_file: Option<PathBuf>,
    /// Send the bearer token that this line for `sh -c` prints, bare or as an ExecCredential
    #[arg(long, env = "SWITCHBOARD_TOKEN_COMMAND", value_name = "COMMAND")]
    pub(super) token_command: Option<String>,
    /// Send the credentials of this kubeconfig's user [default: KUBECONFIG or ~/.kube/config, with --context]
    #[arg(long, env = "SWITCHBOARD_KUBECONFIG", value_name = "FILE")]
    pub(super) kubeconfig: Option<PathBuf>,
    /// Send the credentials of this context's user, not the current one's
    #[arg(long, env = "SWITCHBOARD_CONTEXT", value_name = "NAME")]
    pub(super) context: Option<String>,
    /// Send credentials in clear, too, to an http:// proxy that is not on this host
    #[arg(long, env = "SWITCHBOARD_ALLOW_CLEARTEXT", value_parser = FalseyValueParser::new())]
    pub(super) allow_cleartext: bool,
}

impl CredentialFlags {
    /// The source that those flags name. An error: several do.
    pub(super) fn source(&self, is_meant: impl Fn(&str) -> bool) -> Result<Option<Source>, ()> {
        let file = self.token_file.clone().filter(|_| is_meant("token_file"));
        let command = self.token_command.clone().filter(|_| is_meant("token_command"));
        let is_kubeconfig = [
            ("kubeconfig", self.kubeconfig.is_some()),
            ("context", self.context.is_some()),
        ];
        let is_kubeconfig = is_kubeconfig
            .into_iter()
            .any(|(name, is_given)| is_given && is_meant(name));
        match (file, command, is_kubeconfig) {
            (None, None, false) => Ok(None),
            (Some(file), None, false) => Ok(Some(Source::TokenFile(file))),
            (None, Some(command), false) => Ok(Some(Source::TokenCommand(command))),
            (None, None, true) => Ok(Some(Source::Kubeconfig {
                files: self.kubeconfig.clone().map_or_else(listed_files, Files::One),
                context: self.context.clone(),
            })),
            (Some(_), Some(_), _) | (Some(_), _, true) | (_, Some(_), true) => Err(()),
        }
    }
}

/// The source that an entry of the file names: its reader allows one.
pub(super) fn source_of(entry: &Entry) -> Option<Source> {
    let Entry {
        token_file,
        token_command,
        kubeconfig,
        context,
        ..
    } = entry.clone();
    if let Some(file) = token_file {
        return Some(Source::TokenFile(file));
    }
    if let Some(command) = token_command {
        return Some(Source::TokenCommand(command));
    }
    (kubeconfig.is_some() || context.is_some()).then(|| Source::Kubeconfig {
        files: kubeconfig.map_or_else(listed_files, Files::One),
        context,
    })
}

/// The kubeconfig files that kubectl reads without a flag.
fn listed_files() -> Files {
    let listed = variable("KUBECONFIG").map(|list| env::split_paths(&list).collect());
    let mut files: Vec<PathBuf> = listed.unwrap_or_default();
    files.retain(|file| !file.as_os_str().is_empty());
    if files.is_empty() {
        files.extend(platform::home().map(|home| home.join(".kube").join("config")));
    }
    Files::Listed(files)
}

/// A variable of the environment that is not empty.
pub(super) fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}
