//! What a user reads: nine clients, twenty-two refusals each, by the real ssh, PuTTY and JSch; and the table of it in
//! `docs/clients.md`.
//!
//! `SWITCHBOARD_WRITE_TABLE=1 cargo test --test it clients_table::` writes the table. Without it the test compares.

mod cluster;
mod draining;
mod jsch;
mod programs;
mod refusals;
mod targets;

use std::fs;
use std::path::Path;
use std::thread;

use programs::{CLIENTS, Program};
use refusals::{REFUSALS, Worlds};

/// Whether the sentence is on the terminal: with `refusals: http`, and with `refusals: auto`.
type Cell = [bool; 2];

#[test]
fn the_reason_is_on_the_terminal_as_the_table_says() {
    // A row for each client, as they run beside each other.
    let worlds = ["http", "auto"].map(Worlds::start);
    let rows: Vec<Vec<Cell>> = thread::scope(|scope| {
        let rows: Vec<_> = CLIENTS
            .iter()
            .map(|client| scope.spawn(|| cells(client, &worlds)))
            .collect();
        rows.into_iter().map(|row| row.join().unwrap()).collect()
    });
    let share = |mode: usize| {
        let shown = rows.iter().flatten().filter(|cell| cell[mode]).count();
        (shown, CLIENTS.len() * REFUSALS.len())
    };
    let (shown, all) = share(1);
    let table = table(&rows, [share(0).0, shown], all);
    if std::env::var_os("SWITCHBOARD_WRITE_TABLE").is_some() {
        let text = fs::read_to_string(document()).unwrap();
        let (before, rest) = text.split_once(BEGIN).unwrap();
        let (_, after) = rest.split_once(END).unwrap();
        fs::write(document(), format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
        return;
    }
    assert!(shown * 100 >= all * 95, "{shown} of {all}\n{table}");
    let text = include_str!("../../docs/clients.md");
    assert!(text.contains(&table), "docs/clients.md has another table than\n{table}");
}

/// The cells of a client, one refusal after the other.
fn cells(client: &Program, worlds: &[Worlds; 2]) -> Vec<Cell> {
    let cells = REFUSALS.iter().enumerate().map(|(number, refusal)| {
        let [by_http, in_band] = worlds.each_ref().map(|world| {
            // A second look where the first one is in vain: ssh kills its ProxyCommand, perhaps in front of its message.
            (0..refusal.looks()).any(|_| {
                let terminal = world.terminal(number, client);
                refusal.shown.iter().any(|text| terminal.contains(text))
            })
        });
        [by_http, in_band]
    });
    cells.collect()
}

fn table(rows: &[Vec<Cell>], shown: [usize; 2], all: usize) -> String {
    let names: Vec<_> = CLIENTS.iter().map(|client| client.name).collect();
    let mut table = format!(
        "\n| refusal | {} |\n|---|{}\n",
        names.join(" | "),
        "---|".repeat(names.len())
    );
    for (number, refusal) in REFUSALS.iter().enumerate() {
        let cells: Vec<_> = rows.iter().map(|row| mark(row[number])).collect();
        table += &format!("| {} | {} |\n", refusal.name, cells.join(" | "));
    }
    let [by_http, in_band] = shown;
    table + &format!("\nThe reason is shown {by_http} times of {all} with `http`, and {in_band} times with `auto`.\n")
}

fn mark(cell: Cell) -> &'static str {
    match cell {
        [true, true] => "●",
        [false, true] => "○",
        [true, false] => "only http",
        [false, false] => "–",
    }
}

fn document() -> impl AsRef<Path> {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/clients.md")
}

const BEGIN: &str = "<!-- begin of the table by tests/it/clients_table.rs -->\n";
const END: &str = "<!-- end of the table -->\n";
