//! The reasons of refusals on users' terminals, by nine clients of the real ssh, PuTTY and JSch; and the table of it in
//! `docs/clients.md`.
//!
//! The rows of the table are of three kinds. Every client meets a refusal of each kind, and `connect` and nc meet all of them;
//! the module `slow` looks at every cell. `SWITCHBOARD_WRITE_TABLE=1 cargo test --test it clients_table::slow::` writes the table.

mod cluster;
mod draining;
mod jsch;
mod programs;
mod refusals;
mod targets;

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use programs::{CLIENTS, Program};
use refusals::{REFUSALS, Worlds};

/// The value of `refusals` for each half of a cell.
const MODES: [&str; 2] = ["http", "auto"];

/// True if the sentence is on the terminal, in each of [`MODES`].
type Cell = [bool; 2];

/// A refusal of each kind of row: by a status, by a status for which some clients have a sentence of their own, and in a tunnel.
const KINDS: [&str; 3] = ["unknown name", "credentials required (407)", "target is a web server"];

#[test]
fn each_kind_of_refusal_is_on_the_terminal_as_the_table_says() {
    assert_cells(|client, refusal, mode| {
        KINDS.contains(&refusal) || MODES[mode] == "auto" && ["`connect`", "nc"].contains(&client)
    });
}

mod slow {
    use super::*;

    #[test]
    fn every_refusal_is_on_the_terminal_as_the_table_says() {
        if std::env::var_os("SWITCHBOARD_WRITE_TABLE").is_none() {
            return assert_cells(|_, _, _| true);
        }
        let rows = look(|_, _, _| LOOKS.0);
        let (before, _, after) = document();
        let table = table(&rows);
        fs::write(path(), format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
    }
}

/// Compares the cells of the table in the document that are chosen by client, refusal and mode.
fn assert_cells(is_chosen: fn(&str, &str, usize) -> bool) {
    let (_, written, _) = document();
    let expected = cells(&written);
    assert_eq!(table(&expected), written);
    let chosen =
        |client: usize, refusal: usize, mode: usize| is_chosen(CLIENTS[client].name, REFUSALS[refusal].name, mode);
    let seen = look(|client, refusal, mode| match expected[refusal][client][mode] {
        _ if !chosen(client, refusal, mode) => 0,
        true => LOOKS.0,
        false => LOOKS.1,
    });
    for (refusal, row) in seen.iter().enumerate() {
        for (client, cell) in row.iter().enumerate() {
            for (mode, name) in MODES.iter().enumerate() {
                assert!(
                    !chosen(client, refusal, mode) || cell[mode] == expected[refusal][client][mode],
                    "{} by {} with {name}: is it shown? {}",
                    REFUSALS[refusal].name,
                    CLIENTS[client].name,
                    cell[mode]
                );
            }
        }
    }
}

/// Logs in until the sentence is on the terminal, at most so often for each cell, by all clients beside each other. Returns the
/// rows of the table.
fn look(looks: impl Fn(usize, usize, usize) -> usize + Sync) -> Vec<Vec<Cell>> {
    let worlds = MODES.map(Worlds::start);
    let column = |(number, client): (usize, &Program)| -> Vec<Cell> {
        let is_shown = |refusal: usize, mode: usize| {
            (0..looks(number, refusal, mode)).any(|_| {
                let terminal = worlds[mode].terminal(refusal, client);
                terminal.contains(REFUSALS[refusal].shown)
            })
        };
        (0..REFUSALS.len())
            .map(|refusal| [0, 1].map(|mode| is_shown(refusal, mode)))
            .collect()
    };
    let columns: Vec<Vec<Cell>> = thread::scope(|scope| {
        let columns: Vec<_> = CLIENTS
            .iter()
            .enumerate()
            .map(|client| scope.spawn(move || column(client)))
            .collect();
        columns.into_iter().map(|column| column.join().unwrap()).collect()
    });
    (0..REFUSALS.len())
        .map(|refusal| columns.iter().map(|column| column[refusal]).collect())
        .collect()
}

fn table(rows: &[Vec<Cell>]) -> String {
    let names: Vec<_> = CLIENTS.iter().map(|client| client.name).collect();
    let mut table = format!(
        "\n| refusal | {} |\n|---|{}\n",
        names.join(" | "),
        "---|".repeat(names.len())
    );
    for (refusal, row) in REFUSALS.iter().zip(rows) {
        let cells: Vec<_> = row.iter().map(|cell| mark(*cell)).collect();
        table += &format!("| {} | {} |\n", refusal.name, cells.join(" | "));
    }
    let [by_http, in_band] = [0, 1].map(|mode| rows.iter().flatten().filter(|cell| cell[mode]).count());
    let all = CLIENTS.len() * REFUSALS.len();
    table + &format!("\nThe reason is shown {by_http} times of {all} with `http`, and {in_band} times with `auto`.\n")
}

fn mark(cell: Cell) -> &'static str {
    MARKS.iter().find(|(of, _)| *of == cell).unwrap().1
}

/// The rows of a written table.
fn cells(table: &str) -> Vec<Vec<Cell>> {
    let rows = table.lines().filter(|line| line.starts_with("| ")).skip(1);
    let cell = |mark: &str| MARKS.iter().find(|(_, of)| *of == mark).unwrap().0;
    rows.map(|row| row.trim_matches(['|', ' ']).split(" | ").skip(1).map(cell).collect())
        .collect()
}

/// The text before the table, the table, and the text after it.
fn document() -> (String, String, String) {
    let text = fs::read_to_string(path()).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (table, after) = rest.split_once(END).unwrap();
    (before.to_owned(), table.to_owned(), after.to_owned())
}

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/clients.md")
}

/// The logins for a sentence that is shown and for one that is not. ssh kills its ProxyCommand, perhaps before its message; and the
/// connect that the rate allows each second is taken by another peer, unless that has to wait for a processor.
const LOOKS: (usize, usize) = (20, 2);

const MARKS: [(Cell, &str); 4] = [
    ([true, true], "●"),
    ([false, true], "○"),
    ([true, false], "only http"),
    ([false, false], "–"),
];

const BEGIN: &str = "<!-- begin of the table by tests/it/clients_table.rs -->\n";
const END: &str = "<!-- end of the table -->\n";
