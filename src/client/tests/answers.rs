//! The proxy's answers: refusals, interim answers, and bytes that are not an answer.

use super::*;

#[tokio::test]
async fn a_refusal_is_reported_in_the_proxys_words_and_stdout_stays_empty() {
    let proxy = Proxy::bind().await;
    let mut session = Session::start(proxy.http());
    let _stream = proxy
        .answer(b"HTTP/1.1 403 no such target\r\nConnection: close\r\n\r\n")
        .await;
    assert_eq!(read_all(&mut session.stdout).await, b"");
    let error = session.end().await.unwrap_err();
    assert_eq!(error.exit_code(), 1);
    assert_eq!(error.to_string(), "the proxy answered 403: no such target");
}

/// The answer of nghttpx 1.52 in front of a proxy, and those of other hops that write phrases of their own.
#[tokio::test]
async fn the_reason_of_a_refusal_behind_a_hop_is_that_of_proxy_status_or_of_the_text() {
    for fields in [
        "Content-Type: text/plain\r\nContent-Length: 35\r\nProxy-Status: switchboard; error=http_request_denied; \
         details=\"the target is not on the allowlist\"\r\nVia: 2 hop\r\n\r\nthe target is not on the allowlist\n",
        "Proxy-Status: hop\r\nProxy-Status: switchboard; details=\"the target is not on the allowlist\", hop\r\n\r\n",
        "Content-Type: text/plain; charset=utf-8\r\nProxy-Status: hop\r\n\r\nthe target is not on the allowlist\n",
    ] {
        let proxy = Proxy::bind().await;
        let session = Session::start(proxy.http());
        drop(
            proxy
                .answer(format!("HTTP/1.1 403 Forbidden\r\n{fields}").as_bytes())
                .await,
        );
        assert_eq!(
            session.failure().await,
            "the proxy answered 403: the target is not on the allowlist"
        );
    }
}

#[tokio::test]
async fn a_refusal_without_a_phrase_waits_for_the_text_behind_it() {
    let proxy = Proxy::bind().await;
    let session = Session::start(proxy.http());
    let mut stream = proxy.answer(b"HTTP/1.1 503 \r\nContent-Type: text/plain\r\n\r\n").await;
    stream
        .write_all(b"no ready \x1b]0;pwned\x07endpoint\r\nmore")
        .await
        .unwrap();
    assert_eq!(
        session.failure().await,
        "the proxy answered 503: no ready ]0;pwnedendpoint"
    );
}

#[tokio::test]
async fn a_refusal_without_text_is_reported_by_its_status() {
    let proxy = Proxy::bind().await;
    let session = Session::start(proxy.http());
    drop(proxy.answer(b"HTTP/1.1 403\r\n\r\n").await);
    assert_eq!(session.failure().await, "the proxy answered 403");
}

#[tokio::test]
async fn a_web_server_is_no_connect_proxy_and_a_proxy_that_says_it_is_one_is() {
    for (head, is_proxy) in [
        (&b"HTTP/1.1 404 Not Found\r\n\r\n"[..], false),
        (b"HTTP/1.1 405 Not Allowed\r\n\r\n", false),
        (b"HTTP/1.0 501 Unsupported method\r\n\r\n", false),
        (b"HTTP/1.1 404 Not Found\r\nProxy-Status: other\r\n\r\n", true),
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", true),
    ] {
        let proxy = Proxy::bind().await;
        let session = Session::start(proxy.http());
        drop(proxy.answer(head).await);
        let line = session.failure().await;
        assert_eq!(!line.contains("(this is not a CONNECT proxy"), is_proxy, "{line}");
        assert!(line.starts_with("the proxy answered "), "{line}");
    }
}

#[tokio::test]
async fn a_failure_has_the_name_that_was_asked_for_once() {
    let proxy = Proxy::bind().await;
    for (head, expected) in [
        (
            &b"HTTP/1.1 503 no ready endpoint\r\n\r\n"[..],
            "svc-a.ns:22: the proxy answered 503: no ready endpoint",
        ),
        (
            b"HTTP/1.1 403 svc-a.ns:22 is not allowed\r\n\r\n",
            "the proxy answered 403: svc-a.ns:22 is not allowed",
        ),
    ] {
        let session = Session::start(proxy.http());
        drop(proxy.answer(head).await);
        let error = session.end().await.unwrap_err();
        assert_eq!(connect::sentence(&proxy.http(), &error), expected);
    }
    let options = Options {
        target: "part of a password".to_owned(),
        ..proxy.http()
    };
    let error = Session::start(options.clone()).end().await.unwrap_err();
    assert!(!connect::sentence(&options, &error).contains("password"));
}

#[tokio::test]
async fn bytes_in_one_segment_with_the_head_come_first() {
    let proxy = Proxy::bind().await;
    let mut session = Session::start(proxy.http());
    let mut stream = proxy.answer(&[ACCEPT, b"SSH-2.0-x\r\n"].concat()).await;
    assert_eq!(&read_exactly::<11>(&mut session.stdout).await, b"SSH-2.0-x\r\n");
    stream.write_all(b"more").await.unwrap();
    assert_eq!(&read_exactly::<4>(&mut session.stdout).await, b"more");
}

