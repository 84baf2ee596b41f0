//! The real binary where the kernel refuses a system call (a seccomp profile, a sandbox): it loses no byte, and says what it
//! goes without.

use std::process::Command;
use std::sync::{Arc, LazyLock};

use crate::harness::authority::Authority;
use crate::harness::loopback::Part;
use crate::harness::ports::Ports;
use crate::harness::process::{Process, Server, Settings, anchor, blocking_signals, switchboard};
use crate::harness::seccomp::{Call, ERRORS};
use crate::harness::stream::Stream;
use crate::harness::{CONFIRMATION, DEADLINE, allow, request};
use http::{Method, Request};
use libc::{EAGAIN, ENOMEM, ENOSYS, EPERM};
use rustix::process::Signal;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The error for a refused call, and the engine that moves bulk then. The relay notices when it first needs the call.
/// `relay::properties` has every call with every error.
const ENGINES: [(Call, i32, &str); 5] = [
    (Call::Splice, ENOSYS, "copy"),
    (Call::SpliceBelow(1 << 20), EPERM, "copy"),
    (Call::Pipe2, ENOMEM, "copy"),
    (Call::SetPipeSize, EPERM, "splice"),
    (Call::TcpInfo, ENOSYS, "splice"),
];

#[test]
fn bulk_arrives_whole_whatever_call_of_the_relay_is_refused() {
    for (call, error, engine) in ENGINES {
        println!("{call:?} {error}");
        bulk_arrives_whole(call, error, engine);
    }
}

fn bulk_arrives_whole(call: Call, error: i32, engine: &str) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let target = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let authority = Authority::new();
    let issued = authority.server("server", &["localhost"]);
    let settings = Settings::new(&format!(
        "drain: {{delay: 0s}}\nlisten: {{address: \"127.0.0.1:0\", tls: optional}}\ntls: {{certificates: [{}]}}\n{}",
        issued.setting(),
        allow(&[("box:22", target.local_addr().unwrap())])
    ));
    let mut server = Server::refusing(call, error, &settings);
    let is_in_use = |server: &Server, engine| server.scrape().value(&format!("relay_engine{{engine=\"{engine}\"}}"));
    assert_eq!((is_in_use(&server, "splice"), is_in_use(&server, "copy")), (1.0, 0.0));
    let carried = async {
        let connect = || async {
            let stream = TcpStream::connect(server.public()).await.unwrap();
            stream.set_nodelay(true).unwrap();
            stream
        };
        // Twice: what is learned from the first tunnel holds for the second.
        for _ in 0..2 {
            carry(opened(connect().await).await, &target).await;
        }
        let config = crate::tls::client::config(&authority, None);
        carry(opened(secured(connect().await, config).await).await, &target).await;
        carry(asked(connect().await).await, &target).await;
        let mut config = ClientConfig::clone(&crate::tls::client::config(&authority, None));
        config.alpn_protocols = vec![b"h2".to_vec()];
        let stream = secured(connect().await, Arc::new(config)).await;
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        carry(asked(stream).await, &target).await;
    };
    runtime.block_on(async { timeout(DEADLINE, carried).await.unwrap() });
    for _ in 0..5 {
        let line: Value = serde_json::from_str(&server.process.stdout.find("bytes_received")).unwrap();
        assert_eq!(line["reason"], "eof", "{line}");
        assert_eq!(
            (&line["bytes_received"], &line["bytes_sent"]),
            (&BYTES.into(), &BYTES.into()),
            "{line}"
        );
    }
    let copies = f64::from(engine == "copy");
    assert_eq!(
        (is_in_use(&server, "splice"), is_in_use(&server, "copy")),
        (1.0 - copies, copies)
    );
    assert_eq!(server.scrape().value("pipes_in_use"), 0.0);
    // With the client's connections of HTTP/2: the drain waits for none then.
    drop(runtime);
    server.process.signal(Signal::TERM);
    let messages = server.process.stderr.rest();
    let said: Vec<_> = messages.iter().filter(|line| line.contains("WARN")).collect();
    assert_eq!(said.len(), usize::from(engine == "copy"), "{messages:#?}");
    assert!(said.iter().all(|line| line.contains(": bulk is copied ")), "{said:?}");
}

