//! The runtimes of the tunnels: one for each core, with a thread and an I/O driver of its own, or one for all cores.
//!
//! With one for each core a connection stays where it was accepted: no task is stolen, no driver is handed from thread to
//! thread, and no other thread is woken for a set-up. Only a connection that finds its core busier than another one is
//! handed over, once, at its accept.

use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tokio::runtime::{self, Handle};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tracing::warn;

use crate::daemon::{threads, vital};
use crate::net::listener;
use crate::proxy::config::Threads;

/// The runtimes, for as long as this is held.
#[derive(Debug)]
pub(super) struct Cores {
    places: Arc<Places>,
    /// Their drop ends the threads.
    running: Vec<oneshot::Sender<()>>,
}

/// The places of connections: at least one.
#[derive(Debug)]
pub(super) struct Places(Box<[Place]>);

/// One runtime.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) handle: Handle,
    load: Arc<Load>,
}

/// What a runtime has to do. Aligned to two cache lines, the pair that a processor reads ahead: with two counters in one, the line
/// would move from core to core.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Load {
    connections: AtomicUsize,
    /// So many connections were accepted here.
    accepted: AtomicUsize,
}

/// Where a connection runs.
#[derive(Debug)]
pub(super) enum Placement<'a> {
    /// At the place that has accepted it; not counted where it is the only one.
    Here(Option<Placed>),
    /// In that runtime.
    There(&'a Handle, Placed),
}

/// A connection that runs at a place, for as long as this is held.
#[derive(Debug)]
#[must_use = "dropping it says that the connection has ended"]
pub(super) struct Placed(Arc<Load>);

impl Cores {
    /// The runtimes for tunnels, to be called in the main runtime. With shared threads, that runtime is the only place. If
    /// only some runtimes can be started, those serve; if none, the shared threads do.
    pub(super) fn start(threads: Threads, cores: NonZeroUsize) -> Self {
        let mut started = Vec::new();
        if threads == Threads::PerCore
            && let Err(error) = start_each(cores, &mut started)
        {
            match started.len() {
                0 => warn!(%error, "cannot start a runtime for each core: tunnels run on the shared threads"),
                number => warn!(%error, "cannot start a runtime for each core: tunnels run on {number} of {cores}"),
            }
        }
        let (mut places, running): (Vec<_>, _) = started.into_iter().unzip();
        if places.is_empty() {
            places.push(Place::new(Handle::current()));
        }
        Self {
            places: Arc::new(Places(places.into())),
            running,
        }
    }

    pub(super) fn places(&self) -> &Arc<Places> {
        &self.places
    }

    /// The descriptors that the runtimes take, and the listeners of so many ports beyond the first listener, each with what it
    /// accepts at once.
    pub(super) fn descriptors(&self, ports: usize) -> u64 {
        let further = (ports * self.places.count().get()).saturating_sub(1);
        let taken = self.running.len() * OF_A_RUNTIME + further * (1 + listener::AT_ONCE);
        u64::try_from(taken).unwrap_or(u64::MAX)
    }
}

/// A runtime for each core, as far as that goes. None if the process could not have its other threads beside them.
fn start_each(cores: NonZeroUsize, started: &mut Vec<(Place, oneshot::Sender<()>)>) -> io::Result<()> {
    threads::try_start(cores)?;
    for number in 0..cores.get() {
        started.push(start(number)?);
    }
    Ok(())
}

/// A thread that runs one runtime until the sender is dropped.
fn start(number: usize) -> io::Result<(Place, oneshot::Sender<()>)> {
    let (stop, stopped) = oneshot::channel::<()>();
    let (tell, told) = mpsc::channel();
    let run = move || {
        vital::mark();
        let runtime = match runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                tell.send(Err(error)).ok();
                return;
            }
        };
        tell.send(Ok(runtime.handle().clone())).ok();
        drop(tell);
        runtime.block_on(until(stopped));
        runtime.shutdown_background();
    };
    // The beginning of Tokio's own names, which `threads::busy_workers` looks for.
    thread::Builder::new()
        .name(format!("tokio-rt-core-{number}"))
        .spawn(run)?;
    let handle = told.recv().map_err(io::Error::other)??;
    Ok((Place::new(handle), stop))
}

