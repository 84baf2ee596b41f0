//! Errors of the command line, where clap would say too little, or print a password.

use std::env;

use clap::builder::ValueParser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Error};

/// Returns the error to print. It reports every invalid value of a program, where clap stops at the first one.
/// `command` creates the whole command line.
pub(crate) fn usage_error(command: fn() -> Command, error: Error) -> Error {
    let mut accepting = command();
    // Before `build` an argument's `to_string` is not the text that errors show.
    accepting.build();
    let mut errors = vec![error];
    while let Some(flag) = errors.last().and_then(flag_of_value) {
        let accept = |argument: Arg| match argument.to_string() == flag {
            true => argument.value_parser(ValueParser::os_string()),
            false => argument,
        };
        accepting = accepting.mut_subcommands(|task| task.mut_args(accept));
        match accepting.try_get_matches_from_mut(env::args_os()) {
            // The same flag again: its value is missing, which no parser accepts.
            Err(error) if error.use_stderr() && flag_of_value(&error).as_ref() != Some(&flag) => errors.push(error),
            _ => break,
        }
    }
    let printed = |error| {
        conceal(
            command(),
            naming_the_variable(command(), naming_the_flag(command, error)),
        )
    };
    let mut errors: Vec<_> = errors.into_iter().map(printed).collect();
    if errors.len() > 1 {
        let text = |error: &Error| error.render().to_string().split("\n\n").next().map(str::to_owned);
        let text = errors.iter().filter_map(text).collect::<Vec<_>>().join("\n");
        let text = text.strip_prefix("error: ").unwrap_or(&text);
        return Error::raw(
            errors.swap_remove(0).kind(),
            format!("{text}\n\nFor more information, try '--help'.\n"),
        );
    }
    errors.swap_remove(0)
}

/// Returns the flag whose value is not accepted, as it is shown.
fn flag_of_value(error: &Error) -> Option<String> {
    let is_of_value = matches!(error.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue);
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(flag)) if is_of_value => Some(flag.clone()),
        _ => None,
    }
}

/// Names the argument whose value is not UTF-8, which clap does not.
fn naming_the_flag(command: fn() -> Command, error: Error) -> Error {
    if error.kind() != ErrorKind::InvalidUtf8 {
        return error;
    }
    let mut built = command();
    built.build();
    let is_at_fault = |flag: &String| {
        let accept = |argument: Arg| match argument.to_string() == *flag {
            true => argument.value_parser(ValueParser::os_string()),
            false => argument,
        };
        let accepting = built.clone().mut_subcommands(|task| task.mut_args(accept));
        let parsed = accepting.try_get_matches_from(env::args_os());
        parsed.map_or_else(|error| error.kind() != ErrorKind::InvalidUtf8, |_| true)
    };
    let arguments = built.get_subcommands().flat_map(Command::get_arguments);
    match arguments.map(ToString::to_string).find(is_at_fault) {
        Some(flag) => command().error(error.kind(), format!("the value of {flag} is not UTF-8")),
        None => error,
    }
}

/// Names the variable in the error of an empty value: clap names only the flag, which the user did not give.
fn naming_the_variable(mut command: Command, error: Error) -> Error {
    let is_empty =
        matches!(error.get(ContextKind::InvalidValue), Some(ContextValue::String(value)) if value.is_empty());
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg).filter(|_| is_empty) else {
        return error;
    };
    // Before `build` an argument's `to_string` is not the text that errors show.
    command.build();
    let arguments = command.get_subcommands().flat_map(Command::get_arguments);
    let variables = arguments
        .filter(|argument| argument.to_string() == *flag)
        .filter_map(Arg::get_env);
    let empty = variables
        .filter(|name| env::var_os(name).is_some_and(|value| value.is_empty()))
        .map(|name| name.to_string_lossy().into_owned())
        .next();
    match empty {
        Some(name) => command.error(
            error.kind(),
            format!("{name} in the environment is empty: unset it, or give it a value"),
        ),
        None => error,
    }
}

