//! Makes a ticket: 26 characters that name a user to the proxy, for clients that cannot send a token.
//!
//! Prints the proxy's Secret with the entry of this ticket alone, for `kubectl apply`, and calls no API server.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{Context, anyhow};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use jiff::Timestamp;
use serde_json::json;

use crate::base::text::printable;
use crate::base::values::{duration, object_name};
use crate::protocol::ticket::{NewTicket, SECRET_TYPE, Ticket, TicketTarget};

/// The settings of one ticket: the arguments of the program.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The user whose ticket it is
    #[arg(long, value_name = "NAME")]
    user: String,
    /// A group of that user (repeatable)
    #[arg(long = "group", value_name = "NAME")]
    groups: Vec<String>,
    /// Its lifetime, from 10m to 1d; the proxy's access.tickets.ttl limits it
    #[arg(long, value_name = "DURATION", value_parser = ttl, default_value = "12h")]
    ttl: Duration,
    /// The only target that it is valid for: SERVICE.NAMESPACE, POD.NAMESPACE.pod, or HOST:PORT of a static target
    #[arg(long, value_name = "NAME")]
    target: Option<TicketTarget>,
    /// The namespace of the Secret, instead of the one of kubectl's context
    #[arg(long, value_name = "NAME", value_parser = object_name)]
    namespace: Option<String>,
    /// The Secret: the proxy's access.tickets.secret
    #[arg(long, value_name = "NAME", default_value = "switchboard-tickets", value_parser = object_name)]
    secret: String,
}

/// Makes a ticket: the Secret goes to stdout, the ticket and the commands for it to stderr.
///
/// # Errors
/// The system has no random numbers, the ticket is invalid, or stdout cannot be written.
pub fn make(options: &Options) -> anyhow::Result<ExitCode> {
    let minted = NewTicket::new().context("no ticket was made: the system has no random numbers")?;
    let ticket = Ticket {
        user: options.user.as_str().into(),
        groups: options.groups.iter().map(|group| group.as_str().into()).collect(),
        expires: SystemTime::now() + options.ttl,
        target: options.target.clone(),
    };
    let entry = STANDARD.encode(
        ticket
            .encode()
            .map_err(|fault| anyhow!("no ticket was made: {fault}"))?,
    );
    let key = minted.key.to_string();
    let metadata = match &options.namespace {
        Some(namespace) => json!({"name": options.secret, "namespace": namespace}),
        None => json!({"name": options.secret}),
    };
    let secret =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": SECRET_TYPE, "data": {&key: entry}});
    let mut stdout = io::stdout();
    let printed = writeln!(stdout, "{secret:#}").and_then(|()| stdout.flush());
    printed.context("no ticket was made: cannot write to stdout")?;
    // Alone on its line, for scripts.
    writeln!(io::stderr(), "{}", minted.ticket.expose()).ok();
    print(&summary(&ticket));
    // Each ticket has its own field manager: the next apply by the same manager would remove its key, and so revoke it.
    print(&format!(
        "it is valid once the Secret is applied: kubectl apply --server-side --field-manager=switchboard-{key} -f -"
    ));
    let namespace = options.namespace.as_ref().map(|name| format!(" -n {name}"));
    print(&format!(
        "this revokes it: kubectl{} patch secret {} --type=merge -p '{{\"data\":{{\"{key}\":null}}}}'",
        namespace.unwrap_or_default(),
        options.secret
    ));
    Ok(ExitCode::SUCCESS)
}

fn summary(ticket: &Ticket) -> String {
    let opens = match &ticket.target {
        Some(target) => format!("for the {} {target} alone", target.kind()),
        None => "for every target that the user may reach".to_owned(),
    };
    let until = Timestamp::try_from(ticket.expires).map_or_else(|_| "its end".to_owned(), |time| format!("{time:.0}"));
    format!(
        "a ticket of {}, {opens}, until {until} at most; it is shown this once: send it as the password of any user name, \
         or as a bearer token",
        ticket.user
    )
}

fn ttl(text: &str) -> Result<Duration, &'static str> {
    let ttl = duration(text)?;
    match ttl {
        short if short < MIN_LIFETIME => Err("a ticket lives for at least 10m"),
        long if long > MAX_LIFETIME => Err("a ticket lives for at most 1d"),
        ttl => Ok(ttl),
    }
}

/// Writes a line. With stderr closed the exit status remains.
fn print(line: &str) {
    writeln!(io::stderr(), "switchboard: {}", printable(line, MAX_LINE)).ok();
}

/// Maximum number of characters of a line, which has several names: a command must not be cut.
const MAX_LINE: usize = 2_000;
const MIN_LIFETIME: Duration = Duration::from_mins(10);
const MAX_LIFETIME: Duration = Duration::from_hours(24);
