//! Clients that mean harm: each is bounded, and none keeps another one out.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use russh::client::{self, AuthResult, Config, Handle};
use russh::keys::PublicKeyOrCertificate;
use russh::{ChannelMsg, ChannelOpenFailure, Error};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{JumpHost, door_key};
use crate::harness::peer::Peer;
use crate::harness::ports::Ports;
use crate::harness::process::{Server, Settings};
use crate::harness::target::Target;
use crate::harness::{DEADLINE, eventually};
use crate::identities::LINE;

/// A client that trusts every server.
pub(crate) struct Anybody;

impl client::Handler for Anybody {
    type Error = Error;

    async fn check_server_key(&mut self, _key: &PublicKeyOrCertificate) -> Result<bool, Error> {
        Ok(true)
    }
}

pub(crate) async fn connect(address: SocketAddr) -> Handle<Anybody> {
    let config = Arc::new(Config::default());
    client::connect(config, address, Anybody).await.unwrap()
}

pub(super) async fn logged_in(address: SocketAddr) -> Handle<Anybody> {
    logged_in_over(TcpStream::connect(address).await.unwrap(), Config::default()).await
}

async fn logged_in_over<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    config: Config,
) -> Handle<Anybody> {
    let mut client = client::connect_stream(Arc::new(config), stream, Anybody).await.unwrap();
    assert!(client.authenticate_none("anybody").await.unwrap().success());
    client
}

/// A client that opens this window at most.
fn window(window_size: u32) -> Config {
    Config {
        window_size,
        ..Config::default()
    }
}

/// A socket that is not read once it is deaf.
struct Deaf {
    socket: TcpStream,
    is_deaf: Arc<AtomicBool>,
}

impl AsyncRead for Deaf {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.is_deaf.load(Ordering::Relaxed) {
            true => Poll::Pending,
            false => Pin::new(&mut self.socket).poll_read(context, into),
        }
    }
}

