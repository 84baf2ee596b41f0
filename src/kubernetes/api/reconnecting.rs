//! A client of the API server that is made anew after a failure: certificates, tokens and addresses may have changed.

use std::path::PathBuf;

use hyper::body::Bytes;
use kube::Client;
use parking_lot::Mutex;
use serde_json::Value;

use super::failure::{ApiError, Failure};
use super::requests::{self, FOLLOWER};

/// A way to the API server.
pub(crate) struct Link {
    kubeconfig: Option<PathBuf>,
    client: Mutex<Option<Client>>,
}

impl Link {
    /// A way that nothing has been asked by.
    pub(crate) fn new(kubeconfig: Option<PathBuf>) -> Self {
        Self {
            kubeconfig,
            client: Mutex::default(),
        }
    }

    /// The object at a path.
    pub(crate) async fn get(&self, path: &str) -> Result<Value, ApiError> {
        let client = self.client().await?;
        self.read(requests::get(&client, path).await).await
    }

    /// Creates an object at a path.
    pub(crate) async fn post(&self, path: &str, object: &Value) -> Result<Value, ApiError> {
        let client = self.client().await?;
        self.read(requests::post(&client, path, body(object)).await).await
    }

    /// Merges a patch (RFC 7396) into the object at a path.
    pub(crate) async fn patch(&self, path: &str, patch: &Value) -> Result<Value, ApiError> {
        let client = self.client().await?;
        self.read(requests::patch(&client, path, body(patch)).await).await
    }

    async fn client(&self) -> Result<Client, ApiError> {
        let known = self.client.lock().clone();
        match known {
            Some(client) => Ok(client),
            None => {
                let made = requests::connect(self.kubeconfig.clone(), FOLLOWER).await?;
                Ok(self.client.lock().insert(made).clone())
            }
        }
    }

    async fn read(&self, answer: Result<requests::BodyReader, ApiError>) -> Result<Value, ApiError> {
        let read = async { answer?.read_to(LARGEST_OBJECT).await }.await;
        if let Err(error) = &read
            && (error.failure.is_of_connection() || error.failure == Failure::Unauthorized)
        {
            *self.client.lock() = None;
        }
        serde_json::from_slice(&read?).map_err(|error| ApiError::caused(Failure::Malformed, &error))
    }
}

fn body(object: &Value) -> Bytes {
    object.to_string().into()
}

/// Etcd keeps no object of more than 1.5 MiB.
const LARGEST_OBJECT: usize = 4 << 20;
