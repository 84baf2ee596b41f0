//! Makes a ticket: 26 letters that stand for a user at the proxy, for clients that cannot carry a token.
//!
//! An operator makes one for any user, in the Secret that the proxy reads.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use jiff::Timestamp;

use self::error::TicketError;
use self::options::{Made, quoted};
pub use self::options::{Named, Options};
use super::LONGEST_LINE;
use super::credentials::{Api, Files};
use crate::base::text::{chain, printable};
use crate::protocol::ticket::Minted;

mod error;
mod options;
mod secret;

/// Makes a ticket, prints it on stdout, and says on stderr what it is and how it is taken back. Returns the exit status.
pub fn command(options: &Options) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let made = match runtime {
        Ok(runtime) => {
            let made = runtime.block_on(make(options));
            // A program of the kubeconfig may run.
            runtime.shutdown_background();
            made
        }
        Err(error) => Err(TicketError::Runtime(error)),
    };
    match made.and_then(|made| tell(&made, options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&printable(&chain(&error), LONGEST_LINE));
            if let Some(remedy) = error.remedy() {
                say(&printable(&remedy, LONGEST_LINE));
            }
            ExitCode::FAILURE
        }
    }
}

async fn make(options: &Options) -> Result<Made, TicketError> {
    let api = Box::pin(Api::of(&options.files, options.context.as_deref())).await;
    let api = api.map_err(TicketError::Credentials)?;
    let minted = Minted::new().ok_or(TicketError::Random)?;
    Box::pin(secret::make(&api, minted, &options.user, options)).await
}

/// The ticket alone on stdout, as a script takes it.
fn tell(made: &Made, options: &Options) -> Result<(), TicketError> {
    let mut stdout = io::stdout();
    let printed = writeln!(stdout, "{}", made.ticket.expose()).and_then(|()| stdout.flush());
    let kubectl = Kubectl(options);
    say(&printable(&summary(made, options), LONGEST_LINE));
    say(&printable(
        &format!("it is taken back by: {kubectl} {}", made.revoke),
        LONGEST_LINE,
    ));
    printed.map_err(TicketError::Output)
}

fn summary(made: &Made, options: &Options) -> String {
    let opens = match &options.target {
        Some(target) => format!("for {target} alone"),
        None => "for every target that the user may reach".to_owned(),
    };
    let until = Timestamp::try_from(made.expires).map_or_else(|_| "its end".to_owned(), |time| format!("{time:.0}"));
    format!(
        "a ticket of {}, {opens}, until {until} at most; it is shown this once: send it as the password of any user name, \
         or as a bearer token",
        made.user
    )
}

/// Writes a line. With stderr closed the exit status remains.
fn say(line: &str) {
    writeln!(io::stderr(), "switchboard: {line}").ok();
}

/// kubectl with the options that lead it to the same API server, for a shell.
struct Kubectl<'a>(&'a Options);

impl fmt::Display for Kubectl<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("kubectl")?;
        if let Files::One(path) = &self.0.files {
            write!(f, " --kubeconfig {}", quoted(&path.display().to_string()))?;
        }
        match &self.0.context {
            Some(context) => write!(f, " --context {}", quoted(context)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_command_for_a_shell_is_quoted_where_it_must_be() {
        let options = Options {
            files: Files::One("/home/o'neil/my config".into()),
            context: Some("prod".to_owned()),
            ttl: Duration::from_hours(1),
            target: None,
            user: Named {
                name: "alice".to_owned(),
                groups: Vec::new(),
                namespace: None,
                secret: "s".to_owned(),
            },
        };
        let kubectl = Kubectl(&options).to_string();
        assert_eq!(
            kubectl,
            "kubectl --kubeconfig '/home/o'\\''neil/my config' --context prod"
        );
        assert_eq!(quoted(""), "''");
    }
}
