//! Sessions on a clock that the test moves.

use tokio::io::AsyncReadExt;
use tokio::time::sleep;

use super::exchange::{Fault, hand_over};
use super::session::{Begun, Carried};
use super::sessions::Resumption;
use super::target::Dialled;
use super::*;
use crate::resume::keys::{Claim, Keys, Nonce, Nonces};
use crate::resume::welcome::New;

fn options() -> Options {
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    Options {
        listen: loopback,
        to: loopback,
        admin: None,
        grace: Duration::from_secs(24 * 3600),
        window: 1 << 20,
        max_sessions: NonZeroU32::MIN,
        memory: 1 << 20,
    }
}

#[test]
fn a_target_that_is_the_anchor_itself_is_known() {
    for (target, own, expected) in [
        ("127.0.0.1:22", "127.0.0.1:22", true),
        ("127.0.0.1:22", "127.0.0.1:2222", false),
        ("127.0.0.1:22", "0.0.0.0:22", true),
        ("[::1]:22", "[::]:22", true),
        ("[::ffff:127.0.0.1]:22", "127.0.0.1:22", true),
        ("0.0.0.0:22", "127.0.0.1:22", true),
        ("10.0.0.1:22", "0.0.0.0:22", false),
        ("127.0.0.1:22", "10.0.0.1:22", false),
    ] {
        let addresses = (target.parse().unwrap(), own.parse().unwrap());
        assert_eq!(leads_to(addresses.0, addresses.1), expected, "{target} {own}");
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

async fn said(client: &mut TcpStream) -> Vec<u8> {
    let mut answer = Vec::new();
    let reading = timeout(Duration::from_secs(60), client.read_to_end(&mut answer));
    reading.await.unwrap().unwrap();
    answer
}

#[tokio::test]
async fn a_resume_that_meets_the_end_of_its_session_is_told_so() {
    let shared = share(options(), Descriptors::raise().unwrap()).unwrap();
    let keys = Keys::decoy().unwrap();
    let opened = shared.sessions.open(keys.clone()).unwrap();
    let claim = Claim {
        nonces: nonces(),
        id: opened.id,
        received: 0,
    };
    let session = shared.sessions.prove(&claim, &keys.prove_client(&claim)).unwrap();
    let resumption = |stream: TcpStream| Resumption {
        peer: stream.peer_addr().unwrap(),
        stream,
        since: Instant::now(),
        nonces: claim.nonces,
        received: 0,
        before: b"SSH-2.0-before\r\n".to_vec(),
        rest: Vec::new(),
    };
    // One is queued when the session's task ends, the other one proves the session before that and is handed over behind it.
    let [[mut queued, one], [mut late, other]] = [pair().await, pair().await];
    assert!(hand_over(&session, resumption(one)).await.is_ok());
    opened.close(&shared.tasks);
    assert!(shared.sessions.prove(&claim, &keys.prove_client(&claim)).is_err());
    let (told, handed) = tokio::join!(said(&mut late), hand_over(&session, resumption(other)));
    assert_eq!(handed.unwrap_err(), Fault::Ended(End::Gone));
    for told in [told, said(&mut queued).await] {
        assert_eq!(told, b"SSH-2.0-before\r\n\x09\0\0\x01\x04");
    }
}

/// How long it takes until no session, or one that has ended, is left.
async fn lasts(shared: &Shared, state: &str) -> u64 {
    let start = Instant::now();
    loop {
        let sessions = shared.sessions.count();
        let is_there = |name: &str| sessions.iter().any(|(state, count)| *state == name && *count > 0);
        let has_come = match state {
            "gone" => shared.sessions.len() == 0,
            state => is_there(state),
        };
        if has_come {
            return start.elapsed().as_secs();
        }
        sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_of_which_nothing_was_acknowledged_ends_after_a_minute_and_says_so_for_five() {
    let shared = Arc::new(share(options(), Descriptors::raise().unwrap()).unwrap());
    let [client, stream] = pair().await;
    let [_server, upstream] = pair().await;
    let keys = Keys::decoy().unwrap();
    let nonces = nonces();
    let begun = Begun {
        opened: shared.sessions.open(keys.clone()).unwrap(),
        new: New {
            keys,
            nonces,
            rest: Vec::new(),
        },
        before: Vec::new(),
        dialled: Dialled {
            stream: upstream,
            early: Vec::new(),
            has_reset: false,
        },
    };
    let connection = Connection {
        stream,
        peer: client.local_addr().unwrap(),
        since: Instant::now(),
    };
    Carried::begin(begun, connection, &shared);
    drop(client);
    let unconfirmed = lasts(&shared, "ended").await;
    assert!((60..=62).contains(&unconfirmed), "{unconfirmed}");
    let ended = lasts(&shared, "gone").await;
    assert!((299..=302).contains(&ended), "{ended}");
}
