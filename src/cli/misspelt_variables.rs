//! Variables of the environment that are probably misspelt.

use std::env;

use clap::error::{ContextKind, ContextValue};
use switchboard::client::configuration;

use crate::cli::output::to_stderr;

/// Says which variables of the environment are probably misspelt. Those that Kubernetes sets for a Service called
/// switchboard are others.
pub(crate) fn warn_of_misspelt_variables(command: &clap::Command) {
    let arguments = command.get_subcommands().flat_map(clap::Command::get_arguments);
    let known = arguments.filter_map(|argument| argument.get_env()?.to_str().map(str::to_owned));
    let known: Vec<String> = known.chain(["SWITCHBOARD_TOKEN".to_owned()]).collect();
    for (name, _) in env::vars_os() {
        let Some(name) = name
            .to_str()
            .filter(|name| name.starts_with("SWITCHBOARD_") && !known.iter().any(|own| own == name))
        else {
            continue;
        };
        let is_of_kubernetes = ["SWITCHBOARD_SERVICE_", "SWITCHBOARD_PORT"]
            .iter()
            .any(|start| name.starts_with(start));
        if let Some(meant) = configuration::meant_variable(name, &known).filter(|_| !is_of_kubernetes) {
            to_stderr(format_args!(
                "switchboard: {} in the environment is unknown; did you mean {meant}?",
                name.escape_debug()
            ));
        }
    }
}

/// The error of an argument without a value, which names the variable that is set and empty: clap names the flag alone, which
/// was not given.
pub(crate) fn naming_the_variable(mut command: clap::Command, error: clap::Error) -> clap::Error {
    let is_empty =
        matches!(error.get(ContextKind::InvalidValue), Some(ContextValue::String(value)) if value.is_empty());
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg).filter(|_| is_empty) else {
        return error;
    };
    // Only then does an argument know how it is shown.
    command.build();
    let arguments = command.get_subcommands().flat_map(clap::Command::get_arguments);
    let variables = arguments
        .filter(|argument| argument.to_string() == *flag)
        .filter_map(clap::Arg::get_env);
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
