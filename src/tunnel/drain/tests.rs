//! The tests of a drain.

use super::*;
use std::future::pending;

fn options(delay: u64, timeout: u64, spread: u64) -> Options {
    Options {
        delay: Duration::from_secs(delay),
        timeout: Duration::from_secs(timeout),
        spread: Duration::from_secs(spread),
        ..Options::default()
    }
}

/// The task of a tunnel that lasts until `ends` completes.
async fn tunnel(open: TunnelGuard, ends: impl Future<Output = ()>) {
    ends.await;
    drop(open);
}

/// Returns the task of a tunnel that lasts until the drain closes it.
fn until_closed(drain: &Drain, open: TunnelGuard, id: u64) -> impl Future<Output = ()> + use<> {
    let drain = drain.clone();
    async move { drain.close_due(id, &open, Instant::now).await }
}

#[tokio::test(start_paused = true)]
async fn a_drain_is_clean_when_tunnels_end_by_themselves() {
    let (conductor, drain) = DrainController::new();
    let tasks = Tasks::default();
    tasks
        .connections
        .spawn(tunnel(drain.opened(), sleep(Duration::from_secs(60))));
    let start = Instant::now();
    let stopped = drain.clone();
    let stopped = tokio::spawn(async move {
        stopped.draining(7).await;
        start.elapsed().as_secs()
    });
    let drained = conductor.run(&options(5, 3600, 300), &tasks, pending()).await;
    assert_eq!((drained, start.elapsed().as_secs()), (DrainResult::Clean, 60));
    assert_eq!(stopped.await.unwrap(), 5);
}

#[tokio::test(start_paused = true)]
async fn past_the_deadline_idle_tunnels_close_first_and_the_rest_is_spread() {
    let (conductor, drain) = DrainController::new();
    let tasks = Tasks::default();
    let start = Instant::now();
    let closes: Vec<_> = (0..40)
        .map(|id| {
            let (drain, idle) = (drain.clone(), id % 2 == 0);
            let open = drain.opened();
            tasks.connections.spawn(async move {
                let last_active = || if idle { start } else { Instant::now() };
                drain.close_due(id, &open, last_active).await;
                drop(open);
                (idle, start.elapsed())
            })
        })
        .collect();
    let drained = conductor.run(&options(5, 100, 300), &tasks, pending()).await;
    assert_eq!(drained, DrainResult::Cut);
    let mut busy = Vec::new();
    for task in closes {
        let (idle, closed) = task.await.unwrap();
        let closed = closed.as_secs();
        assert!(
            if idle {
                (105..=135).contains(&closed)
            } else {
                (135..=405).contains(&closed)
            },
            "{closed}"
        );
        if !idle {
            busy.push(closed);
        }
    }
    busy.sort_unstable();
    assert!(busy.windows(2).all(|pair| pair[1] - pair[0] < 60), "{busy:?}");
}

