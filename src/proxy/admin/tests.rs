use std::future::pending;
use std::time::Duration;

use axum::Extension;
use tokio::io::{AsyncWriteExt as _, copy, duplex, sink};
use tokio::time::sleep;

use super::*;
use crate::daemon::admin::caller::Caller;
use crate::daemon::admin::converse;
use crate::proxy::open_tunnels::events::{Change, Event, Events};

/// Returns whether the stream of events is still open after ten minutes, with an event each second.
async fn outlasts_ten_minutes(reads: bool) -> bool {
    let events: Arc<Events> = Arc::default();
    let watched = Arc::clone(&events);
    let route = get(move |Extension(caller): Extension<Caller>| async move {
        events::stream_events(watched.watch().unwrap(), caller)
    });
    let router = Router::new().route("/events", route);
    let (mut client, server) = duplex(4096);
    let ask = b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n";
    client.write_all(ask).await.unwrap();
    let telling = async {
        loop {
            events.publish(|| Event::Changed("x".repeat(1000).into(), Change::Limited));
            sleep(Duration::from_secs(1)).await;
        }
    };
    let reading = async {
        if reads {
            copy(&mut client, &mut sink()).await.unwrap();
        }
        pending::<()>().await;
    };
    let caller = Caller::new("127.0.0.1:1".parse().unwrap());
    tokio::select! {
        () = converse(server, caller, router) => false,
        () = telling => false,
        () = reading => false,
        () = sleep(Duration::from_mins(10)) => true,
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_of_events_that_stalls_is_let_go_and_one_that_reads_stays() {
    assert!(outlasts_ten_minutes(true).await);
    assert!(!outlasts_ten_minutes(false).await);
}
