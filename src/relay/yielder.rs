//! Lets other tasks run, and lets the worker threads sleep that have nothing to do.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use rustix::pipe::{PipeFlags, pipe_with};
use tokio::net::unix::pipe::Receiver;
use tokio::task;

/// Where the tunnels of a runtime yield.
///
/// After tokio's own yield the worker thread takes itself for one that looks for work, and wakes an idle one before it
/// goes on. That finds nothing and waits at the driver, where all that arrives for the busy thread wakes it again. So a
/// tunnel waits for an event of the driver instead: this thread finds it when it has run its other tasks, together with
/// what has arrived for others, and wakes an idle one only if that is more than one task.
#[derive(Debug, Default)]
pub(super) struct Yielder {
    /// Made when it is first needed, in the runtime.
    bell: OnceLock<Bell>,
}

/// A pipe: a byte in it is an event for all who wait.
#[derive(Debug)]
struct Bell {
    heard: Receiver,
    rung: OwnedFd,
}

impl Yielder {
    /// Completes when the driver has been asked for what is new. To be awaited in one runtime only.
    pub(super) async fn yield_now(&self) {
        if self.wait().await.is_err() {
            // There were no descriptors to be had.
            task::yield_now().await;
        }
    }

    async fn wait(&self) -> io::Result<()> {
        let bell = match self.bell.get() {
            Some(bell) => bell,
            None => {
                let made = Bell::make()?;
                self.bell.get_or_init(|| made)
            }
        };
        bell.silence();
        bell.ring()?;
        bell.heard.readable().await
    }
}

impl Bell {
    fn make() -> io::Result<Self> {
        let (heard, rung) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
        let heard = Receiver::from_owned_fd(heard)?;
        Ok(Self { heard, rung })
    }

    /// Forgets the events so far. Who waits for one is woken by the next, which whoever does this has to ring.
    fn silence(&self) {
        while self.heard.try_read(&mut [0; 64]).is_ok_and(|read| read > 0) {}
    }

    fn ring(&self) -> io::Result<()> {
        rustix::io::write(&self.rung, &[0])?;
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

    /// Within so many yields, by whichever thread, others have had their turn.
    const ENOUGH: usize = 1_000;

    #[tokio::test]
    async fn who_yields_lets_other_tasks_run_and_the_driver_be_asked() {
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
    async fn nobody_who_yields_waits_for_ever() {
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