#[test]
fn a_process_that_cannot_accept_says_so() {
    let settings = Settings::new("drain: {delay: 0s}\nallowlist: {static: []}\n");
    for error in ERRORS {
        let command = switchboard(&["serve", "--config", settings.path()]);
        let mut process = Process::spawn_refusing(Call::Accept4, error, command);
        let line = process.stderr.find("public port ");
        let public = line.rsplit(' ').next().unwrap();
        let _client = std::net::TcpStream::connect(public).unwrap();
        process.stderr.find("cannot accept, pausing");
        process.signal(Signal::TERM);
        assert_eq!(process.exit_status(), 0);
    }
}

/// The programs that serve, with a configuration that is as good as any.
fn programs(settings: &Settings) -> [Command; 2] {
    let any = "127.0.0.1:0";
    [
        switchboard(&["serve", "--config", settings.path()]),
        anchor(&["anchor", "--listen", any, "--admin", any, "--to", "127.0.0.1:1"]),
    ]
}

/// A call without which nothing is served, and the sentence about it.
const NEEDED: [(Call, &str); 4] = [
    (Call::EpollWait, "unexpected error when polling the I/O driver"),
    (Call::Recvfrom, "the system refuses recvfrom(2)"),
    (Call::Socketpair, "the system refuses socketpair(2)"),
    (Call::Getrandom, "the system refuses getrandom(2)"),
];

#[test]
fn a_process_that_could_not_serve_ends_with_a_sentence() {
    let settings = Settings::new("allowlist: {static: []}\n");
    for (call, sentence) in NEEDED {
        // AWS-LC and std know systems without getrandom(2), and read /dev/urandom there.
        for error in ERRORS
            .into_iter()
            .filter(|error| (call, *error) != (Call::Getrandom, ENOSYS))
        {
            for command in programs(&settings) {
                let mut process = Process::spawn_refusing(call, error, command);
                let said = process.stderr.rest();
                assert_eq!(process.exit_status(), 1, "{call:?} {error}: {said:?}");
                let sentences = said.iter().filter(|line| line.contains(sentence)).count();
                let panics = said.iter().filter(|line| line.contains("panicked at")).count();
                assert_eq!((sentences, panics), (1, 0), "{call:?} {error}: {said:?}");
            }
        }
    }
}

/// A call without which no program of a user or an operator starts, and the sentence about it.
const NEEDED_BY_ALL: [(Call, i32, &str); 6] = [
    (Call::Clone3, EAGAIN, "cannot start a thread"),
    (Call::EpollCreate, EPERM, "cannot start the event loop"),
    (Call::Eventfd, EPERM, "cannot start the event loop"),
    (Call::EpollWait, EPERM, "unexpected error when polling the I/O driver"),
    (Call::Socketpair, EPERM, "the system refuses socketpair(2)"),
    (Call::Getrandom, EPERM, "the system refuses getrandom(2)"),
];

#[test]
fn a_program_of_a_user_or_an_operator_that_cannot_start_says_what_is_missing() {
    let to = ["--proxy", "http://127.0.0.1:1"];
    let client = |name, target: &'static str| [&[name], &to[..], &[target]].concat();
    let programs = [
        client("connect", "box:22"),
        client("forward", "box"),
        client("known-hosts", "box"),
        client("ls", ""),
        vec!["tunnels"],
        vec!["targets"],
        vec!["clients"],
        vec!["refusals"],
        vec!["drain"],
        vec!["desk"],
    ];
    for (call, error, sentence) in NEEDED_BY_ALL {
        for arguments in &programs {
            let mut process = Process::spawn_refusing(call, error, switchboard(arguments));
            let said = process.stderr.rest();
            assert_eq!(process.exit_status(), 1, "{call:?} {arguments:?}: {said:?}");
            let is_sentence = |line: &String| line.starts_with("switchboard: ") && line.contains(sentence);
            assert!(
                said.len() == 1 && said.iter().all(is_sentence),
                "{call:?} {arguments:?}: {said:?}"
            );
        }
    }
}

#[test]
fn a_client_whose_socket_options_are_refused_names_the_call() {
    let proxy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", proxy.local_addr().unwrap());
    let command = switchboard(&["ls", "--proxy", &url]);
    let mut process = Process::spawn_refusing(Call::Setsockopt, EPERM, command);
    let said = process.stderr.rest();
    assert!(
        said.last().is_some_and(|line| line.contains("refuses setsockopt(2): ")),
        "{said:?}"
    );
    assert_eq!(process.exit_status(), 1);
}

