//! An open tunnel, whichever version of HTTP it is of, and what is beneath it.

use std::time::Duration;

use tokio::time::timeout;

pub(super) use super::transport::Stream;
use super::{ClientError, http2};

/// A tunnel behind the proxy's 2xx.
pub(super) enum Opened {
    /// The whole connection, behind these bytes.
    Http1(Stream, Vec<u8>),
    /// The only stream of its connection.
    Http2(Box<(http2::Driver<Stream>, http2::Stream)>),
}

/// Work in a tunnel that is done.
pub(super) struct Finished<T> {
    /// Its result.
    pub(super) done: T,
    /// The time for the connection to send what is left. `None` bounds it by the socket only, since the proxy may still
    /// be receiving.
    pub(super) farewell: Option<Duration>,
}

impl<T> Finished<T> {
    /// With all the time that the socket allows.
    pub(super) fn unbounded(done: T) -> Self {
        Self { done, farewell: None }
    }
}

impl Opened {
    /// Runs `work` with the tunnel and its first bytes, and what is beneath the tunnel meanwhile. An error comes with its
    /// first cause. After work that is done the connection sends what is left, for [`Finished::farewell`] at most.
    pub(super) async fn carry<T, F>(self, work: impl FnOnce(Stream, Vec<u8>) -> F) -> Result<T, ClientError>
    where
        F: Future<Output = Result<Finished<T>, ClientError>>,
    {
        let (mut driver, stream) = match self {
            Self::Http1(stream, early) => return Ok(work(stream, early).await?.done),
            Self::Http2(http2) => *http2,
        };
        match driver.run_during(work(Box::new(stream), Vec::new())).await {
            Ok(Finished { done, farewell }) => {
                let finished = Box::pin(driver.finish());
                match farewell {
                    None => finished.await,
                    Some(farewell) => timeout(farewell, finished).await.unwrap_or_default(),
                }
                Ok(done)
            }
            Err(error) => Err(driver.explain(error)),
        }
    }
}
