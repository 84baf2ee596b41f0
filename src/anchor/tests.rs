//! Sessions on a clock that the test moves.

use std::net::Ipv4Addr;
use std::sync::mpsc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::yield_now;
use tokio::time::{advance, sleep};

use super::handshake::{HandshakeFailure, dispatch};
use super::registry::Resumption;
use super::session::SessionTask;
use super::target::TargetConnection;
use super::*;
use crate::protocol::resume::frame::{self, Frame};
use crate::protocol::resume::handshake::client_handshake::{self, ClientHandshake};
use crate::protocol::resume::handshake::lines::{Hello, IDENTIFICATION};
use crate::protocol::resume::keys::{Keys, Mac, Nonce, Nonces, ResumeClaim, SessionId};

const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn options() -> Options {
    Options {
        listen: Some(LOOPBACK),
        to: TargetAddr::Address(LOOPBACK),
        host_keys: vec!["none".into()],
        admin: None,
        grace: Duration::from_secs(24 * 3600),
        window: 1 << 20,
        max_sessions: NonZeroU32::MIN,
        memory: 1 << 20,
    }
}

/// Both ends of a connection.
async fn pair() -> [TcpStream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
    [near.unwrap(), far.unwrap().0]
}

fn nonces() -> Nonces {
    Nonces {
        anchor: Nonce::random().unwrap(),
        client: Nonce::random().unwrap(),
    }
}

/// Returns a connection that is accepted now.
fn connection(stream: TcpStream) -> Connection {
    Connection {
        peer: stream.peer_addr().unwrap(),
        stream: Link::Socket(stream),
        accepted: Instant::now(),
    }
}

async fn said(client: &mut TcpStream) -> Vec<u8> {
    let mut answer = Vec::new();
    let reading = timeout(Duration::from_secs(60), client.read_to_end(&mut answer));
    reading.await.unwrap().unwrap();
    answer
}

#[tokio::test]
async fn a_resume_that_meets_the_end_of_its_session_is_told_so() {
    let shared = share(options(), LOOPBACK, FdLimit::raise().unwrap(), Logs::default()).unwrap();
    let keys = Keys::dummy().unwrap();
    let guard = shared.sessions.open(keys.clone()).unwrap();
    let claim = ResumeClaim {
        nonces: nonces(),
        id: guard.id,
        received: 0,
    };
    let session = shared
        .sessions
        .authenticate(&claim, &keys.prove_client(&claim))
        .unwrap();
    let resumption = |stream| Resumption {
        connection: connection(stream),
        nonces: claim.nonces,
        received: 0,
        before: b"SSH-2.0-before\r\n".to_vec(),
        rest: Vec::new(),
    };
    // One is queued when the session's task ends, the other one proves the session before that and is handed over after it.
    let [[mut queued, one], [mut late, other]] = [pair().await, pair().await];
    assert!(dispatch(&session, resumption(one)).await.is_ok());
    guard.close(&shared.tasks);
    assert!(
        shared
            .sessions
            .authenticate(&claim, &keys.prove_client(&claim))
            .is_err()
    );
    let (told, handed) = tokio::join!(said(&mut late), dispatch(&session, resumption(other)));
    assert_eq!(handed.unwrap_err(), HandshakeFailure::Ended(EndReason::NoSuchSession));
    for told in [told, said(&mut queued).await] {
        assert_eq!(told, b"SSH-2.0-before\r\n\x09\0\0\x01\x04");
    }
}

fn is_there(shared: &Shared, state: &str) -> bool {
    let sessions = shared.sessions.count();
    sessions.iter().any(|(name, count)| *name == state && *count > 0)
}

/// How long it takes until no session, or one that has ended, is left.
async fn lasts(shared: &Shared, state: &str) -> u64 {
    let start = Instant::now();
    loop {
        let has_come = match state {
            "gone" => shared.sessions.len() == 0,
            state => is_there(shared, state),
        };
        if has_come {
            return start.elapsed().as_secs();
        }
        sleep(Duration::from_secs(1)).await;
    }
}

