//! SSH servers as far as a proxy sees them: on every address of the pod network, at a few ports.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, copy_buf};
use tokio::net::{TcpListener, TcpStream};

/// The pods, where they were reached, and what they were told first.
#[derive(Clone, Debug)]
pub(crate) struct Pods {
    reached: Arc<Mutex<Vec<SocketAddr>>>,
    told: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Pods {
    /// Every address of this side listens at these ports.
    pub(crate) async fn start() -> Self {
        let pods = Self {
            reached: Arc::default(),
            told: Arc::default(),
        };
        for port in PORTS {
            let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await.unwrap();
            tokio::spawn(pods.clone().accept(listener));
        }
        pods
    }

    /// Returns whether that address got a connection.
    pub(crate) fn was_reached(&self, address: IpAddr) -> bool {
        let reached = self.reached.lock().unwrap();
        reached.iter().any(|local| local.ip() == address)
    }

    /// The bytes in front of the last client's identification.
    pub(crate) fn last_told(&self) -> Option<Vec<u8>> {
        self.told.lock().unwrap().last().cloned()
    }

    async fn accept(self, listener: TcpListener) {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let local = stream.local_addr().unwrap();
            let local = SocketAddr::new(local.ip().to_canonical(), local.port());
            self.reached.lock().unwrap().push(local);
            // A client that leaves in the middle is no fault of the pod.
            let told = Arc::clone(&self.told);
            tokio::spawn(async move { serve(stream, local, &told).await.ok() });
        }
    }
}

/// Sends its address and what it is asked for: what comes back again, or more than a link can carry.
async fn serve(mut stream: TcpStream, local: SocketAddr, told: &Mutex<Vec<Vec<u8>>>) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (reader, mut writer) = stream.split();
    let mut reader = BufReader::new(reader);
    writer.write_all(format!("SSH-2.0-{local}\r\n").as_bytes()).await?;
    let mut opening = Vec::new();
    let before = loop {
        if reader.read_until(b'\n', &mut opening).await? == 0 {
            return Ok(());
        }
        if let Some(before) = opening.windows(4).position(|bytes| bytes == b"SSH-") {
            break before;
        }
    };
    opening.truncate(before);
    told.lock().unwrap().push(opening);
    let mut line = String::new();
    reader.read_line(&mut line).await?;
    if line == FLOOD {
        loop {
            writer.write_all(&[b'.'; 16 * 1024]).await?;
        }
    }
    writer.write_all(line.as_bytes()).await?;
    copy_buf(&mut reader, &mut writer).await?;
    writer.shutdown().await
}

/// The line after which a pod only sends.
pub(crate) const FLOOD: &str = "flood\n";

/// Nothing listens at other ports: a dial of those is refused.
const PORTS: [u16; 3] = [22, 2222, 8022];
