//! A token of a ServiceAccount for one audience, from the API server of the kubeconfig (TokenRequest).

use std::time::Duration;

use http::Method;
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::api_server::{ApiServer, Question};
use super::authorization::{Authorization, Token};
use super::error::{ApiFault, CredentialError};
use super::jwt::Claims;
use super::kubeconfig::Resolved;
use super::{Credentials, user};
use crate::base::json::Object;
use crate::base::secret::Secret;
use crate::base::text::printable;

/// Gets a token for that audience, of the ServiceAccount that the kubeconfig's user is.
pub(super) async fn obtain(
    resolved: &Resolved,
    audience: &str,
    deadline: Instant,
) -> Result<Credentials, CredentialError> {
    let server = ApiServer::of(resolved, "token for the audience")?;
    let credentials = Box::pin(user::obtain(resolved, deadline)).await?;
    let account = ServiceAccount::of(&credentials, &resolved.user_name)?;
    let path = format!(
        "/api/v1/namespaces/{}/serviceaccounts/{}/token",
        account.namespace, account.name
    );
    let question = ServiceAccount::question(&path, audience);
    let answered = Box::pin(server.request(&credentials, &question, deadline)).await;
    answered
        .and_then(|body| read(&body))
        .map_err(|fault| server.error(fault))
}

/// A ServiceAccount, as its own token names it.
struct ServiceAccount {
    namespace: String,
    name: String,
}

impl ServiceAccount {
    fn question<'a>(path: &'a str, audience: &str) -> Question<'a> {
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [audience], "expirationSeconds": VALIDITY.as_secs()},
        });
        Question {
            method: Method::POST,
            path,
            media_type: "application/json",
            body: body.to_string(),
            largest: LARGEST,
        }
    }

    fn of(credentials: &Credentials, user: &str) -> Result<Self, CredentialError> {
        let other = |identity: String| CredentialError::NoServiceAccount {
            user: user.to_owned(),
            identity,
        };
        let token = match &credentials.authorization {
            Some(Authorization::Bearer(token)) => token,
            Some(Authorization::Basic(_)) => return Err(other("a password".to_owned())),
            None => return Err(other("a client certificate".to_owned())),
        };
        let Some(claims) = Claims::of(token) else {
            return Err(other("a token that does not say whose it is (no JWT)".to_owned()));
        };
        if let Some((namespace, name)) = claims.service_account() {
            return Ok(Self {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            });
        }
        let subject = printable(claims.subject.as_deref().unwrap_or_default(), LONGEST_NAME);
        Err(other(format!("the identity {subject}")))
    }
}

fn read(body: &[u8]) -> Result<Credentials, ApiFault> {
    #[derive(Deserialize)]
    struct TokenRequest {
        status: Object<Status>,
    }
    #[derive(Deserialize)]
    struct Status {
        token: Secret,
    }
    let Object(read): Object<TokenRequest> = serde_json::from_slice(body).map_err(|_| ApiFault::Format)?;
    let Object(status) = read.status;
    let token = Token::parse(status.token.expose()).map_err(|_| ApiFault::Format)?;
    Ok(Credentials::bearer(token))
}

/// The validity that is asked for. The least that the API server gives is ten minutes.
const VALIDITY: Duration = Duration::from_secs(3600);
/// The bytes of an answer.
const LARGEST: usize = 256 * 1024;
/// Characters of a name in a message.
const LONGEST_NAME: usize = 120;