#[test]
fn a_process_that_was_started_with_its_signals_blocked_hears_them() {
    let settings = Settings::new("drain: {delay: 0s}\nallowlist: {static: []}\n");
    for stop in [Signal::TERM, Signal::INT] {
        let [serve, anchor] = programs(&settings).map(|command| blocking_signals("HUP,INT,TERM", &command));
        let mut serve = Server::start(serve).process;
        serve.signal(Signal::HUP);
        serve.stderr.find("configuration reloaded");
        for mut process in [serve, Server::start(anchor).process] {
            process.signal(stop);
            assert_eq!(process.exit_status(), 0);
        }
    }
}

#[test]
fn a_process_that_cannot_raise_its_limits_serves_and_says_so() {
    let settings = Settings::new("drain: {delay: 0s}\nallowlist: {static: []}\n");
    // Without prlimit64(2) there is setrlimit(2), so that nothing need be said.
    for (error, is_told) in [(ENOSYS, false), (EPERM, true)] {
        let command = switchboard(&["serve", "--config", settings.path()]);
        let mut process = Process::spawn_refusing(Call::Prlimit64, error, command);
        if is_told {
            process.stderr.find("cannot raise the limit of open files");
        }
        process.stderr.find("public port ");
        process.signal(Signal::TERM);
        assert_eq!(process.exit_status(), 0);
    }
}

/// The tunnel of a client that speaks HTTP/1.1.
async fn opened<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) -> S {
    stream.write_all(request("box:22").as_bytes()).await.unwrap();
    let mut answer = vec![0; CONFIRMATION.len()];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&answer), CONFIRMATION);
    stream
}

async fn secured(stream: TcpStream, config: Arc<ClientConfig>) -> TlsStream<TcpStream> {
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(config).connect(name, stream).await.unwrap()
}

/// The tunnel of a client that speaks HTTP/2, with prior knowledge or by ALPN.
async fn asked<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S) -> Stream {
    let (requests, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let request = Request::builder().method(Method::CONNECT).uri("box:22");
    let mut requests = requests.ready().await.unwrap();
    let mut stream = Stream::new(requests.send_request(request.body(()).unwrap(), false).unwrap());
    assert_eq!(stream.status().await.unwrap(), 200);
    stream
}

/// Moves bulk both ways through a tunnel, to its end.
async fn carry(client: impl AsyncRead + AsyncWrite + Unpin, target: &TcpListener) {
    let service = target.accept().await.unwrap().0;
    service.set_nodelay(true).unwrap();
    tokio::join!(exchange(client, 1, 2), exchange(service, 2, 1));
}

/// Sends one stream and expects the other.
async fn exchange(end: impl AsyncRead + AsyncWrite + Unpin, sends: u8, expects: u8) {
    let (mut from, mut to) = split(end);
    let send = async {
        to.write_all(stream(sends)).await.unwrap();
        to.shutdown().await.unwrap();
    };
    let receive = async {
        let mut received = Vec::new();
        from.read_to_end(&mut received).await.unwrap();
        received
    };
    let ((), received) = tokio::join!(send, receive);
    let expected = stream(expects);
    assert!(
        received == expected,
        "{} of {} bytes of stream {expects}",
        received.len(),
        expected.len()
    );
}

/// The stream of the client or of the target.
fn stream(number: u8) -> &'static [u8] {
    static STREAMS: LazyLock<[Vec<u8>; 2]> = LazyLock::new(|| {
        [1, 2].map(|seed| {
            let part = Part {
                bytes: BYTES,
                seed,
                writes: Vec::new(),
                reads: Vec::new(),
                finishes_last: false,
            };
            part.stream()
        })
    });
    &STREAMS[usize::from(number) - 1]
}

/// Enough for many pipes full, and no whole number of them.
const BYTES: usize = (3 << 20) + 12_345;

mod slow {
    use std::time::Duration;

    use switchboard::base::platform::keep_blocking;
    use tokio::time::sleep;

    use super::*;
    use crate::harness::seccomp::{refuse, refusing};

    /// As for files that are followed while `pids.max` is reached. Tokio ends a thread that has had no work for 10 s.
    #[test]
    fn blocking_work_goes_on_while_the_system_refuses_threads() {
        let kept = refusing(Call::Splice, ENOSYS, || {
            let runtime = keep_blocking(&mut Builder::new_current_thread())
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                tokio::task::spawn_blocking(|| {}).await.unwrap();
                sleep(Duration::from_secs(12)).await;
                refuse(Call::Clone3, EAGAIN);
                assert!(std::thread::Builder::new().spawn(|| {}).is_err());
                tokio::task::spawn_blocking(|| 7).await.unwrap()
            })
        });
        assert_eq!(kept, 7);
    }
}
