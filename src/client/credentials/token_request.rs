//! A token of a ServiceAccount for one audience, from the API server of the kubeconfig (TokenRequest).

use std::time::Duration;

use http::Method;
use serde::Deserialize;
use serde_json::json;
use zeroize::Zeroizing;

use super::api_server::{ApiServer, Question};
use super::authorization::{Authorization, Token};
use super::cache::Key;
use super::error::{ApiFault, CredentialError};
use super::jwt::Claims;
use super::kubeconfig::{Files, Resolved};
use super::{Credentials, Issued, Store, exec_credential, user};
use crate::base::json::Object;
use crate::base::secret::Secret;
use crate::base::text::printable;

impl Store {
    /// A token for that audience, of the ServiceAccount that the kubeconfig's user is.
    pub(super) async fn of_audience(
        &self,
        files: &Files,
        resolved: &Resolved,
        audience: &str,
        refused: Option<&Credentials>,
    ) -> Result<Credentials, CredentialError> {
        let server = ApiServer::of(resolved, "token for the audience")?;
        let credentials = Box::pin(self.of_user(files, resolved, None)).await?;
        let account = ServiceAccount::of(&credentials, &resolved.user_name)?;
        let mut parts = vec![b"audience".to_vec(), resolved.context.clone().into_bytes()];
        parts.extend(
            [&server.address, &account.namespace, &account.name, audience].map(|part| part.as_bytes().to_vec()),
        );
        parts.extend(user::paths(files));
        let key = Key::of(parts.iter().map(Vec::as_slice));
        let path = format!(
            "/api/v1/namespaces/{}/serviceaccounts/{}/token",
            account.namespace, account.name
        );
        let issue = async {
            let question = ServiceAccount::question(&path, audience);
            let body = Box::pin(self.ask(&server, (files, resolved), &credentials, &question)).await?;
            read(&body).map_err(|fault| server.error(fault))
        };
        Box::pin(self.cached(&key, refused, issue)).await
    }

    /// Asks the API server of a context. A plugin whose credentials the cluster has taken back runs once more.
    pub(super) async fn ask(
        &self,
        server: &ApiServer<'_>,
        context: (&Files, &Resolved),
        credentials: &Credentials,
        question: &Question<'_>,
    ) -> Result<Zeroizing<Vec<u8>>, CredentialError> {
        let (files, resolved) = context;
        match server.request(credentials, question, self.deadline).await {
            Err(ApiFault::Status { code: 401, message }) => {
                let fresh = Box::pin(self.of_user(files, resolved, Some(credentials))).await?;
                if fresh == *credentials {
                    return Err(server.error(ApiFault::Status { code: 401, message }));
                }
                let answered = server.request(&fresh, question, self.deadline).await;
                answered.map_err(|fault| server.error(fault))
            }
            answered => answered.map_err(|fault| server.error(fault)),
        }
    }
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

fn read(body: &[u8]) -> Result<Issued, ApiFault> {
    #[derive(Deserialize)]
    struct TokenRequest {
        status: Object<Status>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Status {
        token: Secret,
        expiration_timestamp: Option<String>,
    }
    let Object(read): Object<TokenRequest> = serde_json::from_slice(body).map_err(|_| ApiFault::Format)?;
    let Object(status) = read.status;
    let token = Token::parse(status.token.expose()).map_err(|_| ApiFault::Format)?;
    let mut issued = exec_credential::of_token(token);
    let expires = status
        .expiration_timestamp
        .as_deref()
        .and_then(exec_credential::seconds);
    issued.expires = expires.or(issued.expires);
    Ok(issued)
}

/// The validity that is asked for. The least that the API server gives is ten minutes.
const VALIDITY: Duration = Duration::from_secs(3600);
/// The bytes of an answer.
const LARGEST: usize = 256 * 1024;
/// Characters of a name in a message.
const LONGEST_NAME: usize = 120;