impl AsyncWrite for Deaf {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

/// A jump host to a target that the test scripts.
fn scripted(target: &Target) -> (Server, Settings, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let key = door_key("ecdsa", directory.path());
    let settings = Settings::new(&format!(
        "listen: {{address: \"127.0.0.1:0\", ssh: jump, host_keys: [{}]}}\nallowlist:\n  static:\n    - {{name: \"box:22\", \
         addresses: [\"{}\"]}}\ntimeouts: {{request_header: 1h}}\nlimits: {{client: {{connects_per_second: 100000, connects_burst: 100000, max_unfinished: 1000}}}}\n",
        key.display(),
        target.address(),
    ));
    (Server::with(&settings), settings, directory)
}

fn connections(server: &Server) -> f64 {
    server.scrape().values["switchboard_connections_active"]
}

fn resident(server: &Server) -> f64 {
    server.scrape().values["process_resident_memory_bytes"]
}

async fn open(client: &Handle<Anybody>) -> Result<russh::Channel<client::Msg>, Error> {
    client.channel_open_direct_tcpip("box", 22, "127.0.0.1", 1).await
}

#[test]
fn bytes_that_are_no_ssh_end_the_connection() {
    let jump_host = JumpHost::open();
    let kexinit_of = |length: u32| [&b"SSH-2.0-x\r\n"[..], &length.to_be_bytes(), &[0; 64]].concat();
    for bytes in [
        [b"SSH-".as_slice(), &[b'x'; 4096]].concat(),
        b"SSH-1.5-old\r\n".to_vec(),
        kexinit_of(u32::MAX),
        kexinit_of(300_000),
        kexinit_of(36_000),
        kexinit_of(0),
        kexinit_of(60),
        b"SSH-2.0-x\r\nCONNECT box:22 HTTP/1.1\r\n\r\n".to_vec(),
    ] {
        let mut client = Peer::connect(jump_host.server.public());
        client.try_send(&bytes).ok();
        client.try_rest().ok();
    }
    // One that leaves in the middle of a packet.
    let mut client = Peer::connect(jump_host.server.public());
    client.send(&kexinit_of(1000)[..30]);
    client.finish();
    client.try_rest().ok();
    eventually("all have ended", || {
        (connections(&jump_host.server) == 0.0).then_some(())
    });
    jump_host
        .run(jump_host.command("ssh").args(["devbox.team-a", "true"]))
        .succeeded();
}

/// A client that has begun, and says no more.
fn silent(source: Ipv4Addr, server: &Server) -> Peer {
    let mut client = Peer::connect_from(source, server.public());
    client.send("SSH-2.0-x\r\n");
    client.read_past("SSH-2.0-switchboard\r\n");
    client
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_before_their_login_are_evicted_by_later_ones() {
    let target = Target::listen();
    let (server, ..) = scripted(&target);
    let mut of_one: Vec<_> = (0..70).map(|_| silent(Ipv4Addr::LOCALHOST, &server)).collect();
    of_one[0].try_rest().ok();
    eventually("the oldest of a client are evicted", || {
        (connections(&server) <= 64.0).then_some(())
    });
    let others = (2..=10).flat_map(|host| (0..64).map(move |_| Ipv4Addr::new(127, 0, 0, host)));
    let _silent: Vec<_> = others.map(|source| silent(source, &server)).collect();
    of_one[69].try_rest().ok();
    eventually("the oldest of all are evicted", || {
        (connections(&server) <= 512.0).then_some(())
    });
    let client = logged_in(server.public()).await;
    open(&client).await.unwrap();
}

/// A person who types a password is older than the connections of a flood.
#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_is_typed_is_evicted_by_no_flood_of_silent_clients() {
    let users = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(users.path(), LINE).unwrap();
    let jump_host = JumpHost::with(
        "ssh: jump",
        &format!(
            "access: {{mode: enforce, users: {{file: {}}}}}\nlimits: {{client: {{connects_per_second: 100000, \
             connects_burst: 100000}}}}\n",
            users.path().display(),
        ),
    );
    let mut typed = connect(jump_host.server.public()).await;
    assert!(!typed.authenticate_none("alice").await.unwrap().success());
    let mut flood: Vec<_> = (0..70)
        .map(|_| silent(Ipv4Addr::LOCALHOST, &jump_host.server))
        .collect();
    flood[0].try_rest().ok();
    assert!(typed.authenticate_password("alice", "correct").await.unwrap().success());
}

/// The library would wait for 256 KiB, and hold them.
#[test]
fn a_packet_is_refused_by_its_length() {
    let target = Target::listen();
    let (server, ..) = scripted(&target);
    let mut client = Peer::connect(server.public());
    client.send([&b"SSH-2.0-x\r\n"[..], &36_000_u32.to_be_bytes(), &[0; 64]].concat());
    // Without waiting for the rest of it: the deadline is an hour away.
    client.try_rest().ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn guesses_end_the_connection() {
    let (jump_host, _) = JumpHost::guarded();
    let mut client = connect(jump_host.server.public()).await;
    let mut guesses = 0;
    while let Ok(AuthResult::Failure { .. }) = client.authenticate_password("alice", "guess").await {
        guesses += 1;
        assert!(guesses < 10);
    }
    // The seventh is answered by the disconnect.
    assert!((6..=7).contains(&guesses), "{guesses}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_huge_password_is_one_more_guess() {
    let (jump_host, _) = JumpHost::guarded();
    let mut client = connect(jump_host.server.public()).await;
    let (long_name, long_password) = ("x".repeat(513), "x".repeat(12 * 1024 + 1));
    for (user, password) in [("alice", &*long_password), (&*long_name, "correct")] {
        let answer = client.authenticate_password(user, password).await.unwrap();
        assert!(matches!(answer, AuthResult::Failure { .. }));
    }
    assert!(
        client
            .authenticate_password("alice", "correct")
            .await
            .unwrap()
            .success()
    );
    // One that is larger than a packet ends the connection.
    let mut client = connect(jump_host.server.public()).await;
    for password in ["x".repeat(40_000), "correct".to_owned()] {
        let answer = client.authenticate_password("alice", password).await;
        assert!(!answer.is_ok_and(|answer| answer.success()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_channels_has_one_tunnel_and_then_an_end() {
    let target = Target::listen();
    let (server, ..) = scripted(&target);
    let client = logged_in(server.public()).await;
    let mut first = open(&client).await.unwrap();
    let mut upstream = target.accept();
    let mut refused = 0;
    let end = loop {
        // Bytes for the target, so that only the number of channels counts.
        first.data(&[7; 512][..]).await.ok();
        match open(&client).await {
            Err(Error::ChannelOpenFailure(ChannelOpenFailure::ResourceShortage)) => refused += 1,
            end => break end,
        }
        upstream.expect([7; 512]);
        if refused == 1000 {
            upstream.send("pong");
            while !matches!(first.wait().await.unwrap(), ChannelMsg::Data { data } if data == "pong") {}
        }
    };
    assert!(end.is_err());
    assert_eq!(refused, 1023);
    upstream.try_rest().ok();
    logged_in(server.public()).await;
}

/// Returns whether the last request was granted.
async fn is_granted(session: &mut russh::Channel<client::Msg>) -> bool {
    loop {
        let message = session.wait().await.unwrap();
        if matches!(message, ChannelMsg::Success | ChannelMsg::Failure) {
            return matches!(message, ChannelMsg::Success);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_of_a_session_is_granted_that_could_be_of_use() {
    let target = Target::listen();
    let (server, ..) = scripted(&target);
    let client = logged_in(server.public()).await;
    let mut session = client.channel_open_session().await.unwrap();
    session.agent_forward(true).await.unwrap();
    assert!(!is_granted(&mut session).await);
    session
        .request_x11(true, false, "MIT-MAGIC-COOKIE-1", "00", 0)
        .await
        .unwrap();
    assert!(!is_granted(&mut session).await);
    session.set_env(true, "LANG", "C").await.unwrap();
    assert!(!is_granted(&mut session).await);
    session.request_subsystem(true, "sftp").await.unwrap();
    assert!(!is_granted(&mut session).await);
    client.tcpip_forward("127.0.0.1", 0).await.unwrap_err();
    client.channel_open_direct_streamlocal("/run/other").await.unwrap_err();
}

/// The answer of each may wait in the proxy's memory for as long as the connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_has_few_sessions_each_with_one_answer() {
    let target = Target::listen();
    let (server, ..) = scripted(&target);
    let stream = TcpStream::connect(server.public()).await.unwrap();
    let client = logged_in_over(stream, window(0)).await;
    let mut sessions = 0;
    let refused = loop {
        let mut session = match client.channel_open_session().await {
            Ok(session) => session,
            Err(error) => break error,
        };
        sessions += 1;
        assert!(sessions <= 16);
        for is_first in [true, false, false] {
            session.exec(true, "id").await.unwrap();
            assert_eq!(is_granted(&mut session).await, is_first);
        }
        session.close().await.unwrap();
    };
    assert!(
        matches!(refused, Error::ChannelOpenFailure(ChannelOpenFailure::ResourceShortage)),
        "{refused:?}"
    );
    assert_eq!(sessions, 16);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_in_a_tunnel_is_refused_and_leaves_the_tunnel() {
    let target = Target::listen();
    let (server, ..) = scripted(&target);
    let client = logged_in(server.public()).await;
    let mut channel = open(&client).await.unwrap();
    let mut upstream = target.accept();
    channel.exec(true, "id").await.unwrap();
    assert!(matches!(channel.wait().await, Some(ChannelMsg::Failure)));
    channel.data(&b"ping"[..]).await.unwrap();
    upstream.expect("ping");
    upstream.send("pong");
    assert!(matches!(channel.wait().await, Some(ChannelMsg::Data { data }) if data == "pong"));
}

/// Each costs CPU time and an answer, and no byte of a tunnel pays for it. Exchanges of keys have the same bound.
#[tokio::test(flavor = "multi_thread")]
async fn requests_without_end_end_the_connection() {
    let target = Target::listen();
    let (server, ..) = scripted(&target);
    let client = logged_in(server.public()).await;
    while client.send_keepalive(true).await.is_ok() {}
    logged_in(server.public()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_channel_may_follow_the_last_one() {
    let target = Target::listen();
    let (server, ..) = scripted(&target);
    let client = logged_in(server.public()).await;
    for _ in 0..20 {
        let mut channel = open(&client).await.unwrap();
        let mut upstream = target.accept();
        channel.data(&b"all"[..]).await.unwrap();
        channel.eof().await.unwrap();
        assert_eq!(upstream.rest_as_text(), "all");
        upstream.send("of it");
        drop(upstream);
        let mut told = Vec::new();
        while let Some(message) = channel.wait().await {
            if let ChannelMsg::Data { data } = message {
                told.extend_from_slice(&data);
            }
        }
        assert_eq!(told, b"of it");
    }
}

/// The upload waits in the client's own memory. Its download goes on until the window is full that the client has opened: the
/// library reads no more of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_takes_nothing_stops_its_client_alone() {
    let target = Target::listen();
    let (server, ..) = scripted(&target);
    let client = logged_in(server.public()).await;
    let mut channel = open(&client).await.unwrap();
    let mut upstream = target.accept();
    let mut writer = channel.make_writer();
    let upload = tokio::spawn(async move {
        let bytes = vec![7; 64 << 20];
        tokio::io::AsyncWriteExt::write_all(&mut writer, &bytes).await
    });
    // Until nothing moves: the sum of all buffers on the way is below 64 MiB.
    let before = resident(&server);
    let mut last = before;
    eventually("the upload stops", || {
        std::thread::sleep(Duration::from_millis(200));
        let now = resident(&server);
        let moved = now - std::mem::replace(&mut last, now);
        (moved.abs() < 65_536.0).then_some(())
    });
    assert!(!upload.is_finished());
    assert!(last - before < f64::from(8 << 20), "{before} to {last}");
    upstream.send(vec![9; 1 << 20]);
    let mut received = 0;
    while received < 1 << 20 {
        if let ChannelMsg::Data { data } = channel.wait().await.unwrap() {
            received += data.len();
        }
    }
    let other = logged_in(server.public()).await;
    let mut quick = timeout(DEADLINE, open(&other)).await.unwrap().unwrap();
    let mut second = target.accept();
    quick.data(&b"ping"[..]).await.unwrap();
    second.expect("ping");
    second.send("pong");
    assert!(matches!(quick.wait().await, Some(ChannelMsg::Data { data }) if data == "pong"));
    // Once the target takes bytes, all goes on.
    let mut taken = upstream.again();
    let reading = std::thread::spawn(move || {
        let mut all = vec![0; 64 << 20];
        taken.read_into(&mut all);
        all.iter().all(|byte| *byte == 7)
    });
    let sending = std::thread::spawn(move || {
        upstream.send(vec![9; 8 << 20]);
        upstream
    });
    received = 0;
    while received < 8 << 20 {
        if let ChannelMsg::Data { data } = channel.wait().await.unwrap() {
            received += data.len();
        }
    }
    upload.await.unwrap().unwrap();
    assert!(reading.join().unwrap());
    sending.join().unwrap();
}

/// Its tunnel ends though nothing is read from it.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_resets_is_noticed_though_its_target_takes_nothing() {
    let target = Target::that_reads_little();
    let (mut server, ..) = scripted(&target);
    let stream = std::net::TcpStream::connect(server.public()).unwrap();
    let own = stream.try_clone().unwrap();
    let watched = Peer::of(stream.try_clone().unwrap());
    stream.set_nonblocking(true).unwrap();
    let client = logged_in_over(TcpStream::from_std(stream).unwrap(), Config::default()).await;
    let channel = open(&client).await.unwrap();
    let _upstream = target.accept();
    let mut writer = channel.make_writer();
    let upload = tokio::spawn(async move {
        let bytes = vec![7; 64 << 20];
        tokio::io::AsyncWriteExt::write_all(&mut writer, &bytes).await
    });
    let mut unread = 0;
    eventually("the upload stops", || {
        std::thread::sleep(Duration::from_millis(200));
        let now = watched.unread_by(server.public());
        (now > 0 && std::mem::replace(&mut unread, now) == now).then_some(())
    });
    rustix::net::connect_unspec(&own).unwrap();
    let line: serde_json::Value = serde_json::from_str(&server.process.stdout.find("\"close\"")).unwrap();
    assert_eq!(line["reason"], "reset", "{line}");
    upload.abort();
}

/// A client that reads nothing keeps what the target sends out of the proxy's memory: whether it opens no window, or all of
/// it and reads its socket no more.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reads_nothing_stops_its_target() {
    let target = Target::listen();
    let (server, ..) = scripted(&target);
    for window_size in [256, u32::MAX] {
        let is_deaf = Arc::new(AtomicBool::new(false));
        let deaf = Deaf {
            socket: TcpStream::connect(server.public()).await.unwrap(),
            is_deaf: Arc::clone(&is_deaf),
        };
        let config = Config {
            maximum_packet_size: window_size.max(32_768),
            ..window(window_size)
        };
        let client = logged_in_over(deaf, config).await;
        let _channel = open(&client).await.unwrap();
        let mut upstream = target.accept();
        is_deaf.store(true, Ordering::Relaxed);
        let before = resident(&server);
        let sent = upstream.send_what_fits(&vec![7; 64 << 20]);
        assert!(sent < 32 << 20, "{sent}");
        let after = resident(&server);
        assert!(after - before < f64::from(4 << 20), "{before} to {after}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_exchanged_again_while_bytes_flow() {
    let target = Target::listen();
    let (server, ..) = scripted(&target);
    let client = logged_in(server.public()).await;
    let mut channel = open(&client).await.unwrap();
    let mut upstream = target.accept();
    for _ in 0..10 {
        client.rekey_soon().await.unwrap();
        channel.data(&b"ping"[..]).await.unwrap();
        upstream.expect("ping");
        upstream.send("pong");
        while !matches!(channel.wait().await.unwrap(), ChannelMsg::Data { .. }) {}
    }
}
