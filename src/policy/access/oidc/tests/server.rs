//! Key sets from servers that rotate keys, hang, redirect, send without end, or are not the right one.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::base::follow::ReadPool;
use crate::policy::access::reviewer::NoAnswer;

/// The server's behaviour on a request.
#[derive(Clone)]
enum Act {
    Send(String),
    Hang,
    /// It sends this again and again.
    Repeat(&'static str, &'static str),
}

fn endpoint(url: &str, ca: Option<PathBuf>) -> Endpoint {
    Endpoint::new(&url.parse().unwrap(), &Issuer { ca, ..issuer() })
}

/// An HTTPS server whose certificate is its own authority.
struct Server {
    address: SocketAddr,
    requests: Arc<AtomicUsize>,
    /// The last one is for all that follow.
    acts: Arc<Mutex<VecDeque<Act>>>,
    folder: tempfile::TempDir,
    _task: AbortOnDropHandle<()>,
}

fn keys(keys: &[Value]) -> Act {
    let body = json!({ "keys": keys }).to_string();
    Act::Send(format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ))
}

impl Server {
    async fn new(acts: &[Act]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(folder.path().join("ca.pem"), made.cert.pem()).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap();
        let config = config
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let requests = Arc::new(AtomicUsize::new(0));
        let queue = Arc::new(Mutex::new(acts.iter().cloned().collect::<VecDeque<_>>()));
        let (counted, acts) = (Arc::clone(&requests), Arc::clone(&queue));
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (acceptor, counted, acts) = (acceptor.clone(), Arc::clone(&counted), Arc::clone(&acts));
                tokio::spawn(async move { Box::pin(serve(stream, acceptor, &counted, &acts)).await });
            }
        });
        Self {
            address,
            requests,
            acts: queue,
            folder,
            _task: AbortOnDropHandle::new(task),
        }
    }

    fn url(&self) -> String {
        format!("https://localhost:{}/keys?v=1", self.address.port())
    }

    fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    fn verifier(&self, schedule: RefreshSchedule) -> Verifier {
        let endpoint = endpoint(&self.url(), Some(self.ca()));
        Verifier {
            issuer: issuer(),
            keys: Keys::follow("test", Source::Endpoint(endpoint), schedule),
        }
    }

    async fn failure(&self) -> String {
        let endpoint = endpoint(&self.url(), Some(self.ca()));
        endpoint.get(&ReadPool::default()).await.unwrap_err().into()
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    fn then(&self, act: Act) {
        *self.acts.lock() = VecDeque::from([act]);
    }
}

async fn serve(stream: TcpStream, acceptor: TlsAcceptor, requests: &AtomicUsize, acts: &Mutex<VecDeque<Act>>) {
    let Ok(mut stream) = acceptor.accept(stream).await else {
        return;
    };
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = stream.read_u8().await else { return };
        head.push(byte);
    }
    let head = String::from_utf8(head).unwrap();
    assert!(head.starts_with("GET /keys?v=1 HTTP/1.1\r\nhost: localhost:"), "{head}");
    requests.fetch_add(1, Ordering::SeqCst);
    let act = {
        let mut acts = acts.lock();
        match acts.len() {
            1 => acts[0].clone(),
            _ => acts.pop_front().unwrap(),
        }
    };
    match act {
        Act::Send(answer) => {
            stream.write_all(answer.as_bytes()).await.ok();
            stream.shutdown().await.ok();
        }
        Act::Hang => std::future::pending().await,
        Act::Repeat(head, piece) => {
            stream.write_all(head.as_bytes()).await.ok();
            while stream.write_all(piece.as_bytes()).await.is_ok() {}
        }
    }
}

/// Attempts are made at a wish alone.
const AT_A_WISH: RefreshSchedule = RefreshSchedule {
    good: Duration::from_hours(1),
    bad: Duration::from_hours(1),
    least: Duration::ZERO,
};

/// After the first attempt there is none for an hour.
const ONCE: RefreshSchedule = RefreshSchedule {
    least: Duration::from_hours(1),
    ..AT_A_WISH
};

async fn judge(verifier: &Verifier, token: &Secret) -> String {
    let now = UNIX_EPOCH + Duration::from_secs(NOW);
    match verifier
        .verify(&Jwt::read(token.expose()).unwrap().unwrap(), now, CLIENT)
        .await
    {
        Ok(Verdict::Authenticated(_)) => "proved".to_owned(),
        Ok(Verdict::Rejected(reason)) => reason.into(),
        Err(unavailable) => unavailable.to_string(),
    }
}

const UNKNOWN: &str = "the token's key is not one of its issuer's";