/// A session that was begun with these frames, and the other ends of its connections.
struct Stage {
    shared: Arc<Shared>,
    client: TcpStream,
    server: TcpStream,
    keys: Keys,
    id: SessionId,
}

async fn begun(rest: Vec<u8>) -> Stage {
    let shared = Arc::new(share(options(), LOOPBACK, FdLimit::raise().unwrap(), Logs::default()).unwrap());
    let [client, stream] = pair().await;
    let [server, upstream] = pair().await;
    let keys = Keys::dummy().unwrap();
    let guard = shared.sessions.open(keys.clone()).unwrap();
    let id = guard.id;
    let target = TargetConnection {
        address: upstream.peer_addr().unwrap(),
        stream: upstream,
        early: Vec::new(),
        has_ended: false,
        has_reset: false,
    };
    let resumption = Resumption {
        connection: connection(stream),
        nonces: nonces(),
        received: 0,
        before: Vec::new(),
        rest,
    };
    SessionTask::begin(guard, target, resumption, &shared);
    Stage {
        shared,
        client,
        server,
        keys,
        id,
    }
}

impl Stage {
    /// Attaches another connection in place of the one before.
    async fn attach(&mut self) {
        let claim = ResumeClaim {
            nonces: nonces(),
            id: self.id,
            received: 0,
        };
        let proof = self.keys.prove_client(&claim);
        let session = self.shared.sessions.authenticate(&claim, &proof).unwrap();
        let [client, stream] = pair().await;
        self.client = client;
        let resumption = Resumption {
            connection: connection(stream),
            nonces: claim.nonces,
            received: 0,
            before: Vec::new(),
            rest: Vec::new(),
        };
        dispatch(&session, resumption).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_that_has_hardly_begun_ends_soon_and_says_so_for_five_minutes() {
    let mut identification = Vec::new();
    frame::encode_data(&mut identification, 0, (b"SSH-2.0-x\r\n", &[]));
    for frames in [Vec::new(), identification] {
        let Stage {
            shared,
            client,
            mut server,
            ..
        } = begun(frames).await;
        server.write_all(b"SSH-2.0-y\r\n").await.unwrap();
        drop(client);
        let detached = lasts(&shared, "ended").await;
        assert!((30..=32).contains(&detached), "{detached}");
        // The SSH server has its place for a login again.
        let reset = server.read_to_end(&mut Vec::new()).await.unwrap_err();
        assert_eq!(reset.kind(), io::ErrorKind::ConnectionReset);
        let ended = lasts(&shared, "gone").await;
        assert!((297..=302).contains(&ended), "{ended}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_attaches_again_and_again_without_a_login_has_no_more_time_than_others() {
    let mut stage = begun(Vec::new()).await;
    let start = Instant::now();
    while !is_there(&stage.shared, "ended") {
        stage.attach().await;
        sleep(Duration::from_secs(1)).await;
        stage.client.shutdown().await.unwrap();
        sleep(Duration::from_secs(20)).await;
    }
    let lasted = start.elapsed().as_secs();
    assert!((150..=175).contains(&lasted), "{lasted}");
}

#[tokio::test(start_paused = true)]
async fn a_session_whose_user_may_have_logged_in_waits_for_the_whole_grace() {
    let Stage {
        shared,
        mut client,
        mut server,
        ..
    } = begun(Vec::new()).await;
    let key_exchange = [b"SSH-2.0-x\r\n\0\0\0\x0c\x0a\x15".as_slice(), &[0; 10]].concat();
    server.write_all(&key_exchange).await.unwrap();
    let mut frames = Vec::new();
    while !frames.ends_with(&key_exchange) {
        frames.push(client.read_u8().await.unwrap());
    }
    let (offset, window) = (key_exchange.len() as u64, 1 << 20);
    let mut acknowledgement = Vec::new();
    Frame::Ack { offset, window }.encode(&mut acknowledgement);
    client.write_all(&acknowledgement).await.unwrap();
    drop(client);
    sleep(Duration::from_secs(24 * 3600 - 10)).await;
    assert!(is_there(&shared, "detached"));
    assert!(lasts(&shared, "ended").await <= 12);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_answer_at_the_stop_holds_it_up_for_five_seconds() {
    let Stage {
        shared,
        client: _client,
        server: _server,
        ..
    } = begun(Vec::new()).await;
    shared.stopping.cancel();
    let stopping = lasts(&shared, "gone").await;
    assert!((5..=7).contains(&stopping), "{stopping}");
}

/// Returns an anchor's state, its target, and what keeps the clock from moving on by itself while nothing happens.
fn beside_target() -> (Arc<Shared>, std::net::TcpListener, mpsc::Sender<()>) {
    let target = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    target.set_nonblocking(true).unwrap();
    let to = TargetAddr::Address(target.local_addr().unwrap());
    let shared = share(
        Options { to, ..options() },
        LOOPBACK,
        FdLimit::raise().unwrap(),
        Logs::default(),
    )
    .unwrap();
    let (still, end) = mpsc::channel();
    // The clock waits for this task, which ends with the test.
    tokio::task::spawn_blocking(move || end.recv().ok());
    (Arc::new(shared), target, still)
}

/// Returns a client that has sent these bytes before the anchor looks, and has read the announcement.
async fn exchanging(shared: &Arc<Shared>, early: &[u8]) -> TcpStream {
    let [mut client, stream] = pair().await;
    client.write_all(early).await.unwrap();
    while !early.is_empty() && stream.peek(&mut [0; 256]).await.unwrap() < early.len() {}
    shared
        .tasks
        .spawn(handshake::serve(connection(stream), Arc::clone(shared)));
    client
}

/// Returns the announcement.
async fn announced(client: &mut TcpStream) -> Vec<u8> {
    let mut line = Vec::new();
    while !line.ends_with(b"\n") {
        line.push(client.read_u8().await.unwrap());
    }
    line
}

/// Lets every task that can go on do so.
async fn settle() {
    for _ in 0..20 {
        yield_now().await;
    }
}

/// Returns a hello, and the proof after it, of a session that the anchor does not have; its answer to them.
fn resume_of_none() -> (Vec<u8>, Vec<u8>, Vec<u8>) {
    let (id, nonce) = (SessionId([5; 16]), Nonce([3; 16]));
    let (received, mac) = (0, Mac([9; 32]));
    let (mut proof, mut answer) = (Vec::new(), Vec::new());
    Frame::Proof { received, mac }.encode(&mut proof);
    Frame::End(EndReason::NoSuchSession).encode(&mut answer);
    (Hello::Resume { id, nonce }.line().into_bytes(), proof, answer)
}

#[tokio::test(start_paused = true)]
async fn no_target_is_dialled_for_a_client_that_has_begun_its_hello() {
    let (shared, target, _still) = beside_target();
    let (hello, proof, gone) = resume_of_none();
    let said_by_client = [&*hello, &proof].concat();
    for spoken in [1, hello.len() - 1, hello.len(), said_by_client.len() - 1] {
        let (before, after) = said_by_client.split_at(spoken);
        let mut client = exchanging(&shared, before).await;
        announced(&mut client).await;
        advance(Duration::from_secs(5)).await;
        settle().await;
        client.write_all(after).await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, [IDENTIFICATION.as_bytes(), &gone].concat(), "{spoken}");
        let dialled = target.accept().map_err(|error| error.kind());
        assert_eq!(dialled.err(), Some(io::ErrorKind::WouldBlock), "{spoken}");
    }
}

/// Returns a client that was silent for so long that the target was dialled for it; the target's end of that connection.
async fn dialled(shared: &Arc<Shared>, target: &std::net::TcpListener) -> (TcpStream, Vec<u8>, TcpStream) {
    let mut client = exchanging(shared, b"").await;
    let announcement = announced(&mut client).await;
    settle().await;
    advance(Duration::from_secs(5)).await;
    let server = loop {
        match target.accept() {
            Ok((server, _)) => break server,
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
        yield_now().await;
    };
    server.set_nonblocking(true).unwrap();
    (client, announcement, TcpStream::from_std(server).unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_dial_for_a_silent_client_is_given_up_unheard_when_it_resumes() {
    let (shared, target, _still) = beside_target();
    let (hello, proof, gone) = resume_of_none();
    let (mut client, _, mut server) = dialled(&shared, &target).await;
    client.write_all(&hello).await.unwrap();
    let mut identification = vec![0; IDENTIFICATION.len()];
    client.read_exact(&mut identification).await.unwrap();
    assert_eq!(identification, IDENTIFICATION.as_bytes());
    // The target speaks now, and nothing of it is sent.
    server.write_all(b"SSH-2.0-server\r\n").await.unwrap();
    advance(Duration::from_secs(1)).await;
    settle().await;
    client.write_all(&proof).await.unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer, gone);
    // Unread bytes make the close a reset.
    assert!(matches!(server.read(&mut [0]).await, Ok(0) | Err(_)));
}

#[tokio::test(start_paused = true)]
async fn a_dial_for_a_silent_client_serves_the_session_that_it_begins() {
    let (shared, target, _still) = beside_target();
    let (mut client, announcement, mut server) = dialled(&shared, &target).await;
    let mut opening = ClientHandshake::begin();
    opening.receive(&announcement).unwrap();
    client.write_all(&opening.take_output()).await.unwrap();
    let attached = loop {
        let step = opening.receive(&[client.read_u8().await.unwrap()]).unwrap();
        if let client_handshake::HandshakeStep::Attached(attached) = step {
            break attached;
        }
    };
    server.write_all(b"SSH-2.0-server\r\n").await.unwrap();
    let mut frames = attached.rest;
    while !frames.ends_with(b"SSH-2.0-server\r\n") {
        frames.push(client.read_u8().await.unwrap());
    }
    assert_eq!(target.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
}

#[tokio::test(start_paused = true)]
async fn an_anchor_that_has_sessions_waits_longer_before_it_asks_the_target_to_speak() {
    let (shared, target, _still) = beside_target();
    let _session = shared.sessions.open(Keys::dummy().unwrap()).unwrap();
    let mut client = exchanging(&shared, b"").await;
    announced(&mut client).await;
    settle().await;
    advance(Duration::from_millis(1900)).await;
    settle().await;
    assert_eq!(target.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    advance(Duration::from_millis(200)).await;
    while target.accept().is_err() {
        yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_handshake_that_is_not_over_within_ten_seconds_is_dropped() {
    let (shared, _target, _still) = beside_target();
    let (hello, proof, _) = resume_of_none();
    let all = [&*hello, &proof].concat();
    // Also a plain client that waits for a target which is as silent.
    let starts = [0, 1, hello.len(), all.len() - 1];
    for (done, spoken) in starts.into_iter().enumerate() {
        let mut client = exchanging(&shared, &all[..spoken]).await;
        announced(&mut client).await;
        settle().await;
        for _ in 0..99 {
            advance(Duration::from_millis(100)).await;
            settle().await;
        }
        assert_eq!(shared.handshakes.len(), 1, "{spoken}");
        let dropped = |count: usize| {
            let page = shared.metrics.encode().unwrap();
            page.contains(&format!("_handshakes_total{{result=\"timeout\"}} {count}\n"))
        };
        assert!(dropped(done), "{spoken}");
        advance(Duration::from_millis(200)).await;
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.unwrap();
        while shared.handshakes.len() > 0 {
            yield_now().await;
        }
        settle().await;
        assert!(dropped(done + 1), "{spoken}");
    }
}
