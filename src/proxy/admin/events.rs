//! `/events`: what happens to tunnels, as server-sent events (HTML, section 9.2).

use std::convert::Infallible;
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::sse::{Event as Sent, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use futures_util::{StreamExt as _, stream};
use hyper::StatusCode;
use serde_json::{Value, json};

use super::{past, view};
use crate::daemon::admin::caller::Caller;
use crate::daemon::admin::response::HttpError;
use crate::proxy::connection::Shared;
use crate::proxy::open_tunnels::events::{Event, RefusedRequest, Subscription};
use crate::proxy::open_tunnels::open_tunnel::OpenTunnel;
use crate::tunnel::outcome::Close;

/// Subscribes to the events, unless there are enough readers.
pub(super) async fn events(State(shared): State<Arc<Shared>>, Extension(caller): Extension<Caller>) -> Response {
    let Some(watch) = shared.registry.events.watch() else {
        let said = "there are enough readers of events: end one of them";
        return HttpError::new(StatusCode::SERVICE_UNAVAILABLE, said).into_response();
    };
    stream_events(watch, caller)
}

/// Sends the events from now on.
pub(super) fn stream_events(watch: Subscription, caller: Caller) -> Response {
    let next = async |mut watch: Subscription| {
        let event = watch.next().await?;
        let (name, data) = event.map_or_else(|missed| ("missed", json!({ "events": missed })), |event| view(&event));
        Some((
            Ok::<_, Infallible>(Sent::default().event(name).data(data.to_string())),
            watch,
        ))
    };
    let mut events = Box::pin(stream::unfold(watch, next));
    // The stream is polled only while the reader takes the events that were sent before.
    let events = stream::poll_fn(move |context| {
        caller.renew();
        events.poll_next_unpin(context)
    });
    Sse::new(events).keep_alive(KeepAlive::default()).into_response()
}

/// Returns the name of an event, and its data.
fn view(event: &Event) -> (&'static str, Value) {
    match event {
        Event::Opened(open) => ("opened", of_tunnel(open)),
        Event::Closed(open, close) => ("closed", with_end(of_tunnel(open), *close, open.close_reason())),
        Event::Refused(refused) => ("refused", of_refused(refused)),
        Event::Changed(name, change) => ("changed", json!({"name": &**name, "change": change})),
    }
}

fn of_tunnel(open: &OpenTunnel) -> Value {
    serde_json::to_value(view::tunnel(open)).unwrap_or_default()
}

fn with_end(mut tunnel: Value, close: Close, operator: Option<&str>) -> Value {
    if let Some(fields) = tunnel.as_object_mut() {
        fields.insert("reason".to_owned(), close.reason.label().into());
        fields.insert("sentence".to_owned(), close.to_string().into());
        fields.insert("closed_by".to_owned(), close.by.label().into());
        fields.insert("operator.reason".to_owned(), operator.unwrap_or_default().into());
    }
    tunnel
}

fn of_refused(refused: &RefusedRequest) -> Value {
    serde_json::to_value(past::refused(refused)).unwrap_or_default()
}
