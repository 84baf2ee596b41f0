//! The metrics of access.

use prometheus::{Histogram, IntCounter, IntGauge};

use crate::tunnel::exposition::{Counters, FAST, Gauges, counter, counters, gauge, gauges, histogram, metrics};

metrics! {
    /// The metrics of access; a clone is another handle on them.
    pub struct AccessMetrics();

    /// Requests that access control has decided, by method of authentication and by result.
    pub requests: Counters<2> = counters("switchboard_access_requests_total", &["method", "result"]);
    /// Reviews of tokens and permissions by the API server, by kind and result.
    pub reviews: Counters<2> = counters("switchboard_access_reviews_total", &["kind", "result"]);
    /// Seconds of a review by the API server.
    pub review_duration: Histogram = histogram("switchboard_access_review_duration_seconds", &FAST);
    /// Cached answers about credentials and permissions, by cache.
    pub cache_entries: Gauges<1> = gauges("switchboard_access_cache_entries", &["cache"]);
    /// Answers from the cache: about a credential, about a permission, or a stale one of either.
    pub cache_hits: Counters<1> = counters("switchboard_access_cache_hits_total", &["answer"]);
    /// Rechecks of active grants, by result.
    pub rechecks: Counters<1> = counters("switchboard_access_rechecks_total", &["result"]);
    /// Tickets of the Secret, expired ones included, and invalid entries.
    pub tickets: Gauges<1> = gauges("switchboard_access_tickets", &["state"]);
    /// Pairs of a credential and a target with open tunnels.
    pub active_grants: IntGauge = gauge("switchboard_access_active_grants");
    /// Credentials that came over a connection in clear, and did not count.
    pub cleartext_credentials: IntCounter = counter("switchboard_access_cleartext_credentials_total");
}
