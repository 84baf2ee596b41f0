//! Frames of a faulty or hostile proxy.

use super::*;

mod floods;

/// The proxy's side of a connection, below HTTP/2.
struct Frames(TlsStream<TcpStream>);

/// A frame of the client: its type and its payload.
type Frame = (u8, Vec<u8>);

impl Frames {
    /// Accepts a client, and reads its preface.
    async fn accept(proxy: &Http2Proxy) -> Self {
        let mut stream = proxy.accept().await;
        assert_eq!(
            &read_exactly::<24>(&mut stream).await,
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        );
        Self(stream)
    }

    async fn send(&mut self, bytes: &[u8]) {
        within(self.0.write_all(bytes)).await.unwrap();
        within(self.0.flush()).await.unwrap();
    }

    async fn next(&mut self) -> Frame {
        let [a, b, c, kind, ..] = read_exactly::<9>(&mut self.0).await;
        let mut payload = vec![0; usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c)];
        within(self.0.read_exact(&mut payload)).await.unwrap();
        (kind, payload)
    }

    /// The payload of the next frame of that type. Others before it are skipped.
    async fn next_of(&mut self, wanted: u8) -> Vec<u8> {
        loop {
            let (kind, payload) = self.next().await;
            if kind == wanted {
                return payload;
            }
        }
    }
}

/// Sends these bytes in place of an answer, with and without a close behind them, and expects this line of the client.
async fn expect_failure(what: &str, bytes: &[u8], expected: &str) {
    for closes in [false, true] {
        let proxy = Http2Proxy::bind().await;
        let session = proxy.start();
        let mut frames = Frames::accept(&proxy).await;
        frames.next_of(HEADERS).await;
        frames.send(&[SETTINGS, bytes].concat()).await;
        if closes {
            frames.0.shutdown().await.unwrap();
        }
        let error = session.end().await.unwrap_err();
        let line = chain(&error);
        assert!(line.starts_with(expected), "{what}, {closes}: {line}");
        assert_eq!(error.exit_code(), 1, "{what}");
    }
}

async fn expect_faulty_http2(what: &str, bytes: &[u8], name: &str) {
    let expected = format!("the proxy's HTTP/2 is faulty ({name}; --http1.1 avoids it): ");
    expect_failure(what, bytes, &expected).await;
}

#[tokio::test]
async fn a_goaway_before_the_answer_is_reported_by_its_code() {
    for (payload, name) in [
        (&b"\0\0\0\0\0\0\0\0"[..], "NO_ERROR"),
        (b"\0\0\0\0\0\0\0\x0bcalm", "ENHANCE_YOUR_CALM"),
    ] {
        let expected = format!("the proxy aborted the tunnel ({name}): ");
        expect_failure(name, &frame(GOAWAY, 0, 0, payload), &expected).await;
    }
}

#[tokio::test]
async fn an_invalid_head_is_reported_as_faulty_http_2() {
    let too_long = [b"\x88", &field(b"x", &[b'a'; 20_000])[..]].concat();
    let (begun, rest) = too_long.split_at(10_000);
    let (middle, last) = rest.split_at(10_000);
    let over_16_kib = [
        frame(HEADERS, 0, 1, begun),
        frame(CONTINUATION, 0, 1, middle),
        frame(CONTINUATION, END_HEADERS, 1, last),
    ];
    expect_faulty_http2("over 16 KiB", &over_16_kib.concat(), "PROTOCOL_ERROR").await;
    let endless = [
        frame(HEADERS, 0, 1, b"\x88"),
        frame(CONTINUATION, 0, 1, b"").repeat(1_000),
    ];
    expect_faulty_http2("without an end", &endless.concat(), "ENHANCE_YOUR_CALM").await;
    let no_status = frame(HEADERS, END_HEADERS, 1, &field(b"x", b"y"));
    expect_faulty_http2("without a status", &no_status, "PROTOCOL_ERROR").await;
    // RFC 9110 section 9.3.6 would have the client ignore it, which h2 does not.
    let length = [&b"\x88"[..], &field(b"content-length", b"3")].concat();
    let length = [frame(HEADERS, END_HEADERS, 1, &length), frame(DATA, 0, 1, b"SSH-2.0")];
    expect_faulty_http2("with a length", &length.concat(), "PROTOCOL_ERROR").await;
}