#[tokio::test]
async fn rotated_keys_are_fetched_once_for_all_tokens_that_wait() {
    let (old, new) = (Signer::p256(), Signer::p256());
    let server = Server::new(&[keys(&[old.jwk("old")])]).await;
    let verifier = server.verifier(AT_A_WISH);
    let good = claims(&json!({}));
    let by_old = old.token(&json!({"alg": "ES256", "kid": "old"}), &good);
    let by_new = new.token(&json!({"alg": "ES256", "kid": "new"}), &good);
    // The first token waits for the first keys.
    assert_eq!(judge(&verifier, &by_old).await, "proved");
    assert_eq!(judge(&verifier, &by_old).await, "proved");
    assert_eq!(server.requests(), 1);
    server.then(keys(&[old.jwk("old"), new.jwk("new")]));
    let all = futures_util::future::join_all((0..50).map(|_| judge(&verifier, &by_new))).await;
    assert!(all.iter().all(|verdict| verdict == "proved"), "{all:?}");
    assert!(server.requests() <= 3, "{}", server.requests());
    server.then(keys(&[new.jwk("new")]));
    let random = old.token(&json!({"alg": "ES256", "kid": "random"}), &good);
    assert_eq!(judge(&verifier, &random).await, UNKNOWN);
    assert_eq!(judge(&verifier, &by_old).await, UNKNOWN);
    assert_eq!(judge(&verifier, &by_new).await, "proved");
}