/// Removes from an error what may be a part of a proxy URL: without quotation marks a password with a space becomes
/// several arguments.
fn conceal(mut command: Command, error: Error) -> Error {
    let stray = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(argument)) => !argument.starts_with('-'),
        Some(_) | None => false,
    };
    let connects = env::args_os().nth(1).is_some_and(|task| {
        ["connect", "config", "forward", "known-hosts"]
            .iter()
            .any(|other| task == *other)
    });
    let is_shown = !error.use_stderr() || !connects || !(stray || error.render().to_string().contains('@'));
    if is_shown {
        return error;
    }
    let message =
        "unexpected argument, which may be a part of a password and is not shown: is the URL in quotation marks?";
    command.error(error.kind(), message)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use proptest::prelude::*;

    use crate::cli::CommandLine;

    /// Returns the error messages of a `connect` with that proxy URL, for each way to write the flag.
    fn messages(url: &str) -> [String; 2] {
        let joined = format!("--proxy={url}");
        [&["--proxy", url][..], &[&joined]].map(|flag| {
            let arguments = [&["switchboard", "connect", "devbox:22"], flag].concat();
            let parsed = CommandLine::command().try_get_matches_from(arguments);
            parsed.expect_err("the URL is malformed").to_string()
        })
    }

    #[test]
    fn a_malformed_url_is_reported_by_its_fault_without_its_password() {
        for (url, fault) in [
            ("http://bob:s3cret@host:99999", "the port of the proxy URL must be"),
            ("http://bob:s3cret@host:", "the port of the proxy URL must be"),
            ("http://bob:s3cret@host:0", "the port of the proxy URL must be"),
            ("http://bob:s3cret", "the port of the proxy URL must be"),
            ("socks5://bob:s3cret@host", "must begin with http:// or https://"),
            ("bob:s3cret@host:8080", "must begin with http:// or https://"),
            ("http:/bob:s3cret@host", "must begin with http:// or https://"),
            (" http://bob:s3cret@host", "must begin with http:// or https://"),
            ("http://bob:s3cret@ho st", "is not a valid name"),
            ("http://bob:s3cret@host ", "must be 1 to 65535|is not a valid name"),
            ("http://bob:s3cret@pr%6Fxy", "is not a valid name"),
            ("http://bob:s3cret%0A@host", "a character that cannot be sent"),
            ("http://bob%3A:s3cret@host", "a character that cannot be sent"),
            ("http://bob:s3cret@more@", "the proxy URL has no host"),
            ("http://bob:s3cret@", "the proxy URL has no host"),
            ("http://bob:more@s3cret@host:x", "the port of the proxy URL must be"),
            ("http://bob:s3cret@[host]", "of IPv6 in brackets"),
            ("http://bob:s3cret@[::1", "is not a valid name|must be 1 to 65535"),
            ("http://bob:s3cret@fd00::1", "of IPv6 in brackets"),
            ("http://bob:s3cret@host/path", "takes no path, query or fragment"),
            ("http://bob:s3/cret@host", "takes no path, query or fragment"),
            ("http://bob:s3cret?@host", "takes no path, query or fragment"),
        ] {
            for message in messages(url) {
                assert!(!message.contains("s3") && !message.contains("cret"), "{url}: {message}");
                assert!(
                    message.contains("--proxy <URL>") && message.contains("SWITCHBOARD_PROXY"),
                    "{message}"
                );
                assert!(
                    fault.split('|').any(|fault| message.contains(fault)),
                    "{url}: {message}"
                );
            }
        }
    }

    proptest! {
        /// The password stands in a URL with one fault at least, or in several at once.
        #[test]
        fn no_malformed_url_is_printed_with_its_password(
            scheme in prop_oneof!["http", "https", "HTTP", "socks5", "", "[a-z ]{0,6}"],
            slashes in prop_oneof![Just("://"), Just(":/"), Just(":"), Just(" ://")],
            user in "[a-z%@: ]{0,6}",
            around in "[%@:/?# \\[\\]]{0,3}",
            host in "[a-z0-9.:%@ \\[\\]]{0,10}",
            port in prop_oneof![Just(":99999"), Just(":0"), Just(":x"), Just(": 1"), Just(":-1")],
        ) {
            let url = format!("{scheme}{slashes}{user}:{around}S3CRET{around}@{host}{port}");
            for message in messages(&url) {
                prop_assert!(!message.to_uppercase().contains("S3CRET"), "{url}: {message}");
            }
        }
    }
}