#[tokio::test]
async fn a_head_in_single_bytes_after_interim_answers_opens_the_tunnel() {
    let proxy = Proxy::bind().await;
    let mut session = Session::start(proxy.http());
    let mut stream = proxy
        .answer(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n")
        .await;
    for byte in ACCEPT.iter().chain(b"early") {
        stream.write_all(&[*byte]).await.unwrap();
    }
    assert_eq!(&read_exactly::<5>(&mut session.stdout).await, b"early");
}

/// Sends these bytes again and again in place of an answer, until the client has left, and returns what it says.
async fn flooded_by(bytes: &[u8]) -> String {
    let proxy = Proxy::bind().await;
    let session = Session::start(proxy.http());
    let mut stream = proxy.answer(b"").await;
    // The sockets hold some MiB more than the client takes.
    let mut sent = 0;
    while stream.write_all(bytes).await.is_ok() {
        sent += bytes.len();
        assert!(sent < 64 << 20, "the client has taken {sent} bytes");
    }
    session.failure().await
}

#[tokio::test]
async fn interim_answers_without_end_are_an_error() {
    let endless = "the proxy sends interim answers (1xx) without end";
    for head in [
        "HTTP/1.1 100\r\n\r\n".to_owned(),
        "HTTP/1.1 103 Early Hints\r\nLink: </>; rel=preload\r\n\r\n".to_owned(),
        format!("HTTP/1.1 199 x\r\nX: {}\r\n\r\n", "y".repeat(10_000)),
    ] {
        assert_eq!(flooded_by(head.repeat(100_000 / head.len()).as_bytes()).await, endless);
    }
    // Without an end of the head it is one that is too long.
    let line = flooded_by("HTTP/1.1 100 Continue\r\n".as_bytes()).await;
    assert!(line.contains("is not HTTP") || line.contains("too long"), "{line}");
}

#[tokio::test]
async fn interim_answers_of_64_kib_are_skipped_and_one_more_is_not() {
    // 27 bytes each.
    for (interim, opens) in [(2_427, true), (2_428, false)] {
        let proxy = Proxy::bind().await;
        let mut session = Session::start(proxy.http());
        let head = [&b"HTTP/1.1 102 Processing\r\n\r\n".repeat(interim), ACCEPT, b"hello"].concat();
        let _stream = proxy.answer(&head).await;
        if opens {
            assert_eq!(&read_exactly::<5>(&mut session.stdout).await, b"hello");
        } else {
            assert_eq!(
                session.failure().await,
                "the proxy sends interim answers (1xx) without end"
            );
        }
    }
}

#[tokio::test]
async fn bytes_that_are_no_answer_are_reported_by_name() {
    for (answer, expected) in [
        (&b""[..], "the proxy closed the connection without an answer"),
        (
            b"HTTP/1.1 200 OK\r\n",
            "the proxy closed the connection in the middle of its answer",
        ),
        (
            b"SSH-2.0-OpenSSH\r\n",
            "the proxy's answer is not HTTP: are the scheme, the address and the port of its URL right?",
        ),
        (
            &[b'a'; 20_000],
            "the proxy's answer is not HTTP: are the scheme, the address and the port of its URL right?",
        ),
        (
            &[b"HTTP/1.1 200 OK\r\nX: ", &[b'a'; 20_000][..]].concat(),
            "the head of the proxy's answer is too long",
        ),
    ] {
        let proxy = Proxy::bind().await;
        let session = Session::start(proxy.http());
        let mut stream = proxy.answer(answer).await;
        stream.shutdown().await.unwrap();
        assert_eq!(session.failure().await, expected);
    }
}

#[tokio::test]
async fn a_silent_proxy_is_reported_with_the_step_that_timed_out() {
    let proxy = Proxy::bind().await;
    let identity = Server::named("127.0.0.1");
    for (options, step) in [
        (proxy.http(), "the proxy's answer"),
        (identity.options(&proxy), "the TLS handshake with the proxy"),
    ] {
        let mut options = options;
        options.uplink.timeout = Duration::from_millis(50);
        let session = Session::start(options);
        let _stream = proxy.accept().await;
        assert_eq!(session.failure().await, format!("{step} took longer than 50ms"));
    }
}

#[tokio::test]
async fn a_timeout_beyond_the_range_of_the_clock_does_not_panic() {
    let proxy = Proxy::bind().await;
    let mut options = proxy.http();
    options.uplink.timeout = Duration::MAX;
    let session = Session::start(options);
    drop(proxy.answer(b"HTTP/1.1 403\r\n\r\n").await);
    assert_eq!(session.failure().await, "the proxy answered 403");
}

#[tokio::test]
async fn a_target_that_is_starting_is_asked_for_again_without_any_option() {
    let proxy = Proxy::bind().await;
    let mut session = Session::start(proxy.http());
    let starting =
        b"HTTP/1.1 503 ns/svc-a is starting, try again in 30 s\r\nRetry-After: 30\r\nSwitchboard-Starting: 80\r\n\r\n";
    let began = Instant::now();
    for _ in 0..2 {
        drop(proxy.answer(starting).await);
    }
    let mut stream = proxy.answer(ACCEPT).await;
    assert!(began.elapsed() < Duration::from_secs(20), "not after Retry-After");
    stream.write_all(b"SSH-2.0-x\r\n").await.unwrap();
    let mut line = [0; 11];
    within(session.stdout.read_exact(&mut line)).await.unwrap();
    assert_eq!(&line, b"SSH-2.0-x\r\n");
    drop((stream, session));
    // The last answer ends the wait, whatever it is.
    let session = Session::start(proxy.http());
    drop(proxy.answer(starting).await);
    drop(
        proxy
            .answer(b"HTTP/1.1 503 no ready endpoint\r\nRetry-After: 1\r\n\r\n")
            .await,
    );
    assert_eq!(
        session.failure().await,
        "the proxy answered 503: no ready endpoint (retry after 1s)"
    );
}
