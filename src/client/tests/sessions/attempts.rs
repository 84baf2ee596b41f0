//! How a session gets another tunnel.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_path_that_falls_silent_is_left_for_another() {
    let mut rig = Rig::new().await;
    let mut options = rig.options(rig.proxy.http());
    options.session.as_mut().unwrap().timing = Timing {
        quiet: Duration::from_millis(300),
        unacknowledged: Duration::from_millis(100),
        answer: Duration::from_millis(300),
    };
    let mut session = Session::start(options);
    let (path, mut beside) = rig.begun(&mut session).await;
    path.fall_silent();
    session.stdin.write_all(b"into the void").await.unwrap();
    let second = rig.path().await;
    expect(&mut beside.sshd, b"into the void").await;
    // An idle path, too.
    second.fall_silent();
    let _third = rig.path().await;
    talk(&mut session, &mut beside, b"again").await;
    log_out(session, beside).await;
}

#[tokio::test]
async fn a_request_of_a_session_that_goes_on_names_it() {
    let mut rig = Rig::new().await;
    let mut session = rig.start();
    let mut stream = rig.proxy.accept().await;
    assert!(!read_request(&mut stream).await.contains("Switchboard-Session"));
    stream.write_all(ACCEPT).await.unwrap();
    let path = rig.lead(Box::new(stream));
    let mut beside = within(rig.begun.recv()).await.unwrap();
    talk(&mut session, &mut beside, b"hello").await;
    path.cut().await;
    let mut stream = rig.proxy.accept().await;
    let request = read_request(&mut stream).await;
    let (_, named) = request.split_once("\r\nSwitchboard-Session: ").unwrap();
    stream.write_all(ACCEPT).await.unwrap();
    let hello = read_exactly::<68>(&mut stream).await;
    let expected = format!("SSH-2.0-switchboard_resume_1 resume {}", &named[..32]);
    assert_eq!(String::from_utf8_lossy(&hello), expected);
    assert!(named.contains("\r\nSwitchboard-Idle: 0\r\n"), "{named}");
}

#[tokio::test]
async fn a_path_that_is_to_be_closed_is_left_at_once() {
    let mut rig = Rig::new().await;
    let mut session = rig.start();
    let (path, mut beside) = rig.begun(&mut session).await;
    let mut paths = vec![path];
    for going in [DetachReason::Other(0), DetachReason::Other(77)] {
        beside.orders.send(Order::Leave(going)).unwrap();
        paths.push(rig.path().await);
        talk(&mut session, &mut beside, b"hello").await;
    }
    log_out(session, beside).await;
}

#[tokio::test]
async fn a_sleep_of_the_host_is_followed_by_another_connection_at_once() {
    static ASLEEP: AtomicU64 = AtomicU64::new(0);
    let mut rig = Rig::new().await;
    let mut options = rig.options(rig.proxy.http());
    options.session.as_mut().unwrap().clock =
        || SystemTime::now() + Duration::from_secs(ASLEEP.load(Ordering::Relaxed));
    let mut session = Session::start(options);
    let (_first, mut beside) = rig.begun(&mut session).await;
    ASLEEP.store(3_600, Ordering::Relaxed);
    let _second = rig.path().await;
    talk(&mut session, &mut beside, b"awake").await;
    log_out(session, beside).await;
}

#[tokio::test]
async fn a_proxy_that_cannot_serve_now_is_asked_again_and_the_user_is_told_once() {
    let mut rig = Rig::new().await;
    let mut session = rig.start();
    let (path, mut beside) = rig.begun(&mut session).await;
    path.cut().await;
    session.stdin.write_all(b"typed meanwhile").await.unwrap();
    let portal = b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n".as_slice();
    let invalid = b"SSH-2.0-x\r\n".as_slice();
    for answer in [
        b"HTTP/1.1 503 busy\r\n\r\n".as_slice(),
        portal,
        invalid,
        b"HTTP/1.1 429 slow\r\n\r\n",
        b"",
    ] {
        drop(rig.proxy.answer(answer).await);
    }
    drop(rig.proxy.answer(b"HTTP/1.1 502 a target\x1b[2J\r\n\r\n").await);
    remark(&rig.output, "reconnecting to 127.0.0.1: the proxy").await;
    let _path = rig.path().await;
    expect(&mut beside.sshd, b"typed meanwhile").await;
    remark(&rig.output, "reconnected after ").await;
    talk(&mut session, &mut beside, b"hello").await;
    log_out(session, beside).await;
    assert_eq!(rig.output.lock().len(), 2, "{:?}", rig.output.lock());
}

#[tokio::test]
async fn a_refusal_that_restricts_ends_the_session_with_its_sentence() {
    for (answer, expected) in [
        (
            "HTTP/1.1 403 the user may not ssh to the target",
            "the proxy answered 403: the user may not ssh to the target",
        ),
        ("HTTP/1.1 404 no such target", "the proxy answered 404: no such target"),
        (
            "HTTP/1.1 410 the target is gone",
            "the proxy answered 410: the target is gone",
        ),
        ("HTTP/1.1 407 who", "the proxy answered 407: who (give credentials"),
    ] {
        let mut rig = Rig::new().await;
        let mut session = rig.start();
        let (path, _beside) = rig.begun(&mut session).await;
        path.cut().await;
        drop(rig.proxy.answer(format!("{answer}\r\n\r\n").as_bytes()).await);
        let line = session.failure().await;
        assert!(line.starts_with(expected), "{line}");
    }
}

