//! Sessions with an anchor over tunnels that end, through a scripted proxy.

use super::*;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use crate::protocol::resume::Timing;
use crate::protocol::resume::reason::{DetachReason, EndReason};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedReceiver;

use self::anchor::{Anchor, Beside, Order, Wire};

pub(crate) mod anchor;
mod attempts;
mod endings;
mod hostile;
mod plain;

/// A proxy with an anchor behind it.
struct Rig {
    proxy: Proxy,
    anchor: Arc<Anchor>,
    begun: UnboundedReceiver<Beside>,
    output: Arc<Mutex<Vec<String>>>,
}

/// A tunnel between client and anchor.
struct Path {
    cut: Arc<Notify>,
    silence: Arc<Notify>,
    carrying: JoinHandle<()>,
}

impl Rig {
    async fn new() -> Self {
        let (anchor, begun) = Anchor::new();
        Self {
            proxy: Proxy::bind().await,
            anchor,
            begun,
            output: Arc::default(),
        }
    }

    fn settings(&self) -> Settings {
        Settings::default()
    }

    fn options(&self, options: Options) -> Options {
        let output = Arc::clone(&self.output);
        Options {
            session: Some(self.settings()),
            output: UserOutput(Arc::new(move |line| output.lock().push(line.to_owned()))),
            ..options
        }
    }

    fn start(&self) -> Session {
        Session::start(self.options(self.proxy.http()))
    }

    /// Opens the tunnel of the next request, and leads it to the anchor.
    async fn path(&self) -> Path {
        let stream = self.proxy.answer(ACCEPT).await;
        self.lead(Box::new(stream))
    }

    fn lead(&self, mut stream: Wire) -> Path {
        let (cut, silence) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (mut near, far) = tokio::io::duplex(64 * 1024);
        let anchor = Arc::clone(&self.anchor);
        tokio::spawn(async move { anchor.serve(Box::new(far)).await });
        let (is_cut, is_silent) = (Arc::clone(&cut), Arc::clone(&silence));
        let carrying = tokio::spawn(async move {
            tokio::select! {
                _ = tokio::io::copy_bidirectional(&mut stream, &mut near) => {}
                () = is_cut.notified() => {}
                () = is_silent.notified() => is_cut.notified().await,
            }
        });
        Path { cut, silence, carrying }
    }

    /// Returns a client with a session, over a first tunnel.
    async fn begun(&mut self, session: &mut Session) -> (Path, Beside) {
        let path = self.path().await;
        let mut beside = within(self.begun.recv()).await.unwrap();
        // It is confirmed once something has come back.
        talk(session, &mut beside, b"hello").await;
        (path, beside)
    }
}

impl Path {
    /// Ends both connections under the tunnel.
    async fn cut(self) {
        self.cut.notify_one();
        within(self.carrying).await.unwrap();
    }

    /// Nothing passes any more, and nothing is closed.
    fn fall_silent(&self) {
        self.silence.notify_one();
    }
}

/// Waits for a line for the user that contains this.
async fn remark(output: &Mutex<Vec<String>>, expected: &str) {
    let told = async {
        while !output.lock().iter().any(|line| line.contains(expected)) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    if tokio::time::timeout(Duration::from_secs(30), told).await.is_err() {
        panic!("{expected}: {:?}", output.lock());
    }
}

/// Sends a text each way.
async fn talk(session: &mut Session, beside: &mut Beside, text: &[u8]) {
    session.stdin.write_all(text).await.unwrap();
    expect(&mut beside.sshd, text).await;
    beside.sshd.write_all(text).await.unwrap();
    expect(&mut session.stdout, text).await;
}

async fn expect(stream: &mut DuplexStream, text: &[u8]) {
    let mut read = vec![0; text.len()];
    within(stream.read_exact(&mut read)).await.unwrap();
    assert_eq!(read, text);
}

/// Ends both streams, and expects that both sides know it.
async fn log_out(session: Session, mut beside: Beside) {
    let (stdin, mut stdout, ended) = session.parts();
    drop(stdin);
    assert_eq!(read_all(&mut beside.sshd).await, b"");
    beside.sshd.shutdown().await.unwrap();
    assert_eq!(read_all(&mut stdout).await, b"");
    within(ended).await.unwrap().unwrap();
    assert_eq!(within(beside.ended).await.unwrap(), Some(EndReason::Completed));
}

#[tokio::test]
async fn a_session_begins_at_an_anchor_and_ends_in_order() {
    let mut rig = Rig::new().await;
    let mut session = rig.start();
    let (_path, beside) = rig.begun(&mut session).await;
    log_out(session, beside).await;
    assert_eq!(*rig.output.lock(), [""; 0]);
}

#[tokio::test]
async fn every_byte_arrives_once_over_connections_that_are_cut_at_random() {
    const LENGTH: usize = 3 << 20;
    let mut rig = Rig::new().await;
    let mut session = rig.start();
    let (first, beside) = rig.begun(&mut session).await;
    let (up, down) = (pattern(7, LENGTH), pattern(8, LENGTH));
    let (mut stdin, mut stdout, ended) = session.parts();
    let (mut from_client, mut to_client) = tokio::io::split(beside.sshd);
    let passed = AtomicU64::new(0);
    let cutting = async {
        let (mut path, mut cuts) = (first, 0);
        let mut seen = 0;
        loop {
            // As many bytes as chance has it, not time.
            let more = u64::from(pattern(cuts, 2)[1]) * 600;
            let next = (seen + more).min(LENGTH as u64);
            while passed.load(Ordering::Relaxed) < next {
                tokio::task::yield_now().await;
            }
            seen = passed.load(Ordering::Relaxed);
            // With the last bytes the session may be over, and needs no further connection.
            if seen == LENGTH as u64 {
                return path;
            }
            path.cut().await;
            cuts += 1;
            path = rig.path().await;
            if cuts == 30 {
                return path;
            }
        }
    };
    let received = async {
        let mut all = Vec::new();
        let mut buffer = vec![0; 8 * 1024];
        loop {
            let read = within(stdout.read(&mut buffer)).await.unwrap();
            if read == 0 {
                return all;
            }
            all.extend_from_slice(&buffer[..read]);
            passed.fetch_add(read as u64, Ordering::Relaxed);
        }
    };
    let (received_up, received_down, (), (), _path) = tokio::join!(
        read_all(&mut from_client),
        received,
        async {
            stdin.write_all(&up).await.unwrap();
            drop(stdin);
        },
        async {
            to_client.write_all(&down).await.unwrap();
            to_client.shutdown().await.unwrap();
        },
        cutting,
    );
    assert!(received_up == up);
    assert!(received_down == down);
    within(ended).await.unwrap().unwrap();
    assert_eq!(within(beside.ended).await.unwrap(), Some(EndReason::Completed));
}
