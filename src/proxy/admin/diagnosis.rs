//! `/tunnels/{id}/diagnosis`: observes a tunnel for 10 s at most, and reports what makes it slow.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use super::extract::{QueryParams, TunnelPath};
use super::view;
use crate::daemon::admin::api::{Diagnosis, Leg, TcpLegs};
use crate::daemon::admin::response::{Answer, HttpError};
use crate::daemon::threads::busy_workers;
use crate::proxy::connection::Shared;
use crate::proxy::open_tunnels::diagnosis::{Sample, Samples, diagnose_samples};
use crate::tunnel::direction::Both;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DiagnosisQuery {
    /// Milliseconds.
    over_ms: Option<u64>,
}

pub(super) async fn diagnose(
    State(shared): State<Arc<Shared>>,
    TunnelPath(open): TunnelPath,
    QueryParams(DiagnosisQuery { over_ms }): QueryParams<DiagnosisQuery>,
) -> Answer<Diagnosis> {
    let over = over_ms.map_or(USUAL, Duration::from_millis);
    if !(MIN_DURATION..=MAX_DURATION).contains(&over) {
        let (min, max) = (MIN_DURATION.as_millis(), MAX_DURATION.as_millis());
        return Err(HttpError::bad(format!("over_ms: from {min} to {max}")));
    }
    let (start, workers) = (Instant::now(), busy_workers());
    let (mut looks, mut legs) = (Vec::new(), view::legs(&open.legs(&shared.registry.sock_diag)));
    while looks.is_empty() || start.elapsed() < over {
        if !looks.is_empty() {
            sleep(STEP).await;
        }
        let seen = open.legs(&shared.registry.sock_diag);
        legs = view::legs(&seen);
        looks.push(Sample {
            at: start.elapsed(),
            legs: seen.map(Result::ok),
            bytes: Both::from_fn(|direction| open.meter.bytes(direction)),
            waited: Both::from_fn(|direction| open.meter.throttled_time(direction)),
        });
    }
    let observed = Samples {
        load: load(&workers, &busy_workers(), start.elapsed()),
        looks: &looks,
        rate_overrides: Both::from_fn(|direction| open.rate_overrides[direction].get()),
    };
    let (verdict, mut evidence) = diagnose_samples(&observed);
    evidence.extend(summary(&legs));
    let bytes = |sample: Option<&Sample>| sample.map_or_else(Both::default, |sample| sample.bytes);
    let (first, last) = (bytes(looks.first()), bytes(looks.last()));
    Ok(Json(Diagnosis {
        tunnel_id: open.info.id.to_string(),
        verdict,
        evidence,
        observed_ms: view::millis(start.elapsed()),
        bytes_sent: last.download - first.download,
        bytes_received: last.upload - first.upload,
        legs,
    }))
}

/// Returns the mean share of the time in which the awake workers were busy.
fn load(before: &BTreeMap<OsString, Duration>, after: &BTreeMap<OsString, Duration>, length: Duration) -> f64 {
    let shares = after.iter().filter_map(|(thread, busy)| {
        let busy = busy.saturating_sub(*before.get(thread)?);
        let share = busy.as_secs_f64() / length.as_secs_f64();
        (share >= AWAKE).then_some((share, 1.0))
    });
    let (sum, count) = shares.fold((0.0, 0.0), |(sum, count), (share, one)| (sum + share, count + one));
    if count > 0.0 { (sum / count).min(1.0) } else { 0.0 }
}

/// Returns a sentence about each connection.
fn summary(legs: &TcpLegs) -> Vec<String> {
    let of = |(side, leg): (&str, &Option<Leg>)| {
        leg.as_ref().map(|leg| {
            format!(
                "the connection of the {side}: round trip {:.1} ms (at best {:.1} ms), {} segments sent again, {} bytes in flight, \
                 {} not sent, {} not read",
                leg.rtt_ms, leg.lowest_rtt_ms, leg.retransmits, leg.in_flight, leg.not_sent, leg.receive_queue
            )
        })
    };
    let known = [("client", &legs.client), ("target", &legs.upstream)]
        .into_iter()
        .filter_map(of);
    let unknown = (!legs.unknown.is_empty()).then(|| format!("not known: {}", legs.unknown));
    known.chain(unknown).collect()
}

const USUAL: Duration = Duration::from_secs(1);
const MIN_DURATION: Duration = Duration::from_millis(100);
const MAX_DURATION: Duration = Duration::from_secs(10);
/// The time between two samples.
const STEP: Duration = Duration::from_millis(50);
/// A worker that was busy for a smaller share of the time is not awake.
const AWAKE: f64 = 0.05;
