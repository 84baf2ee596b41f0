//! Budgets on a paused clock: equal shares, small messages before bulk, changed rates.

use super::super::bucket::MAX_WAIT;
use super::*;
use std::cell::Cell;
use std::rc::Rc;

fn budget(rate: &str, burst: &str) -> Budget {
    Budget::new(rate.parse().unwrap(), burst.parse().unwrap())
}

/// Takes as much as it is granted, in pieces of at most `max`, until dropped. Counts the bytes into `had`.
async fn take_all(budget: &Budget, max: usize, had: &Cell<u64>) {
    let mut share = budget.share();
    loop {
        let granted = share.take(max, |_| ()).await;
        assert!((1..=max).contains(&granted));
        had.set(had.get() + granted as u64);
    }
}

fn assert_within(value: u64, expected: u64, percent: u64) {
    assert!(
        value.abs_diff(expected) * 100 <= expected * percent,
        "{value} is not within {percent} % of {expected}"
    );
}

#[tokio::test(start_paused = true)]
async fn busy_tunnels_get_equal_shares_whatever_they_ask_for_at_a_time() {
    for (rate, n) in [("64KiB/s", 3_u64), ("10MiB/s", 8), ("1GiB/s", 5)] {
        // The burst goes to the first tunnel.
        let budget = budget(rate, "4KiB");
        let had: Vec<_> = (0..n).map(|_| Cell::new(0)).collect();
        let sizes = [1500, 65_536, 262_144, 9000];
        let all = futures_of(
            had.iter()
                .zip(sizes.iter().cycle())
                .map(|(had, &max)| take_all(&budget, max, had)),
        );
        tokio::time::timeout(Duration::from_secs(20), all).await.unwrap_err();
        let rate = budget.rate().get();
        let total: u64 = had.iter().map(Cell::get).sum();
        assert_within(total - budget.limit.burst(), rate * 20, 2);
        for had in &had {
            assert_within(had.get(), rate * 20 / n, 10);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_one_tunnel_does_not_use_is_shared_by_the_others() {
    let budget = budget("10MiB/s", "64KiB");
    let (slow, fast) = (Cell::new(0), Cell::new(0));
    let trickle = async {
        let mut share = budget.share();
        loop {
            let granted = share.take(65_536, |_| ()).await;
            share.give_back(granted - 100);
            slow.set(slow.get() + 100);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let both = async { tokio::join!(trickle, take_all(&budget, 65_536, &fast)) };
    tokio::time::timeout(Duration::from_secs(10), both).await.unwrap_err();
    assert_within(slow.get() + fast.get(), 100 << 20, 2);
    assert!(slow.get() >= 80_000, "{}", slow.get());
}

#[tokio::test(start_paused = true)]
async fn a_tunnel_of_small_messages_does_not_queue_behind_bulk() {
    let budget = Rc::new(budget("1MiB/s", "64KiB"));
    let local = tokio::task::LocalSet::new();
    for _ in 0..20 {
        let budget = Rc::clone(&budget);
        local.spawn_local(async move { take_all(&budget, 65_536, &Cell::new(0)).await });
    }
    let waits = local.run_until(async {
        let mut share = budget.share();
        let mut waits = Vec::new();
        tokio::time::sleep(Duration::from_secs(1)).await;
        for _ in 0..200 {
            let start = Instant::now();
            let granted = share.take(65_536, |_| ()).await;
            share.give_back(granted - 64);
            waits.push(start.elapsed());
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
        waits
    });
    let max = waits.await.into_iter().max().unwrap();
    assert!(max <= Duration::from_millis(6), "{max:?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_given_up_leaves_the_queue_to_the_next() {
    let budget = budget("1KiB/s", "1KiB");
    let (one, other) = (Cell::new(0), Cell::new(0));
    budget.share().take(1024, |_| ()).await;
    for _ in 0..50 {
        let impatient = tokio::time::timeout(Duration::from_millis(3), take_all(&budget, 1024, &one));
        impatient.await.unwrap_err();
    }
    let patient = tokio::time::timeout(Duration::from_secs(10), take_all(&budget, 1024, &other));
    patient.await.unwrap_err();
    assert!(other.get() >= 9 * 1024, "{}", other.get());
    assert!(budget.state.lock().queue.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_changed_rate_reaches_requests_that_wait() {
    let budget = budget("1B/s", "1B");
    budget.share().take(1, |_| ()).await;
    let start = Instant::now();
    let mut shares: Vec<_> = (0..10).map(|_| budget.share()).collect();
    let waiting = futures_of(
        shares
            .iter_mut()
            .map(|share| async { assert!(share.take(4096, |_| ()).await > 0) }),
    );
    let change = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        budget.set(Rate::UNLIMITED, Size::bytes(1).unwrap());
    };
    tokio::join!(waiting, change);
    assert!(
        start.elapsed() <= Duration::from_millis(500) + MAX_WAIT,
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn unlimited_costs_nothing_and_a_pause_saves_the_burst_only() {
    let budget = budget("unlimited", "64KiB");
    let mut share = budget.share();
    assert_eq!(share.take(1 << 20, |_| ()).await, 1 << 20);
    budget.set("1MiB/s".parse().unwrap(), "64KiB".parse().unwrap());
    tokio::time::advance(Duration::from_secs(60)).await;
    let (start, mut at_once) = (Instant::now(), 0);
    while start.elapsed() == Duration::ZERO {
        at_once += share.take(4096, |_| ()).await;
    }
    assert!((60 << 10..=72 << 10).contains(&at_once), "{at_once}");
}

async fn futures_of(all: impl Iterator<Item = impl Future<Output = ()>>) {
    let mut all: Vec<_> = all.map(Box::pin).collect();
    std::future::poll_fn(|context| {
        all.retain_mut(|future| future.as_mut().poll(context).is_pending());
        if all.is_empty() {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
}
