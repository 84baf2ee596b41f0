//! Collects the lines that a program prints, so that a test can wait for one.

use std::io::{BufRead as _, BufReader, Read};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// The lines so far; a thread adds to them until the program closes its end.
pub(crate) struct Lines {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    lines: Vec<String>,
    ended: bool,
}

impl Lines {
    /// Reads the source to its end.
    pub(crate) fn of(source: impl Read + Send + 'static) -> Self {
        let shared = Arc::new(Shared::default());
        let reader = Arc::clone(&shared);
        thread::spawn(move || {
            for line in BufReader::new(source).lines().map_while(Result::ok) {
                reader.state.lock().unwrap().lines.push(line);
                reader.changed.notify_all();
            }
            reader.state.lock().unwrap().ended = true;
            reader.changed.notify_all();
        });
        Self { shared }
    }

    /// Waits until `find` sees what it looks for in the lines so far. The lines themselves are the error when they end
    /// first or the deadline passes.
    pub(crate) fn wait<T>(&self, deadline: Duration, find: impl Fn(&[String]) -> Option<T>) -> Result<T, String> {
        let end = Instant::now() + deadline;
        let mut state = self.shared.state.lock().unwrap();
        loop {
            if let Some(found) = find(&state.lines) {
                return Ok(found);
            }
            let left = end.saturating_duration_since(Instant::now());
            if state.ended || left.is_zero() {
                let what = if state.ended { "ended" } else { "in vain" };
                return Err(format!("waited {deadline:?}, {what}:\n{}", state.lines.join("\n")));
            }
            state = self.shared.changed.wait_timeout(state, left).unwrap().0;
        }
    }

    /// All lines, once the program has closed its end. That it has ended does not say that they were read.
    pub(crate) fn whole(&self, deadline: Duration) -> Vec<String> {
        let end = Instant::now() + deadline;
        let mut state = self.shared.state.lock().unwrap();
        while !state.ended {
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "no end of the lines:\n{}", state.lines.join("\n"));
            state = self.shared.changed.wait_timeout(state, left).unwrap().0;
        }
        state.lines.clone()
    }

    /// The lines so far.
    pub(crate) fn all(&self) -> Vec<String> {
        self.shared.state.lock().unwrap().lines.clone()
    }
}
