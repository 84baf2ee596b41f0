//! Writes an event as one line of JSON.

use std::fmt;
use std::str;

use serde::ser::{SerializeMap, Serializer};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_serde::{AsSerde, SerdeMapVisitor};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::daemon::logging::access_line::{ACCESS, MEMBERS};

/// The same bytes as tracing-subscriber's flattened JSON without spans and target, at 0.4 times the cost; and the ready
/// members of an access event of the proxy as they are.
///
/// tracing-subscriber's passes every quotation mark, comma and number separately to a [`fmt::Write`], and checks each piece
/// for UTF-8.
#[derive(Clone, Copy, Debug)]
pub(super) struct JsonLine;

impl<S, N> FormatEvent<S, N> for JsonLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        if event.metadata().target() == ACCESS && event.metadata().fields().field(MEMBERS).is_some() {
            return write_members(writer, event);
        }
        let mut timestamp = String::with_capacity(TIMESTAMP_BYTES);
        SystemTime.format_time(&mut Writer::new(&mut timestamp))?;
        let mut line = Vec::with_capacity(LINE_BYTES);
        write_object(&mut line, &timestamp, event).map_err(|_| fmt::Error)?;
        line.push(b'\n');
        writer.write_str(str::from_utf8(&line).map_err(|_| fmt::Error)?)
    }
}

/// A line whose members are ready.
fn write_members(mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
    writer.write_str("{\"timestamp\":\"")?;
    SystemTime.format_time(&mut writer)?;
    writer.write_str("\",\"level\":\"")?;
    writer.write_str(event.metadata().level().as_str())?;
    writer.write_str("\"")?;
    let mut members = Verbatim { writer, result: Ok(()) };
    event.record(&mut members);
    members.result?;
    members.writer.write_str("}\n")
}

/// Writes the field of an access event as it is.
struct Verbatim<'a> {
    writer: Writer<'a>,
    result: fmt::Result,
}

impl Visit for Verbatim<'_> {
    fn record_str(&mut self, _: &Field, members: &str) {
        self.result = self.result.and_then(|()| self.writer.write_str(members));
    }

    /// It has no other fields.
    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}

fn write_object(to: &mut Vec<u8>, timestamp: &str, event: &Event<'_>) -> serde_json::Result<()> {
    let mut serializer = serde_json::Serializer::new(to);
    let mut object = serializer.serialize_map(None)?;
    object.serialize_entry("timestamp", timestamp)?;
    object.serialize_entry("level", &event.metadata().level().as_serde())?;
    let mut fields = SerdeMapVisitor::new(object);
    event.record(&mut fields);
    fields.finish()
}

/// Such as `2026-01-02T03:04:05.678901Z`.
const TIMESTAMP_BYTES: usize = 27;
/// Most lines are shorter; a longer one grows.
const LINE_BYTES: usize = 1536;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::{Arc, Mutex};
    use tracing::{info, subscriber};
    use tracing_subscriber::fmt::{self as format, MakeWriter};
    use tracing_subscriber::layer::SubscriberExt;

    /// What was written.
    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Sink {
        type Writer = Self;

        fn make_writer(&'a self) -> Self {
            self.clone()
        }
    }

    impl Sink {
        /// What follows the timestamp.
        fn said(&self) -> String {
            let said = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
            let (timestamp, rest) = said.split_once(',').unwrap();
            assert_eq!(
                timestamp.len(),
                "{'timestamp':''".len() + TIMESTAMP_BYTES,
                "{timestamp}"
            );
            rest.to_owned()
        }
    }

    #[test]
    fn upgrade_a_line_has_the_bytes_of_tracing_subscribers() {
        let [ours, theirs] = [Sink::default(), Sink::default()];
        let flattened = format::layer()
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .with_target(false)
            .with_writer(theirs.clone());
        let direct = format::layer().event_format(JsonLine).with_writer(ours.clone());
        let both = tracing_subscriber::registry().with(flattened).with(direct);
        subscriber::with_default(both, || {
            info!(
                client.address = %"192.0.2.1",
                said = "a\"b\\c\n\u{1}\u{7f}é\u{2028}",
                shown = ?Some("x"),
                empty = "",
                bytes = u64::MAX,
                left = -1,
                duration_ms = 0.25,
                whole_ms = 0.0,
                broken = f64::NAN,
                resumable = true,
                long = "x".repeat(2 * LINE_BYTES),
                "and a message"
            );
        });
        assert_eq!(ours.said(), theirs.said());
        assert!(ours.said().ends_with("}\n"));
    }

    #[test]
    fn the_members_of_an_access_event_are_written_as_they_are() {
        let sink = Sink::default();
        let layer = format::layer().event_format(JsonLine).with_writer(sink.clone());
        subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            info!(target: "access", members = ",\"count\":1,\"reason\":\"a\\nb\"");
        });
        assert_eq!(sink.said(), "\"level\":\"INFO\",\"count\":1,\"reason\":\"a\\nb\"}\n");
        let sink = Sink::default();
        let layer = format::layer().event_format(JsonLine).with_writer(sink.clone());
        subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            info!(members = ",\"count\":1", "a message");
        });
        // A message may have a field of that name, and no say in the form of its line.
        let line = "\"level\":\"INFO\",\"message\":\"a message\",\"members\":\",\\\"count\\\":1\"}\n";
        assert_eq!(sink.said(), line);
    }
}
