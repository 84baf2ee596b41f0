//! Lets other tasks run without waking a worker thread that has nothing to do.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use rustix::pipe::{PipeFlags, pipe_with};
use tokio::net::unix::pipe::Receiver;
use tokio::task;

/// The yield of all tunnels of a process.
///
/// After `tokio::task::yield_now` the worker thread counts as searching for work, and wakes an idle one before it goes
/// on. The idle thread finds nothing and waits at the I/O driver, where every event for the busy thread wakes it again.
/// So a tunnel waits for an I/O event instead. Its own thread first runs its other tasks, and then polls the driver for
/// this event and theirs. It wakes an idle thread only if they make more than one task ready.
#[derive(Debug, Default)]
pub(super) struct Yielder {
    /// Made at the first yield, in the runtime.
    event: OnceLock<Event>,
}

/// A pipe. A byte in it is an event for all that wait.
#[derive(Debug)]
struct Event {
    read: Receiver,
    write: OwnedFd,
}

impl Yielder {
    /// Completes when the driver has been polled for events. To be awaited in one runtime only.
    pub(super) async fn yield_now(&self) {
        if self.wait().await.is_err() {
            // The process is out of descriptors.
            task::yield_now().await;
        }
    }

    async fn wait(&self) -> io::Result<()> {
        let event = match self.event.get() {
            Some(event) => event,
            None => {
                let made = Event::new()?;
                self.event.get_or_init(|| made)
            }
        };
        event.clear();
        event.raise()?;
        event.read.readable().await
    }
}

impl Event {
    fn new() -> io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
        let read = Receiver::from_owned_fd(read)?;
        Ok(Self { read, write })
    }

    /// Takes the bytes of earlier events. Tunnels that still wait for those are woken by the caller's next event.
    fn clear(&self) {
        while self.read.try_read(&mut [0; 64]).is_ok_and(|read| read > 0) {}
    }

    fn raise(&self) -> io::Result<()> {
        rustix::io::write(&self.write, &[0])?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;
    use tokio::time::timeout;

    const LONGEST: Duration = Duration::from_secs(60);

    /// Within so many yields, of whichever thread, other tasks have run.
    const ENOUGH: usize = 1_000;

    #[tokio::test]
    async fn a_yield_lets_other_tasks_run_and_the_driver_be_polled() {
        let yielder = Yielder::default();
        let (mut near, mut far) = UnixStream::pair().unwrap();
        let echo = tokio::spawn(async move {
            let byte = far.read_u8().await.unwrap();
            far.write_u8(byte).await.unwrap();
        });
        near.write_u8(7).await.unwrap();
        let mut yields = 0;
        while !echo.is_finished() && yields < ENOUGH {
            yielder.yield_now().await;
            yields += 1;
        }
        assert!(echo.is_finished(), "not after {yields} yields");
        assert_eq!(near.read_u8().await.unwrap(), 7);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 3)]
    async fn no_yield_lasts_for_ever_whichever_thread_it_is_of() {
        const TASKS: usize = 50;
        let (yielder, done) = (Arc::<Yielder>::default(), Arc::<AtomicUsize>::default());
        let tasks: Vec<_> = (0..TASKS)
            .map(|_| {
                let (yielder, done) = (Arc::clone(&yielder), Arc::clone(&done));
                tokio::spawn(async move {
                    for _ in 0..ENOUGH {
                        yielder.yield_now().await;
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let all = async {
            for task in tasks {
                task.await.unwrap();
            }
        };
        timeout(LONGEST, all).await.unwrap();
        assert_eq!(done.load(Ordering::Relaxed), TASKS * ENOUGH);
    }
}
