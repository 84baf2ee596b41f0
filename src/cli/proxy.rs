//! The argument of `--proxy`: what is wrong with it is said without its password.

use std::env;
use std::ffi::OsStr;

use clap::Arg;
use clap::builder::TypedValueParser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use switchboard::client::{ProxyUrl, ProxyUrlError};

/// The parser of the proxy's URL. clap's own would print a faulty one, with the password in it.
#[derive(Clone)]
pub(crate) struct SecretUrl;

impl TypedValueParser for SecretUrl {
    type Value = ProxyUrl;

    fn parse_ref(&self, command: &clap::Command, _: Option<&Arg>, value: &OsStr) -> Result<ProxyUrl, clap::Error> {
        // No host is named in another encoding.
        let parsed = value.to_str().map_or(Err(ProxyUrlError::BadHost), str::parse);
        parsed.map_err(|fault| {
            let message = format!("invalid value for '--proxy <URL>' or SWITCHBOARD_PROXY: {fault}\n");
            clap::Error::raw(ErrorKind::ValueValidation, message).with_cmd(command)
        })
    }
}

/// The error of a command line without what may be a part of a proxy URL: a password with a space in it and without
/// quotation marks becomes arguments of its own.
pub(crate) fn conceal(mut command: clap::Command, error: clap::Error) -> clap::Error {
    let stray = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(argument)) => !argument.starts_with('-'),
        Some(_) | None => false,
    };
    let connects = env::args_os()
        .nth(1)
        .is_some_and(|task| task == "connect" || task == "config");
    let is_shown = !error.use_stderr() || !connects || !(stray || error.render().to_string().contains('@'));
    if is_shown {
        return error;
    }
    let message =
        "unexpected argument, which may be a part of a password and is not shown: is the URL in quotation marks?";
    command.error(error.kind(), message)
}
