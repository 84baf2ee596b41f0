//! `--audience`: a token of a ServiceAccount, from a scripted API server.

use super::*;

use tokio::task::JoinHandle;

/// The token that the kubeconfig has.
fn own() -> String {
    jwt(&json!({"sub": "system:serviceaccount:team-a:ci", "exp": 4_000_000_000_u64}))
}

/// A source for the audience `switchboard`.
fn for_audience(home: &Home, cluster: &Value, user: &Value) -> Source {
    let config = json!({
        "current-context": "team",
        "contexts": [{"name": "team", "context": {"cluster": "east", "user": "ci"}}],
        "clusters": [{"name": "east", "cluster": cluster}],
        "users": [{"name": "ci", "user": user}],
    });
    Source::Kubeconfig {
        files: Files::One(home.keep("config", &config.to_string())),
        context: None,
        audience: Some("switchboard".to_owned()),
    }
}

/// An API server, with the section of a kubeconfig that leads to it.
struct Api {
    proxy: Proxy,
    server: Server,
}

impl Api {
    async fn bind() -> Self {
        Self {
            proxy: Proxy::bind().await,
            server: Server::named("127.0.0.1"),
        }
    }

    fn cluster(&self, path: &str) -> Value {
        let port = self.proxy.listener.local_addr().unwrap().port();
        let ca = fs::read(self.server.ca.path()).unwrap();
        json!({"server": format!("https://127.0.0.1:{port}{path}"), "certificate-authority-data": STANDARD.encode(ca)})
    }

    /// Answers these requests, one connection each, and returns them: head and body.
    fn answers(self, answers: Vec<String>) -> JoinHandle<Vec<(String, Value)>> {
        tokio::spawn(async move {
            let mut asked = Vec::new();
            for answer in answers {
                let mut stream = within(self.server.acceptor.accept(self.proxy.accept().await))
                    .await
                    .unwrap();
                let head = read_request(&mut stream).await;
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                let mut body = vec![0; length.unwrap().parse().unwrap()];
                within(stream.read_exact(&mut body)).await.unwrap();
                asked.push((head, serde_json::from_slice(&body).unwrap()));
                // The client leaves an answer that is too long.
                stream.write_all(answer.as_bytes()).await.ok();
                stream.shutdown().await.ok();
            }
            asked
        })
    }
}

