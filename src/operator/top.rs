//! `top`: the tunnels of all replicas on the whole terminal, drawn when something has changed and no oftener than once a second
//! but for keys, so that it can be used over a slow line. There are no colours.

use std::io::{self, IsTerminal as _};
use std::sync::Arc;
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use self::model::{Action, Model};
use super::replicas::{Follower, Query, Replicas, Selection};
use crate::daemon::admin::api::Closing;

mod draw;
mod model;

/// Shows the tunnels until `q`, or a signal, whose number is then returned.
///
/// # Errors
/// There is no terminal, or it cannot be written to.
pub async fn show(replicas: Arc<Replicas>, query: Query, interval: Duration) -> io::Result<Option<i32>> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(io::Error::other("there is no terminal to draw on: say --once"));
    }
    let mut signals = Signals::catch()?;
    let mut screen = Screen::open()?;
    let keys = read_keys()?;
    let top = Top {
        follower: Follower::start(Arc::clone(&replicas), query.clone(), interval),
        model: Model::new(query),
        replicas,
        keys,
        ending: None,
    };
    tokio::select! {
        ended = top.run(&mut screen) => ended.map(|()| None),
        number = signals.next() => Ok(Some(number)),
    }
}

struct Top {
    follower: Follower,
    model: Model,
    replicas: Arc<Replicas>,
    keys: mpsc::Receiver<Event>,
    /// The end of a tunnel that is under way.
    ending: Option<JoinHandle<String>>,
}

impl Top {
    async fn run(mut self, screen: &mut Screen) -> io::Result<()> {
        let mut due = Instant::now();
        let mut is_new = false;
        screen.draw(&mut self.model)?;
        loop {
            tokio::select! {
                () = self.follower.changed(), if !is_new => {
                    is_new = true;
                    continue;
                }
                () = sleep_until(due), if is_new => {
                    is_new = false;
                    due = Instant::now() + BETWEEN_DRAWS;
                    let snapshot = self.follower.snapshot();
                    self.model.update(&snapshot);
                }
                event = self.keys.recv() => {
                    let Some(event) = event else {
                        return Ok(());
                    };
                    if self.act(&event) {
                        return Ok(());
                    }
                }
                said = finished(&mut self.ending) => {
                    self.ending = None;
                    self.model.say(said);
                    self.follower.ask_now();
                }
            }
            screen.draw(&mut self.model)?;
        }
    }

    /// Whether it is the end.
    fn act(&mut self, event: &Event) -> bool {
        let Event::Key(key) = event else {
            return false;
        };
        match self.model.key(*key) {
            Action::None => {}
            Action::Quit => return true,
            Action::Close(id) if self.ending.is_none() => {
                self.ending = Some(tokio::spawn(close(Arc::clone(&self.replicas), id)));
            }
            Action::Close(_) => self.model.say("another tunnel is being ended".to_owned()),
        }
        false
    }
}

/// What came of the end of a tunnel, once there is one.
async fn finished(ending: &mut Option<JoinHandle<String>>) -> String {
    match ending {
        Some(ending) => ending.await.unwrap_or_else(|error| error.to_string()),
        None => std::future::pending().await,
    }
}

async fn close(replicas: Arc<Replicas>, id: String) -> String {
    let closing = Closing {
        reason: "ended in switchboard top".to_owned(),
    };
    let answers = match replicas.close(&Selection::Id(id.clone()), &closing).await {
        Ok(answers) => super::replicas::closed(answers),
        Err(error) => return error.to_string(),
    };
    if let Some(closed) = answers.changed.first() {
        return format!("closed {id} on {}", closed.replica);
    }
    let failed = answers
        .replicas
        .iter()
        .find_map(|state| Some((&state.replica, state.error.as_ref()?)));
    match failed {
        Some((replica, error)) => format!("{replica}: {error}"),
        None => format!("{id} had ended"),
    }
}

/// The terminal, which is as it was after its drop. After a panic it is so before the message is printed.
struct Screen(DefaultTerminal);

impl Screen {
    fn open() -> io::Result<Self> {
        ratatui::try_init().map(Self)
    }

    fn draw(&mut self, model: &mut Model) -> io::Result<()> {
        self.0.draw(|frame| draw::draw(frame, model)).map(drop)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Reads the keys, on a thread: reads of a terminal block. It ends with the process.
fn read_keys() -> io::Result<mpsc::Receiver<Event>> {
    let (sender, keys) = mpsc::channel(64);
    let read = move || {
        while let Ok(event) = event::read() {
            if sender.blocking_send(event).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("keys".to_owned()).spawn(read)?;
    Ok(keys)
}

/// The signals that end it. SIGINT is one only if it is sent by kill: Ctrl-C is a key.
struct Signals([(i32, Signal); 3]);

impl Signals {
    fn catch() -> io::Result<Self> {
        let catch = |kind: SignalKind| signal(kind).map(|signal| (kind.as_raw_value(), signal));
        Ok(Self([
            catch(SignalKind::terminate())?,
            catch(SignalKind::interrupt())?,
            catch(SignalKind::hangup())?,
        ]))
    }

    async fn next(&mut self) -> i32 {
        let [(one, first), (two, second), (three, third)] = &mut self.0;
        tokio::select! {
            _ = first.recv() => *one,
            _ = second.recv() => *two,
            _ = third.recv() => *three,
        }
    }
}

const BETWEEN_DRAWS: Duration = Duration::from_secs(1);
