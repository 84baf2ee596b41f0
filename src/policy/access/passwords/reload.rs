//! Reads the file of users again while the process runs. It may be on a mount that hangs.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::{Reloaded, Users};

impl Users {
    /// Reads the file again every 10 s, for as long as it is polled, and reports what each reading finds: an unchanged file,
    /// too. While four readings hang, it is read every 5 min; while 32 do, only the report goes on.
    pub async fn follow(self: Arc<Self>, report: impl Fn(&Reloaded) + Send) {
        // Each reading that is under way holds one.
        let under_way = Arc::new(());
        loop {
            let pause = match Arc::strong_count(&under_way) > FEW_STUCK {
                true => SLOW_POLL,
                false => POLL,
            };
            // What asks for a reading has just read the file itself.
            let is_asked = timeout(pause, self.read_again.notified()).await.is_ok();
            let stuck = Arc::strong_count(&under_way) - 1;
            if stuck >= MOST_STUCK && !is_asked {
                let reason =
                    format!("{stuck} readings of the file hang, and it is not read before a reload or restart");
                report(&Reloaded::Postponed(reason));
                continue;
            }
            let (users, reading) = (Arc::clone(&self), Arc::clone(&under_way));
            // A thread that hangs cannot be ended.
            let reload = spawn_blocking(move || {
                let _reading = reading;
                users.reload()
            });
            match timeout(LONGEST_READ, reload).await {
                Ok(Ok(reloaded)) => report(&reloaded),
                Ok(Err(error)) => report(&Reloaded::Postponed(error.to_string())),
                Err(_) => report(&Reloaded::Postponed(NOT_READ.to_owned())),
            }
        }
    }

    /// Has [`Self::follow`] read the file at once, whatever hangs: for a file that has just been read.
    pub fn read_again(&self) {
        self.read_again.notify_one();
    }

    /// Reads the file as [`Self::reload`] does, and waits for it for 10 s. It blocks.
    pub fn reload_in_time(self: &Arc<Self>) -> Reloaded {
        let (sender, receiver) = mpsc::channel();
        let users = Arc::clone(self);
        let reload = move || sender.send(users.reload()).unwrap_or_default();
        if let Err(error) = thread::Builder::new().name("users".to_owned()).spawn(reload) {
            return Reloaded::Postponed(format!("cannot start a thread: {error}"));
        }
        let reloaded = receiver.recv_timeout(LONGEST_READ);
        reloaded.unwrap_or_else(|_| Reloaded::Postponed(NOT_READ.to_owned()))
    }
}

const NOT_READ: &str = "the file was not read within 10s, it may be on a mount that hangs";
const POLL: Duration = Duration::from_secs(10);
const SLOW_POLL: Duration = Duration::from_secs(300);
/// A local file is read within milliseconds.
const LONGEST_READ: Duration = Duration::from_secs(10);
/// The readings that may hang before the next ones come slowly.
const FEW_STUCK: usize = 4;
/// The readings that may hang at a time: each holds a thread.
pub(super) const MOST_STUCK: usize = 32;
