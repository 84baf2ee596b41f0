//! The events of a replica, as they happen.

use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::Value;
use tokio::time::timeout;

use super::replica::{Link, Replica};
use super::request::{AdminRequest, ReplicaError, unexpected};

/// The events of a replica. For a slow reader the replica drops some, and reports their number by the event `missed`.
pub(crate) struct Events {
    body: Incoming,
    lines: Lines,
    _link: Link,
}

impl Events {
    /// Subscribes to the events of a replica.
    pub(crate) async fn subscribe(replica: &Replica) -> Result<Self, ReplicaError> {
        let request = AdminRequest::get("/events");
        let (response, link) = replica.in_time(Box::pin(replica.begin(&request))).await?;
        match response.status().as_u16() {
            200 => Ok(Self {
                body: response.into_body(),
                lines: Lines::default(),
                _link: link,
            }),
            status => Err(ReplicaError::Unexpected(format!("the answer to /events is {status}"))),
        }
    }

    /// Returns the events that the next bytes complete, if any, each with its name (such as `opened`) and data.
    pub(crate) async fn next(&mut self) -> Result<Vec<(String, Value)>, ReplicaError> {
        let ended = || ReplicaError::Unreachable("the stream of events has ended".to_owned());
        let late = |_| ReplicaError::Timeout(SILENCE_TIMEOUT);
        let frame = timeout(SILENCE_TIMEOUT, self.body.frame()).await.map_err(late)?;
        let frame = frame.ok_or_else(ended)?.map_err(|error| unexpected(&error))?;
        let events = self.lines.read(&frame.into_data().unwrap_or_default());
        match self.lines.is_too_long() {
            true => Err(ReplicaError::Unexpected("an event has more than 1 MiB".to_owned())),
            false => Ok(events),
        }
    }
}

/// A parser of server-sent events (HTML, section 9.2.6) as the proxy writes them: lines end in LF, and one field `data` has
/// JSON.
#[derive(Debug, Default)]
struct Lines {
    rest: Vec<u8>,
    name: String,
    data: String,
}

impl Lines {
    /// Returns the events that these bytes complete, without those whose data is not JSON.
    fn read(&mut self, bytes: &[u8]) -> Vec<(String, Value)> {
        let mut events = Vec::new();
        // Only the new bytes are searched: a line may arrive byte by byte.
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
                // A comment, which keeps the connection alive, or a field that is not needed here.
                _ => {}
            }
        }
        events
    }

    fn is_too_long(&self) -> bool {
        self.rest.len() > MAX_EVENT
    }
}

/// The proxy writes a comment every 15 s.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(45);
const MAX_EVENT: usize = 1 << 20;

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
        let text = format!("event: x\ndata: \"{}\"\n\n", "a".repeat(MAX_EVENT / 2));
        let mut lines = Lines::default();
        let events = text.bytes().map(|byte| lines.read(&[byte]).len());
        assert_eq!(events.sum::<usize>(), 1);
        assert!(!lines.is_too_long());
    }
}
