//! Sends requests to an API server: over connections that are kept, with the credentials of the moment.

use std::error::Error;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{HeaderValue, USER_AGENT};
use hyper::{Request, Response, Uri};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::{Connect, Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::Client;
use kube::client::Body;
use tower::service_fn;

use crate::uplink::api_server::ApiServer;
use crate::uplink::dial::io::BoxedIo;

/// Creates a client of an API server. `agent` is the `User-Agent` of its requests, as audit logs show it.
pub(super) fn client(server: ApiServer, agent: &'static str) -> Client {
    let server = Arc::new(server);
    let (dialled, namespace) = (Arc::clone(&server), server.namespace().to_owned());
    let connector = service_fn(move |_: Uri| {
        let server = Arc::clone(&dialled);
        Box::pin(async move { server.connect().await.map(TokioIo::new) })
    });
    let pool = legacy::Client::builder(TokioExecutor::new()).build(connector);
    let sender = service_fn(move |mut request: Request<Body>| {
        let (server, pool) = (Arc::clone(&server), pool.clone());
        request
            .headers_mut()
            .insert(USER_AGENT, HeaderValue::from_static(agent));
        async move { send(&server, &pool, request).await }
    });
    Client::new(sender, namespace)
}

async fn send(
    server: &ApiServer,
    pool: &legacy::Client<impl Connect + Clone + Send + Sync + 'static, Body>,
    mut request: Request<Body>,
) -> Result<Response<Incoming>, Box<dyn Error + Send + Sync>> {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let url = server.url(path).parse()?;
    *request.uri_mut() = url;
    let fields = server.fields().await.map_err(CredentialsError)?;
    request.headers_mut().extend(fields);
    Ok(pool.request(request).await?)
}

/// A request has no credentials, as a plugin that had to run again gave none.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct CredentialsError(String);

impl Connection for BoxedIo {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}
