//! The bytes of an SSH client after its identification, to a jump host.

use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use switchboard::tunnel::ssh::jump::{JumpHost, LoginRule};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_current_thread().enable_all().build().expect("a runtime"));

static JUMP_HOST: LazyLock<JumpHost> = LazyLock::new(|| {
    let key = std::env::temp_dir().join(format!("switchboard-jump-host-{}", std::process::id()));
    let mut keygen = Command::new("ssh-keygen");
    keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key);
    assert!(keygen.status().is_ok_and(|status| status.success()), "ssh-keygen");
    let jump_host = JumpHost::load(std::slice::from_ref(&key)).expect("the key is one");
    for file in [key.with_extension("pub"), key] {
        std::fs::remove_file(file).expect("the key is here");
    }
    jump_host
});

/// A peer without keys never comes to a login, and its connection ends by itself, after a bounded part of what the peer sends
/// without an end. The answers are bounded, too.
pub(crate) fn check(bytes: &[u8]) {
    RUNTIME.block_on(async {
        let served = timeout(Duration::from_secs(120), served(bytes));
        served.await.expect("the connection ends");
    });
}

async fn served(bytes: &[u8]) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let mut peer = TcpStream::connect(listener.local_addr().expect("its address"))
        .await
        .expect("it listens");
    let (socket, _) = listener.accept().await.expect("the peer");
    let serving = async {
        if let Ok(mut connection) = JUMP_HOST.accept(socket, Vec::new(), LoginRule::PasswordOrKey).await {
            let event = connection.next().await;
            assert!(event.is_none(), "{event:?}");
        }
    };
    let sending = async {
        let (mut reader, mut writer) = peer.split();
        let writing = async {
            let endless = bytes.iter().chain(&[0]).cycle().take(ENOUGH);
            let sent: Vec<u8> = b"SSH-2.0-x\r\n".iter().chain(endless).copied().collect();
            // It fails at the end of the connection.
            writer.write_all(&sent).await.ok();
        };
        let mut answers = Vec::new();
        let reading = async { reader.read_to_end(&mut answers).await.ok() };
        tokio::join!(writing, reading);
        assert!(answers.len() <= MAX_ANSWERS, "{} bytes", answers.len());
    };
    tokio::join!(serving, sending);
}

/// More than the budget of a connection before its login, 64 KiB, and a packet, 35,000 bytes.
const ENOUGH: usize = 128 * 1024;
const MAX_ANSWERS: usize = 16 * 1024;
