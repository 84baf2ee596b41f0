//! The files of known_hosts in a block: those that ssh has for the names, as `ssh -G` says, and that of published keys.

use std::path::PathBuf;

use tempfile::TempDir;

use super::*;
use crate::openssh::login::PATIENCE;

/// A home, and a program `ssh` that only knows `-G`.
struct Home {
    folder: TempDir,
    home: PathBuf,
}

impl Home {
    /// The program prints these lines for a host, with `HOME` replaced by the home.
    fn new(name: &str, lines: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("switchboard-").tempdir().unwrap();
        let home = folder.path().join(name);
        fs::create_dir_all(home.join(".ssh")).unwrap();
        let lines = lines.replace("HOME", home.to_str().unwrap());
        // The first question is that for the folder of ssh.
        let script = format!(
            "#!/bin/sh\ncase \"$*\" in\n*ControlPath*) echo 'controlpath {}/.ssh/config'; exit 0;;\nesac\n\
             echo \"$*\" >>'{}'\n{lines}\n",
            home.display(),
            folder.path().join("asked").display()
        );
        let ssh = folder.path().join("ssh");
        fs::write(&ssh, script).unwrap();
        fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).unwrap();
        Self { folder, home }
    }

    fn config(&self, arguments: &[&str]) -> Finished {
        let mut command = quiet(ours());
        let path = format!("{}:{}", self.folder.path().display(), std::env::var("PATH").unwrap());
        command
            .args(["config", "--proxy", "http://localhost:1"])
            .args(arguments);
        command.env("HOME", &self.home).env("PATH", path);
        run(&mut command, b"", self.folder.path(), PATIENCE)
    }

    /// The questions for the settings of a host.
    fn asked(&self) -> Vec<String> {
        let text = fs::read_to_string(self.folder.path().join("asked")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

const DEFAULT: &str = "echo 'userknownhostsfile HOME/.ssh/known_hosts HOME/.ssh/known_hosts2'";
const LINE: &str = "    UserKnownHostsFile ~/.ssh/known_hosts ~/.ssh/known_hosts2 ~/.ssh/switchboard_known_hosts\n";

#[test]
fn ssh_is_asked_once_for_each_name_and_a_home_with_a_space_has_the_line() {
    for name in ["home", "a home"] {
        let home = Home::new(name, DEFAULT);
        let printed = home.config(&[]).succeeded();
        assert!(printed.stdout.contains(LINE), "{printed}");
        let asked = home.asked();
        assert_eq!(asked.len(), 2, "{asked:?}");
        assert!(
            asked[0].ends_with("switchboard.svc.cluster.local") && !asked[0].contains("-p 2"),
            "{asked:?}"
        );
        assert!(
            asked[1].ends_with("-p 2 -l switchboard -- other.svc.cluster.local"),
            "{asked:?}"
        );
    }
}

#[test]
fn a_question_that_fails_is_a_doubt_that_is_said() {
    let fails = format!("case \"$*\" in\n*other*) echo 'bad option' >&2; exit 255;;\nesac\n{DEFAULT}");
    let home = Home::new("home", &fails);
    let printed = home.config(&[]).succeeded();
    assert!(!printed.stdout.contains("UserKnownHostsFile"), "{printed}");
    let doubt = "switchboard: ssh does not say its UserKnownHostsFile for other.svc.cluster.local: bad option, so the block leaves";
    assert!(printed.stderr.contains(doubt), "{printed}");
}

#[test]
fn a_file_of_the_users_own_among_the_blocks_names_no_published_keys() {
    let folder = tempfile::Builder::new().prefix("switchboard-").tempdir().unwrap();
    let config = folder.path().join("config");
    let install = || {
        let mut command = quiet(ours());
        command
            .args(["config", "--proxy", "http://localhost:1", "--write"])
            .arg(&config);
        command.env("HOME", folder.path());
        run(&mut command, b"", folder.path(), PATIENCE)
    };
    install().succeeded();
    let own = "Host *.svc.cluster.local\n    UserKnownHostsFile /my/own\n";
    fs::write(folder.path().join("switchboard.d/0 mine.conf"), own).unwrap();
    install();
    let mut blocks = fs::read_dir(folder.path().join("switchboard.d")).unwrap().flatten();
    let block = blocks
        .find(|file| file.file_name().to_str().unwrap().contains("Host"))
        .unwrap();
    let text = fs::read_to_string(block.path()).unwrap();
    let line = format!(
        "    UserKnownHostsFile /my/own {}/.ssh/switchboard_known_hosts\n",
        folder.path().display()
    );
    assert!(text.contains(&line), "{text}");
}
