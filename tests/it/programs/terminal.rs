//! `top`, and the question of `tunnels close`, on a terminal of script(1).

use std::env;
use std::fs;
use std::io::Write as _;
use std::process::{ChildStdin, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{Pair, ids};
use crate::harness::eventually;
use crate::harness::ports::Ports as _;
use crate::harness::process::{Server, is_of_the_user, switchboard};

/// A program on a terminal of 30 lines and 140 columns. What it writes goes to a file.
struct Terminal {
    folder: TempDir,
    keys: ChildStdin,
    script: std::process::Child,
}

impl Terminal {
    /// Starts it; behind its end the shell says the exit status, and whether the terminal reads lines again.
    fn start(arguments: &[&str]) -> Self {
        let folder = TempDir::new().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let program = switchboard(&[]).get_program().to_str().unwrap().to_owned();
        let (arguments, pid) = (arguments.join(" "), path("pid"));
        let lines = [
            "stty rows 30 cols 140".to_owned(),
            format!("sh -c 'echo $$ > {pid}; exec {program} {arguments}'"),
            "echo ended $?".to_owned(),
            "stty -a | grep -o ' icanon'".to_owned(),
            "echo behind-it".to_owned(),
        ];
        fs::write(path("run"), lines.join("\n")).unwrap();
        let mut command = Command::new("script");
        command.args([
            "--quiet",
            "--flush",
            "--command",
            &format!("sh {}", path("run")),
            &path("screen"),
        ]);
        for (name, _) in env::vars_os().filter(|(name, _)| is_of_the_user(name)) {
            command.env_remove(name);
        }
        let command = command.stdin(Stdio::piped()).stdout(Stdio::null()).env("TERM", "xterm");
        let mut script = command.spawn().unwrap();
        Self {
            keys: script.stdin.take().unwrap(),
            folder,
            script,
        }
    }

    fn screen(&self) -> String {
        let bytes = fs::read(self.folder.path().join("screen")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits for words without a space: cells that stay as they are, as spaces do, are not written again.
    #[track_caller]
    fn shows(&self, words: &str) {
        eventually(words, || self.screen().contains(words).then_some(()));
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    fn signal(&self, signal: Signal) {
        let number = eventually("the number of the process", || {
            let text = fs::read_to_string(self.folder.path().join("pid")).ok()?;
            text.trim().parse().ok()
        });
        kill_process(Pid::from_raw(number).unwrap(), signal).unwrap();
    }

    /// Its exit status, once the terminal is as it was.
    #[track_caller]
    fn ends(&self, status: i32) {
        self.shows("behind-it");
        let screen = self.screen();
        assert!(screen.contains(&format!("ended {status}")), "{screen:?}");
        assert!(screen.contains(" icanon"), "{screen:?}");
    }

    /// Whether it has left the screen of its own, as behind its last drawing.
    #[track_caller]
    fn has_left(&self) {
        let screen = self.screen();
        assert!(
            screen.rfind("\u{1b}[?1049l") > screen.rfind("\u{1b}[?1049h"),
            "{screen:?}"
        );
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.script.kill().ok();
        self.script.wait().unwrap();
    }
}

fn on(program: &str, replicas: &[&Server]) -> Terminal {
    let addresses: Vec<_> = replicas.iter().map(|server| server.admin().to_string()).collect();
    Terminal::start(&[program, "--timeout", "60s", "--admin", &addresses.join(",")])
}

#[test]
fn top_shows_the_rows_ends_one_after_a_question_and_leaves_the_terminal_as_it_was() {
    let pair = Pair::start();
    let [first, second] = pair.all();
    let (mut kept, mut kept_service) = first.tunnel("one:22", &pair.one);
    let (mut ended, _service) = second.tunnel("other:22", &pair.other);
    let listed = pair.lists(2);
    let mut top = on("top", &pair.all());
    top.shows(&ids(&listed, first)[0]);
    top.shows(&ids(&listed, second)[0]);
    top.press("/other:22\rx");
    // The first word of the question: no cell of it was the same before.
    top.shows("End");
    top.press("nxy");
    ended.expect_reset();
    kept.send("still");
    kept_service.expect("still");
    top.press("q");
    top.ends(0);
    top.has_left();
}

#[test]
fn top_leaves_the_terminal_as_it_was_at_a_signal() {
    let pair = Pair::start();
    for (signal, status) in [(Signal::TERM, 143), (Signal::HUP, 129)] {
        let top = on("top", &pair.all());
        top.shows("replicas");
        top.signal(signal);
        top.ends(status);
        top.has_left();
    }
}

#[test]
fn close_asks_on_a_terminal() {
    let pair = Pair::start();
    let [first, _] = pair.all();
    let (mut ended, _service) = first.tunnel("one:22", &pair.one);
    pair.lists(1);
    let mut no = on("tunnels close --target static/one:22", &pair.all());
    no.shows("End 1 tunnels? [y/N]");
    no.press("\n");
    no.ends(1);
    pair.lists(1);
    let mut yes = on("tunnels close --target static/one:22", &pair.all());
    yes.shows("End 1 tunnels? [y/N]");
    yes.press("y\n");
    yes.ends(0);
    ended.expect_reset();
}
