//! Makes a ticket: 26 letters that stand for a user at the proxy, for clients that cannot carry a token.
//!
//! It prints the Secret of the proxy with the ticket as its one key, for `kubectl apply`, and asks no API server.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::json;

use super::stderr::LONGEST_LINE;
use crate::base::text::printable;
use crate::protocol::ticket::{Minted, SECRET_TYPE, Ticket, TicketTarget};

/// The settings of one ticket.
#[derive(Clone, Debug)]
pub struct Options {
    /// The user's name.
    pub user: String,
    /// The user's groups.
    pub groups: Vec<String>,
    /// Its lifetime.
    pub ttl: Duration,
    /// The only target that it opens: `SERVICE.NAMESPACE`, or `HOST:PORT` of a static target.
    pub target: Option<TicketTarget>,
    /// The namespace of the Secret; `None` leaves it to kubectl.
    pub namespace: Option<String>,
    /// The name of the Secret.
    pub secret: String,
}

/// Makes a ticket: the Secret goes to stdout, the ticket and the commands for it to stderr. Returns the exit status.
pub fn command(options: &Options) -> ExitCode {
    match make(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            say(&format!("no ticket was made: {fault}"));
            ExitCode::FAILURE
        }
    }
}

fn make(options: &Options) -> Result<(), String> {
    let minted = Minted::new().ok_or("the system has no random numbers")?;
    let ticket = Ticket {
        user: options.user.as_str().into(),
        groups: options.groups.iter().map(|group| group.as_str().into()).collect(),
        expires: SystemTime::now() + options.ttl,
        target: options.target.clone(),
    };
    let entry = STANDARD.encode(ticket.encode()?);
    let key = minted.key.to_string();
    let metadata = match &options.namespace {
        Some(namespace) => json!({"name": options.secret, "namespace": namespace}),
        None => json!({"name": options.secret}),
    };
    let secret =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": SECRET_TYPE, "data": {&key: entry}});
    let mut stdout = io::stdout();
    let printed = writeln!(stdout, "{secret:#}").and_then(|()| stdout.flush());
    printed.map_err(|error| format!("cannot write to stdout: {error}"))?;
    // Alone on its line, for scripts.
    writeln!(io::stderr(), "{}", minted.ticket.expose()).ok();
    say(&summary(&ticket));
    // A field manager of its own: a second apply by one manager would remove the key of the first, and so take it back.
    say(&format!(
        "it counts once stdout is applied: kubectl apply --server-side --field-manager=switchboard-{key} -f -"
    ));
    let namespace = options.namespace.as_ref().map(|name| format!(" -n {name}"));
    say(&format!(
        "it is taken back by: kubectl{} patch secret {} --type=merge -p '{{\"data\":{{\"{key}\":null}}}}'",
        namespace.unwrap_or_default(),
        options.secret
    ));
    Ok(())
}

fn summary(ticket: &Ticket) -> String {
    let opens = match &ticket.target {
        Some(target) => format!("for {target} alone"),
        None => "for every target that the user may reach".to_owned(),
    };
    let until = Timestamp::try_from(ticket.expires).map_or_else(|_| "its end".to_owned(), |time| format!("{time:.0}"));
    format!(
        "a ticket of {}, {opens}, until {until} at most; it is shown this once: send it as the password of any user name, \
         or as a bearer token",
        ticket.user
    )
}

/// Writes a line. With stderr closed the exit status remains.
fn say(line: &str) {
    writeln!(io::stderr(), "switchboard: {}", printable(line, LONGEST_LINE)).ok();
}
