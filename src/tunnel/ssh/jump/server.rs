//! The SSH server of one connection, by russh: its host keys and algorithms, its start and its end.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use russh::keys::{Algorithm, EcdsaCurve, HashAlg, PrivateKey};
use russh::server::{Config, Handle};
use russh::{Disconnect, Preferred, SshId, cipher, compression, kex, mac};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;

use self::handler::{EVENTS, JumpHandler, OpenChannel, methods};
use self::line::Line;
use super::gate::Gate;
use super::request::{Event, LoginRule};
use crate::base::file;
use crate::tunnel::outcome::{Malformed, RefusalReason};

mod handler;
mod line;

/// The settings of a jump host: its host keys, and what it offers.
pub struct JumpHost {
    files: Box<[PathBuf]>,
    /// By [`LoginRule`].
    configs: [Arc<Config>; 3],
}

impl fmt::Debug for JumpHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JumpHost")
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

/// By the files: a file that changes is read at the next start.
impl PartialEq for JumpHost {
    fn eq(&self, other: &Self) -> bool {
        self.files == other.files
    }
}

impl Eq for JumpHost {}

impl JumpHost {
    /// Reads the host keys: each file has one private key in the format of OpenSSH or PKCS #8, without a passphrase.
    ///
    /// # Errors
    /// A sentence that names the file and its fault, or says that there is none.
    pub fn load(host_keys: &[PathBuf]) -> Result<Self, String> {
        if host_keys.is_empty() {
            return Err(
                "needs `host_keys`: the files of its private keys, such as `ssh-keygen -t ed25519` makes".to_owned(),
            );
        }
        let key = |path: &PathBuf| read_key(path).map_err(|fault| format!("{}: {fault}", path.display()));
        let keys: Vec<_> = host_keys.iter().map(key).collect::<Result<_, _>>()?;
        let config = |rule| {
            Arc::new(Config {
                server_id: SshId::Standard(Cow::Borrowed(IDENTIFICATION)),
                methods: methods(rule).into(),
                // Only a wrong password waits, in the handler: agents offer keys one after another.
                auth_rejection_time: Duration::ZERO,
                keys: keys.clone(),
                preferred: preferred(),
                max_auth_attempts: MAX_ATTEMPTS,
                window_size: WINDOW,
                channel_buffer_size: 1,
                event_buffer_size: MESSAGES,
                // The deadlines are those of the connection's own task, and the kernel's keepalive finds dead peers.
                inactivity_timeout: None,
                ..Config::default()
            })
        };
        Ok(Self {
            files: host_keys.into(),
            configs: [LoginRule::Open, LoginRule::Password, LoginRule::PasswordOrKey].map(config),
        })
    }

    /// Exchanges the identifications with a client of which `read` was read, and starts its session.
    ///
    /// # Errors
    /// It is no SSH client, or has left.
    pub async fn accept(&self, socket: TcpStream, read: Vec<u8>, rule: LoginRule) -> Result<Connection, RefusalReason> {
        let gate = Arc::new(Gate::default());
        let (sender, events) = mpsc::channel(EVENTS);
        let handler = JumpHandler::new(rule, sender, Arc::clone(&gate));
        let open = handler.open();
        let line = Line::new(socket, read, Arc::clone(&gate));
        let [open_to_all, with_password, with_key] = &self.configs;
        let config = match rule {
            LoginRule::Open => open_to_all,
            LoginRule::Password => with_password,
            LoginRule::PasswordOrKey => with_key,
        };
        let session = russh::server::run_stream(Arc::clone(config), line, handler).await;
        match session {
            Ok(session) => Ok(Connection {
                events,
                handle: session.handle(),
                open,
                gate,
            }),
            Err(_) if gate.is_untouched() => Err(RefusalReason::PortProbe),
            Err(_) => Err(RefusalReason::Malformed(Malformed::NotSsh)),
        }
    }
}