#[tokio::test]
async fn the_grace_bounds_the_time_without_a_connection() {
    let mut rig = Rig::new().await;
    let mut options = rig.options(rig.proxy.http());
    options.session.as_mut().unwrap().grace = Duration::from_millis(600);
    let mut session = Session::start(options);
    let (path, _beside) = rig.begun(&mut session).await;
    let _port = rig.proxy.close();
    path.cut().await;
    let line = session.failure().await;
    let expected = "the session is lost: it had no connection for ";
    assert!(line.starts_with(expected), "{line}");
    assert!(line.contains(" s: cannot connect to the proxy at 127.0.0.1:"), "{line}");
}

#[tokio::test]
async fn what_is_typed_without_a_connection_is_kept_up_to_the_window() {
    let mut rig = Rig::new().await;
    let mut options = rig.options(rig.proxy.http());
    options.session.as_mut().unwrap().window = 64 * 1024;
    let mut session = Session::start(options);
    let (path, mut beside) = rig.begun(&mut session).await;
    path.cut().await;
    let long = pattern(3, 1_000_000);
    let (_path, received, ()) = tokio::join!(
        rig.path(),
        async {
            let mut received = vec![0; long.len()];
            within(beside.sshd.read_exact(&mut received)).await.unwrap();
            received
        },
        async { within(session.stdin.write_all(&long)).await.unwrap() },
    );
    assert!(received == long);
    log_out(session, beside).await;
}

#[tokio::test]
async fn a_session_that_was_never_confirmed_begins_anew_with_the_same_bytes() {
    let mut rig = Rig::new().await;
    let mut session = rig.start();
    session.stdin.write_all(b"SSH-2.0-mine\r\n").await.unwrap();
    // It announces itself, and is gone.
    let line = format!(
        "switchboard-resume-1 {} {}\r\n",
        crate::protocol::resume::keys::AgreementKey::generate()
            .unwrap()
            .public(),
        "b".repeat(32)
    );
    let mut stream = rig.proxy.answer(ACCEPT).await;
    stream.write_all(line.as_bytes()).await.unwrap();
    let hello = read_exactly::<40>(&mut stream).await;
    assert!(hello.starts_with(b"SSH-2.0-switchboard_resume_1 new "));
    drop(stream);
    let _path = rig.path().await;
    let mut beside = within(rig.begun.recv()).await.unwrap();
    expect(&mut beside.sshd, b"SSH-2.0-mine\r\n").await;
    talk(&mut session, &mut beside, b"hello").await;
    log_out(session, beside).await;
}

#[tokio::test]
async fn each_attempt_reads_the_token_again_and_a_program_runs_when_the_proxy_refuses() {
    let folder = tempfile::tempdir().unwrap();
    let (file, runs) = (folder.path().join("token"), folder.path().join("runs"));
    let line = format!(
        "echo run >> '{0}'; echo of-run-$(wc -l < '{0}' | tr -d ' ')",
        runs.display()
    );
    for (source, tokens) in [
        (
            credentials::Source::TokenFile(file.clone()),
            ["of-the-file", "of-the-file-2", "of-the-file-3"],
        ),
        (
            credentials::Source::TokenCommand(line),
            ["of-run-1", "of-run-1", "of-run-2"],
        ),
    ] {
        std::fs::write(&file, "of-the-file").unwrap();
        let mut rig = Rig::new().await;
        let mut options = rig.options(rig.proxy.http());
        options.uplink.credentials.source = Some(source);
        let mut session = Session::start(options);
        let mut stream = rig.proxy.accept().await;
        assert!(
            read_request(&mut stream)
                .await
                .contains(&format!("Bearer {}\r\n", tokens[0]))
        );
        stream.write_all(ACCEPT).await.unwrap();
        let path = rig.lead(Box::new(stream));
        let mut beside = within(rig.begun.recv()).await.unwrap();
        talk(&mut session, &mut beside, b"hello").await;

        std::fs::write(&file, "of-the-file-2").unwrap();
        path.cut().await;
        let mut stream = rig.proxy.accept().await;
        assert!(
            read_request(&mut stream)
                .await
                .contains(&format!("Bearer {}\r\n", tokens[1]))
        );
        std::fs::write(&file, "of-the-file-3").unwrap();
        stream.write_all(b"HTTP/1.1 407 expired\r\n\r\n").await.unwrap();
        let mut stream = rig.proxy.accept().await;
        assert!(
            read_request(&mut stream)
                .await
                .contains(&format!("Bearer {}\r\n", tokens[2]))
        );
        stream.write_all(ACCEPT).await.unwrap();
        let _path = rig.lead(Box::new(stream));
        talk(&mut session, &mut beside, b"hello").await;
        log_out(session, beside).await;
    }
}
