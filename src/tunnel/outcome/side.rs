//! The parties to a tunnel.

/// A party to a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The downstream side, which sent the CONNECT.
    Client,
    /// The upstream side, an SSH server.
    Target,
    /// Switchboard itself.
    Proxy,
}

impl Side {
    /// Every side, for metrics with the value 0.
    pub const ALL: [Self; 3] = [Self::Client, Self::Target, Self::Proxy];

    /// Returns the value of the label `by` and of the log field `closed_by`.
    pub fn label(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Target => "target",
            Self::Proxy => "proxy",
        }
    }
}