fn read_key(path: &Path) -> Result<PrivateKey, String> {
    let bytes = file::read(path, MAX_KEY_BYTES).map_err(|error| file::unreadable(&error))?;
    let text = zeroize::Zeroizing::new(String::from_utf8(bytes).map_err(|_| "is no private key".to_owned())?);
    let key = russh::keys::decode_secret_key(&text, None);
    let key = key.map_err(|_| "is no private key without a passphrase, as `ssh-keygen -t ed25519 -N ''` makes it")?;
    let algorithm = key.algorithm();
    match matches!(algorithm, Algorithm::Ed25519 | Algorithm::Ecdsa { .. }) {
        true => Ok(key),
        false => Err(format!("has a key of type {algorithm}: expected ed25519 or ecdsa")),
    }
}

/// The algorithms that are offered: no SHA-1, no CBC, no compression; strict key exchange (CVE-2023-48795). Those of keys are
/// of users, too (RFC 8308 section 3.1): no host key is of RSA.
fn preferred() -> Preferred {
    let curves = [EcdsaCurve::NistP256, EcdsaCurve::NistP384, EcdsaCurve::NistP521];
    let ecdsa = curves.into_iter().map(|curve| Algorithm::Ecdsa { curve });
    let rsa = [HashAlg::Sha512, HashAlg::Sha256].map(|hash| Algorithm::Rsa { hash: Some(hash) });
    Preferred {
        kex: Cow::Borrowed(&[
            kex::MLKEM768X25519_SHA256,
            kex::CURVE25519,
            kex::CURVE25519_PRE_RFC_8731,
            kex::EXTENSION_SUPPORT_AS_SERVER,
            kex::EXTENSION_OPENSSH_STRICT_KEX_AS_SERVER,
        ]),
        key: [Algorithm::Ed25519].into_iter().chain(ecdsa).chain(rsa).collect(),
        cipher: Cow::Borrowed(&[cipher::CHACHA20_POLY1305, cipher::AES_256_GCM, cipher::AES_128_GCM]),
        mac: Cow::Borrowed(&[mac::HMAC_SHA256_ETM, mac::HMAC_SHA512_ETM]),
        compression: Cow::Borrowed(&[compression::NONE]),
        host_key_certificates: Cow::Borrowed(&[]),
    }
}

/// An SSH connection. Its drop ends it.
pub struct Connection {
    events: mpsc::Receiver<Event>,
    handle: Handle,
    open: OpenChannel,
    gate: Arc<Gate>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("gate", &self.gate)
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// Returns what the client wants next; `None` after its end.
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// Closes the channel of the tunnel that has ended.
    pub async fn close_channel(&self) {
        let ended = self.open.lock().take();
        if let Some(channel) = ended {
            self.gate.expect_late(WINDOW);
            timeout(FAREWELL, self.handle.close(channel)).await.ok();
        }
    }

    /// Sends a disconnect with this sentence, and waits until the client has left, at most [`FAREWELL`].
    pub async fn disconnect(&mut self, sentence: &str) {
        let reason = Disconnect::ByApplication;
        let gone = async {
            if self
                .handle
                .disconnect(reason, sentence.to_owned(), String::new())
                .await
                .is_ok()
            {
                while self.events.recv().await.is_some() {}
            }
        };
        timeout(FAREWELL, gone).await.ok();
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.gate.close();
    }
}

const IDENTIFICATION: &str = "SSH-2.0-switchboard";
/// With the `none` by which most clients begin.
const MAX_ATTEMPTS: usize = 6;
/// The bytes that a client may send ahead in a channel.
const WINDOW: u32 = 2 * 1024 * 1024;
/// Messages that wait for the session. The gate bounds the bytes in them.
const MESSAGES: usize = 8;
const MAX_KEY_BYTES: u64 = 64 * 1024;
/// The time for the last messages of a connection.
const FAREWELL: Duration = Duration::from_secs(1);
