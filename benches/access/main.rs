//! The cost of access control: processor time of a set-up, waits for the API server, the load on it, and its memory.
//!
//! `cargo bench --bench access`. The real binary runs twice, with access control and without, beside an API server that
//! answers each review after a millisecond. It prints one line for each figure, and exits with 1 if one exceeds its bound.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    unreachable_pub,
    reason = "a bench that cannot run has failed, and prints what it found"
)]

#[path = "../support/bounds.rs"]
mod bounds;
#[path = "../support/http.rs"]
mod http;
mod proxy;
mod server;

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use self::bounds::bound;
use self::proxy::Proxy;
use self::server::{SERVICES, Server, authority};

fn main() -> ExitCode {
    let pod = pod();
    let server = Server::start(pod);
    let open = Proxy::start(server.address, "open");
    let enforcing = Proxy::start(server.address, "enforce");
    set_up(&open, &enforcing);
    uncached(&open, &enforcing, &server);
    flood(&enforcing, &server);
    revocation(&enforcing, &server);
    rechecks(&enforcing, &server);
    memory(&enforcing);
    // The last one: the threads that hash for it leave heaps, which are no memory of tokens.
    guesses(&enforcing);
    bounds::status()
}

/// The processor time of a set-up whose credential and decision are cached, beside one without access control.
fn set_up(open: &Proxy, enforcing: &Proxy) {
    let cost = |proxy: &Proxy, token: Option<&str>| {
        let before = proxy.processor_time();
        for index in 0..SET_UPS {
            drop(proxy.tunnel(&authority(index % 4), token).unwrap());
        }
        (proxy.processor_time() - before).as_secs_f64() * 1e6 / SET_UPS as f64
    };
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        // In turns, so that what else the machine does is shared.
        let (first, second) = if round % 2 == 0 {
            (open, enforcing)
        } else {
            (enforcing, open)
        };
        let cost = |proxy: &Proxy| cost(proxy, std::ptr::eq(proxy, enforcing).then_some("user-1.cached"));
        let (first, second) = (cost(first), cost(second));
        rounds.push(if round % 2 == 0 {
            (first, second)
        } else {
            (second, first)
        });
    }
    let without = median(rounds.iter().map(|(open, _)| *open));
    let with = median(rounds.iter().map(|(_, enforcing)| *enforcing));
    let more = median(rounds.iter().map(|(open, enforcing)| enforcing - open));
    println!(
        "set-up, processor: open {without:.0} µs, cached {with:.0} µs, difference {more:.1} µs (medians of {ROUNDS})"
    );
    bound("processor time of access control in a set-up: 20 µs", more <= 20.0);
}

/// The time to an answer with two reviews, less what the API server took for them.
fn uncached(open: &Proxy, enforcing: &Proxy, server: &Server) {
    let mut without = Vec::new();
    let mut beyond = Vec::new();
    for index in 0..LOGINS {
        let authority = authority(index % SERVICES);
        let began = Instant::now();
        drop(open.tunnel(&authority, None).unwrap());
        without.push(began.elapsed());
        let (_, before) = server.reviews();
        let token = format!("user-{}.x", 10_000 + index);
        let began = Instant::now();
        drop(enforcing.tunnel(&authority, Some(&token)).unwrap());
        let took = began.elapsed();
        let (_, after) = server.reviews();
        beyond.push(took.saturating_sub(after - before));
    }
    let p99 = quantile(&mut beyond, 0.99);
    println!(
        "login, uncached, beyond the API server's own time: p50 {:.2?}, p99 {p99:.2?}; open: p50 {:.2?}, p99 {:.2?}",
        quantile(&mut beyond, 0.5),
        quantile(&mut without, 0.5),
        quantile(&mut without, 0.99)
    );
    bound(
        "uncached login beyond the API server's own time, p99: 2 ms",
        p99 <= Duration::from_millis(2),
    );
}

