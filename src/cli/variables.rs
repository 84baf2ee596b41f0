//! Variables of the environment that are probably misspelt.

use std::env;

use clap::CommandFactory;
use switchboard::client::configuration;

use crate::cli::{CommandLine, to_stderr};

/// Says which variables of the environment are probably misspelt. Those that Kubernetes sets for a Service called
/// switchboard are others.
pub(crate) fn warn_of_misspelt_variables() {
    let command = CommandLine::command();
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
