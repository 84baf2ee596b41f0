//! Cases of the Autobahn test suite (https://github.com/crossbario/autobahn-testsuite) for servers, by their numbers: groups 1.2, 2
//! to 5, 7 and 10. Text (1.1, 6) and compression (12, 13) are not spoken, and of the long messages of group 9 there is one
//! frame of 16 MiB in the file above. Messages are binary, as a tunnel's are, and the target echoes their bytes: where messages
//! begin is not passed on.

use super::{close, frame, open, proxy_to, read_frame};
use crate::harness::peer::Peer;
use crate::harness::target::Echo;

/// A case.
struct Case {
    number: String,
    /// The bytes of the client, and how many are in each write.
    bytes: Vec<u8>,
    chop: usize,
    /// The echo, and the payloads of the pongs in their order.
    echo: Vec<u8>,
    pongs: Vec<Vec<u8>>,
    /// The status of the server's close frame; `None` if it has none.
    status: Option<u16>,
    end: End,
}

#[derive(Clone, Copy, PartialEq)]
enum End {
    /// The client closes when all has come.
    ByClient,
    /// A close frame is in the bytes.
    InBytes,
    /// The bytes break the RFC: the server ends the connection, and less than the echo may have come.
    Violation,
}

impl Case {
    fn new(number: impl Into<String>, frames: &[Vec<u8>]) -> Self {
        Self {
            number: number.into(),
            bytes: frames.concat(),
            chop: usize::MAX,
            echo: Vec::new(),
            pongs: Vec::new(),
            status: Some(1000),
            end: End::ByClient,
        }
    }

    fn chopped(self, chop: usize) -> Self {
        Self { chop, ..self }
    }

    fn echoes(self, echo: impl AsRef<[u8]>) -> Self {
        Self {
            echo: echo.as_ref().to_vec(),
            ..self
        }
    }

    fn pongs(self, pongs: &[&[u8]]) -> Self {
        Self {
            pongs: pongs.iter().map(|pong| pong.to_vec()).collect(),
            ..self
        }
    }

    fn closes(self, status: u16) -> Self {
        Self {
            status: Some(status),
            end: End::InBytes,
            ..self
        }
    }

    fn fails(self, status: u16) -> Self {
        Self {
            status: Some(status),
            end: End::Violation,
            ..self
        }
    }

    #[track_caller]
    fn run(&self, mut client: Peer) {
        for piece in self.bytes.chunks(self.chop.min(self.bytes.len())) {
            // After a violation the server may be gone.
            if client.try_send(piece).is_err() {
                break;
            }
        }
        let (mut echo, mut pongs) = (Vec::new(), Vec::new());
        let status = loop {
            if self.end == End::ByClient && echo == self.echo && pongs == self.pongs {
                client.try_send(frame(0x88, &close(1000, ""))).ok();
            }
            let (first, payload) = read_frame(&mut client);
            match first {
                0x82 => echo.extend(payload),
                0x8a => pongs.push(payload),
                0x88 => break payload.first_chunk().map(|status| u16::from_be_bytes(*status)),
                _ => panic!("{}: {first:x}", self.number),
            }
        };
        client.ends();
        assert_eq!(status, self.status, "{}", self.number);
        if self.end == End::Violation {
            assert!(self.echo.starts_with(&echo), "{}", self.number);
        } else {
            assert!(
                (echo, pongs) == (self.echo.clone(), self.pongs.clone()),
                "{}",
                self.number
            );
        }
    }
}

const HELLO: &[u8] = b"Hello, world!";

/// A whole message, and one frame of a message in several.
fn message(payload: &[u8]) -> Vec<u8> {
    frame(0x82, payload)
}

fn ping(payload: &[u8]) -> Vec<u8> {
    frame(0x89, payload)
}

