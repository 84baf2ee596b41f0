//! What `top` shows, and what a key does to it.

use std::collections::{HashMap, VecDeque};

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::daemon::admin::api::Tunnel;
use crate::operator::replicas::{Item as _, Listed, Of, Query, Snapshot, Sort, State};
use crate::operator::tables::formatting::foreign;

/// The state of the view.
pub(super) struct Model {
    query: Query,
    /// What was typed.
    pub(super) words: String,
    pub(super) mode: Mode,
    /// The id of the row that keys are for.
    selected: Option<String>,
    /// All rows.
    rows: Vec<Of<Tunnel>>,
    pub(super) replicas: Vec<State>,
    /// Why it is not known which replicas there are.
    pub(super) error: Option<String>,
    /// Whether there has been an answer.
    pub(super) is_known: bool,
    pub(super) message: String,
    trends: HashMap<String, VecDeque<u64>>,
    /// Bytes a second of all tunnels, the last ones at the end.
    pub(super) total: VecDeque<u64>,
    /// Rows that the last drawing had room for.
    pub(super) room: usize,
}

/// What the next key is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// A command.
    Browse,
    /// The filter.
    Type,
    /// The answer to the question whether the tunnel with this id is to end.
    Ask(String),
}

/// What a key asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    None,
    Quit,
    /// The end of the tunnel with this id.
    Close(String),
}

impl Model {
    pub(super) fn new(query: Query) -> Self {
        Self {
            query,
            words: String::new(),
            mode: Mode::Browse,
            selected: None,
            rows: Vec::new(),
            replicas: Vec::new(),
            error: None,
            is_known: false,
            message: String::new(),
            trends: HashMap::new(),
            total: VecDeque::new(),
            room: 1,
        }
    }

    /// Takes what is known now.
    pub(super) fn update(&mut self, snapshot: &Snapshot) {
        let Listed { items, replicas, .. } = snapshot.listed(&self.query);
        let mut trends = HashMap::with_capacity(items.len());
        let mut total = 0_u64;
        for row in &items {
            let rate = rate(&row.item);
            let mut trend = self.trends.remove(&row.item.tunnel_id).unwrap_or_default();
            push(&mut trend, rate, TREND);
            trends.insert(row.item.tunnel_id.clone(), trend);
            total = total.saturating_add(rate);
        }
        self.trends = trends;
        push(&mut self.total, total, LONGEST_TOTAL);
        (self.rows, self.replicas) = (items, replicas);
        self.error.clone_from(&snapshot.error);
        self.is_known = self.is_known || snapshot.is_complete();
    }

    /// Says something at the foot until the next key.
    pub(super) fn say(&mut self, message: String) {
        self.message = message;
    }

    pub(super) fn sort(&self) -> Sort {
        self.query.sort.unwrap_or_default()
    }

