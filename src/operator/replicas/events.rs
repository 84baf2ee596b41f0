//! The events of all replicas, as they happen.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::replica::{Connection, Replica};
use super::request::{Ask, ReplicaError, shown, strange};

/// Something that one replica tells.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    /// Its name.
    pub replica: Arc<str>,
    /// What has happened.
    pub happening: Happening,
}

/// What has happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Happening {
    /// Events will come from now on.
    Connected,
    /// None will come until the next `Connected`; the next attempt follows by itself.
    Lost(ReplicaError),
    /// An event: its name, such as `opened`, and its data.
    Event(String, Value),
}

/// Reads the events of a replica until the handle is dropped, or nothing receives them any more. A receiver that is slow makes
/// the replica drop events, which is told by its event `missed`.
pub fn watch(replica: Replica, sender: mpsc::Sender<Told>) -> AbortOnDropHandle<()> {
    let teller = Teller {
        replica: Arc::clone(replica.name()),
        sender,
    };
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut pause = FIRST_PAUSE;
        loop {
            let (was_open, error) = match open(&replica).await {
                Ok(stream) => (true, stream.follow(&teller).await),
                Err(error) => (false, error),
            };
            pause = match was_open {
                true => FIRST_PAUSE,
                false => (pause * 2).min(LONGEST_PAUSE),
            };
            if !teller.tell(Happening::Lost(error)).await {
                return;
            }
            sleep(pause).await;
        }
    }))
}

struct Teller {
    replica: Arc<str>,
    sender: mpsc::Sender<Told>,
}

impl Teller {
    /// Whether it is received.
    async fn tell(&self, happening: Happening) -> bool {
        let replica = Arc::clone(&self.replica);
        self.sender.send(Told { replica, happening }).await.is_ok()
    }
}

/// An open stream of events.
struct Stream {
    body: Incoming,
    _running: AbortOnDropHandle<hyper::Result<()>>,
    _connection: Connection,
}

async fn open(replica: &Replica) -> Result<Stream, ReplicaError> {
    let begin = async {
        let mut connection = replica.connect().await?;
        let (stream, host) = connection.parts()?;
        let ask = Ask::get("/events");
        let (response, running) = tokio::select! {
            begun = ask.begin(stream, &host) => begun?,
            told = connection.broken() => return Err(ReplicaError::Unreachable(shown(&told))),
        };
        match response.status().as_u16() {
            200 => Ok(Stream {
                body: response.into_body(),
                _running: running,
                _connection: connection,
            }),
            status => Err(ReplicaError::Strange(format!("the answer to /events is {status}"))),
        }
    };
    let deadline = replica.deadline();
    let late = |_| Err(ReplicaError::Late(deadline));
    timeout(deadline, begin).await.unwrap_or_else(late)
}

impl Stream {
    /// Reads until the stream ends.
    async fn follow(mut self, teller: &Teller) -> ReplicaError {
        if !teller.tell(Happening::Connected).await {
            return ended();
        }
        let mut lines = Lines::default();
        loop {
            let frame = match timeout(LONGEST_SILENCE, self.body.frame()).await {
                Ok(Some(Ok(frame))) => frame,
                Ok(Some(Err(error))) => return strange(&error),
                Ok(None) => return ended(),
                Err(_) => return ReplicaError::Late(LONGEST_SILENCE),
            };
            let Ok(data) = frame.into_data() else {
                continue;
            };
            for (name, data) in lines.read(&data) {
                if !teller.tell(Happening::Event(name, data)).await {
                    return ended();
                }
            }
            if lines.is_too_long() {
                return ReplicaError::Strange("an event has more than 1 MiB".to_owned());
            }
        }
    }
}

fn ended() -> ReplicaError {
    ReplicaError::Unreachable("the stream of events has ended".to_owned())
}

/// The lines of a stream of events (HTML, section 9.2.6), as far as the proxy writes them: LF at their ends, and JSON in one
/// field `data`.
#[derive(Debug, Default)]
struct Lines {
    rest: Vec<u8>,
    name: String,
    data: String,
}

impl Lines {
    /// The events that these bytes complete. One whose data is no JSON is none.
    fn read(&mut self, bytes: &[u8]) -> Vec<(String, Value)> {
        let mut events = Vec::new();
        // Not in what was there before: a line that came byte by byte would be searched again for each of them.
        let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') else {
            self.rest.extend_from_slice(bytes);
            return events;
        };
        let (ended, rest) = bytes.split_at(end + 1);
        let mut lines = std::mem::replace(&mut self.rest, rest.to_vec());
        lines.extend_from_slice(ended);
        for line in String::from_utf8_lossy(&lines).lines() {
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "event" => value.clone_into(&mut self.name),
                "data" => value.clone_into(&mut self.data),
                _ if line.is_empty() => {
                    let (name, data) = (std::mem::take(&mut self.name), std::mem::take(&mut self.data));
                    let data = serde_json::from_str(&data);
                    events.extend(data.ok().map(|data| (name, data)));
                }
                // A comment, which keeps the connection alive, or a field that says nothing here.
                _ => {}
            }
        }
        events
    }

    fn is_too_long(&self) -> bool {
        self.rest.len() > LONGEST_EVENT
    }
}

/// The proxy writes a comment every 15 s.
const LONGEST_SILENCE: Duration = Duration::from_secs(45);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
const LONGEST_EVENT: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn events_are_read_wherever_the_stream_is_cut() {
        let text =
            ":\n\nevent: opened\ndata: {\"a\": 1}\n\nevent: missed\ndata: {\"events\":2}\n\nevent: x\ndata: no\n\n";
        let expected = [
            ("opened".to_owned(), json!({"a": 1})),
            ("missed".to_owned(), json!({"events": 2})),
        ];
        for at in 0..text.len() {
            let mut lines = Lines::default();
            let (head, tail) = text.as_bytes().split_at(at);
            let mut events = lines.read(head);
            events.extend(lines.read(tail));
            assert_eq!(events, expected, "cut at {at}");
        }
    }
    #[test]
    fn a_long_event_that_comes_byte_by_byte_is_read() {
        let text = format!("event: x\ndata: \"{}\"\n\n", "a".repeat(LONGEST_EVENT / 2));
        let mut lines = Lines::default();
        let events = text.bytes().map(|byte| lines.read(&[byte]).len());
        assert_eq!(events.sum::<usize>(), 1);
        assert!(!lines.is_too_long());
    }
}
