//! Targets without an anchor: what comes is passed on, and nothing was sent before.

use super::*;

#[tokio::test]
async fn a_plain_ssh_server_is_spoken_to_at_once_and_hears_nothing_before() {
    let rig = Rig::new().await;
    let mut session = rig.start();
    let mut stream = rig.proxy.answer(ACCEPT).await;
    stream.write_all(b"a banner\r\nSSH-2.0-OpenSSH_9.2\r\n").await.unwrap();
    expect(&mut session.stdout, b"a banner\r\nSSH-2.0-OpenSSH_9.2\r\n").await;
    session.stdin.write_all(b"SSH-2.0-mine\r\n").await.unwrap();
    assert_eq!(&read_exactly::<14>(&mut stream).await, b"SSH-2.0-mine\r\n");
    exchange(session, stream).await;
}

#[tokio::test]
async fn an_identification_that_comes_with_the_answer_is_passed_on() {
    let rig = Rig::new().await;
    let mut session = rig.start();
    let _stream = rig.proxy.answer(&[ACCEPT, b"SSH-2.0-x\r\n"].concat()).await;
    expect(&mut session.stdout, b"SSH-2.0-x\r\n").await;
}

#[tokio::test]
async fn a_target_that_waits_for_the_client_is_spoken_to_behind_three_seconds() {
    let rig = Rig::new().await;
    let mut session = rig.start();
    session.stdin.write_all(b"a question").await.unwrap();
    let begun = Instant::now();
    let mut stream = rig.proxy.answer(ACCEPT).await;
    assert_eq!(&read_exactly::<10>(&mut stream).await, b"a question");
    assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
    exchange(session, stream).await;
}

#[tokio::test]
async fn the_end_of_stdin_does_not_hold_a_target_that_is_silent() {
    let rig = Rig::new().await;
    let (stdin, mut stdout, ended) = rig.start().parts();
    drop(stdin);
    let mut stream = rig.proxy.answer(ACCEPT).await;
    assert_eq!(read_all(&mut stream).await, b"");
    stream.write_all(b"late").await.unwrap();
    drop(stream);
    assert_eq!(read_all(&mut stdout).await, b"late");
    within(ended).await.unwrap().unwrap();
}

#[tokio::test]
async fn bytes_without_an_announcement_are_passed_on_behind_8_kib() {
    let rig = Rig::new().await;
    let mut session = rig.start();
    let mut stream = rig.proxy.answer(ACCEPT).await;
    let text = b"x\r\n".repeat(3_000);
    stream.write_all(&text).await.unwrap();
    expect(&mut session.stdout, &text).await;
    exchange(session, stream).await;
}

#[tokio::test]
async fn the_end_of_a_target_in_place_of_an_announcement_is_passed_on() {
    let rig = Rig::new().await;
    let (stdin, mut stdout, ended) = rig.start().parts();
    let mut stream = rig.proxy.answer(ACCEPT).await;
    stream.write_all(b"no").await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(read_all(&mut stdout).await, b"no");
    drop(stdin);
    assert_eq!(read_all(&mut stream).await, b"");
    within(ended).await.unwrap().unwrap();
}

#[tokio::test]
async fn without_resume_an_announcement_is_passed_on() {
    let proxy = Proxy::bind().await;
    let mut session = Session::start(proxy.http());
    let mut stream = proxy.answer(ACCEPT).await;
    let line = format!("switchboard-resume-1 {} {}\r\n", "a".repeat(64), "b".repeat(32));
    stream.write_all(line.as_bytes()).await.unwrap();
    expect(&mut session.stdout, line.as_bytes()).await;
    exchange(session, stream).await;
}

#[tokio::test]
async fn a_person_at_a_terminal_has_a_plain_tunnel() {
    let rig = Rig::new().await;
    let mut session = Session::start_with(rig.options(rig.proxy.http()), true);
    let mut stream = rig.proxy.answer(ACCEPT).await;
    session.stdin.write_all(b"typed").await.unwrap();
    assert_eq!(&read_exactly::<5>(&mut stream).await, b"typed");
}

#[tokio::test]
async fn an_anchor_that_dies_before_its_announcement_is_an_error() {
    let rig = Rig::new().await;
    let (mut stdin, mut stdout, ended) = rig.start().parts();
    let mut stream = rig.proxy.answer(ACCEPT).await;
    stream.shutdown().await.unwrap();
    assert_eq!(read_all(&mut stdout).await, b"");
    // The bytes of stdin are still relayed: the other direction has not ended.
    let upload = pattern(4, 300_000);
    let (received, ()) = tokio::join!(read_all(&mut stream), async {
        stdin.write_all(&upload).await.unwrap();
        drop(stdin);
    });
    assert!(received == upload);
    let error = within(ended).await.unwrap().unwrap_err();
    assert_eq!(
        error.to_string(),
        "the target closed the connection before its SSH identification"
    );
    assert_eq!(error.exit_code(), 1);
}