    /// Bytes a second of the last samples of a tunnel.
    pub(super) fn trend(&self, id: &str) -> impl Iterator<Item = u64> + use<'_> {
        self.trends.get(id).into_iter().flatten().copied()
    }

    /// The rows that the filter admits.
    pub(super) fn shown(&self) -> Vec<&Of<Tunnel>> {
        let words = self.words.to_lowercase();
        let mut rows: Vec<_> = self.rows.iter().filter(|row| admits(&words, row)).collect();
        rows.truncate(self.query.limit.unwrap_or(usize::MAX));
        rows
    }

    /// How many rows there are without a filter.
    pub(super) fn count(&self) -> usize {
        self.rows.len()
    }

    /// The number of the selected row among those that are shown.
    pub(super) fn at(&self, shown: &[&Of<Tunnel>]) -> usize {
        let selected = self.selected.as_ref();
        let is_it = |row: &&Of<Tunnel>| selected == Some(&row.item.tunnel_id);
        shown.iter().position(is_it).unwrap_or_default()
    }

    /// Takes a key.
    pub(super) fn key(&mut self, key: KeyEvent) -> Action {
        if key.kind == KeyEventKind::Release {
            return Action::None;
        }
        self.message.clear();
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Action::Quit;
        }
        match self.mode.clone() {
            Mode::Browse => self.command(key.code),
            Mode::Type => {
                self.type_key(key.code);
                Action::None
            }
            Mode::Ask(id) => {
                self.mode = Mode::Browse;
                match key.code == KeyCode::Char('y') {
                    true => Action::Close(id),
                    false => Action::None,
                }
            }
        }
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "a key without a meaning here does nothing"
    )]
    fn command(&mut self, code: KeyCode) -> Action {
        let page = self.room.saturating_sub(1).max(1);
        match code {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Char('/') => self.mode = Mode::Type,
            KeyCode::Esc => self.words.clear(),
            KeyCode::Char('x') | KeyCode::Delete => self.ask(),
            KeyCode::Up | KeyCode::Char('k') => self.select(|at| at.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(|at| at + 1),
            KeyCode::PageUp => self.select(|at| at.saturating_sub(page)),
            KeyCode::PageDown => self.select(|at| at + page),
            KeyCode::Home | KeyCode::Char('g') => self.select(|_| 0),
            KeyCode::End | KeyCode::Char('G') => self.select(|_| usize::MAX),
            KeyCode::Char(letter) => {
                let begins = |sort: &Sort| sort.label().starts_with(letter);
                if let Some(sort) = Sort::ALL.into_iter().find(begins) {
                    self.sort_by(sort);
                }
            }
            _ => {}
        }
        Action::None
    }

    fn sort_by(&mut self, sort: Sort) {
        self.query.sort = Some(sort);
        self.rows.sort_by_cached_key(|row| row.item.key(sort));
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "a key without a meaning here does nothing"
    )]
    fn type_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.mode = Mode::Browse,
            KeyCode::Esc => {
                self.words.clear();
                self.mode = Mode::Browse;
            }
            KeyCode::Backspace => drop(self.words.pop()),
            KeyCode::Char(letter) if self.words.len() < LONGEST_WORDS => self.words.push(letter),
            _ => {}
        }
    }

    fn ask(&mut self) {
        let shown = self.shown();
        let id = shown.get(self.at(&shown)).map(|row| row.item.tunnel_id.clone());
        if let Some(id) = id {
            // The row is the one that the question names, whatever order the next answer brings.
            self.selected = Some(id.clone());
            self.mode = Mode::Ask(id);
        }
    }

    fn select(&mut self, to: impl Fn(usize) -> usize) {
        let shown = self.shown();
        let at = to(self.at(&shown)).min(shown.len().saturating_sub(1));
        self.selected = shown.get(at).map(|row| row.item.tunnel_id.clone());
    }

    /// The question, with what it is about.
    pub(super) fn question(&self, id: &str) -> String {
        let row = self.rows.iter().find(|row| row.item.tunnel_id == id);
        let of = row.map(|row| {
            let (client, target) = (row.item.client_address, foreign(&row.target()));
            format!(" of {client} to {target} on {}", row.replica)
        });
        format!("End {}{}? y/N", foreign(id), of.unwrap_or_default())
    }
}

fn rate(tunnel: &Tunnel) -> u64 {
    tunnel.sent_per_second.saturating_add(tunnel.received_per_second)
}

fn push(samples: &mut VecDeque<u64>, sample: u64, most: usize) {
    samples.push_back(sample);
    if samples.len() > most {
        samples.pop_front();
    }
}

/// Whether a row has the words, in lower case, in it.
fn admits(words: &str, row: &Of<Tunnel>) -> bool {
    let Of { replica, item } = row;
    let has = |text: &str| text.to_lowercase().contains(words);
    words.is_empty()
        || [
            &item.tunnel_id,
            replica,
            &item.user_name,
            &item.client_software,
            &row.target(),
        ]
        .into_iter()
        .any(|text| has(text))
        || has(&item.client_address.to_string())
}