#[tokio::test]
async fn forbidden_frames_are_reported_as_faulty_http_2() {
    let early = frame(DATA, 0, 1, b"SSH-2.0-x\r\n");
    expect_faulty_http2("bytes of a tunnel that is not open", &early, "PROTOCOL_ERROR").await;
    let early = [frame(HEADERS, END_HEADERS, 1, &interim()), early].concat();
    expect_faulty_http2("the same behind an interim answer", &early, "PROTOCOL_ERROR").await;
    let push = frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\x02\x82\x87\x84");
    expect_faulty_http2("a pushed response", &push, "PROTOCOL_ERROR").await;
    let window = frame(WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff");
    expect_faulty_http2("a window over 2^31-1", &window, "FLOW_CONTROL_ERROR").await;
    let nothing = [ANSWER, &frame(DATA, 0, 1, b"").repeat(20_000)].concat();
    expect_faulty_http2("only frames without a byte", &nothing, "ENHANCE_YOUR_CALM").await;
}

#[tokio::test]
async fn interim_answers_are_skipped_and_late_settings_accepted() {
    let proxy = Http2Proxy::bind().await;
    let mut session = proxy.start();
    let mut frames = Frames::accept(&proxy).await;
    frames.next_of(HEADERS).await;
    let interim = frame(HEADERS, END_HEADERS, 1, &interim()).repeat(50);
    frames
        .send(&[&interim, ANSWER, &frame(DATA, 0, 1, b"hello"), SETTINGS].concat())
        .await;
    assert_eq!(&read_exactly::<5>(&mut session.stdout).await, b"hello");
}

#[tokio::test(start_paused = true)]
async fn a_proxy_without_any_frame_is_reported_as_a_timeout() {
    let proxy = Http2Proxy::bind().await;
    let session = Session::start(Options {
        timeout: Duration::from_millis(300),
        ..proxy.options()
    });
    let _frames = Frames::accept(&proxy).await;
    assert_eq!(session.failure().await, "the proxy's answer took longer than 300ms");
}

#[tokio::test]
async fn an_answer_with_end_stream_ends_the_download_only() {
    let proxy = Http2Proxy::bind().await;
    let (mut stdin, mut stdout, ended) = proxy.start().parts();
    let mut frames = Frames::accept(&proxy).await;
    frames
        .send(&[SETTINGS, &frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x88")].concat())
        .await;
    assert_eq!(read_all(&mut stdout).await, b"");
    stdin.write_all(b"still heard").await.unwrap();
    drop(stdin);
    assert_eq!(frames.next_of(DATA).await, b"still heard");
    assert_eq!(frames.next_of(DATA).await, b"");
    within(ended).await.unwrap().unwrap();
    // A refusal of nothing but a head: 404 is 13 in HPACK's static table.
    let session = proxy.start();
    let mut frames = Frames::accept(&proxy).await;
    frames
        .send(&[SETTINGS, &frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x8d")].concat())
        .await;
    let line = session.failure().await;
    assert!(
        line.starts_with("the proxy answered 404 (this is not a CONNECT proxy"),
        "{line}"
    );
}

#[tokio::test]
async fn a_window_of_0_stops_the_upload_alone_and_one_of_1_moves_a_byte() {
    let proxy = Http2Proxy::bind().await;
    let (mut stdin, mut stdout, ended) = proxy.start().parts();
    let mut frames = Frames::accept(&proxy).await;
    // SETTINGS_INITIAL_WINDOW_SIZE (4) of 0.
    let settings = frame(4, 0, 0, b"\0\x04\0\0\0\0");
    frames.send(&[&settings, ANSWER].concat()).await;
    let late = pattern(8, 300);
    stdin.write_all(&late).await.unwrap();
    drop(stdin);
    // Its answer says that it has applied the settings.
    let ping = frame(PING, 0, 0, b"the ping");
    frames.send(&[ping, frame(DATA, 0, 1, b"down")].concat()).await;
    assert_eq!(&read_exactly::<4>(&mut stdout).await, b"down");
    loop {
        let (kind, payload) = frames.next().await;
        assert_ne!(kind, DATA, "the window is 0");
        if kind == PING {
            assert_eq!(payload, b"the ping");
            break;
        }
    }
    for byte in &late {
        frames.send(&frame(WINDOW_UPDATE, 0, 1, b"\0\0\0\x01")).await;
        assert_eq!(frames.next_of(DATA).await, [*byte]);
    }
    assert_eq!(frames.next_of(DATA).await, b"", "an end needs no window");
    frames.send(&frame(DATA, END_STREAM, 1, b"")).await;
    within(ended).await.unwrap().unwrap();
}

#[tokio::test]
async fn trailers_are_no_end_of_a_tunnel() {
    let proxy = Http2Proxy::bind().await;
    let mut session = proxy.start();
    let mut frames = Frames::accept(&proxy).await;
    let trailers = frame(HEADERS, END_HEADERS | END_STREAM, 1, &field(b"x", b"y"));
    frames
        .send(&[SETTINGS, ANSWER, &frame(DATA, 0, 1, b"bye"), &trailers].concat())
        .await;
    assert_eq!(&read_exactly::<3>(&mut session.stdout).await, b"bye");
    let line = session.failure().await;
    assert!(
        line.starts_with("the proxy's HTTP/2 is faulty (PROTOCOL_ERROR; --http1.1 avoids it): "),
        "{line}"
    );
}

/// With and without close_notify, and within a TLS record.
#[tokio::test]
async fn a_connection_truncated_within_a_frame_is_lost() {
    let lost = "the connection to the proxy was lost: ";
    let whole = frame(DATA, 0, 1, b"more bytes");
    for missing in [1, 5, 10, 15, 18] {
        for close_notify in [true, false] {
            let proxy = Http2Proxy::bind().await;
            let mut session = proxy.start();
            let mut frames = Frames::accept(&proxy).await;
            let cut = &whole[..whole.len() - missing];
            frames
                .send(&[SETTINGS, ANSWER, &frame(DATA, 0, 1, b"bye"), cut].concat())
                .await;
            assert_eq!(&read_exactly::<3>(&mut session.stdout).await, b"bye");
            if close_notify {
                frames.0.shutdown().await.unwrap();
            } else {
                frames.0.get_mut().0.shutdown().await.unwrap();
            }
            let error = session.end().await.unwrap_err();
            let line = chain(&error);
            assert_eq!(
                line,
                format!("{lost}the proxy closed it before the tunnel's end"),
                "{missing}, {close_notify}"
            );
            assert_eq!(error.exit_code(), 1);
        }
    }
    let proxy = Http2Proxy::bind().await;
    let mut session = proxy.start();
    let mut frames = Frames::accept(&proxy).await;
    frames
        .send(&[SETTINGS, ANSWER, &frame(DATA, 0, 1, b"bye")].concat())
        .await;
    assert_eq!(&read_exactly::<3>(&mut session.stdout).await, b"bye");
    tls::truncate_within_a_record(frames.0, &whole).await;
    assert_eq!(
        session.failure().await,
        format!("{lost}it ended in the middle of a TLS record")
    );
}

/// `:status: 103`, a literal with the name of entry 8 of HPACK's static table.
fn interim() -> Vec<u8> {
    b"\x08\x03103".to_vec()
}

/// A field as a literal without indexing (RFC 7541 section 6.2.2).
fn field(name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0];
    for string in [name, value] {
        // An integer with a prefix of seven bits (RFC 7541 section 5.1).
        if let Some(mut rest) = string.len().checked_sub(127) {
            bytes.push(127);
            while rest >= 128 {
                bytes.push(u8::try_from(rest % 128 + 128).unwrap());
                rest /= 128;
            }
            bytes.push(u8::try_from(rest).unwrap());
        } else {
            bytes.push(u8::try_from(string.len()).unwrap());
        }
        bytes.extend_from_slice(string);
    }
    bytes
}

/// RFC 9113 section 4.1.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
