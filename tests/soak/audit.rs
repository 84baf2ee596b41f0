//! Holds the proxy's numbers to those of the kernel and of both sides of its tunnels.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::page::Page;
use crate::processes::{Descriptors, processor_seconds, resident};
use crate::proxy::{Proxy, eventually};
use crate::report::{Report, slope};
use crate::targets::{Service, Targets};
use crate::traffic::Traffic;

/// One soak, and what was found so far.
pub(crate) struct Audit<'a> {
    proxy: &'a Proxy,
    targets: &'a Targets,
    traffic: &'a Traffic,
    started: Instant,
    /// Minutes: buffers, pools and caches have the size that they keep.
    warm_up: f64,
    /// After the first check. What a process opens once is no leak.
    first: Option<Descriptors>,
    last: Descriptors,
    most_pipes: usize,
    /// Minutes since the start, and what there was then.
    descriptors: Vec<(f64, f64)>,
    memory: Vec<(f64, f64)>,
    checks: usize,
    violations: Vec<String>,
}

impl<'a> Audit<'a> {
    pub(crate) fn new((proxy, targets): (&'a Proxy, &'a Targets), traffic: &'a Traffic, timeout: Duration) -> Self {
        Self {
            proxy,
            targets,
            traffic,
            started: Instant::now(),
            warm_up: timeout.as_secs_f64() / 60.0 * WARM_UP,
            first: None,
            last: Descriptors::default(),
            most_pipes: 0,
            descriptors: Vec::new(),
            memory: Vec::new(),
            checks: 0,
            violations: Vec::new(),
        }
    }

    /// All clients pause, and every number has to be right.
    pub(crate) async fn check(&mut self) {
        let quiet = self.traffic.quiet().await;
        let open: usize = Service::ALL.map(|service| self.traffic.open_to(service)).iter().sum();
        let mut now = Descriptors::default();
        // A connection that has just ended may still be in the table when it is read.
        eventually("as many tunnels and sockets as the clients have", async || {
            now = Descriptors::of(self.proxy.id());
            self.is_settled(open, now).await
        })
        .await;
        let page = self.page().await;
        let first = *self.first.get_or_insert(now);
        let minutes = self.started.elapsed().as_secs_f64() / 60.0;
        self.compare_bytes(&page);
        self.must("listeners", now.listeners, first.listeners);
        self.must("other descriptors", now.others, first.others);
        self.must("pipes in use", number(page.value("pipes_in_use")), 0);
        self.must("log lines dropped", number(page.value("log_lines_dropped_total")), 0);
        self.most_pipes = self.most_pipes.max(now.pipes);
        if minutes > self.warm_up {
            // Tunnels come and go: what is left without theirs must not grow.
            let others = now.own + now.listeners + now.pipes + now.others;
            self.descriptors.push((minutes, float(others)));
            self.memory.push((minutes, resident(self.proxy.id())));
        }
        self.last = now;
        self.checks += 1;
        drop(quiet);
    }

    /// Returns whether gauges, kernel and clients agree on what is open.
    async fn is_settled(&self, open: usize, now: Descriptors) -> bool {
        let page = self.page().await;
        let gauge: f64 = page.counted("tunnels_active").iter().map(|(_, value)| value).sum();
        let sockets = self.traffic.connections.sockets();
        // A connection that the API server refused is in no table of the kernel.
        now.strange == 0
            && number(gauge) == open
            && number(page.value("connections_active")) == sockets
            && now.downstream == sockets
            && now.upstream == open
    }

