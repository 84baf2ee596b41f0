//! What stands behind the proxies: a server whose clients say in their first line what it is to do.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream as BlockingStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime;

/// What the target does with a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Role {
    /// Sends back what comes.
    Echo,
    /// Sends as fast as it can.
    Download,
    /// Reads as fast as it can.
    Upload,
    /// Both at once.
    Both,
    /// Sends that many MiB a second.
    Paced(u32),
    /// Sends [`TRICKLE`] bytes a second, at once.
    Trickle,
}

impl Role {
    /// The client's first line. It has the form of an SSH identification (RFC 4253 section 4.2).
    pub(crate) fn line(self) -> String {
        match self {
            Self::Echo => "SSH-2.0-echo\r\n".to_owned(),
            Self::Download => "SSH-2.0-download\r\n".to_owned(),
            Self::Upload => "SSH-2.0-upload\r\n".to_owned(),
            Self::Both => "SSH-2.0-both\r\n".to_owned(),
            Self::Trickle => "SSH-2.0-trickle\r\n".to_owned(),
            Self::Paced(rate) => format!("SSH-2.0-paced {rate}\r\n"),
        }
    }

    fn of(line: &str) -> Option<Self> {
        match line.trim_end().strip_prefix("SSH-2.0-")? {
            "echo" => Some(Self::Echo),
            "download" => Some(Self::Download),
            "upload" => Some(Self::Upload),
            "both" => Some(Self::Both),
            "trickle" => Some(Self::Trickle),
            other => Some(Self::Paced(other.strip_prefix("paced ")?.parse().ok()?)),
        }
    }
}

/// Starts the target on a port of loopback. It serves until the process ends.
pub(crate) fn start() -> io::Result<SocketAddr> {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
            let listener = socket.listen(BACKLOG).unwrap();
            tell.send(listener.local_addr().unwrap()).unwrap();
            loop {
                if let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(serve(stream));
                }
            }
        });
    });
    told.recv().map_err(io::Error::other)
}

/// Peers leave when they have enough: whatever error that gives ends the connection, and nothing else.
async fn serve(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut line = Vec::new();
    while !line.ends_with(b"\n") {
        if stream.read_buf(&mut line).await? == 0 {
            return Ok(());
        }
    }
    let role = Role::of(&String::from_utf8_lossy(&line)).ok_or(io::ErrorKind::InvalidData)?;
    stream.write_all(ANSWER).await?;
    match role {
        // There are thousands of these: no threads of their own.
        Role::Echo => return echo(stream).await,
        Role::Trickle => return trickle(stream).await,
        Role::Download | Role::Upload | Role::Both | Role::Paced(_) => {}
    }
    let stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    thread::spawn(move || carry(role, &stream));
    Ok(())
}

async fn echo(mut stream: TcpStream) -> io::Result<()> {
    loop {
        stream.readable().await?;
        // Not held while it waits: thousands of idle connections are cheap here too.
        let mut buffer = [0; 512];
        match stream.try_read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => stream.write_all(buffer.get(..read).unwrap_or_default()).await?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

async fn trickle(mut stream: TcpStream) -> io::Result<()> {
    loop {
        stream.write_all(&[b'x'; TRICKLE]).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

fn carry(role: Role, stream: &BlockingStream) {
    let done = match role {
        Role::Echo | Role::Trickle => Ok(()),
        Role::Download => send(stream),
        Role::Upload => receive(stream),
        Role::Both => thread::scope(|scope| {
            scope.spawn(|| {
                // Once there is no more to read, nobody is left to send to.
                receive(stream).ok();
                stream.shutdown(Shutdown::Both).ok();
            });
            send(stream)
        }),
        Role::Paced(rate) => send_paced(stream, rate),
    };
    // The client has left.
    done.ok();
}

fn send(mut stream: &BlockingStream) -> io::Result<()> {
    let chunk = vec![b'x'; CHUNK];
    loop {
        stream.write_all(&chunk)?;
    }
}

fn receive(mut stream: &BlockingStream) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    while stream.read(&mut chunk)? > 0 {}
    Ok(())
}

/// Sends a chunk when it is due, so that the rate holds over any longer time.
fn send_paced(mut stream: &BlockingStream, mebibytes: u32) -> io::Result<()> {
    let chunk = vec![b'x'; PACED_CHUNK];
    let period = Duration::from_secs(1) * u32::try_from(PACED_CHUNK).unwrap_or(u32::MAX) / (mebibytes << 20);
    let mut due = Instant::now();
    loop {
        stream.write_all(&chunk)?;
        due += period;
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

/// The target's first line.
pub(crate) const ANSWER: &[u8] = b"SSH-2.0-target\r\n";
/// How much both ends of a bulk tunnel read and write at once.
pub(crate) const CHUNK: usize = 128 * 1024;
pub(crate) const TRICKLE: usize = 64 * 1024;
const PACED_CHUNK: usize = 64 * 1024;
const BACKLOG: u32 = 4096;