fn answer(status: &str, body: &Value) -> String {
    let body = body.to_string();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn issued(token: &str) -> String {
    let status = json!({"token": token, "expirationTimestamp": "2100-01-01T00:00:00Z"});
    answer("201 Created", &json!({"kind": "TokenRequest", "status": status}))
}

#[tokio::test]
async fn the_service_account_gets_a_token_for_the_audience() {
    let (home, api) = (Home::new(), Api::bind().await);
    let source = for_audience(&home, &api.cluster("/k8s/c-1/"), &json!({"token": own()}));
    let asked = api.answers(vec![issued("for-switchboard")]);
    assert_eq!(home.field(source).await, "Bearer for-switchboard");
    let asked = within(asked).await.unwrap();
    let (head, body) = &asked[0];
    let mut lines = head.lines();
    assert_eq!(
        lines.next(),
        Some("POST /k8s/c-1/api/v1/namespaces/team-a/serviceaccounts/ci/token HTTP/1.1")
    );
    assert!(
        head.contains(&format!("\r\nauthorization: Bearer {}\r\n", own())),
        "{head}"
    );
    assert_eq!(body["kind"], "TokenRequest");
    assert_eq!(
        body["spec"],
        json!({"audiences": ["switchboard"], "expirationSeconds": 3600})
    );
}

#[tokio::test]
async fn an_identity_that_is_no_service_account_is_named() {
    let home = Home::new();
    let person = jwt(&json!({"sub": "alice@example.com\u{1b}[m"}));
    for (user, expected) in [
        (
            json!({"token": person}),
            "the user ci has the identity alice@example.com[m",
        ),
        (
            json!({"token": "s3cret"}),
            "has a token that does not say whose it is (no JWT)",
        ),
        (json!({"username": "bob", "password": "s3cret"}), "has a password"),
        (
            json!({"client-certificate-data": "QQ==", "client-key-data": "QQ=="}),
            "--audience needs the token of a ServiceAccount (TokenRequest gives it to no other), and the user ci has a client \
             certificate",
        ),
    ] {
        let source = for_audience(&home, &json!({"server": "https://127.0.0.1:1"}), &user);
        let line = home.failure(source, "s3cret").await;
        assert!(line.contains(expected), "{line}");
    }
}

#[tokio::test]
async fn an_api_server_that_cannot_be_asked_is_reported_by_its_reason() {
    let home = Home::new();
    for (cluster, expected) in [
        (json!({"server": "ftp://x"}), "its address is no URL"),
        (json!({"server": "https://u:p@x"}), "its address is no URL"),
        (json!({"server": "api.example.com"}), "its address is no URL"),
        (json!({}), "the context team of the kubeconfig has no cluster"),
        (
            json!({"server": "http://api.example.com"}),
            "its address must begin with https://",
        ),
        (
            json!({"server": "https://x", "insecure-skip-tls-verify": true}),
            "insecure-skip-tls-verify would send the token",
        ),
        (
            json!({"server": "https://x", "proxy-url": "http://y"}),
            "proxy-url is not supported here",
        ),
        (
            json!({"server": "https://127.0.0.1:1", "certificate-authority-data": "QQ=="}),
            "its certificate authority: there is no",
        ),
        (
            json!({"server": "https://127.0.0.1:1", "certificate-authority": "no"}),
            "its certificate authority: cannot read",
        ),
        (
            json!({"server": "http://127.0.0.1:1"}),
            "cannot connect to it: Connection refused",
        ),
    ] {
        let line = home
            .failure(for_audience(&home, &cluster, &json!({"token": own()})), &own())
            .await;
        assert!(line.contains(expected), "{cluster}: {line}");
    }
    // Another authority than the kubeconfig's.
    let (api, other) = (Api::bind().await, Api::bind().await);
    let mut cluster = api.cluster("");
    cluster["certificate-authority-data"] = other.cluster("")["certificate-authority-data"].clone();
    let source = for_audience(&home, &cluster, &json!({"token": own()}));
    let accepted = tokio::spawn(async move { api.server.acceptor.accept(api.proxy.accept().await).await.is_ok() });
    let line = home.failure(source, &own()).await;
    assert!(
        line.contains("the TLS handshake with it failed: invalid peer certificate"),
        "{line}"
    );
    assert!(!within(accepted).await.unwrap());
}

#[tokio::test]
async fn an_answer_without_a_token_is_reported() {
    let forbidden = json!({"kind": "Status", "message": "serviceaccounts \"ci\" is forbidden\n"});
    for (answer, expected) in [
        (
            answer("403 Forbidden", &forbidden),
            "gave no token for the audience: it answered 403: serviceaccounts \"ci\" is forbidden",
        ),
        (answer("500 x", &json!([])), "it answered 500"),
        // Of a token that is quoted nothing is shown.
        (
            answer("500 x", &json!({"message": format!("the token \"{}\" is bad", own())})),
            "it answered 500: the token \"…\" is bad",
        ),
        (answer("500 x", &json!(["message"])), "it answered 500"),
        (
            answer("200 OK", &json!([["s3cret", null]])),
            "its answer holds no token",
        ),
        (
            answer("200 OK", &json!({"status": ["s3cret", null]})),
            "its answer holds no token",
        ),
        (
            answer("401 Unauthorized", &json!({"message": "Unauthorized"})),
            "it answered 401: Unauthorized",
        ),
        (
            answer("200 OK", &json!({"status": {"s3cret": 1}})),
            "its answer holds no token",
        ),
        (
            answer("200 OK", &json!({"status": {"token": "s3cret two"}})),
            "its answer holds no token",
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{".to_owned(),
            "its answer broke off, or is no HTTP",
        ),
        ("SSH-2.0-x\r\n".to_owned(), "its answer broke off, or is no HTTP"),
        (String::new(), "its answer broke off, or is no HTTP"),
        (
            format!(
                "HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n{}",
                "s3cret".repeat(50_000)
            ),
            "its answer is too long",
        ),
    ] {
        let (home, api) = (Home::new(), Api::bind().await);
        let source = for_audience(&home, &api.cluster(""), &json!({"token": own()}));
        let _asked = api.answers(vec![answer]);
        let line = home.failure(source, "s3cret").await;
        assert!(line.contains(expected), "{expected}: {line}");
    }
}

#[tokio::test]
async fn an_api_server_that_is_silent_is_waited_for_until_the_deadline() {
    let (home, api) = (Home::new(), Api::bind().await);
    let options = credentials::Options {
        timeout: Duration::from_millis(500),
        ..home.options(for_audience(&home, &api.cluster(""), &json!({"token": own()})))
    };
    let line = chain(&within(options.obtain()).await.unwrap_err());
    assert!(
        line.ends_with("gave no token for the audience: it did not answer in time"),
        "{line}"
    );
}