/// Samples of a row.
pub(super) const TREND: usize = 8;
/// Samples of all tunnels together.
const LONGEST_TOTAL: usize = 240;
/// In bytes.
const LONGEST_WORDS: usize = 100;

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::operator::replicas::Seen;
    use serde_json::json;
    use tokio::time::Instant;

    /// A tunnel of a target, with that many bytes a second.
    pub(crate) fn tunnel(id: &str, target: &str, rate: u64) -> Tunnel {
        let limit = json!({"rate": "unlimited", "is_own": false, "waited_ms": 0});
        serde_json::from_value(json!({
            "tunnel_id": id, "since": "2026-01-01T00:00:00.000Z", "age_ms": 65_000, "idle_ms": 0,
            "client.address": "192.0.2.1", "client.port": 1, "network.peer.address": "192.0.2.1",
            "client.software": "x\u{1b}[2J", "user.name": "", "http.version": "1", "tls.version": "",
            "server.address": "a", "server.port": 22, "target.namespace": "static", "target.service": target,
            "upstream.address": null, "upstream.software": "", "tunnel.resumable": false, "bytes_sent": 0,
            "bytes_received": 0, "sent_per_second": rate, "received_per_second": 0, "download": limit, "upload": limit,
        }))
        .unwrap()
    }

    pub(crate) fn model(tunnels: &[Tunnel]) -> Model {
        let mut model = Model::new(Query::default());
        let seen = |name: &str, tunnels: &[Tunnel], error| Seen {
            replica: name.into(),
            tunnels: tunnels.into(),
            answered: Some(Instant::now()),
            error,
        };
        let error = crate::operator::replicas::ReplicaError::Unreachable("refused".to_owned());
        model.update(&Snapshot {
            replicas: vec![seen("one", tunnels, None), seen("two", &[], Some(error))],
            error: None,
        });
        model
    }

    fn press(model: &mut Model, keys: &[KeyCode]) -> Action {
        let mut last = Action::None;
        for code in keys {
            last = model.key(KeyEvent::new(*code, KeyModifiers::NONE));
        }
        last
    }

    fn ids(model: &Model) -> Vec<&str> {
        model.shown().iter().map(|row| &*row.item.tunnel_id).collect()
    }

    #[test]
    fn keys_sort_filter_select_and_end_with_a_question() {
        let mut model = model(&[
            tunnel("a", "one:22", 1),
            tunnel("b", "two:22", 9),
            tunnel("c", "two:22", 5),
        ]);
        assert_eq!(ids(&model), ["a", "b", "c"]);
        assert_eq!(press(&mut model, &[KeyCode::Char('r')]), Action::None);
        assert_eq!(ids(&model), ["b", "c", "a"]);
        press(
            &mut model,
            &[
                KeyCode::Char('/'),
                KeyCode::Char('T'),
                KeyCode::Char('w'),
                KeyCode::Char('q'),
            ],
        );
        assert_eq!(ids(&model), [""; 0]);
        press(
            &mut model,
            &[KeyCode::Backspace, KeyCode::Enter, KeyCode::Down, KeyCode::Char('x')],
        );
        assert_eq!(ids(&model), ["b", "c"]);
        assert_eq!(model.mode, Mode::Ask("c".to_owned()));
        assert_eq!(model.question("c"), "End c of 192.0.2.1 to static/two:22 on one? y/N");
        assert_eq!(press(&mut model, &[KeyCode::Enter]), Action::None);
        assert_eq!(
            press(&mut model, &[KeyCode::Char('x'), KeyCode::Char('y')]),
            Action::Close("c".to_owned())
        );
        assert_eq!(press(&mut model, &[KeyCode::Esc, KeyCode::Char('q')]), Action::Quit);
        assert_eq!(ids(&model), ["b", "c", "a"]);
    }

    #[test]
    fn nothing_is_asked_where_there_is_no_row() {
        let mut model = model(&[]);
        assert_eq!(press(&mut model, &[KeyCode::Down, KeyCode::Char('x')]), Action::None);
        assert_eq!(model.mode, Mode::Browse);
    }
}
