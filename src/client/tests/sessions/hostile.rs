//! Bytes of an anchor, or of something instead of it, that violate the protocol.

use super::*;

/// Returns a client that has sent its hello to this announcement.
async fn announced(rig: &Rig) -> (Session, TcpStream) {
    announced_to(rig.start(), rig).await
}

async fn announced_to(session: Session, rig: &Rig) -> (Session, TcpStream) {
    let mut stream = rig.proxy.answer(ACCEPT).await;
    let key = crate::protocol::resume::keys::AgreementKey::generate()
        .unwrap()
        .public();
    let line = format!("switchboard-resume-1 {key} {}\r\n", "b".repeat(32));
    stream.write_all(line.as_bytes()).await.unwrap();
    read_exactly::<40>(&mut stream).await;
    (session, stream)
}

#[tokio::test]
async fn an_anchor_that_begins_no_session_has_lost_none() {
    let rig = Rig::new().await;
    let mut options = rig.options(rig.proxy.http());
    options.session.as_mut().unwrap().grace = Duration::from_millis(600);
    let (session, stream) = announced_to(Session::start(options), &rig).await;
    let _port = rig.proxy.close();
    drop(stream);
    let line = session.failure().await;
    assert!(line.starts_with("no session has begun within "), "{line}");
}

#[tokio::test]
async fn an_outage_before_the_anchor_has_answered_does_not_spin() {
    static TICKS: AtomicU64 = AtomicU64::new(0);
    let rig = Rig::new().await;
    let mut options = rig.options(rig.proxy.http());
    options.session.as_mut().unwrap().clock = || {
        assert!(TICKS.fetch_add(1, Ordering::Relaxed) < 2_000, "it spins");
        SystemTime::UNIX_EPOCH
    };
    let (session, stream) = announced_to(Session::start(options), &rig).await;
    let _port = rig.proxy.close();
    drop(stream);
    // The 20 s for the anchor's answer pass during the outage, which lasts for a minute.
    tokio::time::pause();
    let (_stdin, _stdout, ended) = session.parts();
    let line = chain(&ended.await.unwrap().unwrap_err());
    assert!(line.starts_with("no session has begun within 6"), "{line}");
}

#[tokio::test]
async fn an_anchor_that_announces_itself_three_times_and_never_attaches_ends_the_client() {
    let rig = Rig::new().await;
    let mut session = rig.start();
    for _ in 0..3 {
        let stream;
        (session, stream) = announced_to(session, &rig).await;
        drop(stream);
    }
    let line = session.failure().await;
    let expected = "the anchor beside the SSH server begins no session: ";
    assert!(line.starts_with(expected), "{line}");
}

#[tokio::test]
async fn rubbish_in_place_of_an_answer_costs_the_connection() {
    let identification = b"SSH-2.0-switchboard_anchor_1\r\n".as_slice();
    let frame = |kind: u8, length: u32| {
        let [_, a, b, c] = length.to_be_bytes();
        [kind, a, b, c]
    };
    let wrong = [identification, &frame(2, 56), &[7; 56]].concat();
    let giant = [identification, &frame(200, 0xff_ffff), &[0; 100]].concat();
    let flood = [identification, &frame(200, 0).repeat(4_000)].concat();
    let lines = b"x\r\n".repeat(4_000);
    let endless = vec![b'x'; 12_000];
    for invalid in [wrong, giant, flood, lines, endless] {
        let mut rig = Rig::new().await;
        let (mut session, mut stream) = announced(&rig).await;
        stream.write_all(&invalid).await.unwrap_or_default();
        let _path = rig.path().await;
        let mut beside = within(rig.begun.recv()).await.unwrap();
        talk(&mut session, &mut beside, b"hello").await;
        log_out(session, beside).await;
    }
}

#[tokio::test]
async fn rubbish_at_a_resume_costs_the_connection_and_not_the_session() {
    let mut rig = Rig::new().await;
    let mut session = rig.start();
    let (path, mut beside) = rig.begun(&mut session).await;
    path.cut().await;
    for invalid in [b"x\r\n".repeat(4_000), vec![0; 12_000], b"<html>".to_vec(), Vec::new()] {
        let mut stream = rig.proxy.answer(ACCEPT).await;
        stream.write_all(&invalid).await.unwrap_or_default();
        drop(stream);
    }
    let _path = rig.path().await;
    talk(&mut session, &mut beside, b"hello").await;
    log_out(session, beside).await;
}

#[tokio::test]
async fn an_end_in_place_of_an_answer_is_reported() {
    for (code, expected) in [
        (3, "the anchor cannot reach the SSH server"),
        (8, "the anchor carries as many sessions as it may"),
        (11, "the anchor does not speak this version of the protocol"),
    ] {
        let rig = Rig::new().await;
        let (session, mut stream) = announced(&rig).await;
        let answer = [b"SSH-2.0-switchboard_anchor_1\r\n".as_slice(), &[9, 0, 0, 1, code]].concat();
        stream.write_all(&answer).await.unwrap();
        assert_eq!(session.failure().await, expected);
    }
}
