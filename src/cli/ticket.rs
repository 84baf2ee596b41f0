//! The arguments of `ticket`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use switchboard::client::ticket::{self, Options};
use switchboard::protocol::ticket::TicketTarget;

/// The arguments of `ticket`.
#[derive(Args)]
pub(crate) struct Ticket {
    /// The user whose ticket it is
    #[arg(long, value_name = "NAME")]
    user: String,
    /// A group of that user (repeatable)
    #[arg(long, value_name = "NAME")]
    group: Vec<String>,
    /// How long it is to live, 10m or more; the proxy's access.tickets.ttl bounds it
    #[arg(long, value_name = "DURATION", value_parser = ttl, default_value = "12h")]
    ttl: Duration,
    /// The only target that it opens: SERVICE.NAMESPACE, or HOST:PORT of a static target
    #[arg(long, value_name = "NAME")]
    target: Option<TicketTarget>,
    /// The namespace of the Secret, in place of that of kubectl's context
    #[arg(long, value_name = "NAME", value_parser = name)]
    namespace: Option<String>,
    /// The Secret: the proxy's access.tickets.secret
    #[arg(long, value_name = "NAME", default_value = "switchboard-tickets", value_parser = name)]
    secret: String,
}

/// Makes the ticket and prints it.
pub(crate) fn ticket(options: Ticket) -> ExitCode {
    ticket::command(&Options {
        user: options.user,
        groups: options.group,
        ttl: options.ttl,
        target: options.target,
        namespace: options.namespace,
        secret: options.secret,
    })
}

fn ttl(text: &str) -> Result<Duration, String> {
    let ttl = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    match ttl {
        short if short < SHORTEST => Err("a ticket lives for at least 10m".to_owned()),
        long if long > LONGEST => Err("a ticket lives for at most 1d".to_owned()),
        ttl => Ok(ttl),
    }
}

/// A name as it stands in a path of the API (RFC 1123).
fn name(text: &str) -> Result<String, &'static str> {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    let is_end = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = [text.bytes().next(), text.bytes().next_back()];
    let is_name =
        text.len() <= 253 && text.bytes().all(is_inner) && ends.into_iter().all(|end| end.is_some_and(is_end));
    is_name
        .then(|| text.to_owned())
        .ok_or("expected lower case letters, digits, `-` and `.`")
}

const SHORTEST: Duration = Duration::from_mins(10);
const LONGEST: Duration = Duration::from_hours(24);
/// For `--help`.
pub(crate) const TICKET_EXAMPLE: &str = "\
A ticket of alice in the proxy's Secret. Each ticket has a field manager of its own: another one's apply leaves it alone.
  switchboard ticket --user alice --namespace switchboard >alice.json
  kubectl apply --server-side --field-manager=switchboard-alice-1 -f alice.json

stdout has the Secret. The first line of stderr is the ticket and nothing else; the last one takes it back.

Exit status: 0 it was made, 1 it was not, 2 usage";
