//! An `https://` proxy: its certificate, and the end of either side.

use super::*;
use std::time::SystemTime;

#[tokio::test]
async fn eight_mebibytes_both_ways_at_once_are_exact_under_tls() {
    let proxy = Proxy::bind().await;
    let identity = Server::named("127.0.0.1");
    let session = Session::start(identity.options(&proxy));
    exchange(session, identity.answer(&proxy, ACCEPT).await).await;
}

#[tokio::test]
async fn the_name_of_the_certificate_must_be_the_host_of_the_url() {
    let proxy = Proxy::bind().await;
    let identity = Server::named("localhost");
    let mut options = identity.options(&proxy);
    options.uplink.proxy = format!("https://localhost:{}", options.uplink.proxy.port())
        .parse()
        .unwrap();
    let mut session = Session::start(options);
    let _stream = identity.answer(&proxy, &[ACCEPT, b"hello"].concat()).await;
    assert_eq!(&read_exactly::<5>(&mut session.stdout).await, b"hello");
}

#[tokio::test]
async fn a_proxy_of_an_unknown_authority_or_a_wrong_name_receives_no_request() {
    let proxy = Proxy::bind().await;
    let own = Server::named("127.0.0.1");
    let misnamed = Server::named("other.example");
    for (server, trusted, expected) in [
        (
            &Server::issued_by("stranger", "127.0.0.1"),
            &own,
            "the proxy is not trusted: its certificate is signed by \"CN=stranger\", which is not among the certificates of \
             --ca",
        ),
        (&Server::named("127.0.0.1"), &own, "BadSignature"),
        (
            &misnamed,
            &misnamed,
            "the proxy is not trusted: certificate not valid for name \"127.0.0.1\"; certificate is only valid for \
             DnsName(\"other.example\") (--server-name sets the name that it must have)",
        ),
    ] {
        let options = trusted.options(&proxy);
        let session = Session::start(options);
        let stream = proxy.accept().await;
        assert!(within(server.acceptor.accept(stream)).await.is_err());
        let line = session.failure().await;
        assert!(line.contains(expected), "{line}");
    }
}

type Change = fn(&mut rcgen::CertificateParams);

#[tokio::test]
async fn a_certificate_that_is_itself_in_the_file_needs_no_authority_and_nothing_less_than_others() {
    let proxy = Proxy::bind().await;
    let now = SystemTime::now();
    let (hour, day) = (Duration::from_secs(3600), Duration::from_secs(86_400));
    // As `openssl req -x509` makes them.
    let authority: Change = |parameters| parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let plain: Change = |_| {};
    let for_clients: Change = |parameters| {
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        parameters.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    };
    for (name, change, (from, to), expected) in [
        ("127.0.0.1", authority, (now - day, now + day), None),
        ("127.0.0.1", plain, (now - day, now + day), None),
        (
            "127.0.0.1",
            authority,
            (now - day, now - hour),
            Some("the proxy is not trusted: certificate expired: "),
        ),
        (
            "127.0.0.1",
            authority,
            (now + hour, now + day),
            Some("the proxy is not trusted: certificate not valid yet: "),
        ),
        (
            "other.example",
            authority,
            (now - day, now + day),
            Some("certificate not valid for name \"127.0.0.1\""),
        ),
        (
            "127.0.0.1",
            for_clients,
            (now - day, now + day),
            Some("the proxy is not trusted: its certificate is not for servers (extended key usage)"),
        ),
    ] {
        let server = Server::with_parameters("own", name, |parameters| {
            (parameters.not_before, parameters.not_after) = (from.into(), to.into());
            change(parameters);
        });
        let mut session = Session::start(server.options(&proxy));
        let stream = proxy.accept().await;
        let accepted = within(server.acceptor.accept(stream)).await;
        let Some(expected) = expected else {
            let mut stream = accepted.unwrap();
            read_request(&mut stream).await;
            stream.write_all(&[ACCEPT, b"hello"].concat()).await.unwrap();
            stream.flush().await.unwrap();
            assert_eq!(&read_exactly::<5>(&mut session.stdout).await, b"hello");
            continue;
        };
        let line = session.failure().await;
        assert!(accepted.is_err() && line.contains(expected), "{expected}: {line}");
    }
}

#[tokio::test]
async fn a_certificate_with_the_same_names_as_one_in_the_file_is_another_one() {
    let proxy = Proxy::bind().await;
    let authority: Change = |parameters| parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let (listed, other) = (
        Server::with_parameters("own", "127.0.0.1", authority),
        Server::with_parameters("own", "127.0.0.1", authority),
    );
    let session = Session::start(listed.options(&proxy));
    assert!(within(other.acceptor.accept(proxy.accept().await)).await.is_err());
    let line = session.failure().await;
    assert!(line.contains("is signed by \"CN=own\", which is not among"), "{line}");
    let unrelated = Server::named("127.0.0.1");
    let session = Session::start(unrelated.options(&proxy));
    assert!(within(other.acceptor.accept(proxy.accept().await)).await.is_err());
    let line = session.failure().await;
    assert!(line.contains("is signed by \"CN=own\", which is not among"), "{line}");
}

#[tokio::test]
async fn tls_on_one_side_only_is_reported_by_name() {
    let proxy = Proxy::bind().await;
    let identity = Server::named("127.0.0.1");
    let session = Session::start(proxy.http());
    assert!(within(identity.acceptor.accept(proxy.accept().await)).await.is_err());
    assert_eq!(
        session.failure().await,
        "the proxy's answer is not HTTP: are the scheme, the address and the port of its URL right?"
    );

    for answer in [
        "HTTP/1.1 400 Bad Request\r\n\r\n",
        "SSH-2.0-OpenSSH\r\n",
        "hello, I speak something else\r\n",
    ] {
        let session = Session::start(identity.options(&proxy));
        let mut stream = proxy.accept().await;
        stream.write_all(answer.as_bytes()).await.unwrap();
        let line = session.failure().await;
        let expected = "the TLS handshake with the proxy failed: is the port one of TLS?: ";
        assert!(line.starts_with(expected), "{line}");
    }
}

#[tokio::test]
async fn an_end_without_close_notify_is_in_order() {
    let proxy = Proxy::bind().await;
    let identity = Server::named("127.0.0.1");
    let (stdin, mut stdout, ended) = Session::start(identity.options(&proxy)).parts();
    let (mut tcp, _) = identity.answer(&proxy, &[ACCEPT, b"bye"].concat()).await.into_inner();
    tcp.shutdown().await.unwrap();
    assert_eq!(read_all(&mut stdout).await, b"bye");
    drop(stdin);
    within(ended).await.unwrap().unwrap();
}

#[tokio::test]
async fn under_tls_the_end_of_stdin_is_a_close_notify_and_the_answer_still_arrives() {
    let proxy = Proxy::bind().await;
    let identity = Server::named("127.0.0.1");
    let (mut stdin, mut stdout, ended) = Session::start(identity.options(&proxy)).parts();
    let mut stream = identity.answer(&proxy, ACCEPT).await;
    stdin.write_all(b"question").await.unwrap();
    drop(stdin);
    // Without a close_notify this would be an UnexpectedEof.
    assert_eq!(read_all(&mut stream).await, b"question");
    stream.write_all(b"answer").await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(read_all(&mut stdout).await, b"answer");
    within(ended).await.unwrap().unwrap();
}
