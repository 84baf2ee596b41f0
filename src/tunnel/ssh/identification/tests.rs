use super::*;
/// As configured by default.
const DEADLINE: Duration = Duration::from_secs(12);
use proptest::prelude::*;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

fn software(bytes: &[u8], from: Side) -> Result<Option<(usize, String)>, NotSsh> {
    Ok(read(bytes, from)?.map(|line| (line.length, Software::parse(line.software).to_string())))
}

#[test]
fn an_identification_is_found_at_its_line_end() {
    let long = [b"SSH-2.0-".as_slice(), &[b'x'; 245], b"\r\n"].concat();
    for (bytes, length, said) in [
        (
            b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\nmore".as_slice(),
            32,
            "OpenSSH_9.2p1 Debian-2",
        ),
        (b"SSH-2.0-Go\n", 11, "Go"),
        (b"SSH-1.99-x\r\n", 12, "x"),
        (b"SSH-2.0-x-y z\r\n", 15, "x-y z"),
        (&long, 255, &"x".repeat(245)),
    ] {
        for side in [Side::Client, Side::Target] {
            assert_eq!(software(bytes, side), Ok(Some((length, said.to_owned()))));
            for end in 0..length {
                assert_eq!(read(&bytes[..end], side), Ok(None), "{end}");
            }
        }
    }
    let greeted = b"Welcome\r\n\r\nSSH\nSSH-2.0-x\r\n";
    assert_eq!(
        software(greeted, Side::Target),
        Ok(Some((greeted.len(), "x".to_owned())))
    );
}

#[test]
fn bytes_that_cannot_become_an_identification_are_refused_at_once() {
    for bytes in [
        b"GET".as_slice(),
        b"\r\n",
        b"\x16",
        b"ssh-2.0-x",
        b"SSH-1.5-",
        b"SSH-2.1-x\r\n",
        b"SSH-2.0-\r\n",
        b"SSH-2.0-x\0\r\n",
        b"SSH-2.0-x\rFLUSHALL\r\n",
        b"SSH-\r\n",
    ] {
        assert_eq!(read(bytes, Side::Client), Err(NotSsh), "{bytes:?}");
        if bytes.starts_with(b"SSH-") {
            assert_eq!(read(bytes, Side::Target), Err(NotSsh), "{bytes:?}");
        }
    }
    let long = [b"SSH-2.0-".as_slice(), &[b'x'; 246], b"\r\n"].concat();
    let endless = vec![b'x'; 8192];
    let lines = b"220 ready\r\n".repeat(800);
    for bytes in [&long[..], &long[..255], &endless, &lines] {
        assert_eq!(read(bytes, Side::Target), Err(NotSsh));
    }
    assert_eq!(read(&endless[1..], Side::Target), Ok(None));
}

proptest! {
    #[test]
    fn more_bytes_never_change_an_identification_that_was_found(bytes in proptest::collection::vec(any::<u8>(), 0..300), cut in 0..300_usize) {
        for bytes in [bytes.clone(), [b"SSH-2.0-".as_slice(), &bytes].concat()] {
            for side in [Side::Client, Side::Target] {
                let early = read(&bytes[..cut.min(bytes.len())], side);
                if early != Ok(None) {
                    prop_assert_eq!(read(&bytes, side), early);
                }
            }
        }
    }
}

/// Returns the sockets of a tunnel whose peers are driven by the test.
async fn ends() -> (TcpStream, TcpStream, Transports<TcpStream>) {
    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (peer, ours) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        (peer.unwrap(), ours.unwrap().0)
    }
    let ((client, downstream), (target, upstream)) = tokio::join!(pair(), pair());
    let ends = Transports {
        downstream,
        upstream,
        early: None,
    };
    (client, target, ends)
}

