//! A proxy that answers 407: fresh credentials once, and no more.

use super::*;

/// A command that prints another token each time: `token-1`, `token-2`.
const ANOTHER: &str = "echo token-$(wc -l < runs | tr -d ' ')";

async fn refuse(proxy: &Proxy, phrase: &str) -> Option<String> {
    let mut stream = proxy.accept().await;
    let shown = authorization(&mut stream).await;
    let answer = format!("HTTP/1.1 407 {phrase}\r\nConnection: close\r\n\r\n");
    stream.write_all(answer.as_bytes()).await.unwrap();
    shown
}

#[tokio::test]
async fn a_407_is_answered_by_a_fresh_token_on_a_new_connection() {
    let (home, proxy) = (Home::new(), Proxy::bind().await);
    let mut session = Session::start(home.tunnel(home.command(ANOTHER), proxy.http()));
    assert_eq!(refuse(&proxy, "the token has expired").await.unwrap(), "Bearer token-1");
    let mut stream = proxy.accept().await;
    assert_eq!(authorization(&mut stream).await.unwrap(), "Bearer token-2");
    stream.write_all(&[ACCEPT, b"hello"].concat()).await.unwrap();
    assert_eq!(&read_exactly::<5>(&mut session.stdout).await, b"hello");
    assert_eq!(home.runs(), 2);
}

#[tokio::test]
async fn the_second_407_is_reported_in_the_proxys_words() {
    let (home, proxy) = (Home::new(), Proxy::bind().await);
    let session = Session::start(home.tunnel(home.command(ANOTHER), proxy.http()));
    refuse(&proxy, "first").await;
    refuse(&proxy, "the token is for another audience").await;
    let error = session.end().await.unwrap_err();
    assert_eq!(
        (chain(&error).as_str(), error.exit_code()),
        ("the proxy answered 407: the token is for another audience", 1)
    );
    assert_eq!(home.runs(), 2);
}

#[tokio::test]
async fn a_token_that_the_proxy_quotes_is_not_shown() {
    let home = Home::new();
    let token = jwt(&json!({"sub": "alice", "exp": 4_000_000_000_u64}));
    for (source, quoted) in [
        (Source::Token("s3cret".to_owned().into()), "s3cret"),
        (Source::Token(token.clone().into()), &*token),
        (Source::Token(token.clone().into()), &token[10..30]),
        (
            home.kubeconfig(&json!({"username": "bob", "password": "s3cret"})),
            "Ym9iOnMzY3JldA==",
        ),
    ] {
        let proxy = Proxy::bind().await;
        let session = Session::start(home.tunnel(source, proxy.http()));
        refuse(&proxy, &format!("bad token {quoted}, sent by alice")).await;
        assert_eq!(
            session.failure().await,
            "the proxy answered 407: bad token …, sent by alice"
        );
    }
}

#[tokio::test]
async fn the_same_token_is_not_sent_twice() {
    let home = Home::new();
    for source in [
        Source::Token("s3cret".to_owned().into()),
        Source::TokenFile(home.write("token", "s3cret")),
        home.kubeconfig(&json!({"token": "s3cret"})),
        home.command("echo s3cret"),
    ] {
        let proxy = Proxy::bind().await;
        let session = Session::start(home.tunnel(source, proxy.http()));
        assert_eq!(refuse(&proxy, "no").await.unwrap(), "Bearer s3cret");
        assert_eq!(session.failure().await, "the proxy answered 407: no");
    }
}

#[tokio::test]
async fn a_file_is_read_again() {
    let (home, proxy) = (Home::new(), Proxy::bind().await);
    let path = home.write("token", "old");
    let mut session = Session::start(home.tunnel(Source::TokenFile(path), proxy.http()));
    let mut stream = proxy.accept().await;
    assert_eq!(authorization(&mut stream).await.unwrap(), "Bearer old");
    home.write("token", "new");
    stream.write_all(b"HTTP/1.1 407 expired\r\n\r\n").await.unwrap();
    let mut stream = proxy.accept().await;
    assert_eq!(authorization(&mut stream).await.unwrap(), "Bearer new");
    stream.write_all(&[ACCEPT, b"hello"].concat()).await.unwrap();
    assert_eq!(&read_exactly::<5>(&mut session.stdout).await, b"hello");
}

#[tokio::test]
async fn a_407_without_a_source_says_how_to_give_one() {
    let proxy = Proxy::bind().await;
    let session = Session::start(proxy.http());
    assert_eq!(refuse(&proxy, "credentials are required").await, None);
    let error = session.end().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the proxy answered 407: credentials are required (give credentials: --kubeconfig, --context, --token-file, \
         --token-command or SWITCHBOARD_TOKEN)"
    );
    // Those of the URL are credentials, and stay as they are.
    let session = Session::start(proxy.options("http", "user:wrong@"));
    assert!(refuse(&proxy, "wrong password").await.unwrap().starts_with("Basic "));
    assert_eq!(session.failure().await, "the proxy answered 407: wrong password");
}

#[tokio::test]
async fn the_files_of_a_kubeconfig_are_read_each_time_and_its_context_once() {
    let home = Home::new();
    let token = home.write("token", "first");
    let source = home.kubeconfig(&json!({"tokenFile": token}));
    let Source::Context {
        files: Files::One(file),
        ..
    } = &source
    else {
        panic!("{source:?}")
    };
    let options = home.options(source.clone());
    let mut login = uplink::credential_cache::CachedLogin::default();
    assert_eq!(field(&login.credentials(&options).await.unwrap()), "Bearer first");
    home.write("token", "second");
    assert_eq!(field(&login.credentials(&options).await.unwrap()), "Bearer second");
    // As `kubectl config use-context` does.
    let text = fs::read_to_string(file).unwrap();
    let other = text.replace(r#""current-context":"team""#, r#""current-context":"other""#);
    assert_ne!(other, text);
    fs::write(file, other).unwrap();
    assert_eq!(field(&login.credentials(&options).await.unwrap()), "Bearer second");
    assert!(login_anew(&options).await.is_err());
}

async fn login_anew(options: &credentials::Options) -> anyhow::Result<Credentials> {
    uplink::credential_cache::CachedLogin::default()
        .credentials(options)
        .await
}