    fn compare_bytes(&mut self, page: &Page) {
        for service in Service::ALL.into_iter().filter(|service| *service != Service::News) {
            let counted = |direction| {
                let series = page.counted("tunnel_bytes_total").into_iter().filter(|(labels, _)| {
                    labels.contains(&format!("\"{}\"", service.name())) && labels.contains(direction)
                });
                series.map(|(_, bytes)| bytes).sum::<f64>()
            };
            let (client, target) = (self.traffic.bytes(service), self.targets.bytes(service));
            let of = |bytes: &std::sync::atomic::AtomicU64| bytes.load(Ordering::Relaxed);
            for (direction, sent, received) in [
                ("upload", of(&client.sent), of(&target.received)),
                ("download", of(&target.sent), of(&client.received)),
            ] {
                let counted = number(counted(direction)) as u64;
                let is_right = if service == Service::Cut && direction == "download" {
                    // A reset discards the bytes in flight, of which an unknown part was counted.
                    (received..=sent).contains(&counted)
                } else {
                    counted == sent && counted == received
                };
                if !is_right {
                    let service = service.name();
                    self.violate(format!(
                        "{service} {direction}: sent {sent}, counted {counted}, received {received}"
                    ));
                }
            }
        }
    }

    fn must(&mut self, what: &str, figure: usize, expected: usize) {
        if figure != expected {
            self.violate(format!("{what}: {figure}, not {expected}"));
        }
    }

    fn violate(&mut self, what: String) {
        if self.violations.len() < MAX_SHOWN {
            eprintln!("soak: {what}");
            self.violations.push(what);
        }
    }

    /// The last comparison, when all clients have left.
    pub(crate) async fn finish(mut self) -> Report {
        self.check().await;
        let page = self.page().await;
        let mut report = Report::default();
        let accepted = self.traffic.connections.made.load(Ordering::Relaxed);
        let minutes = self.started.elapsed().as_secs_f64() / 60.0;
        let used = processor_seconds(self.proxy.id()) / (minutes * 60.0) * 100.0;
        report.tell("minutes", format!("{minutes:.1}"));
        report.tell("the proxy's share of one processor", format!("{used:.1} %"));
        report.tell(
            "pods killed with their connections",
            self.targets.kills.load(Ordering::Relaxed),
        );
        self.report_outages(&mut report);
        report.equal(
            "connections accepted",
            number(page.value("connections_accepted_total")) as u64,
            accepted,
        );
        self.report_answers(&mut report, &page);
        self.report_lines(&mut report);
        report.tell("checks of bytes, gauges, sockets and descriptors", self.checks);
        report.hold(
            "violations of these",
            self.violations.len(),
            0,
            self.violations.is_empty(),
        );
        let faults = self.traffic.faults.lock().unwrap().clone();
        report.hold(
            "clients with a fault",
            format!("{} {faults:?}", faults.len()),
            0,
            faults.is_empty(),
        );
        self.report_growth(&mut report);
        for violation in &self.violations {
            report.hold("violation", violation, "none", false);
        }
        report
    }

    fn report_outages(&self, report: &mut Report) {
        let outages = self.traffic.outages.lock().unwrap();
        let slowest = outages.iter().max().copied().unwrap_or_default();
        report.tell("outages of the API server", outages.len());
        report.tell(
            "longest wait for news after one",
            format!("{:.2} s", slowest.as_secs_f64()),
        );
    }

    fn report_answers(&self, report: &mut Report, page: &Page) {
        let mut counted: BTreeMap<u16, u64> = BTreeMap::new();
        for (labels, count) in page.counted("connect_requests_total") {
            let code = labels.split("code=\"").nth(1).and_then(|rest| rest.split('"').next());
            *counted.entry(code.unwrap().parse().unwrap()).or_default() += number(count) as u64;
        }
        let expected = self.traffic.answers.lock().unwrap().clone();
        report.equal("answers by status", format!("{counted:?}"), format!("{expected:?}"));
    }

