//! SSH servers as far as a proxy sees them: on every address of the pod network, at a few ports.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, copy_buf};
use tokio::net::{TcpListener, TcpStream};

/// The pods, and where they were reached.
#[derive(Clone, Debug)]
pub(crate) struct Pods {
    reached: Arc<Mutex<Vec<SocketAddr>>>,
}

impl Pods {
    /// Every address of this side listens at these ports.
    pub(crate) async fn start() -> Self {
        let pods = Self {
            reached: Arc::default(),
        };
        for port in PORTS {
            let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await.unwrap();
            tokio::spawn(pods.clone().accept(listener));
        }
        pods
    }

    /// Whether somebody came to that address.
    pub(crate) fn was_reached(&self, address: IpAddr) -> bool {
        let reached = self.reached.lock().unwrap();
        reached.iter().any(|local| local.ip() == address)
    }

    async fn accept(self, listener: TcpListener) {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let local = stream.local_addr().unwrap();
            let local = SocketAddr::new(local.ip().to_canonical(), local.port());
            self.reached.lock().unwrap().push(local);
            // A client that leaves in the middle is no fault of the pod.
            tokio::spawn(async move { serve(stream, local).await.ok() });
        }
    }
}

/// Says who it is and what it is asked for: what comes back again, or more than a link can carry.
async fn serve(mut stream: TcpStream, local: SocketAddr) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (reader, mut writer) = stream.split();
    let mut reader = BufReader::new(reader);
    writer.write_all(format!("SSH-2.0-{local}\r\n").as_bytes()).await?;
    let mut line = String::new();
    reader.read_line(&mut line).await?;
    line.clear();
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
