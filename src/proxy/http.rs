//! A request and its answer over HTTP/1 or HTTP/2: the 200 and the refusals are written here, and only here.

use serde::Deserialize;

mod client_program;
pub mod head;
pub mod http1;
pub(in crate::proxy) mod http2;
mod request;
mod websocket;

pub use self::client_program::ClientProgram;
pub use self::request::{ConnectRequest, CredentialPolicy, ListingRequest, Purpose, RequestHead};
pub(crate) use self::request::{HostKeysField, NamedSession};
pub use self::websocket::{Forwarding, WebSocketOptions};

/// How a port sends refusals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RefusalMode {
    /// By status, reason phrase and body.
    #[default]
    Http,
    /// In band to the [programs](ClientProgram::SshProxyCommand) that SSH clients run: a 200, and after it an SSH
    /// disconnect with the sentence, which SSH clients print. By HTTP to all others.
    Auto,
    /// In band to every program whose CONNECT was read, except `switchboard connect`, which needs the status.
    Ssh,
}

impl RefusalMode {
    /// Returns whether that program is refused in band.
    pub fn are_in_band(self, program: ClientProgram) -> bool {
        match (self, program) {
            (Self::Http, _)
            | (_, ClientProgram::Unread | ClientProgram::SwitchboardConnect)
            | (Self::Auto, ClientProgram::Other) => false,
            (Self::Auto, ClientProgram::SshProxyCommand)
            | (Self::Ssh, ClientProgram::SshProxyCommand | ClientProgram::Other) => true,
        }
    }
}