/// 1.2 (binary messages), 2 (pings) and 10 (fragments of a size).
fn framing() -> Vec<Case> {
    let mut cases = Vec::new();
    for (number, (length, chop)) in (1..).zip([
        (0, usize::MAX),
        (125, usize::MAX),
        (126, usize::MAX),
        (127, usize::MAX),
        (128, usize::MAX),
        (65_535, usize::MAX),
        (65_536, usize::MAX),
        (65_536, 997),
    ]) {
        let payload = vec![0xfe; length];
        let case = Case::new(format!("1.2.{number}"), &[message(&payload)]);
        cases.push(case.echoes(&payload).chopped(chop));
    }
    let binary = [0, 0xff, 0xfe, 0xfd, 0xfc, 0xfb, 0, 0xff];
    for (number, payload, chop) in [
        ("2.1", &b""[..], usize::MAX),
        ("2.2", HELLO, usize::MAX),
        ("2.3", &binary, usize::MAX),
        ("2.4", &[0xfe; 125], usize::MAX),
        ("2.6", &[0xfe; 125], 1),
    ] {
        cases.push(Case::new(number, &[ping(payload)]).pongs(&[payload]).chopped(chop));
    }
    cases.push(Case::new("2.5", &[ping(&[0xfe; 126])]).fails(1002));
    let unasked = frame(0x8a, b"unsolicited pong payload");
    cases.push(Case::new("2.7", &[frame(0x8a, b"")]));
    cases.push(Case::new("2.8", std::slice::from_ref(&unasked)));
    cases.push(Case::new("2.9", &[unasked, ping(b"ping payload")]).pongs(&[b"ping payload"]));
    let payloads: Vec<String> = (0..10).map(|number| format!("payload-{number}")).collect();
    let pings: Vec<_> = payloads.iter().map(|payload| ping(payload.as_bytes())).collect();
    let pongs: Vec<_> = payloads.iter().map(|payload| payload.as_bytes()).collect();
    for (number, chop) in [("2.10", usize::MAX), ("2.11", 1)] {
        cases.push(Case::new(number, &pings).pongs(&pongs).chopped(chop));
    }
    let payload = vec![b'*'; 65_536];
    let last = payload.chunks(1300).count() - 1;
    let fragments = payload.chunks(1300).enumerate().map(|(number, fragment)| {
        let opcode = if number == 0 { 2 } else { 0 };
        frame(if number == last { 0x80 | opcode } else { opcode }, fragment)
    });
    cases.push(Case::new("10.1.1", &fragments.collect::<Vec<_>>()).echoes(&payload));
    cases
}

/// 3 (reserved bits) and 4 (reserved opcodes).
fn reserved() -> Vec<Case> {
    let mut cases = Vec::new();
    for (number, first) in [("3.1", 0x92), ("3.5", 0xd2), ("3.6", 0xe9), ("3.7", 0xf8)] {
        cases.push(Case::new(number, &[frame(first, HELLO)]).fails(1002));
    }
    for (number, first, chop) in [("3.2", 0xa2, usize::MAX), ("3.3", 0xb2, 19), ("3.4", 0xc2, 1)] {
        let frames = [message(HELLO), frame(first, HELLO), ping(b"")];
        cases.push(Case::new(number, &frames).echoes(HELLO).chopped(chop).fails(1002));
    }
    for (group, opcodes) in [("4.1", 3..=7), ("4.2", 11..=15)] {
        for (number, opcode) in (1..).zip(opcodes) {
            let payload = if number == 1 { &b""[..] } else { HELLO };
            let frames = match number {
                1 | 2 => vec![frame(0x80 | opcode, payload)],
                _ => vec![message(HELLO), frame(0x80 | opcode, payload), ping(b"")],
            };
            let chop = if number < 4 { usize::MAX } else { 1 };
            let case = Case::new(format!("{group}.{number}"), &frames).echoes(HELLO);
            cases.push(case.chopped(chop).fails(1002));
        }
    }
    cases
}

