//! The API server of a kubeconfig, for a program that asks it on behalf of its user.

use tokio::time::Instant;
use zeroize::Zeroizing;

use super::api_server::{ApiServer, Question};
use super::error::CredentialError;
use super::kubeconfig::{Files, Resolved};
use super::{Credentials, DEFAULT_TIMEOUT, user};
use crate::client::Deadline;

/// An API server, and the user's credentials for it.
pub(in crate::client) struct Api {
    resolved: Resolved,
    credentials: Credentials,
    deadline: Instant,
}

impl Api {
    /// That of a context; `None` is the current one. A plugin of the kubeconfig may run.
    pub(in crate::client) async fn of(files: &Files, context: Option<&str>) -> Result<Self, CredentialError> {
        let resolved = files.resolve(context).map_err(CredentialError::Kubeconfig)?;
        let deadline = Deadline::after(DEFAULT_TIMEOUT).at;
        // Before the plugin: it need not run for a server that cannot be asked.
        ApiServer::of(&resolved, TICKET)?;
        let credentials = Box::pin(user::obtain(&resolved, deadline)).await?;
        Ok(Self {
            resolved,
            credentials,
            deadline,
        })
    }

    /// The namespace of the context.
    pub(in crate::client) fn namespace(&self) -> Option<&str> {
        self.resolved.namespace.as_deref()
    }

    /// Asks, and returns the body of a success.
    pub(in crate::client) async fn ask(&self, question: &Question<'_>) -> Result<Zeroizing<Vec<u8>>, CredentialError> {
        let server = ApiServer::of(&self.resolved, TICKET)?;
        let answered = Box::pin(server.request(&self.credentials, question, self.deadline)).await;
        answered.map_err(|fault| server.error(fault))
    }
}

/// What it is asked for.
const TICKET: &str = "ticket";