/// Runs an exchange between two peers that send these bytes.
///
/// Returns its result, the software of each side, the bytes that each side received, and the transports.
async fn exchanged(
    client: &'static [u8],
    target: &'static [u8],
) -> (
    Result<(), Close>,
    Vec<(Side, String)>,
    [Vec<u8>; 2],
    Transports<TcpStream>,
) {
    let (mut a, mut b, mut ends) = ends().await;
    a.write_all(client).await.unwrap();
    b.write_all(target).await.unwrap();
    a.shutdown().await.unwrap();
    b.shutdown().await.unwrap();
    let said = Mutex::new(Vec::new());
    let meter = Meter::new(Arc::default());
    let identified = |side, line: Line<'_>| {
        let software = Software::parse(line.software).to_string();
        said.lock().unwrap().push((side, software));
    };
    let result = exchange(&mut ends, &meter, DEADLINE, identified).await;
    let mut heard = [Vec::new(), Vec::new()];
    ends.downstream.shutdown().await.ok();
    ends.upstream.shutdown().await.ok();
    let [by_target, by_client] = &mut heard;
    b.read_to_end(by_target).await.unwrap();
    a.read_to_end(by_client).await.unwrap();
    for (direction, heard) in Direction::ALL.into_iter().zip(&heard) {
        assert_eq!(meter.bytes(direction), heard.len() as u64);
    }
    let mut said = said.into_inner().unwrap();
    said.sort_by_key(|(side, _)| *side == Side::Target);
    (result, said, heard, ends)
}

#[tokio::test]
async fn identifications_are_passed_on_and_the_bytes_behind_them_wait() {
    let (result, said, heard, ends) = exchanged(b"SSH-2.0-a\r\n\x01\x02", b"hello\r\nSSH-2.0-b\nrest").await;
    assert_eq!(result, Ok(()));
    assert_eq!(said, [(Side::Client, "a".to_owned()), (Side::Target, "b".to_owned())]);
    assert_eq!(heard, [b"SSH-2.0-a\r\n".to_vec(), b"hello\r\nSSH-2.0-b\n".to_vec()]);
    let early = ends.early.unwrap();
    assert_eq!((early.upload, early.download), (b"\x01\x02".to_vec(), b"rest".to_vec()));
}

#[tokio::test]
async fn nothing_is_passed_on_from_a_side_that_does_not_speak_ssh() {
    let not_ssh = |by| {
        Err(Close {
            by,
            reason: CloseReason::NotSsh,
        })
    };
    let (result, said, heard, _) = exchanged(b"GET / HTTP/1.0\r\n\r\n", b"").await;
    assert_eq!((result, said), (not_ssh(Side::Client), vec![]));
    assert!(heard.iter().all(Vec::is_empty), "{heard:?}");
    let (result, _, heard, _) = exchanged(b"SSH-2.0-a\r\nEHLO a\r\n", b"SSH-3.0-b\r\n").await;
    assert_eq!(result, not_ssh(Side::Target));
    // The client's identification may have been passed on by then; the bytes after it never are.
    assert!(heard[0].is_empty() || heard[0] == b"SSH-2.0-a\r\n", "{heard:?}");
    assert!(heard[1].is_empty());
}

#[tokio::test]
async fn a_side_that_finishes_before_its_identification_ends_the_tunnel() {
    for (client, target) in [
        (b"".as_slice(), b"".as_slice()),
        (b"SSH-2.0-a", b"Exceeded MaxStartups\r\n"),
    ] {
        let (result, said, heard, ends) = exchanged(client, target).await;
        let reason = result.map_err(|close| close.reason);
        assert_eq!((reason, said), (Err(CloseReason::Eof), vec![]));
        assert!(heard.iter().all(Vec::is_empty), "{heard:?}");
        drop(ends);
    }
}