/// 5: fragments.
fn fragments() -> Vec<Case> {
    let mut cases = Vec::new();
    let (first, last) = (frame(0x02, b"fragment1"), frame(0x80, b"fragment2"));
    let between = frame(0x00, b"fragment2");
    let whole = b"fragment1fragment2";
    for (number, opcode) in [("5.1", 9), ("5.2", 10)] {
        cases.push(Case::new(number, &[frame(opcode, b"fragment1"), last.clone()]).fails(1002));
    }
    for (numbers, ping_payload) in [
        (["5.3", "5.4", "5.5"], None),
        (["5.6", "5.7", "5.8"], Some(b"ping payload")),
    ] {
        for (number, chop) in numbers.into_iter().zip([usize::MAX, 15, 1]) {
            let mut frames = vec![first.clone(), last.clone()];
            let mut pongs = Vec::new();
            if let Some(payload) = ping_payload {
                frames.insert(1, ping(payload));
                pongs.push(&payload[..]);
            }
            cases.push(Case::new(number, &frames).echoes(whole).pongs(&pongs).chopped(chop));
        }
    }
    let stray = |is_final| frame(if is_final { 0x80 } else { 0 }, b"non-continuation payload");
    for (numbers, is_final) in [(["5.9", "5.10", "5.11"], true), (["5.12", "5.13", "5.14"], false)] {
        for (number, chop) in numbers.into_iter().zip([usize::MAX, 20, 1]) {
            let frames = [stray(is_final), message(HELLO)];
            cases.push(Case::new(number, &frames).chopped(chop).fails(1002));
        }
    }
    let frames = [first.clone(), last.clone(), stray(false), message(HELLO)];
    cases.push(Case::new("5.15", &frames).echoes(whole).fails(1002));
    for (number, is_final) in [("5.16", false), ("5.17", true)] {
        let once = [stray(is_final), first.clone(), last.clone()].concat();
        cases.push(Case::new(number, &[once.clone(), once]).fails(1002));
    }
    let again = [first.clone(), frame(0x82, b"fragment2")];
    cases.push(Case::new("5.18", &again).echoes("fragment1").fails(1002));
    for (number, chop) in [("5.19", usize::MAX), ("5.20", 1)] {
        let frames = [
            first.clone(),
            between.clone(),
            ping(b"pongme 1!"),
            between.clone(),
            between.clone(),
            ping(b"pongme 2!"),
            last.clone(),
        ];
        let echo = [&b"fragment1"[..], &b"fragment2".repeat(4)].concat();
        let case = Case::new(number, &frames).echoes(echo).chopped(chop);
        cases.push(case.pongs(&[b"pongme 1!", b"pongme 2!"]));
    }
    cases
}

/// 7: close frames.
fn closes() -> Vec<Case> {
    let mut cases = Vec::new();
    let bye = frame(0x88, &close(1000, ""));
    let of = |payload: &[u8]| frame(0x88, payload);
    let large = vec![b'*'; 256 << 10];
    cases.push(
        Case::new("7.1.1", &[message(HELLO), bye.clone()])
            .echoes(HELLO)
            .closes(1000),
    );
    cases.push(Case::new("7.1.2", &[bye.clone(), bye.clone()]).closes(1000));
    cases.push(Case::new("7.1.3", &[bye.clone(), ping(b"")]).closes(1000));
    cases.push(Case::new("7.1.4", &[bye.clone(), message(HELLO)]).closes(1000));
    let frames = [frame(0x02, b"fragment1"), bye.clone(), frame(0x80, b"fragment2")];
    cases.push(Case::new("7.1.5", &frames).echoes("fragment1").closes(1000));
    let frames = [message(&large), bye, ping(b"")];
    cases.push(Case::new("7.1.6", &frames).echoes(&large).closes(1000));
    let without_status = Case::new("7.3.1", &[of(b"")]).closes(1000);
    cases.push(Case {
        status: None,
        ..without_status
    });
    cases.push(Case::new("7.3.2", &[of(b"a")]).fails(1002));
    cases.push(Case::new("7.3.3", &[of(&close(1000, ""))]).closes(1000));
    cases.push(Case::new("7.3.4", &[of(&close(1000, "Hello World!"))]).closes(1000));
    cases.push(Case::new("7.3.5", &[of(&close(1000, &"*".repeat(123)))]).closes(1000));
    cases.push(Case::new("7.3.6", &[of(&close(1000, &"*".repeat(124)))]).fails(1002));
    let malformed = b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80edited";
    cases.push(Case::new("7.5.1", &[of(&[&close(1000, "")[..], malformed].concat())]).fails(1007));
    let valid = [
        1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999,
    ];
    for (number, status) in (1..).zip(valid) {
        cases.push(Case::new(format!("7.7.{number}"), &[of(&close(status, ""))]).closes(status));
    }
    let invalid = [0, 999, 1004, 1005, 1006, 1016, 1100, 2000, 2999];
    for (number, status) in (1..).zip(invalid) {
        cases.push(Case::new(format!("7.9.{number}"), &[of(&close(status, ""))]).fails(1002));
    }
    cases
}

#[test]
fn each_of_these_cases_has_its_outcome() {
    let echo = Echo::listen();
    let proxy = proxy_to(echo.address());
    for case in [framing(), reserved(), fragments(), closes()].iter().flatten() {
        case.run(open(&proxy));
    }
}
