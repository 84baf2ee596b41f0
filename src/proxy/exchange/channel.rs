//! One exchange with an SSH client of a jump host: a channel `direct-tcpip`, and its one answer.

use crate::policy::access::credentials::credential::Credential;
use crate::proxy::http::{ConnectRequest, CredentialPolicy, HostKeysField, Purpose, RequestHead};
use crate::tunnel::outcome::{Malformed, RefusalReason};
use crate::tunnel::ssh::jump::ChannelRequest;
use crate::tunnel::stream::Stream;

/// A channel that has not been answered, on a connection with this credential.
#[derive(Debug)]
pub struct ChannelExchange {
    request: ChannelRequest,
    asked_for: String,
    credential: Option<Credential>,
}

impl ChannelExchange {
    /// Creates the exchange. `credential`: that of the connection's login; `None` if it has none.
    pub fn new(request: ChannelRequest, credential: Option<Credential>) -> Self {
        let asked_for = request.asked_for();
        Self {
            request,
            asked_for,
            credential,
        }
    }

    /// Returns the request: a login is a credential, and starts workloads.
    pub(super) fn read_head(&self, credentials: CredentialPolicy) -> Result<RequestHead, RefusalReason> {
        let authority = self.asked_for.parse().map_err(Malformed::Target);
        Ok(RequestHead::Connect(ConnectRequest {
            authority: authority.map_err(RefusalReason::Malformed)?,
            purpose: Purpose::Tunnel,
            credential: match credentials {
                CredentialPolicy::Ignored => None,
                CredentialPolicy::Read => self.credential.clone().map(Ok),
            },
            end_marker: None,
            session: None,
            no_wake: false,
            host_keys: HostKeysField::Absent,
            forwarding: None,
        }))
    }

    /// Returns the target as the client has named it.
    pub fn asked_for(&self) -> &str {
        &self.asked_for
    }

    /// Completes when the client has closed the connection.
    pub(super) async fn client_gone(&self) -> RefusalReason {
        self.request.client_gone().await;
        RefusalReason::ClientDisconnected
    }

    /// Confirms the channel.
    pub(super) fn accept(self) -> Result<Stream, RefusalReason> {
        let channel = self.request.accept();
        channel.map(Stream::from).ok_or(RefusalReason::ClientDisconnected)
    }

    /// Refuses the channel with a sentence.
    pub fn refuse(self, sentence: &str) {
        self.request.refuse(sentence);
    }
}