#[tokio::test]
async fn a_silent_side_ends_the_tunnel_at_the_deadline() {
    let deadline = Duration::from_millis(50);
    for by in [Side::Client, Side::Target] {
        let (mut client, mut target, mut ends) = ends().await;
        let other = if by == Side::Client { &mut target } else { &mut client };
        other.write_all(b"SSH-2.0-x\r\n").await.unwrap();
        let meter = Meter::new(Arc::default());
        let result = exchange(&mut ends, &meter, deadline, |_, _| ()).await;
        let reason = CloseReason::NotSsh;
        assert_eq!(result, Err(Close { by, reason }));
    }
}

#[tokio::test]
async fn a_reset_ends_the_exchange_even_after_the_identification_of_its_side() {
    for by in [Side::Client, Side::Target] {
        let (client, target, mut ends) = ends().await;
        let (mut resets, mut other) = if by == Side::Client {
            (client, target)
        } else {
            (target, client)
        };
        resets.write_all(b"SSH-2.0-x\r\n").await.unwrap();
        crate::net::socket::reset_on_drop(&resets);
        let meter = Meter::new(Arc::default());
        let script = async {
            other.read_exact(&mut [0; 11]).await.unwrap();
            drop(resets);
        };
        let (result, ()) = tokio::join!(exchange(&mut ends, &meter, DEADLINE, |_, _| ()), script);
        let reason = CloseReason::Reset;
        assert_eq!(result, Err(Close { by, reason }));
    }
}

/// Returns an announcement as an anchor sends it.
fn announcement() -> String {
    let digits = |bytes: usize| "0f".repeat(bytes);
    format!("switchboard-resume-1 {} {}\r\n", digits(32), digits(16))
}

/// Returns what a silent client receives of a target that says this, within the deadline of the exchange, and how that
/// ends.
async fn heard_by_a_silent_client(target_says: &[u8]) -> (Vec<u8>, Close) {
    let (mut client, mut target, mut ends) = ends().await;
    target.write_all(target_says).await.unwrap();
    let meter = Meter::new(Arc::default());
    let deadline = Duration::from_millis(100);
    let close = exchange(&mut ends, &meter, deadline, |_, _| ()).await.unwrap_err();
    let mut heard = Vec::new();
    ends.downstream.shutdown().await.ok();
    client.read_to_end(&mut heard).await.unwrap();
    assert_eq!(meter.bytes(Direction::Download), heard.len() as u64);
    (heard, close)
}

#[tokio::test]
async fn an_announcement_passes_before_the_identification_and_the_client_may_wait_for_it() {
    let (mut client, mut target, mut ends) = ends().await;
    let line = announcement();
    let meter = Meter::new(Arc::default());
    let script = async {
        // In two pieces: of half a line nothing passes.
        let (start, end) = line.as_bytes().split_at(60);
        target.write_all(start).await.unwrap();
        target.write_all(end).await.unwrap();
        let mut heard = vec![0; line.len()];
        client.read_exact(&mut heard).await.unwrap();
        assert_eq!(heard, line.as_bytes());
        client
            .write_all(b"SSH-2.0-switchboard_resume_1 x\r\nproof")
            .await
            .unwrap();
        target.read_exact(&mut [0; 32]).await.unwrap();
        target
            .write_all(b"SSH-2.0-switchboard_anchor_1\r\nframes")
            .await
            .unwrap();
        client.read_exact(&mut [0; 30]).await.unwrap();
    };
    let (result, ()) = tokio::join!(exchange(&mut ends, &meter, DEADLINE, |_, _| ()), script);
    assert_eq!(result, Ok(()));
    let early = ends.early.unwrap();
    assert_eq!((early.upload, early.download), (b"proof".to_vec(), b"frames".to_vec()));
}