/// The logins of 50 users, alone and beside invalid tokens from as many addresses.
fn flood(proxy: &Proxy, server: &Server) {
    let logins = |beside_invalid: bool, round: u64| {
        let stop = AtomicBool::new(false);
        let refused = AtomicU64::new(0);
        let mut waits = Vec::new();
        server.most_at_once();
        let before = server.reviews().0;
        let began = Instant::now();
        thread::scope(|scope| {
            if beside_invalid {
                for address in 0..FLOODERS {
                    let (stop, refused) = (&stop, &refused);
                    scope.spawn(move || {
                        let mut number = 0_u64;
                        let mut next = Instant::now();
                        while !stop.load(Ordering::Relaxed) {
                            number += 1;
                            next += BETWEEN_INVALID;
                            thread::sleep(next.saturating_duration_since(Instant::now()));
                            let token = format!("invalid-{address}-{number}-{round}");
                            if proxy.status(address + 2, &authority(1), Some(&token)) == Some(407) {
                                refused.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    });
                }
            }
            for index in 0..USERS * 4 {
                let token = format!("user-{}.{round}", index % USERS);
                let began = Instant::now();
                drop(proxy.tunnel(&authority(index % 40), Some(&token)).unwrap());
                waits.push(began.elapsed());
                thread::sleep(Duration::from_millis(5));
            }
            stop.store(true, Ordering::Relaxed);
        });
        let took = began.elapsed().as_secs_f64();
        let (p99, at_once) = (quantile(&mut waits, 0.99), server.most_at_once());
        println!(
            "logins of {USERS} users {}: p50 {:.2?}, p99 {p99:.2?}; reviews {:.0}/s, at most {at_once} at once; invalid tokens refused {:.0}/s",
            if beside_invalid {
                "beside invalid tokens"
            } else {
                "alone"
            },
            quantile(&mut waits, 0.5),
            (server.reviews().0 - before) as f64 / took,
            refused.load(Ordering::Relaxed) as f64 / took
        );
        (p99, at_once)
    };
    let (alone, _) = logins(false, 1);
    let (beside, at_once) = logins(true, 2);
    bound(
        "logins beside invalid tokens, p99: twice that of logins alone",
        beside <= 2 * alone,
    );
    bound("reviews at once: 8", at_once <= 8);
}

/// The logins by password of users with a network of their own, alone and beside 60 networks with wrong passwords.
fn guesses(proxy: &Proxy) {
    let counts = [const { AtomicU64::new(0) }; 2];
    let [refused, late] = &counts;
    for (flood, first) in [(false, 10_000), (true, 20_000)] {
        let stop = AtomicBool::new(false);
        let mut waits = Vec::new();
        thread::scope(|scope| {
            let guess = |network: u64, number: u64| match proxy.login(
                network + 2,
                &authority(1),
                &format!("user-{network}-{number}"),
                "wrong",
            ) {
                Some(407) => refused.fetch_add(1, Ordering::Relaxed),
                Some(_) | None => late.fetch_add(1, Ordering::Relaxed),
            };
            if flood {
                let stop = &stop;
                scope.spawn(move || {
                    let mut next = Instant::now();
                    for number in 0..u64::MAX {
                        for network in 0..GUESSERS {
                            scope.spawn(move || guess(network, number));
                        }
                        next += BETWEEN_GUESSES;
                        thread::sleep(next.saturating_duration_since(Instant::now()));
                        if stop.load(Ordering::Relaxed) {
                            return;
                        }
                    }
                });
                // The queue is full by then.
                thread::sleep(Duration::from_secs(5));
            }
            for index in 0..NEWCOMERS {
                let began = Instant::now();
                let status = proxy.login(first + index, &authority(index % 40), "alice", "correct");
                assert_eq!(status, Some(200), "after {:?}", began.elapsed());
                waits.push(began.elapsed());
                thread::sleep(Duration::from_millis(50));
            }
            stop.store(true, Ordering::Relaxed);
        });
        println!(
            "password logins of {NEWCOMERS} networks {}: p50 {:.2?}, p99 {:.2?}, max {:.2?}; wrong ones: {} refused, {} without room",
            if flood { "beside wrong ones of 60" } else { "alone" },
            quantile(&mut waits, 0.5),
            quantile(&mut waits, 0.99),
            quantile(&mut waits, 1.0),
            refused.load(Ordering::Relaxed),
            late.load(Ordering::Relaxed)
        );
        if flood {
            bound(
                "password logins beside wrong ones, p99: 2 s",
                quantile(&mut waits, 0.99).as_secs_f64() <= 2.0,
            );
        }
    }
}

/// The time from the event of a removed RoleBinding to the end of the tunnel.
fn revocation(proxy: &Proxy, server: &Server) {
    let mut waits = Vec::new();
    for index in 0..REVOCATIONS {
        let user = format!("user-{}", 50_000 + index);
        let mut tunnel = proxy.tunnel(&authority(index), Some(&format!("{user}.x"))).unwrap();
        let began = Instant::now();
        server.deny(&user, &format!("team-{index}"));
        tunnel.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        // A reset ends it as well as an end of stream.
        let ended = tunnel.read(&mut [0]);
        assert!(
            !matches!(ended, Ok(1..)) && began.elapsed() < Duration::from_secs(30),
            "not revoked"
        );
        waits.push(began.elapsed());
    }
    let max = quantile(&mut waits, 1.0);
    println!(
        "removed RoleBinding to the end of its tunnel: p50 {:.2?}, max {max:.2?} of {REVOCATIONS}",
        quantile(&mut waits, 0.5)
    );
    bound(
        "removed RoleBinding to the end of its tunnel: 1 s",
        max <= Duration::from_secs(1),
    );
}

/// The reviews a second for tunnels that run.
fn rechecks(proxy: &Proxy, server: &Server) {
    let tunnels: Vec<TcpStream> = (0..TUNNELS)
        .map(|index| {
            let pair = index % PAIRS;
            let token = format!("user-{}.long", pair / 10);
            // Each user has ten targets.
            proxy
                .tunnel(&authority((pair / 10 + pair % 10) % SERVICES), Some(&token))
                .unwrap()
        })
        .collect();
    thread::sleep(Duration::from_secs(15));
    let (before, began) = (server.reviews().0, Instant::now());
    thread::sleep(Duration::from_secs(60));
    let rate = (server.reviews().0 - before) as f64 / began.elapsed().as_secs_f64();
    println!(
        "{} tunnels of {PAIRS} pairs: {rate:.1} reviews/s at a recheck of 5m",
        tunnels.len()
    );
    bound("reviews of running tunnels: 10/s", rate <= 10.0);
}

/// The memory of full caches.
fn memory(proxy: &Proxy) {
    let before = proxy.resident();
    thread::scope(|scope| {
        for thread in 0..8 {
            scope.spawn(move || {
                for index in 0..FILLING / 8 {
                    let number = thread * 1_000_000 + index;
                    let name = if index % 2 == 0 { "user" } else { "invalid" };
                    proxy.status(
                        2 + thread,
                        &authority(index % SERVICES),
                        Some(&format!("{name}-{number}.fill")),
                    );
                }
            });
        }
    });
    let more = proxy.resident().saturating_sub(before);
    println!("memory after {FILLING} different tokens: {more} KiB more than {before} KiB");
    bound("memory of tokens: 8 MiB", more <= 8 * 1024);
}

/// Accepts connections, and holds each until its client ends it.
fn pod() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        let held: Arc<std::sync::Mutex<Vec<TcpStream>>> = Arc::default();
        for stream in listener.incoming() {
            let mut held = held.lock().unwrap();
            held.push(stream.unwrap());
            if held.len().is_multiple_of(256) {
                held.retain(|stream| {
                    stream.set_nonblocking(true).unwrap();
                    !matches!(stream.peek(&mut [0]), Ok(0))
                });
            }
        }
    });
    port
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn quantile(values: &mut [Duration], share: f64) -> Duration {
    values.sort();
    values[((values.len() - 1) as f64 * share) as usize]
}

const ROUNDS: usize = 5;
const SET_UPS: u64 = 2000;
const LOGINS: u64 = 1000;
const USERS: u64 = 50;
const FLOODERS: u64 = 8;
/// Of each flooder: 1,000 a second of all, which leaves the machine processor time for the logins.
const BETWEEN_INVALID: Duration = Duration::from_millis(8);
const GUESSERS: u64 = 60;
/// Of each guesser: five a second.
const BETWEEN_GUESSES: Duration = Duration::from_millis(200);
const NEWCOMERS: u64 = 100;
const REVOCATIONS: u64 = 50;
const TUNNELS: u64 = 5000;
const PAIRS: u64 = 2000;
const FILLING: u64 = 80_000;
