//! An open tunnel, whichever version of HTTP it is of, and what is beneath it.

use std::time::Duration;

use tokio::time::timeout;

use super::notice;
use super::notice::Watched;
use crate::client::ClientError;
use crate::client::dial::http2;
pub(in crate::client) use crate::client::dial::transport::Stream;
use crate::protocol::end_notice::Marker;

/// A tunnel behind the proxy's 2xx.
pub(in crate::client) enum Opened {
    /// The whole connection, behind these bytes.
    Http1(Stream, Vec<u8>),
    /// The only stream of its connection.
    Http2(Box<http2::Driver<Stream>>, Stream),
}

/// Work in a tunnel that is done.
pub(in crate::client) struct Finished<T> {
    /// Its result.
    pub(in crate::client) done: T,
    /// The time for the connection to send what is left. `None` bounds it by the socket only, since the proxy may still
    /// be receiving.
    pub(in crate::client) farewell: Option<Duration>,
}

impl<T> Finished<T> {
    /// With all the time that the socket allows.
    pub(in crate::client) fn unbounded(done: T) -> Self {
        Self { done, farewell: None }
    }
}

impl Opened {
    /// A tunnel that may end in a notice with that marker.
    pub(in crate::client) fn http1(stream: Stream, early: Vec<u8>, marker: Option<Marker>) -> Self {
        match marker {
            Some(marker) => Self::Http1(Box::new(Watched::new(stream, marker, early)), Vec::new()),
            None => Self::Http1(stream, early),
        }
    }

    /// The same, over HTTP/2.
    pub(in crate::client) fn http2(
        driver: http2::Driver<Stream>,
        stream: http2::Stream,
        marker: Option<Marker>,
    ) -> Self {
        let stream: Stream = match marker {
            Some(marker) => Box::new(Watched::new(stream, marker, Vec::new())),
            None => Box::new(stream),
        };
        Self::Http2(Box::new(driver), stream)
    }

    /// Runs `work` with the tunnel and its first bytes, and what is beneath the tunnel meanwhile. An error comes with its
    /// first cause. After work that is done the connection sends what is left, for [`Finished::farewell`] at most.
    pub(in crate::client) async fn carry<T, F>(self, work: impl FnOnce(Stream, Vec<u8>) -> F) -> Result<T, ClientError>
    where
        F: Future<Output = Result<Finished<T>, ClientError>>,
    {
        let (mut driver, stream) = match self {
            Self::Http1(stream, early) => return Ok(work(stream, early).await.map_err(notice::explain)?.done),
            Self::Http2(driver, stream) => (driver, stream),
        };
        match driver.run_during(work(stream, Vec::new())).await {
            Ok(Finished { done, farewell }) => {
                let finished = Box::pin(driver.finish());
                match farewell {
                    None => finished.await,
                    Some(farewell) => timeout(farewell, finished).await.unwrap_or_default(),
                }
                Ok(done)
            }
            Err(error) => Err(driver.explain(notice::explain(error))),
        }
    }
}