    fn report_lines(&self, report: &mut Report) {
        let mut lines = self.proxy.access();
        // The line at the beginning of a tunnel has another one at its end.
        lines.retain(|line| line["event"] != "open");
        let requests = self.traffic.connections.requests.each_ref();
        let requests = requests.map(|requests| requests.load(Ordering::Relaxed));
        let [plain, tls, http2, http2_over_tls] = requests;
        report.tell(
            "requests over HTTP/1, that by TLS, HTTP/2, that by TLS",
            format!("{plain}, {tls}, {http2}, {http2_over_tls}"),
        );
        let counted: u64 = lines.iter().filter_map(|line| line["count"].as_u64()).sum();
        report.equal("requests in access lines", counted, requests.iter().sum());
        let sum = |field: &str| {
            let of_all = lines
                .iter()
                .filter(|line| line["target.service"] != Service::Cut.name());
            of_all.filter_map(|line| line[field].as_u64()).sum::<u64>()
        };
        let known = |of: fn(&crate::targets::Bytes) -> u64| {
            let all = Service::ALL.into_iter().filter(|service| *service != Service::Cut);
            all.map(|service| of(self.traffic.bytes(service))).sum::<u64>()
        };
        let sent = known(|bytes| bytes.sent.load(Ordering::Relaxed));
        report.equal("bytes up in access lines", sum("bytes_received"), sent);
        let received = known(|bytes| bytes.received.load(Ordering::Relaxed));
        report.equal("bytes down in access lines", sum("bytes_sent"), received);
        let panics = lines.iter().filter(|line| line["reason"] == "panic");
        report.equal("panics", panics.count(), 0);
        let messages = self.proxy.messages();
        let errors: Vec<_> = messages.lines().filter(|line| line.contains("ERROR")).take(3).collect();
        report.hold(
            "ERROR lines",
            format!("{} {errors:?}", errors.len()),
            0,
            errors.is_empty(),
        );
    }

    fn report_growth(&self, report: &mut Report) {
        let per_hour = slope(&self.descriptors) * 60.0;
        let window = self.memory.last().map_or(0.0, |last| last.0 - self.memory[0].0);
        let per_minute = slope(&self.memory);
        let now = self.last;
        report.equal("sockets of tunnels at the end", now.downstream + now.upstream, 0);
        let bound = STREAMS + 2 * MAX_PIPES;
        report.hold(
            "pipe descriptors, at most",
            self.most_pipes,
            format!("≤ {bound}"),
            self.most_pipes <= bound,
        );
        report.hold(
            "descriptors but those of tunnels, slope",
            format!("{per_hour:+.1} an hour"),
            format!("≤ {MAX_DRIFT} in {window:.1} min"),
            (per_hour / 60.0 * window).abs() <= MAX_DRIFT,
        );
        let last = self.memory.last().map_or(0.0, |last| last.1 / 1024.0);
        report.tell("resident memory at the end", format!("{last:.1} MiB"));
        report.hold(
            "resident memory, slope",
            format!("{per_minute:+.1} KiB a minute"),
            format!("≤ {MAX_GROWTH} KiB in {window:.1} min"),
            per_minute * window <= MAX_GROWTH,
        );
    }

    async fn page(&self) -> Page {
        let (_, page) = self.proxy.page("/metrics").await.unwrap();
        let (_, body) = page.split_once("\r\n\r\n").unwrap();
        Page::parse(body)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "metrics count things"
)]
fn number(value: f64) -> usize {
    value as usize
}

#[expect(clippy::cast_precision_loss, reason = "there are not so many descriptors")]
fn float(count: usize) -> f64 {
    count as f64
}

/// A part of all the time.
const WARM_UP: f64 = 0.15;
/// Descriptors: those of the pipes come and go.
const MAX_DRIFT: f64 = 4.0;
/// KiB that memory may seem to grow by, as it goes up and down.
const MAX_GROWTH: f64 = 4096.0;
/// Standard output and error.
const STREAMS: usize = 2;
/// Two bulk tunnels run at once at most, and one of them may have a successor before it is gone.
const MAX_PIPES: usize = 4;
const MAX_SHOWN: usize = 20;