/// Completes when the sender is dropped. A timer is always due soon meanwhile: Tokio wakes a driver, by a write to its eventfd,
/// for each timer that is due before all others, also from the driver's own thread; that was two writes for each set-up.
async fn until(mut stopped: oneshot::Receiver<()>) {
    while timeout(TICK, &mut stopped).await.is_err() {}
}

impl Places {
    pub(super) fn count(&self) -> NonZeroUsize {
        NonZeroUsize::new(self.0.len()).unwrap_or(NonZeroUsize::MIN)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Place> {
        self.0.iter()
    }

    /// The place of a connection that was accepted at that one: that one, unless one other place, the next one each time, has
    /// far fewer connections. Only one is compared: with 64 cores all would be 64 cache lines of others for each accept.
    pub(super) fn place(&self, accepted_at: usize) -> Placement<'_> {
        let Some(here) = self.0.get(accepted_at) else {
            return Placement::Here(None);
        };
        let Some(others) = self.0.len().checked_sub(1).and_then(NonZeroUsize::new) else {
            return Placement::Here(None);
        };
        let turn = here.load.accepted.fetch_add(1, Ordering::Relaxed) % others;
        match self.0.get((accepted_at + 1 + turn) % self.0.len()) {
            Some(other) if here.has_far_more_than(other) => Placement::There(&other.handle, other.enter()),
            Some(_) | None => Placement::Here(Some(here.enter())),
        }
    }
}

impl Place {
    fn new(handle: Handle) -> Self {
        Self {
            handle,
            load: Arc::default(),
        }
    }

    fn has_far_more_than(&self, other: &Self) -> bool {
        let [mine, theirs] = [self, other].map(|place| place.load.connections.load(Ordering::Relaxed));
        mine > theirs + theirs / 8 + MARGIN
    }

    /// Counts a connection.
    fn enter(&self) -> Placed {
        self.load.connections.fetch_add(1, Ordering::Relaxed);
        Placed(Arc::clone(&self.load))
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Descriptors of a runtime: two of epoll, its eventfd, and one by which it hears of signals.
const OF_A_RUNTIME: usize = 4;
/// Shorter than the timeouts of a set-up.
const TICK: Duration = Duration::from_secs(1);
/// The connections that a core may have more than another one before it hands over a new one, which wakes a thread.
const MARGIN: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn cores(number: usize) -> NonZeroUsize {
        NonZeroUsize::new(number).unwrap()
    }

    #[tokio::test]
    async fn shared_threads_are_one_place_in_the_main_runtime() {
        let shared = Cores::start(Threads::Shared, cores(4));
        assert_eq!(shared.places().count(), cores(1));
        assert!(matches!(shared.places().place(0), Placement::Here(None)));
        let place = shared.places().iter().next().unwrap();
        assert_eq!(place.handle.id(), Handle::current().id());
    }

    #[tokio::test]
    async fn each_core_has_a_runtime_that_ends_with_the_cores() {
        let each = Cores::start(Threads::PerCore, cores(3));
        let names = each.places().iter().map(|place| {
            let name = async { thread::current().name().unwrap_or_default().to_owned() };
            place.handle.spawn(name)
        });
        let names: Vec<_> = names.collect();
        for (number, name) in names.into_iter().enumerate() {
            assert_eq!(name.await.unwrap(), format!("tokio-rt-core-{number}"));
        }
        let places = Arc::clone(each.places());
        let endless = places.iter().next().unwrap().handle.spawn(std::future::pending::<()>());
        drop(each);
        assert!(endless.await.unwrap_err().is_cancelled());
    }

    #[tokio::test]
    async fn a_connection_is_handed_over_only_where_its_core_has_far_more() {
        let each = Cores::start(Threads::PerCore, cores(2));
        let places = each.places();
        let mut here = Vec::new();
        // Two more than the other core's none, and the one that makes it far more.
        for _ in 0..3 {
            let Placement::Here(Some(placed)) = places.place(0) else {
                unreachable!("handed over too soon");
            };
            here.push(placed);
        }
        let Placement::There(handle, there) = places.place(0) else {
            unreachable!("not handed over");
        };
        assert_eq!(handle.id(), places.iter().nth(1).unwrap().handle.id());
        assert!(matches!(places.place(1), Placement::Here(Some(_))));
        here.pop();
        assert!(matches!(places.place(0), Placement::Here(Some(_))));
        drop(there);
    }
}