#[tokio::test]
async fn of_a_target_that_only_announces_one_line_passes_until_the_deadline() {
    let line = announcement();
    let long = line.replace("\r\n", &format!(" {}\r\n", "x".repeat(255 - line.len() - 1)));
    for (says, passes) in [
        (line.clone(), &line),
        (line.repeat(2), &line),
        (line.repeat(60), &line),
        (format!("{line}SSH-2.0-never ends"), &line),
        (format!("{line}Welcome\r\n"), &line),
        (long.repeat(30), &long),
        (line.replace('\r', ""), &line.replace('\r', "")),
    ] {
        let (heard, close) = heard_by_a_silent_client(says.as_bytes()).await;
        assert_eq!(String::from_utf8(heard).unwrap(), *passes, "{says:?}");
        let (by, reason) = (Side::Target, CloseReason::NotSsh);
        assert_eq!(close, Close { by, reason });
    }
}

#[tokio::test]
async fn what_only_looks_like_an_announcement_waits_for_the_identification() {
    let line = announcement();
    let with = |from: &str, to: &str| line.replacen(from, to, 1);
    for says in [
        line.trim_end().to_owned(),
        with("switchboard", "Switchboard"),
        with("-1 ", "-2 "),
        with("-1 ", "-1  "),
        with("0f", "0F"),
        with("0f", ""),
        with("0f", "\0f"),
        with("\r\n", "\r\r\n"),
        with("\r\n", " \x1b[2J\r\n"),
        with("\r\n", " \u{e9}\r\n"),
        with("\r\n", &format!(" {}\r\n", "x".repeat(135))),
        with("switchboard", "\r\nswitchboard"),
        format!("Welcome\r\n{line}"),
        "switchboard-resume-1 \r\n".to_owned(),
        "220 ready\r\n".repeat(10),
    ] {
        let (heard, close) = heard_by_a_silent_client(says.as_bytes()).await;
        assert_eq!((heard, close.reason), (vec![], CloseReason::NotSsh), "{says:?}");
    }
}

#[tokio::test]
async fn an_announcement_counts_for_the_bytes_in_front_of_the_identification() {
    let line = announcement();
    let identification = "SSH-2.0-b\n";
    let filled = |length: usize| {
        let filling = length - line.len() - identification.len() - 2;
        format!("{line}{}\r\n{identification}", "x".repeat(filling))
    };
    for (length, passes) in [(MAX_BYTES, true), (MAX_BYTES + 1, false)] {
        let (mut client, mut target, mut ends) = ends().await;
        target.write_all(filled(length).as_bytes()).await.unwrap();
        client.write_all(b"SSH-2.0-a\r\n").await.unwrap();
        let meter = Meter::new(Arc::default());
        let result = exchange(&mut ends, &meter, DEADLINE, |_, _| ()).await;
        assert_eq!(result.is_ok(), passes, "{result:?}");
        let heard = if passes { length } else { line.len() };
        assert_eq!(meter.bytes(Direction::Download), heard as u64);
    }
}

#[tokio::test]
async fn a_client_cannot_announce() {
    let (mut client, _target, mut ends) = ends().await;
    client.write_all(announcement().as_bytes()).await.unwrap();
    let meter = Meter::new(Arc::default());
    let result = exchange(&mut ends, &meter, DEADLINE, |_, _| ()).await;
    let (by, reason) = (Side::Client, CloseReason::NotSsh);
    assert_eq!(result, Err(Close { by, reason }));
    assert_eq!(meter.bytes(Direction::Upload), 0);
}

#[test]
fn neither_the_id_of_a_session_nor_what_steers_a_terminal_is_shown() {
    for (said, shown) in [
        ("switchboard_resume_1 resume 0f0f 1d1d", "switchboard_resume_1 resume"),
        ("switchboard_resume_1 new 0f0f 1d1d", "switchboard_resume_1 new"),
        ("switchboard_resume_1", "switchboard_resume_1"),
        ("OpenSSH_9.2p1 Debian-2 a b", "OpenSSH_9.2p1 Debian-2 a b"),
        ("a\x1b[31m\u{ff}b\t", "a?[31m??b?"),
    ] {
        assert_eq!(Software::parse(said.as_bytes()).to_string(), shown);
    }
}
