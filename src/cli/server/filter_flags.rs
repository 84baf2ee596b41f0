//! The arguments that select tunnels and requests.

use std::net::IpAddr;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use switchboard::operator::replicas::{Query, TargetName};

/// A user or a client address, exactly one.
#[derive(Args)]
#[group(required = true, multiple = false)]
pub(crate) struct UserFlags {
    /// The client at this address
    #[arg(long, value_name = "IP")]
    client: Option<IpAddr>,
    /// This authenticated user
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    user: Option<String>,
}

/// Whose tunnels.
#[derive(Args)]
pub(crate) struct PartyFlags {
    /// Tunnels to this target: namespace/service, or static/NAME:PORT
    #[arg(long, value_name = "TARGET")]
    target: Option<TargetName>,
    /// Tunnels of this client
    #[arg(long, value_name = "IP")]
    client: Option<IpAddr>,
    /// Tunnels of this user
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
}

/// Whose tunnels, or to which node.
#[derive(Args)]
pub(crate) struct FilterFlags {
    #[command(flatten)]
    parties: PartyFlags,
    /// Tunnels to targets on this node
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
}

impl UserFlags {
    /// Returns the query for it.
    pub(crate) fn into_query(self) -> Query {
        Query {
            client: self.client,
            user: self.user,
            ..Query::default()
        }
    }
}

impl PartyFlags {
    /// Returns the query for them.
    pub(crate) fn into_query(self) -> Query {
        Query {
            target: self.target.map(|target| target.to_string()),
            client: self.client,
            user: self.user,
            ..Query::default()
        }
    }
}

impl FilterFlags {
    /// Returns the query for them.
    pub(crate) fn into_query(self) -> Query {
        Query {
            node: self.node,
            ..self.parties.into_query()
        }
    }
}
