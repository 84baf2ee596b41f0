//! The answer with a list whose rows are written as they are sent: 10,000 tunnels are 10 MB, of which a reader that stalls keeps
//! one part in memory, and other requests are answered between two parts.

use std::io;

use axum::body::{Body, Bytes};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde_json::json;
use tokio::task::yield_now;

use super::listing::Listed;

/// Writes one row in JSON.
pub(super) type Write<T> = fn(&T, &mut Vec<u8>) -> serde_json::Result<()>;

/// The rows under that name, with `total` and `next` behind them.
pub(super) fn answer<T: Send + 'static>(name: &str, listed: Listed<T>, write: Write<T>) -> Response {
    let Listed { items, total, next } = listed;
    let mut rows = Rows {
        items: items.into_iter(),
        write,
        joint: format!("{{\"{name}\":["),
        end: Some(format!("],\"total\":{total},\"next\":{}}}", json!(next))),
    };
    let body = match rows.part() {
        // As long as it is short, its length is known.
        Some(Ok(part)) if rows.end.is_none() => Body::from(part),
        first => Body::from_stream(stream::unfold((first, rows), async |(first, mut rows)| {
            if let Some(part) = first {
                return Some((part, (None, rows)));
            }
            yield_now().await;
            rows.part().map(|part| (part, (None, rows)))
        })),
    };
    let kind = HeaderValue::from_static("application/json");
    ([(CONTENT_TYPE, kind)], body).into_response()
}

/// Rows that are not written yet.
struct Rows<T> {
    items: std::vec::IntoIter<T>,
    write: Write<T>,
    /// What comes in front of the next row.
    joint: String,
    /// What comes behind the last one; `None` once it is written, or there was an error.
    end: Option<String>,
}

impl<T> Rows<T> {
    /// The next part; `None` behind the end.
    fn part(&mut self) -> Option<io::Result<Bytes>> {
        let end = self.end.take()?;
        let mut part = Vec::with_capacity(PART + LONGEST_USUAL_ROW);
        for item in self.items.by_ref() {
            part.extend_from_slice(self.joint.as_bytes());
            ",".clone_into(&mut self.joint);
            if let Err(error) = (self.write)(&item, &mut part) {
                // The answer is cut off: it does not look complete.
                return Some(Err(error.into()));
            }
            if part.len() >= PART {
                self.end = Some(end);
                return Some(Ok(part.into()));
            }
        }
        if self.joint != "," {
            part.extend_from_slice(self.joint.as_bytes());
        }
        part.extend_from_slice(end.as_bytes());
        Some(Ok(part.into()))
    }
}

/// Bytes: about 70 tunnels, which take some 100 µs.
const PART: usize = 64 << 10;
const LONGEST_USUAL_ROW: usize = 4 << 10;

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use hyper::body::Body as _;
    use serde_json::Value;

    use super::*;

    fn of(count: usize) -> Response {
        let listed = Listed {
            items: (0..count).collect(),
            total: 70_000,
            next: (count > 1).then(|| "a\"b".to_owned()),
        };
        answer("numbers", listed, |number, row| serde_json::to_writer(row, number))
    }

    #[tokio::test]
    async fn a_list_is_one_document_however_long() {
        for count in [0, 1, 2, 100, 60_000] {
            let body = of(count).into_body();
            assert_eq!(body.size_hint().exact().is_some(), count < 60_000, "{count}");
            let whole = body.collect().await.unwrap().to_bytes();
            let value: Value = serde_json::from_slice(&whole).unwrap();
            assert_eq!(value["numbers"], json!((0..count).collect::<Vec<_>>()));
            assert_eq!(value["total"], 70_000);
            assert_eq!(value["next"], if count > 1 { json!("a\"b") } else { Value::Null });
        }
    }

    #[tokio::test]
    async fn a_row_that_cannot_be_written_ends_the_answer_in_the_middle() {
        let listed = Listed {
            items: vec![1, 2],
            total: 2,
            next: None,
        };
        let write: Write<i32> = |number, row| match number {
            1 => serde_json::to_writer(row, number),
            _ => Err(serde::ser::Error::custom("no")),
        };
        assert!(answer("numbers", listed, write).into_body().collect().await.is_err());
    }

    #[tokio::test]
    async fn what_is_not_read_is_not_written() {
        let mut body = of(60_000).into_body();
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(
            (PART..PART + LONGEST_USUAL_ROW).contains(&first.len()),
            "{}",
            first.len()
        );
    }
}
