//! A proxy of the user's own network between the client and the proxy.

use super::*;

/// Options that lead to `proxy` through `forward`.
fn through(forward: &Proxy, userinfo: &str, mut options: Options) -> Options {
    let port = forward.listener.local_addr().unwrap().port();
    let variable = |name: &str| (name == "all_proxy").then(|| format!("{userinfo}127.0.0.1:{port}").into());
    options.uplink.forward = ForwardProxy::from_environment(&options.uplink.proxy, variable).unwrap();
    options
}

/// Connects the two sockets with each other, and returns what the first one has sent.
async fn relayed(mut from: TcpStream, proxy: &Proxy) -> JoinHandle<Vec<u8>> {
    let mut to = TcpStream::connect(proxy.listener.local_addr().unwrap()).await.unwrap();
    tokio::spawn(async move {
        let (mut from_read, mut from_write) = from.split();
        let (mut to_read, mut to_write) = to.split();
        let up = async {
            let (mut all, mut buffer) = (Vec::new(), [0; 4096]);
            while let Ok(length @ 1..) = from_read.read(&mut buffer).await {
                all.extend_from_slice(&buffer[..length]);
                if to_write.write_all(&buffer[..length]).await.is_err() {
                    break;
                }
            }
            to_write.shutdown().await.ok();
            all
        };
        let (all, _) = tokio::join!(up, tokio::io::copy(&mut to_read, &mut from_write));
        all
    })
}

#[tokio::test]
async fn the_tunnel_goes_through_the_other_proxy_which_sees_no_more_than_tls() {
    let (proxy, forward) = (Proxy::bind().await, Proxy::bind().await);
    let server = Server::named("127.0.0.1");
    let options = through(&forward, "user:p%40ss@", server.options(&proxy));
    let mut session = Session::start(options);
    let mut between = forward.accept().await;
    let port = proxy.listener.local_addr().unwrap().port();
    let request = read_request(&mut between).await;
    assert!(
        request.starts_with(&format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\n")),
        "{request}"
    );
    assert!(
        request.contains("\r\nProxy-Authorization: Basic dXNlcjpwQHNz\r\n"),
        "{request}"
    );
    between.write_all(ACCEPT).await.unwrap();
    let seen = relayed(between, &proxy).await;
    let stream = server.answer(&proxy, &[ACCEPT, b"hello"].concat()).await;
    assert_eq!(&read_exactly::<5>(&mut session.stdout).await, b"hello");
    drop((stream, session));
    let seen = within(seen).await.unwrap();
    let has = |text: &str| seen.windows(text.len()).any(|part| part == text.as_bytes());
    assert!(!seen.is_empty() && !has("CONNECT") && !has(TARGET));
}

#[tokio::test]
async fn what_the_other_proxy_says_is_told_with_its_variable_and_without_its_password() {
    let (proxy, forward) = (Proxy::bind().await, Proxy::bind().await);
    let (at, port) = (forward.listener.local_addr().unwrap(), proxy.http().uplink.proxy.port());
    for (answer, expected) in [
        (
            &b"HTTP/1.1 403 not to dXNlcjpzM2NyZXQ= there\r\n\r\n"[..],
            "the proxy answered 403: not to \u{2026} there",
        ),
        (
            b"HTTP/1.1 407 who are you\r\n\r\n",
            "the proxy answered 407: who are you",
        ),
        (
            b"HTTP/1.1 200 OK\r\n\r\nSSH-2.0-x\r\n",
            "the proxy's answer is not HTTP",
        ),
    ] {
        let session = Session::start(through(&forward, "user:s3cret@", proxy.http()));
        let _stream = forward.answer(answer).await;
        let line = session.failure().await;
        let start = format!("http://{at} of all_proxy in the environment does not reach the proxy at 127.0.0.1:{port}");
        assert!(line.starts_with(&start) && line.contains(expected), "{line}");
        assert!(!line.contains("s3cret"), "{line}");
    }
    let gone = through(&forward, "", proxy.http());
    let _port = forward.close();
    let line = Session::start(gone).failure().await;
    assert!(
        line.contains("the environment does not reach") && line.contains("Connection refused"),
        "{line}"
    );
}

#[tokio::test]
async fn a_token_leaves_the_host_by_the_other_proxy_only_where_that_is_allowed() {
    let (proxy, forward) = (Proxy::bind().await, Proxy::bind().await);
    let mut options = through(&forward, "", proxy.http());
    options.uplink.credentials.source = Some(credentials::Source::Token("a-token".to_owned().into()));
    let error = Session::start(options).end().await.unwrap_err();
    assert!(matches!(&error, ClientError::Cleartext), "{error:?}");
}
