//! Talks to the API server: one client, requests with a deadline on every wait, and answers read piece by piece.

use std::env;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::header::{ACCEPT, HeaderValue, USER_AGENT};
use hyper::{Request, Response};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::failure::{Failure, Trouble};

/// Makes a client anew from what the files say now: certificates, tokens and addresses change.
///
/// # Errors
/// [`Failure::Credentials`].
pub(crate) async fn connect(kubeconfig: Option<PathBuf>) -> Result<Client, Trouble> {
    let mut config = configuration(kubeconfig.as_deref()).await?;
    config.connect_timeout = Some(LONGEST_CONNECT);
    // Only the connect has its deadline there: a client of kube's own retries would hide what the server said.
    config.read_timeout = None;
    config.default_retry = false;
    config.headers.push((
        USER_AGENT,
        HeaderValue::from_static(concat!("switchboard/", env!("CARGO_PKG_VERSION"))),
    ));
    // It may run a program of the kubeconfig to get a token.
    match timeout(LONGEST_ANSWER, spawn_blocking(move || Client::try_from(config))).await {
        Ok(Ok(Ok(client))) => Ok(client),
        Ok(Ok(Err(error))) => Err(Trouble::caused(Failure::Credentials, &error)),
        Ok(Err(error)) => Err(Trouble::caused(Failure::Credentials, &error)),
        Err(_) => Err(Trouble::new(Failure::Credentials, "no credentials in time")),
    }
}

/// The file that is named; else the service account of the pod; else what KUBECONFIG or the home directory say.
async fn configuration(kubeconfig: Option<&Path>) -> Result<Config, Trouble> {
    let options = KubeConfigOptions::default();
    if let Some(path) = kubeconfig {
        let file = Kubeconfig::read_from(path).map_err(|error| Trouble::caused(Failure::Credentials, &error))?;
        let config = Config::from_custom_kubeconfig(file, &options).await;
        return config.map_err(|error| Trouble::caused(Failure::Credentials, &error));
    }
    if env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        return Config::incluster().map_err(|error| Trouble::caused(Failure::Credentials, &error));
    }
    let config = Config::from_kubeconfig(&options).await;
    config.map_err(|error| Trouble::caused(Failure::Credentials, &error))
}

/// Asks for a path, and gives the answer once its head is there and is a success.
///
/// # Errors
/// What the server said, or that it said nothing in time.
pub(crate) async fn get(client: &Client, path: &str) -> Result<Pieces, Trouble> {
    let request = Request::get(path)
        .header(ACCEPT, "application/json")
        .body(Body::empty())
        .map_err(|error| Trouble::caused(Failure::Malformed, &error))?;
    let response = match timeout(LONGEST_ANSWER, client.send(request)).await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => return Err(Trouble::caused(failure_of(&error), &error)),
        Err(_) => return Err(Trouble::new(Failure::Timeout, "no answer in time")),
    };
    match Failure::of_status(response.status().as_u16()) {
        None => Ok(Pieces {
            body: response.into_body(),
            buffer: Vec::new(),
            scanned: 0,
        }),
        Some(failure) => Err(explained(failure, response).await),
    }
}

async fn explained(failure: Failure, response: Response<Body>) -> Trouble {
    let status = response.status();
    let mut body = response.into_body();
    let first = timeout(LONGEST_PAUSE, body.frame()).await;
    let first = first.ok().flatten().and_then(Result::ok);
    let data = first.and_then(|frame| frame.into_data().ok()).unwrap_or_default();
    Trouble::answered(failure, status, &data)
}

fn failure_of(error: &kube::Error) -> Failure {
    if matches!(error, kube::Error::Auth(_)) {
        Failure::Credentials
    } else {
        Failure::Connect
    }
}

/// The body of an answer, as it comes.
#[derive(Debug)]
pub(crate) struct Pieces {
    body: Body,
    buffer: Vec<u8>,
    /// How much of the buffer holds no end of a line.
    scanned: usize,
}

impl Pieces {
    /// All of it, unless it pauses for too long.
    ///
    /// # Errors
    /// It paused or was cut, or is larger than 64 MiB.
    pub(crate) async fn whole(mut self) -> Result<Vec<u8>, Trouble> {
        while self.more(LONGEST_PAUSE, Failure::Timeout).await? {
            if self.buffer.len() > LARGEST_LIST {
                return Err(Trouble::new(Failure::Malformed, "a page of more than 64 MiB"));
            }
        }
        Ok(self.buffer)
    }

    /// The next line; `None` at the end. What stands behind the last line's end is no line.
    ///
    /// # Errors
    /// Nothing came for that long, it was cut, or a line is longer than 8 MiB.
    pub(crate) async fn line(&mut self, longest_silence: Duration) -> Result<Option<Vec<u8>>, Trouble> {
        loop {
            let unseen = self.buffer.get(self.scanned..).unwrap_or_default();
            if let Some(at) = unseen.iter().position(|byte| *byte == b'\n') {
                let rest = self.buffer.split_off(self.scanned + at + 1);
                self.scanned = 0;
                return Ok(Some(std::mem::replace(&mut self.buffer, rest)));
            }
            self.scanned = self.buffer.len();
            if self.buffer.len() > LONGEST_LINE {
                return Err(Trouble::new(Failure::Malformed, "an event of more than 8 MiB"));
            }
            if !self.more(longest_silence, Failure::Silent).await? {
                return match self.buffer.is_empty() {
                    true => Ok(None),
                    false => Err(Trouble::new(Failure::Cut, "the stream ended within an event")),
                };
            }
        }
    }

    /// Whether there was more.
    async fn more(&mut self, longest: Duration, silent: Failure) -> Result<bool, Trouble> {
        match timeout(longest, self.body.frame()).await {
            Err(_) => Err(Trouble::new(silent, format!("nothing came for {longest:?}"))),
            Ok(None) => Ok(false),
            Ok(Some(Err(error))) => Err(Trouble::caused(Failure::Cut, &error)),
            Ok(Some(Ok(frame))) => {
                self.buffer.extend(frame.into_data().unwrap_or_default());
                Ok(true)
            }
        }
    }
}

/// A query's value with all but the unreserved characters of RFC 3986 in percent form.
pub(crate) fn encoded(value: &str) -> String {
    let mut encoded = String::with_capacity(value.len());
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// TCP and TLS. A server that comes back in the meantime is found at the latest after it and one backoff.
const LONGEST_CONNECT: Duration = Duration::from_millis(1500);
/// From the request to the head of the answer: lists of large clusters take seconds.
const LONGEST_ANSWER: Duration = Duration::from_secs(15);
/// Between two pieces of one list.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
const LARGEST_LIST: usize = 64 << 20;
const LONGEST_LINE: usize = 8 << 20;
