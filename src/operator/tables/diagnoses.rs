//! Diagnoses many tunnels, such as those of one node: each by its replica, all at the same time.

use futures_util::future::join_all;
use serde::{Deserialize, Serialize};

use super::columns::{Column, Table, escape};
use crate::daemon::admin::api::{Diagnosis, Leg, Tunnel, Verdict};
use crate::kubernetes::encoded;
use crate::operator::replicas::merge::FromReplica;
use crate::operator::replicas::request::{AdminRequest, ReplicaError};
use crate::operator::replicas::{DiscoveryError, Replicas};

/// A tunnel, and its replica's diagnosis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TunnelDiagnosis {
    /// The tunnel with its replica.
    pub tunnel: FromReplica<Tunnel>,
    /// `None` with an error, or if the tunnel has ended.
    pub diagnosis: Option<Diagnosis>,
    /// Why the diagnosis is unknown.
    pub error: Option<String>,
}

impl Replicas {
    /// Returns the diagnoses of tunnels in their order. Each is its replica's answer to `/tunnels/<id><path>`.
    ///
    /// # Errors
    /// See [`find`](Self::find).
    pub async fn diagnose(
        &self,
        tunnels: Vec<FromReplica<Tunnel>>,
        path: &str,
    ) -> Result<Vec<TunnelDiagnosis>, DiscoveryError> {
        let replicas = &self.find().await?;
        let looks = tunnels.into_iter().map(|tunnel| async move {
            let ask = AdminRequest::get(format!("/tunnels/{}{path}", encoded(&tunnel.item.tunnel_id)));
            let answer = match replicas.iter().find(|replica| **replica.name() == *tunnel.replica) {
                Some(replica) => replica.find(&ask).await,
                None => Err(ReplicaError::Unreachable("it is gone".to_owned())),
            };
            TunnelDiagnosis {
                tunnel,
                error: answer.as_ref().err().map(ToString::to_string),
                diagnosis: answer.ok().flatten(),
            }
        });
        Ok(join_all(looks).await)
    }
}

/// Returns the table of tunnels, with what makes each slow.
pub fn diagnosis_table(diagnosed: &[TunnelDiagnosis], is_wide: bool) -> Table {
    let row = |one: &TunnelDiagnosis| {
        let FromReplica { replica, item } = &one.tunnel;
        let legs = one.diagnosis.as_ref().map(|diagnosis| &diagnosis.legs);
        let trip = |leg: Option<&Option<Leg>>| {
            let leg = leg.and_then(Option::as_ref);
            leg.map(|leg| format!("{:.1}ms", leg.rtt_ms)).unwrap_or_default()
        };
        let (verdict, evidence) = match (&one.diagnosis, &one.error) {
            (Some(diagnosis), _) => (
                diagnosis.verdict.label(),
                diagnosis.evidence.first().map(|line| escape(line)).unwrap_or_default(),
            ),
            (None, Some(error)) => ("unknown", error.clone()),
            (None, None) => ("ended", String::new()),
        };
        vec![
            escape(&item.tunnel_id),
            replica.clone(),
            item.client_address.to_string(),
            escape(&one.tunnel.target()),
            escape(&item.upstream_node),
            verdict.to_owned(),
            trip(legs.map(|legs| &legs.client)),
            trip(legs.map(|legs| &legs.upstream)),
            evidence,
        ]
    };
    Table::new(&COLUMNS, &diagnosed.iter().map(row).collect::<Vec<_>>(), is_wide)
}

/// Returns the number of tunnels by verdict, and the round-trip times to their targets.
pub fn diagnosis_summary(diagnosed: &[TunnelDiagnosis]) -> String {
    let known: Vec<_> = diagnosed.iter().filter_map(|one| one.diagnosis.as_ref()).collect();
    let verdicts = [
        Verdict::Target,
        Verdict::Client,
        Verdict::Limit,
        Verdict::Proxy,
        Verdict::Nothing,
    ];
    let counts = verdicts.into_iter().filter_map(|verdict| {
        let count = known.iter().filter(|diagnosis| diagnosis.verdict == verdict).count();
        (count > 0).then(|| format!("{count} {}", verdict.label()))
    });
    let counts: Vec<_> = counts.collect();
    let trips = known
        .iter()
        .filter_map(|diagnosis| Some(diagnosis.legs.upstream.as_ref()?.rtt_ms));
    let mut trips: Vec<f64> = trips.collect();
    trips.sort_by(f64::total_cmp);
    let trip = match (trips.get(trips.len() / 2), trips.last()) {
        (Some(median), Some(max)) => {
            format!("; the round trip to the target is {median:.1} ms at the median, {max:.1} ms at most")
        }
        _ => String::new(),
    };
    let counts = if counts.is_empty() {
        "none".to_owned()
    } else {
        counts.join(", ")
    };
    format!("{} tunnels looked at: {counts}{trip}\n", diagnosed.len())
}

const COLUMNS: [Column; 9] = [
    Column::text("ID"),
    Column::text("REPLICA").wide(),
    Column::name("CLIENT"),
    Column::target("TARGET"),
    Column::text("NODE").wide(),
    Column::text("SLOW BY"),
    Column::text("CLIENT RTT").wide(),
    Column::text("TARGET RTT").wide(),
    Column::sentence("EVIDENCE"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::admin::api::TcpLegs;
    use crate::daemon::admin::api::tests::tunnel;

    #[test]
    fn a_node_is_judged_by_all_of_its_tunnels() {
        let of = |id: &str, verdict, rtt_ms| TunnelDiagnosis {
            tunnel: FromReplica {
                replica: "one".to_owned(),
                item: tunnel(id),
            },
            diagnosis: Some(Diagnosis {
                tunnel_id: id.to_owned(),
                verdict,
                evidence: vec!["why\u{1b}".to_owned()],
                observed_ms: 1,
                bytes_sent: 0,
                bytes_received: 0,
                legs: TcpLegs {
                    upstream: Some(Leg {
                        rtt_ms,
                        ..Leg::default()
                    }),
                    ..TcpLegs::default()
                },
            }),
            error: None,
        };
        let mut looks = vec![
            of("a", Verdict::Target, 90.0),
            of("b", Verdict::Target, 85.0),
            of("c", Verdict::Nothing, 0.2),
        ];
        assert_eq!(
            diagnosis_summary(&looks),
            "3 tunnels looked at: 2 target, 1 nothing; the round trip to the target is 85.0 ms at the median, 90.0 ms at most\n"
        );
        looks[2].diagnosis = None;
        looks[1].diagnosis = None;
        looks[1].error = Some("no answer within 5s".to_owned());
        let table = diagnosis_table(&looks, true).render(None);
        let lines: Vec<_> = table.lines().collect();
        assert!(lines[1].ends_with("target   90.0ms      why\\u{1b}"), "{table}");
        assert!(
            lines[2].contains("unknown") && lines[2].ends_with("no answer within 5s"),
            "{table}"
        );
        assert!(lines[3].ends_with("ended"), "{table}");
        assert_eq!(diagnosis_summary(&[]), "0 tunnels looked at: none\n");
    }
}
