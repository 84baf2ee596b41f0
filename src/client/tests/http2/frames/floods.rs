//! Many frames: those that a tunnel has to bear, and those without end.

use super::*;

#[tokio::test]
async fn many_frames_without_effect_stop_no_tunnel() {
    for (what, flood) in [
        ("PING", frame(PING, 0, 0, b"the ping")),
        ("SETTINGS", SETTINGS.to_vec()),
        ("WINDOW_UPDATE", frame(WINDOW_UPDATE, 0, 1, b"\0\0\0\x01")),
        ("an unknown type", frame(0xfa, 0xff, 0, b"what?")),
    ] {
        let proxy = Http2Proxy::bind().await;
        let mut session = proxy.start();
        let Frames(stream) = Frames::accept(&proxy).await;
        let (mut receive, mut send) = tokio::io::split(stream);
        let answers = tokio::spawn(async move { tokio::io::copy(&mut receive, &mut tokio::io::sink()).await });
        let flood = flood.repeat(20_000);
        let all = [SETTINGS, ANSWER, &flood, &frame(DATA, 0, 1, b"alive")].concat();
        within(send.write_all(&all)).await.unwrap();
        send.flush().await.unwrap();
        assert_eq!(&read_exactly::<5>(&mut session.stdout).await, b"alive", "{what}");
        answers.abort();
    }
}

/// Frames that carry nothing, in place of an answer and beside a tunnel.
#[tokio::test]
async fn frames_without_end_and_without_effect_are_an_error() {
    let flood = "the proxy floods the connection with HTTP/2 frames that carry nothing";
    for (what, frames) in [
        ("PING", frame(PING, 0, 0, b"the ping")),
        ("answers to no PING", frame(PING, 1, 0, b"the ping")),
        ("SETTINGS", SETTINGS.to_vec()),
        ("WINDOW_UPDATE", frame(WINDOW_UPDATE, 0, 1, b"\0\0\0\x01")),
        ("PRIORITY", frame(PRIORITY, 0, 1, b"\0\0\0\0\x07")),
        ("PRIORITY of other streams", frame(PRIORITY, 0, 99, b"\0\0\0\0\x07")),
        ("an unknown type", frame(0xfa, 0xff, 0, b"what?")),
        ("an unknown type of 16 KiB", frame(0xfa, 0xff, 0, &[7; 16_384])),
        ("GOAWAY", frame(GOAWAY, 0, 0, b"\0\0\0\x01\0\0\0\0")),
        ("padding", frame(DATA, PADDED, 1, &[&[255][..], &[0; 255]].concat())),
        ("interim answers", frame(HEADERS, END_HEADERS, 1, &interim())),
    ] {
        for is_open in [false, true] {
            if is_open == (what == "interim answers") || (what == "padding" && !is_open) {
                continue;
            }
            let proxy = Http2Proxy::bind().await;
            let mut session = proxy.start();
            let mut accepted = Frames::accept(&proxy).await;
            accepted.next_of(HEADERS).await;
            let (mut receive, mut send) = tokio::io::split(accepted.0);
            let answers = tokio::spawn(async move { tokio::io::copy(&mut receive, &mut tokio::io::sink()).await });
            send.write_all(SETTINGS).await.unwrap();
            if is_open {
                send.write_all(&[ANSWER, &frame(DATA, 0, 1, b"hello")].concat())
                    .await
                    .unwrap();
                send.flush().await.unwrap();
                assert_eq!(&read_exactly::<5>(&mut session.stdout).await, b"hello");
            }
            let many = frames.repeat(64 * 1024 / frames.len() + 1);
            let mut sent = 0;
            while within(send.write_all(&many)).await.is_ok() {
                sent += many.len();
                assert!(sent < 128 << 20, "{what}: {sent} bytes were taken");
            }
            let line = session.failure().await;
            // Of DATA frames h2 has a bound of its own, which is lower.
            let expected = if what == "padding" {
                "the proxy's HTTP/2 is faulty (ENHANCE_YOUR_CALM"
            } else {
                flood
            };
            assert!(line.starts_with(expected), "{what}: {line}");
            answers.abort();
        }
    }
}

/// What a proxy sends beside the bytes of a tunnel may be without end, as the tunnel is.
#[tokio::test]
async fn a_tunnel_with_a_ping_and_a_window_for_every_frame_lasts() {
    const FRAMES: usize = 40_000;
    let proxy = Http2Proxy::bind().await;
    let mut session = proxy.start();
    let Frames(stream) = Frames::accept(&proxy).await;
    let (mut receive, mut send) = tokio::io::split(stream);
    let answers = tokio::spawn(async move { tokio::io::copy(&mut receive, &mut tokio::io::sink()).await });
    let one = [
        frame(DATA, 0, 1, b"bytes"),
        frame(PING, 0, 0, b"the ping"),
        frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\x01"),
    ]
    .concat();
    let all = [
        SETTINGS,
        &frame(4, 1, 0, b""),
        ANSWER,
        &one.repeat(FRAMES),
        &frame(DATA, END_STREAM, 1, b""),
    ]
    .concat();
    let (sent, received) = tokio::join!(
        async {
            send.write_all(&all).await.unwrap();
            send.flush().await
        },
        read_all(&mut session.stdout),
    );
    sent.unwrap();
    assert!(received == b"bytes".repeat(FRAMES));
    answers.abort();
}

/// As of a suspended ssh: SSH's packets are small.
#[tokio::test]
async fn many_small_frames_wait_for_an_unread_stdout() {
    const FRAMES: usize = 60_000;
    let proxy = Http2Proxy::bind().await;
    let mut session = proxy.start();
    let mut frames = Frames::accept(&proxy).await;
    let small = frame(DATA, 0, 1, &pattern(9, 36)).repeat(FRAMES);
    // The client's window applies once its settings are acknowledged.
    frames
        .send(&[SETTINGS, &frame(4, 1, 0, b""), ANSWER, &small].concat())
        .await;
    // Its answer says that all before it has been received.
    frames.send(&frame(PING, 0, 0, b"the ping")).await;
    frames.next_of(PING).await;
    frames.send(&frame(DATA, END_STREAM, 1, &pattern(10, 5_000))).await;
    let expected = [pattern(9, 36).repeat(FRAMES), pattern(10, 5_000)].concat();
    assert!(read_all(&mut session.stdout).await == expected);
}

/// Answers that wait would take memory without bound.
#[tokio::test]
async fn a_proxy_that_reads_no_answers_cannot_send_pings_without_end() {
    let proxy = Http2Proxy::bind().await;
    let _session = proxy.start();
    let mut frames = Frames::accept(&proxy).await;
    frames.send(&[SETTINGS, ANSWER].concat()).await;
    let flood = frame(PING, 0, 0, b"the ping").repeat(4_000);
    let mut sent = 0;
    // The client stops reading, or has taken it for a flood.
    while let Ok(Ok(())) = tokio::time::timeout(Duration::from_secs(1), frames.0.write_all(&flood)).await {
        sent += flood.len();
        assert!(sent < 64 << 20, "{sent} bytes, more than sockets hold");
    }
}