#[tokio::test]
async fn a_flood_of_invented_keys_asks_the_server_nothing() {
    let signer = Signer::p256();
    let server = Server::new(&[keys(&[signer.jwk("1")])]).await;
    let verifier = server.verifier(ONCE);
    let good = claims(&json!({}));
    let by_known = signer.token(&json!({"alg": "ES256", "kid": "1"}), &good);
    assert_eq!(judge(&verifier, &by_known).await, "proved");
    for number in 0..500 {
        let token = signer.token(&json!({"alg": "ES256", "kid": format!("x{number}")}), &good);
        assert_eq!(judge(&verifier, &token).await, UNKNOWN);
    }
    assert_eq!(judge(&verifier, &by_known).await, "proved");
    assert_eq!(server.requests(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_network_has_64_tokens_that_wait_for_keys_and_others_none_the_less() {
    let signer = Signer::p256();
    let server = Server::new(&[Act::Hang]).await;
    let verifier = server.verifier(ONCE);
    let good = claims(&json!({}));
    let now = UNIX_EPOCH + Duration::from_secs(NOW);
    let judge = |number: u8, client: [u8; 4]| {
        let token = signer.token(&json!({"alg": "ES256", "kid": format!("x{number}")}), &good);
        let verifier = &verifier;
        async move {
            let begun = Instant::now();
            let judged = verifier
                .verify(&Jwt::read(token.expose()).unwrap().unwrap(), now, client.into())
                .await;
            (judged.unwrap_err().kind, begun.elapsed() > Duration::from_secs(4))
        }
    };
    let flood = futures_util::future::join_all((0..80).map(|number| judge(number, [192, 0, 2, 1])));
    let (flood, other) = tokio::join!(flood, judge(80, [192, 0, 2, 2]));
    assert_eq!(flood[..64], [(NoAnswer::Unavailable, true); 64]);
    assert_eq!(flood[64..], [(NoAnswer::Busy, false); 16]);
    assert_eq!(other, (NoAnswer::Unavailable, true));
}

#[tokio::test]
async fn tokens_that_are_refused_anyway_do_not_renew_the_keys() {
    let signer = Signer::p256();
    let server = Server::new(&[keys(&[signer.jwk("1")])]).await;
    let verifier = server.verifier(AT_A_WISH);
    let header = json!({"alg": "ES256", "kid": "x"});
    verifier.keys.renewed(verifier.keys.current(), CLIENT).await.unwrap();
    for changes in [
        json!({"exp": 1}),
        json!({"aud": "x"}),
        json!({"nbf": NOW + 999}),
        json!({"email": null}),
    ] {
        assert_ne!(
            judge(&verifier, &signer.token(&header, &claims(&changes))).await,
            UNKNOWN
        );
    }
    assert_eq!(server.requests(), 1);
}

#[tokio::test]
async fn without_any_keys_there_is_no_verdict_and_with_old_ones_they_stay_in_force() {
    let signer = Signer::p256();
    let broken = Act::Send("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n".to_owned());
    let server = Server::new(&[broken.clone(), keys(&[signer.jwk("1")]), broken]).await;
    let verifier = server.verifier(AT_A_WISH);
    let good = claims(&json!({}));
    let token = signer.token(&json!({"alg": "ES256", "kid": "1"}), &good);
    let unknown = signer.token(&json!({"alg": "ES256", "kid": "2"}), &good);
    let failed = "the issuer's keys cannot be had: the answer is 503";
    assert_eq!(judge(&verifier, &unknown).await, failed);
    assert_eq!(judge(&verifier, &token).await, "proved");
    // A key that is not known may be a new one: not known is no.
    assert_eq!(judge(&verifier, &unknown).await, failed);
    assert_eq!(judge(&verifier, &token).await, "proved");
    assert!(verifier.keys.current().keys.is_some());
}

const LONG: &str = match str::from_utf8(&[b'x'; 16 << 10]) {
    Ok(text) => text,
    Err(_) => "",
};

#[tokio::test]
async fn an_answer_that_is_no_key_set_is_a_failure_of_the_server() {
    let moved = "HTTP/1.1 302 Found\r\nLocation: https://localhost/keys\r\nContent-Length: 0\r\n\r\n";
    // Long parts: a busy machine sends them before the deadline.
    let endless_body = Act::Repeat("HTTP/1.1 200 OK\r\n\r\n", LONG);
    let endless_head = Act::Repeat("HTTP/1.1 200 OK\r\nX: ", LONG);
    let server = Server::new(&[Act::Hang]).await;
    for (act, expected) in [
        (
            Act::Send(moved.to_owned()),
            "the answer is 302: redirects are not followed, give the final URL",
        ),
        (
            Act::Send("HTTP/1.1 404 Not Found\r\n\r\n".to_owned()),
            "the answer is 404",
        ),
        (endless_body, "its answer has more than 1 MiB"),
        (endless_head, "message head is too large"),
        (Act::Send("SSH-2.0-x\r\n\r\n".to_owned()), "invalid HTTP version parsed"),
        (
            Act::Send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{".to_owned()),
            "end of file before message length reached",
        ),
    ] {
        server.then(act);
        let failure = server.failure().await;
        assert!(failure.contains(expected), "{failure}");
    }
}

// Time is stopped, and goes on by itself where everything waits.
#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_is_given_up_and_holds_up_no_token_whose_key_is_known() {
    let signer = Signer::p256();
    let server = Server::new(&[Act::Hang]).await;
    let failure = server.failure().await;
    assert_eq!(failure, "no whole answer within 5s");
    let verifier = server.verifier(AT_A_WISH);
    let token = signer.token(&json!({"alg": "ES256", "kid": "1"}), &claims(&json!({})));
    let failure = judge(&verifier, &token).await;
    assert!(failure.starts_with("the issuer's keys cannot be had: "), "{failure}");
}

#[tokio::test]
async fn only_a_certificate_of_the_authority_and_the_name_is_trusted() {
    let signer = Signer::p256();
    let (server, other) = (
        Server::new(&[keys(&[signer.jwk("1")])]).await,
        Server::new(&[keys(&[signer.jwk("1")])]).await,
    );
    for (url, ca) in [
        (server.url(), Some(other.ca())),
        (server.url(), None),
        (server.url().replace("localhost", "127.0.0.1"), Some(server.ca())),
    ] {
        let failure = endpoint(&url, ca).get(&ReadPool::default()).await.unwrap_err();
        assert!(failure.contains("certificate"), "{failure}");
    }
    let junk = server.folder.path().join("junk.pem");
    std::fs::write(&junk, "x").unwrap();
    for (ca, expected) in [
        (junk, "junk.pem: there is no certificate in it"),
        ("/none".into(), "/none: there is no such file"),
    ] {
        let failure = endpoint(&server.url(), Some(ca))
            .get(&ReadPool::default())
            .await
            .unwrap_err();
        assert!(failure.ends_with(expected), "{failure}");
    }
    assert_eq!(server.requests(), 0);
    let good = endpoint(&server.url(), Some(server.ca()));
    assert!(KeySet::parse(&good.get(&ReadPool::default()).await.unwrap()).is_ok());
}

#[tokio::test]
async fn a_server_in_clear_is_asked_at_loopback_only() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/keys", listener.local_addr().unwrap());
    let endpoint = endpoint(&url, None);
    let answer = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = [0; 1024];
        let read = stream.read(&mut head).await.unwrap();
        assert!(head[..read].starts_with(b"GET /keys HTTP/1.1\r\n"));
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            .await
            .unwrap();
        stream
    };
    let (got, _stream) = {
        let reads = ReadPool::default();
        tokio::join!(endpoint.get(&reads), answer)
    };
    assert_eq!(got.unwrap(), b"{}");
    for bad in [
        "http://10.0.0.1/keys",
        "http://localhost.example/",
        "http://[fe80::1]/",
        "http://0.0.0.0/",
        "https://x:/",
        "https://x:0/",
        "https://x:65536/",
    ] {
        assert!(bad.parse::<Jwks>().is_err(), "{bad}");
    }
    for good in ["http://localhost/", "http://127.0.0.2:8080", "http://[::1]:80/keys"] {
        assert!(matches!(good.parse(), Ok(Jwks::Url(_))), "{good}");
    }
}
