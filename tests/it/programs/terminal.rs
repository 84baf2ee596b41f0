//! The question of `tunnels close`, on a terminal of script(1).

use std::env;
use std::fs;
use std::io::Write as _;
use std::process::{ChildStdin, Command, Stdio};

use tempfile::TempDir;

use super::Pair;
use crate::harness::eventually;
use crate::harness::ports::Ports as _;
use crate::harness::process::{Server, is_of_the_user, switchboard};

/// A program on a terminal of 30 lines and 140 columns. What it writes goes to a file.
pub(crate) struct Terminal {
    folder: TempDir,
    keys: ChildStdin,
    script: std::process::Child,
}

impl Terminal {
    /// Starts it; behind its end the shell says the exit status, and whether the terminal reads lines again.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let folder = TempDir::new().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let program = switchboard(&[]).get_program().to_str().unwrap().to_owned();
        let arguments = arguments.join(" ");
        let lines = [
            "stty rows 30 cols 140".to_owned(),
            format!("{program} {arguments}"),
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

    #[track_caller]
    pub(crate) fn shows(&self, words: &str) {
        eventually(words, || self.screen().contains(words).then_some(()));
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Its exit status, once the terminal is as it was.
    #[track_caller]
    fn ends(&self, status: i32) {
        self.shows("behind-it");
        let screen = self.screen();
        assert!(screen.contains(&format!("ended {status}")), "{screen:?}");
        assert!(screen.contains(" icanon"), "{screen:?}");
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
