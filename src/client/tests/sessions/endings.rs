//! How a session ends.

use super::*;

#[tokio::test]
async fn each_end_of_the_anchor_has_a_sentence_and_bytes_come_first() {
    for (end, expected) in [
        (
            EndReason::Reset,
            "the SSH server has reset its connection to the anchor: bytes may be missing",
        ),
        (
            EndReason::Stopping,
            "the session is lost: the anchor beside the SSH server was stopped",
        ),
        (
            EndReason::Memory,
            "the session is lost: the anchor needed its memory for others",
        ),
        (
            EndReason::Expired,
            "the session is lost: it was without a connection for longer than the anchor keeps it",
        ),
        (EndReason::OutOfSync, "the session is lost: bytes would be missing"),
        (EndReason::Unknown(200), "the anchor has ended the session (code 200)"),
    ] {
        let mut rig = Rig::new().await;
        let mut session = rig.start();
        let (_path, mut beside) = rig.begun(&mut session).await;
        beside.sshd.write_all(b"the ending").await.unwrap();
        expect(&mut session.stdout, b"the ending").await;
        beside.orders.send(Order::End(end)).unwrap();
        let error = session.end().await.unwrap_err();
        assert_eq!((chain(&error).as_str(), error.exit_code()), (expected, 1));
        assert_eq!(within(beside.ended).await.unwrap(), Some(end));
    }
}

#[tokio::test]
async fn what_came_before_an_end_is_passed_on_to_an_ssh_that_is_slow() {
    let mut rig = Rig::new().await;
    let mut session = rig.start();
    let (_path, mut beside) = rig.begun(&mut session).await;
    // More than a pipe holds. The client has all of it, and the end, long before ssh reads on.
    let sent = pattern(3, 600_000);
    beside.sshd.write_all(&sent).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    beside.orders.send(Order::End(EndReason::Reset)).unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let mut received = vec![0; sent.len()];
    within(session.stdout.read_exact(&mut received)).await.unwrap();
    assert!(received == sent);
    let line = session.failure().await;
    assert!(line.starts_with("the SSH server has reset its connection"), "{line}");
}

#[tokio::test]
async fn a_session_that_its_anchor_does_not_have_is_lost() {
    let mut rig = Rig::new().await;
    let mut session = rig.start();
    let (path, _beside) = rig.begun(&mut session).await;
    rig.anchor.forget();
    path.cut().await;
    let _path = rig.path().await;
    let line = session.failure().await;
    assert_eq!(line, "the session is lost: the anchor does not have it any more");

    // Another process at its address.
    let mut session = rig.start();
    let (path, _beside) = rig.begun(&mut session).await;
    rig.anchor = Anchor::new().0;
    path.cut().await;
    let _path = rig.path().await;
    let line = session.failure().await;
    assert_eq!(
        line,
        "the session is lost: the anchor beside the SSH server was restarted"
    );
}

#[tokio::test]
async fn a_session_whose_anchor_has_become_a_plain_server_is_lost() {
    let mut rig = Rig::new().await;
    let mut session = rig.start();
    let (path, _beside) = rig.begun(&mut session).await;
    path.cut().await;
    let mut stream = rig.proxy.answer(ACCEPT).await;
    stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").await.unwrap();
    let line = session.failure().await;
    assert_eq!(
        line,
        "the session is lost: there is no anchor beside the SSH server any more"
    );
}

#[tokio::test]
async fn a_session_that_another_process_carries_is_lost() {
    let mut rig = Rig::new().await;
    let mut session = rig.start();
    let (_path, beside) = rig.begun(&mut session).await;
    beside.orders.send(Order::Leave(DetachReason::Displaced)).unwrap();
    let line = session.failure().await;
    assert_eq!(
        line,
        "the session is lost: another process has its keys, and carries it"
    );
}

#[tokio::test]
async fn a_reader_of_stdout_that_has_left_ends_the_session_at_the_anchor() {
    let mut rig = Rig::new().await;
    let mut session = rig.start();
    let (_path, mut beside) = rig.begun(&mut session).await;
    let (_stdin, stdout, ended) = session.parts();
    drop(stdout);
    beside.sshd.write_all(b"unread").await.unwrap();
    within(ended).await.unwrap().unwrap();
    assert_eq!(within(beside.ended).await.unwrap(), Some(EndReason::ProgramExited));
}

