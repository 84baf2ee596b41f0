//! The arguments of `ticket`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use switchboard::client::credentials::Files;
use switchboard::client::ticket::{self, Named, Options};
use switchboard::protocol::ticket::TicketTarget;

use crate::cli::client_flags::listed_files;

/// The arguments of `ticket`.
#[derive(Args)]
pub(crate) struct Ticket {
    /// How long it is to live, 10m or more; the proxy's access.tickets.ttl bounds it
    #[arg(long, value_name = "DURATION", value_parser = ttl, default_value = "12h")]
    ttl: Duration,
    /// The only target that it opens: SERVICE.NAMESPACE, or HOST:PORT of a static target
    #[arg(long, value_name = "NAME")]
    target: Option<TicketTarget>,
    /// Ask the API server of this kubeconfig [default: KUBECONFIG or ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Ask the API server of this context, as its user, not of the current one
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// The user whose ticket it is
    #[arg(long, value_name = "NAME")]
    user: String,
    /// A group of that user (repeatable)
    #[arg(long, value_name = "NAME")]
    group: Vec<String>,
    /// The namespace of the Secret, in place of that of the context
    #[arg(long, value_name = "NAME", value_parser = name)]
    namespace: Option<String>,
    /// The Secret: the proxy's access.tickets.secret
    #[arg(long, value_name = "NAME", default_value = "switchboard-tickets", value_parser = name)]
    secret: String,
}

/// Makes the ticket and prints it.
pub(crate) fn ticket(options: Ticket) -> ExitCode {
    ticket::command(&options.into_options())
}

impl Ticket {
    /// The settings of the ticket.
    fn into_options(self) -> Options {
        Options {
            files: self.kubeconfig.map_or_else(listed_files, Files::One),
            context: self.context,
            ttl: self.ttl,
            target: self.target,
            user: Named {
                name: self.user,
                groups: self.group,
                namespace: self.namespace,
                secret: self.secret,
            },
        }
    }
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
A ticket of alice, as a password of proxytunnel, which carries 80 characters:
  PROXYUSER=ticket PROXYPASS=\"$(switchboard ticket --user alice)\" ssh devbox.team-a.svc.cluster.local

stdout has the ticket and nothing else, stderr the command that takes it back.

Exit status: 0 it was made, 1 it was not, 2 usage";