#[tokio::test(start_paused = true)]
async fn a_second_request_ends_the_drain_at_once() {
    for tunnels_open in [0, 3] {
        let (conductor, drain) = DrainController::new();
        let tasks = Tasks::default();
        for id in 0..tunnels_open {
            tasks.connections.spawn(until_closed(&drain, drain.opened(), id));
        }
        let start = Instant::now();
        let now = sleep(Duration::from_secs(2));
        let drained = conductor.run(&options(5, 100, 300), &tasks, now).await;
        let expected = if tunnels_open == 0 {
            DrainResult::Clean
        } else {
            DrainResult::Cut
        };
        assert_eq!((drained, start.elapsed().as_secs()), (expected, 2));
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_that_does_not_end_does_not_hold_the_process() {
    let (conductor, drain) = DrainController::new();
    let tasks = Tasks::default();
    tasks.connections.spawn(tunnel(drain.opened(), pending()));
    let start = Instant::now();
    assert_eq!(
        conductor.run(&options(1, 1, 1), &tasks, pending()).await,
        DrainResult::Cut
    );
    assert_eq!(start.elapsed(), Duration::from_secs(3) + LAST_WAIT);
}

#[tokio::test(start_paused = true)]
async fn a_pending_connection_is_waited_for_only_until_the_ports_are_closed() {
    let (conductor, drain) = DrainController::new();
    let tasks = Tasks::default();
    tasks.connections.spawn(async move { drain.draining(7).await });
    let start = Instant::now();
    let drained = conductor.run(&options(5, 3600, 300), &tasks, pending()).await;
    assert_eq!((drained, start.elapsed().as_secs()), (DrainResult::Clean, 5));
}

#[tokio::test(start_paused = true)]
async fn a_dial_in_progress_at_the_deadline_is_no_cut_tunnel() {
    let (conductor, drain) = DrainController::new();
    let tasks = Tasks::default();
    tasks.connections.spawn(async move { drain.deadline(7).await });
    let start = Instant::now();
    let drained = conductor.run(&options(5, 100, 300), &tasks, pending()).await;
    assert_eq!((drained, start.elapsed().as_secs()), (DrainResult::Clean, 105));
}

/// Tunnels that are closed by the drain, every second one of them resumable: for each the seconds when it closed, in the
/// order of their numbers.
async fn closed(options: &Options, tunnels: u64, resumable: impl Fn(u64) -> bool) -> (DrainResult, Vec<(bool, f64)>) {
    let (conductor, drain) = DrainController::new();
    let tasks = Tasks::default();
    let start = Instant::now();
    let closing: Vec<_> = (0..tunnels)
        .map(|id| {
            let (open, is_resumable) = (drain.opened(), resumable(id));
            if is_resumable {
                open.set_resumable();
                open.set_resumable();
            }
            let closes = until_closed(&drain, open, id);
            tasks.connections.spawn(async move {
                closes.await;
                (is_resumable, start.elapsed().as_secs_f64())
            })
        })
        .collect();
    assert_eq!(drain.resumable(), (0..tunnels).filter(|&id| resumable(id)).count());
    let drained = conductor.run(options, &tasks, pending()).await;
    let mut closed = Vec::new();
    for task in closing {
        closed.push(task.await.unwrap());
    }
    assert_eq!((drain.counts.plain(), drain.resumable()), (0, 0));
    (drained, closed)
}

#[tokio::test(start_paused = true)]
async fn resumable_tunnels_close_when_the_ports_are_closed_and_the_others_at_the_deadline() {
    let (drained, closed) = closed(&options(5, 100, 300), 400, |id| id % 2 == 0).await;
    assert_eq!(drained, DrainResult::Cut);
    let (mut resumable, plain): (Vec<_>, Vec<_>) = closed.into_iter().partition(|&(resumable, _)| resumable);
    assert!(
        plain.iter().all(|(_, closed)| (135.0..=405.0).contains(closed)),
        "{plain:?}"
    );
    resumable.sort_by(|one, other| one.1.total_cmp(&other.1));
    assert!(resumable[0].1 >= 5.0 && resumable[199].1 <= 10.01, "{resumable:?}");
    // 200 in five seconds: in none of fifty tenths of a second are there more than twice as many as in the average one.
    for tenth in 50..100 {
        let tenth = f64::from(tenth) / 10.0;
        let together = resumable
            .iter()
            .filter(|(_, closed)| (tenth..tenth + 0.1).contains(closed));
        assert!(together.count() <= 8, "{resumable:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn resumable_tunnels_are_not_cut() {
    for (delay, timeout, spread) in [(5, 100, 300), (0, 0, 60), (0, 1, 2), (0, 0, 0), (0, 2, 0)] {
        let options = options(delay, timeout, spread);
        let (drained, closed) = closed(&options, 100, |_| true).await;
        assert_eq!(drained, DrainResult::Clean);
        let first = closed.iter().map(|&(_, closed)| closed).fold(f64::MAX, f64::min);
        let last = closed.iter().map(|&(_, closed)| closed).fold(0.0, f64::max);
        let (begin, max) = (Duration::from_secs(delay).as_secs_f64(), (timeout + spread).min(5));
        let max = Duration::from_secs(max).as_secs_f64();
        assert!(
            first >= begin && last <= begin + max + 0.01,
            "{options:?}: {first} to {last}"
        );
        assert!(
            last >= begin + max * 0.9,
            "they are spread: {options:?}: {first} to {last}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_tunnel_that_becomes_resumable_in_a_drain_closes_then() {
    for (after, by) in [(2, 11), (7, 11), (60, 60), (110, 110)] {
        let (conductor, drain) = DrainController::new();
        let tasks = Tasks::default();
        let open = Arc::new(drain.opened());
        let start = Instant::now();
        let (closing, known) = (drain.clone(), Arc::clone(&open));
        // Another task than the one that waits for the close.
        tokio::spawn(async move {
            sleep(Duration::from_secs(after)).await;
            known.set_resumable();
        });
        let task = tasks.connections.spawn(async move {
            closing.close_due(7, &open, Instant::now).await;
            start.elapsed().as_secs()
        });
        let drained = conductor.run(&options(5, 100, 3000), &tasks, pending()).await;
        let closed = task.await.unwrap();
        assert!((5.max(after)..=by).contains(&closed), "{after}: {closed}");
        // At the deadline it was one of those that would be cut.
        assert_eq!(
            drained,
            if after > 105 {
                DrainResult::Cut
            } else {
                DrainResult::Clean
            }
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_request_cuts_no_resumable_tunnel() {
    for (plain, expected) in [(0, DrainResult::Clean), (1, DrainResult::Cut)] {
        let (conductor, drain) = DrainController::new();
        let tasks = Tasks::default();
        for id in 0..3 {
            let open = drain.opened();
            if id >= plain {
                open.set_resumable();
            }
            tasks.connections.spawn(until_closed(&drain, open, id));
        }
        let start = Instant::now();
        let drained = conductor
            .run(&options(5, 100, 300), &tasks, sleep(Duration::from_secs(2)))
            .await;
        assert_eq!((drained, start.elapsed().as_secs()), (expected, 2));
    }
}
