//! The end of each side over HTTP/2, and how a broken tunnel is reported.

use super::*;

#[tokio::test]
async fn each_end_is_an_end_stream_and_leaves_the_other_direction_alone() {
    for client_first in [true, false] {
        let proxy = Http2Proxy::bind().await;
        let (mut stdin, mut stdout, ended) = proxy.start().parts();
        let mut tunnel = proxy.tunnel().await;
        if client_first {
            stdin.write_all(b"question").await.unwrap();
            drop(stdin);
            assert_eq!(all(&mut tunnel.receive).await, b"question");
            send_all(&mut tunnel.send, b"answer").await;
            tunnel.send.send_data(Bytes::new(), true).unwrap();
            assert_eq!(read_all(&mut stdout).await, b"answer");
        } else {
            send_all(&mut tunnel.send, b"last words").await;
            tunnel.send.send_data(Bytes::new(), true).unwrap();
            assert_eq!(read_all(&mut stdout).await, b"last words");
            stdin.write_all(b"still heard").await.unwrap();
            drop(stdin);
            assert_eq!(all(&mut tunnel.receive).await, b"still heard");
        }
        within(ended).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn the_tail_of_stdin_arrives_although_the_proxy_is_slow_and_has_finished() {
    let proxy = Http2Proxy::bind().await;
    let (mut stdin, mut stdout, ended) = proxy.start().parts();
    let mut tunnel = proxy.asked_with(Builder::new().initial_window_size(1000)).await.opens();
    tunnel.send.send_data(Bytes::new(), true).unwrap();
    assert_eq!(read_all(&mut stdout).await, b"");
    let late = pattern(7, 60_000);
    stdin.write_all(&late).await.unwrap();
    drop(stdin);
    assert!(all(&mut tunnel.receive).await == late);
    within(ended).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_reset_is_reported_by_its_code_after_the_bytes_before_it() {
    let proxy = Http2Proxy::bind().await;
    let mut session = proxy.start();
    let mut tunnel = proxy.tunnel().await;
    send_all(&mut tunnel.send, b"before").await;
    assert_eq!(&read_exactly::<6>(&mut session.stdout).await, b"before");
    tunnel.send.send_reset(Reason::CONNECT_ERROR);
    let error = session.end().await.unwrap_err();
    assert_eq!(error.exit_code(), 1);
    let line = chain(&error);
    assert!(
        line.starts_with("the proxy aborted the tunnel (CONNECT_ERROR): "),
        "{line}"
    );
}

#[tokio::test]
async fn a_reset_before_the_answer_is_reported_by_its_code() {
    let proxy = Http2Proxy::bind().await;
    let session = proxy.start();
    let mut asked = proxy.asked().await;
    asked.respond.send_reset(Reason::REFUSED_STREAM);
    let _connection = driven(asked.connection);
    let line = session.failure().await;
    assert!(
        line.starts_with("the proxy aborted the tunnel (REFUSED_STREAM): "),
        "{line}"
    );
}

#[tokio::test]
async fn a_goaway_lets_the_tunnel_finish() {
    let proxy = Http2Proxy::bind().await;
    let (stdin, mut stdout, ended) = proxy.start().parts();
    let mut asked = proxy.asked().await;
    let mut send = asked.respond.send_response(Response::new(()), false).unwrap();
    asked.connection.graceful_shutdown();
    let _connection = driven(asked.connection);
    send_all(&mut send, b"still here").await;
    assert_eq!(&read_exactly::<10>(&mut stdout).await, b"still here");
    send.send_data(Bytes::new(), true).unwrap();
    drop(stdin);
    within(ended).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_goaway_with_an_error_is_reported_as_the_cause() {
    let proxy = Http2Proxy::bind().await;
    // Error 11. With a last stream of 0 the tunnel is refused, with 1 the connection ends behind it.
    for last_stream in [0, 1] {
        let (session, mut stream) = proxy.scripted().await;
        let goaway = [b"\0\0\x0c\x07\0\0\0\0\0\0\0\0", &[last_stream][..], b"\0\0\0\x0bwhy?"].concat();
        stream.write_all(&goaway).await.unwrap();
        stream.shutdown().await.unwrap();
        let line = session.failure().await;
        assert!(
            line.starts_with("the proxy aborted the tunnel (ENHANCE_YOUR_CALM): "),
            "{line}"
        );
        assert!(line.ends_with("(b\"why?\")"), "{line}");
    }
}

#[tokio::test]
async fn a_connection_that_ends_without_the_streams_end_is_lost() {
    let proxy = Http2Proxy::bind().await;
    for close_notify in [true, false] {
        let (session, mut stream) = proxy.scripted().await;
        if close_notify {
            stream.shutdown().await.unwrap();
        } else {
            stream.get_mut().0.shutdown().await.unwrap();
        }
        assert_eq!(
            session.failure().await,
            "the connection to the proxy was lost: the proxy closed it before the tunnel's end"
        );
    }
}

#[tokio::test]
async fn bytes_that_are_no_answer_are_reported_by_name_over_http_2() {
    let proxy = Http2Proxy::bind().await;
    for (bytes, expected) in [
        (&b""[..], "the proxy closed the connection without an answer"),
        (SETTINGS, "the proxy closed the connection without an answer"),
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "the proxy's HTTP/2 is faulty (FRAME_SIZE_ERROR; --http1.1 avoids it): ",
        ),
        (
            // A response to a request that was never made.
            b"\0\0\0\x04\0\0\0\0\0\0\0\x01\x01\x04\0\0\0\x03\x88",
            "the proxy's HTTP/2 is faulty (PROTOCOL_ERROR; --http1.1 avoids it): ",
        ),
    ] {
        let session = proxy.start();
        let mut stream = proxy.accept().await;
        stream.write_all(bytes).await.unwrap();
        stream.shutdown().await.unwrap();
        let line = session.failure().await;
        assert!(line.starts_with(expected), "{line}");
    }
}

#[tokio::test]
async fn a_reset_connection_is_reported_in_the_systems_words() {
    let proxy = Http2Proxy::bind().await;
    let session = proxy.start();
    let stream = proxy.accept().await;
    reset(stream.into_inner().0);
    let line = session.failure().await;
    assert!(
        line.starts_with("the connection to the proxy was lost: Connection reset"),
        "{line}"
    );
}

#[tokio::test]
async fn a_closed_stdout_resets_the_stream_and_ends_the_client_without_an_error() {
    let proxy = Http2Proxy::bind().await;
    let (_stdin, stdout, ended) = proxy.start().parts();
    let mut tunnel = proxy.tunnel().await;
    drop(stdout);
    send_all(&mut tunnel.send, b"unread").await;
    within(ended).await.unwrap().unwrap();
    let reset = next(&mut tunnel.receive).await.unwrap().unwrap_err();
    assert_eq!(reset.reason(), Some(Reason::CANCEL));
    within(tunnel.connection).await.unwrap();
}
