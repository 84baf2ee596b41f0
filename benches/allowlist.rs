//! The cost of a lookup and of a publication, by the number of names.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a failed assumption fails the benchmark"
)]

#[path = "support/thread_time.rs"]
mod thread_time;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use switchboard::allowlist::{
    Allowlist, Change, Endpoints, Options, ServiceTarget, StaticTarget, Suffixes, TargetId, Writer,
};
use switchboard::authority::Authority;
use switchboard::limits::{Limits, TargetLimits, TunnelOverrides};
use thread_time::ThreadTime;

const SIZES: [usize; 3] = [10, 1_000, 100_000];

/// Services with one endpoint each, which differ by a number.
fn services(names: usize) -> Vec<ServiceTarget> {
    (0..names)
        .map(|number| {
            let namespace = format!("runtime-{}", number % 97);
            let service = format!("workspace-{number}");
            ServiceTarget {
                name: format!("{service}.{namespace}").into(),
                id: TargetId {
                    namespace: namespace.into(),
                    service: service.into(),
                },
                ports: [22, 2222],
                endpoints: Endpoints::from(vec!["10.0.0.1:22".parse().unwrap()]),
                limits: TargetLimits::default(),
                allowed_clients: None,
                user_lists: None,
                workloads: switchboard::allowlist::Workloads::default(),
            }
        })
        .collect()
}

/// Static targets with the same names.
fn statics(names: usize) -> Vec<StaticTarget> {
    services(names)
        .into_iter()
        .map(|service| StaticTarget {
            name: format!("{}.svc.cluster.local:22", service.name).parse().unwrap(),
            addresses: service.endpoints.addresses.to_vec(),
            limits: TunnelOverrides::default(),
            send_proxy_header: None,
            allowed_clients: None,
            user_lists: None,
        })
        .collect()
}

/// Random names as clients ask for them: `count` of them, in an order that no prefetcher foresees.
fn asked(names: usize, count: usize) -> Vec<Authority> {
    let targets = statics(names);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let at = usize::try_from(state >> 16).unwrap() % targets.len();
            // Parsed, as that of a request is: it shares no memory with the list.
            targets[at].name.to_string().parse().unwrap()
        })
        .collect()
}

fn cluster(services: Vec<ServiceTarget>) -> (Writer, Arc<Allowlist>) {
    let (writer, allowlist) = Writer::new();
    writer.configure(Options {
        suffixes: Arc::new(Suffixes::new("cluster.local", ["ssh.example.com"])),
        ..Options::default()
    });
    writer.replace(services, true);
    (writer, allowlist)
}

fn configured(targets: &[StaticTarget]) -> (Writer, Arc<Allowlist>) {
    let (mut writer, allowlist) = Writer::new();
    writer.publish(targets, &Limits::default());
    (writer, allowlist)
}

fn lookups(criterion: &mut Criterion<ThreadTime>) {
    for names in SIZES {
        let lists = [
            ("lookup_static", configured(&statics(names)).1),
            ("lookup_service", cluster(services(names)).1),
        ];
        for (list, allowlist) in lists {
            let mut group = criterion.benchmark_group(list);
            for (kind, count) in [("same", 1), ("some", 64), ("any", 100_000)] {
                let asked = asked(names, count);
                let mut next = asked.iter().cycle();
                group.bench_function(BenchmarkId::new(kind, names), |bencher| {
                    bencher.iter(|| black_box(allowlist.authorize(next.next().unwrap())));
                });
            }
            let unknown: Authority = "nobody.runtime-1.svc.cluster.local:22".parse().unwrap();
            group.bench_function(BenchmarkId::new("unknown", names), |bencher| {
                bencher.iter(|| black_box(allowlist.authorize(&unknown)));
            });
            group.finish();
        }
    }
}

fn publications(criterion: &mut Criterion<ThreadTime>) {
    let mut group = criterion.benchmark_group("publish");
    group.sample_size(10);
    for names in SIZES {
        let targets = statics(names);
        let (mut writer, _allowlist) = configured(&targets);
        group.bench_function(BenchmarkId::new("all_statics", names), |bencher| {
            bencher.iter(|| writer.publish(&targets, &Limits::default()));
        });
        let (writer, _allowlist) = cluster(services(names));
        group.bench_function(BenchmarkId::new("all_services", names), |bencher| {
            bencher.iter_batched(
                || services(names),
                |all| writer.replace(all, true),
                BatchSize::LargeInput,
            );
        });
        let one = Box::new(services(1).remove(0));
        group.bench_function(BenchmarkId::new("one_service", names), |bencher| {
            bencher.iter_batched(
                || Change::Set(one.clone()),
                |change| writer.apply([change]),
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .with_measurement(ThreadTime)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_millis(1000))
        .sample_size(30);
    targets = lookups, publications
}
criterion_main!(benches);
