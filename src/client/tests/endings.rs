//! The end of each side, as the other side receives it.

use super::*;

#[tokio::test]
async fn the_end_of_stdin_becomes_a_fin_and_the_answer_still_arrives() {
    let proxy = Proxy::bind().await;
    let (mut stdin, mut stdout, ended) = Session::start(proxy.http()).parts();
    let mut stream = proxy.answer(ACCEPT).await;
    let (question, reply) = (pattern(1, 300_000), pattern(2, 3_000_000));
    let (received, ()) = tokio::join!(read_all(&mut stream), async {
        stdin.write_all(&question).await.unwrap();
        drop(stdin);
    });
    assert!(received == question);
    let (received, ()) = tokio::join!(read_all(&mut stdout), async {
        stream.write_all(&reply).await.unwrap();
        drop(stream);
    });
    assert!(received == reply);
    within(ended).await.unwrap().unwrap();
}

#[tokio::test]
async fn the_proxys_end_closes_stdout_and_stdin_is_still_carried_to_its_end() {
    let proxy = Proxy::bind().await;
    let (mut stdin, mut stdout, ended) = Session::start(proxy.http()).parts();
    let mut stream = proxy.answer(ACCEPT).await;
    stream.write_all(b"the ending").await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(read_all(&mut stdout).await, b"the ending");
    let late = pattern(3, 2_000_000);
    let (received, ()) = tokio::join!(read_all(&mut stream), async {
        stdin.write_all(&late).await.unwrap();
        drop(stdin);
    });
    assert!(received == late);
    within(ended).await.unwrap().unwrap();
}

#[tokio::test]
async fn the_proxys_end_ends_an_interactive_client() {
    let proxy = Proxy::bind().await;
    let mut session = Session::start_with(proxy.http(), true);
    let mut stream = proxy.answer(ACCEPT).await;
    stream.write_all(b"bye").await.unwrap();
    drop(stream);
    assert_eq!(read_all(&mut session.stdout).await, b"bye");
    session.end().await.unwrap();
}

#[tokio::test]
async fn a_reset_is_an_error_after_the_bytes_before_it() {
    let proxy = Proxy::bind().await;
    let mut session = Session::start(proxy.http());
    let mut stream = proxy.answer(ACCEPT).await;
    stream.write_all(b"before").await.unwrap();
    assert_eq!(&read_exactly::<6>(&mut session.stdout).await, b"before");
    reset(stream);
    let error = session.end().await.unwrap_err();
    let line = chain(&error);
    assert!(
        line.starts_with("the connection was reset: ") && line.contains("Connection reset"),
        "{line}"
    );
    assert_eq!(error.exit_code(), 1);
}

#[tokio::test]
async fn bytes_that_a_finished_proxy_no_longer_takes_are_an_error_at_once() {
    let proxy = Proxy::bind().await;
    let (mut stdin, mut stdout, ended) = Session::start(proxy.http()).parts();
    let mut stream = proxy.answer(ACCEPT).await;
    stream.shutdown().await.unwrap();
    assert_eq!(read_all(&mut stdout).await, b"");
    reset(stream);
    // stdin never ends: only the failed write can stop the client.
    let typing = async { while stdin.write_all(&[0; 4096]).await.is_ok() {} };
    let (ended, ()) = within(async { tokio::join!(ended, typing) }).await;
    let line = chain(&ended.unwrap().unwrap_err());
    assert!(
        line.starts_with("the connection to the proxy was lost: ") || line.starts_with("the connection was reset: "),
        "{line}"
    );
}

#[tokio::test]
async fn a_closed_stdout_ends_the_client_without_an_error() {
    let proxy = Proxy::bind().await;
    let (_stdin, stdout, ended) = Session::start(proxy.http()).parts();
    let mut stream = proxy.answer(ACCEPT).await;
    drop(stdout);
    stream.write_all(b"unread").await.unwrap();
    within(ended).await.unwrap().unwrap();
}