#[tokio::test]
async fn a_reader_of_stdout_that_leaves_while_there_is_no_connection_ends_the_client() {
    static IS_GONE: AtomicU64 = AtomicU64::new(0);
    let mut rig = Rig::new().await;
    let options = rig.options(rig.proxy.http());
    let (stdin, theirs_in) = tokio::io::duplex(64 * 1024);
    let (stdout, theirs_out) = tokio::io::duplex(64 * 1024);
    let mut local = Stdio {
        stdin: theirs_in,
        stdout: theirs_out,
        interactive: false,
        ends_with_target: false,
        is_abandoned: Some(|_| IS_GONE.load(Ordering::Relaxed) > 0),
    };
    let ended = tokio::spawn(async move { run(&options, &mut local).await });
    let mut session = Session { stdin, stdout, ended };
    let (path, beside) = rig.begun(&mut session).await;
    path.cut().await;
    for _ in 0..4 {
        drop(rig.proxy.answer(b"HTTP/1.1 503 busy\r\nRetry-After: 1\r\n\r\n").await);
    }
    drop(rig.proxy.answer(b"HTTP/1.1 503 busy\r\nRetry-After: 60\r\n\r\n").await);
    IS_GONE.store(1, Ordering::Relaxed);
    // It is told at once, and not after the pause.
    let _path = rig.path().await;
    session.end().await.unwrap();
    assert_eq!(within(beside.ended).await.unwrap(), Some(EndReason::ProgramExited));
}

#[tokio::test]
async fn the_end_of_stdin_without_a_connection_is_passed_on_by_the_next() {
    let mut rig = Rig::new().await;
    let mut session = rig.start();
    let (path, beside) = rig.begun(&mut session).await;
    path.cut().await;
    let (stdin, stdout, ended) = session.parts();
    drop(stdin);
    let _path = rig.path().await;
    let (empty, _) = tokio::io::duplex(1);
    log_out(
        Session {
            stdin: empty,
            stdout,
            ended,
        },
        beside,
    )
    .await;
}

/// Returns a session with that ssh, whose signals are sent here.
fn signalled(
    options: Options,
    is_abandoned: Option<fn(&DuplexStream) -> bool>,
) -> (Session, tokio::sync::watch::Sender<ExitRequest>) {
    let (stdin, theirs_in) = tokio::io::duplex(64 * 1024);
    let (stdout, theirs_out) = tokio::io::duplex(64 * 1024);
    let mut local = Stdio {
        stdin: theirs_in,
        stdout: theirs_out,
        interactive: false,
        ends_with_target: false,
        is_abandoned,
    };
    let (ask, exit) = tokio::sync::watch::channel(ExitRequest::No);
    let ended = tokio::spawn(async move {
        Box::pin(connect::run::run(
            &options,
            &mut local,
            ExitSignals(exit),
            &mut connect::run::ProxyAccess::default(),
        ))
        .await
    });
    (Session { stdin, stdout, ended }, ask)
}

#[tokio::test]
async fn a_signal_ends_the_session_at_the_anchor() {
    for leaving in [ExitRequest::Graceful, ExitRequest::Immediate] {
        let mut rig = Rig::new().await;
        let (mut session, ask) = signalled(rig.options(rig.proxy.http()), None);
        let (_path, beside) = rig.begun(&mut session).await;
        ask.send_replace(leaving);
        session.end().await.unwrap();
        assert_eq!(within(beside.ended).await.unwrap(), Some(EndReason::ProgramExited));
        assert_eq!(*rig.output.lock(), [""; 0], "{leaving:?}");
    }
}

#[tokio::test]
async fn ssh_that_leaves_during_an_outage_ends_the_session_without_a_further_line() {
    static IS_GONE: AtomicU64 = AtomicU64::new(0);
    fn is_gone(_: &DuplexStream) -> bool {
        IS_GONE.load(Ordering::Relaxed) > 0
    }
    for leaving in [Some(ExitRequest::Graceful), Some(ExitRequest::Immediate), None] {
        let mut rig = Rig::new().await;
        let options = rig.options(rig.proxy.http());
        let is_abandoned: Option<fn(&DuplexStream) -> bool> = match leaving {
            None => Some(is_gone),
            Some(_) => None,
        };
        let (mut session, ask) = signalled(options, is_abandoned);
        let (path, _beside) = rig.begun(&mut session).await;
        let Rig { proxy, output, .. } = rig;
        let _port = proxy.close();
        path.cut().await;
        remark(&output, "reconnecting to 127.0.0.1: ").await;
        match leaving {
            Some(leaving) => _ = ask.send_replace(leaving),
            None => IS_GONE.store(1, Ordering::Relaxed),
        }
        session.end().await.unwrap();
        assert_eq!(output.lock().len(), 1, "{leaving:?}");
    }
}
