//! The API server of a kubeconfig, for a program that asks it on behalf of its user.

use std::path::PathBuf;

use zeroize::Zeroizing;

use super::api_server::{ApiServer, Question};
use super::cache::Cache;
use super::error::CredentialError;
use super::kubeconfig::{Files, Resolved};
use super::{Credentials, DEFAULT_TIMEOUT, Store};
use crate::client::Deadline;

/// An API server, and the user's credentials for it.
pub(in crate::client) struct Api {
    files: Files,
    resolved: Resolved,
    credentials: Credentials,
    store: Store,
}

impl Api {
    /// That of a context; `None` is the current one. A plugin of the kubeconfig may run.
    pub(in crate::client) async fn of(
        files: &Files,
        context: Option<&str>,
        cache: Option<PathBuf>,
    ) -> Result<Self, CredentialError> {
        let resolved = files.resolve(context).map_err(CredentialError::Kubeconfig)?;
        let store = Store {
            cache: cache.as_deref().and_then(Cache::open),
            deadline: Deadline::after(DEFAULT_TIMEOUT).at,
        };
        // Before the plugin: it need not run for a server that cannot be asked.
        ApiServer::of(&resolved, TICKET)?;
        let credentials = Box::pin(store.of_user(files, &resolved, None)).await?;
        Ok(Self {
            files: files.clone(),
            resolved,
            credentials,
            store,
        })
    }

    /// The namespace of the context.
    pub(in crate::client) fn namespace(&self) -> Option<&str> {
        self.resolved.namespace.as_deref()
    }

    /// Asks, and returns the body of a success.
    pub(in crate::client) async fn ask(&self, question: &Question<'_>) -> Result<Zeroizing<Vec<u8>>, CredentialError> {
        let server = ApiServer::of(&self.resolved, TICKET)?;
        let context = (&self.files, &self.resolved);
        Box::pin(self.store.ask(&server, context, &self.credentials, question)).await
    }
}

/// What it is asked for.
const TICKET: &str = "ticket";
