//! The last frames of a connection that is closed behind them.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::link::Link;

/// Writes the last bytes within that time, and closes the connection so that they arrive.
pub(super) async fn send_and_close(mut stream: Link, bytes: &[u8], max: Duration) {
    let written = timeout(max, stream.write_all(bytes)).await;
    if matches!(written, Ok(Ok(()))) {
        stream.shutdown_gracefully().await;
    }
}
