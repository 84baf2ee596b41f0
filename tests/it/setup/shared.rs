//! Connections that logins share (ControlPersist), with the real ssh: the terminal of the first login is not that of the
//! others, and ssh hides the ProxyCommand's stderr.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::harness::eventually;
use crate::openssh::clients::{SWITCHBOARD, ours};
use crate::openssh::login::{HOST, Login};
use crate::openssh::process::quiet;

/// Adds the options of a connection that is shared, and the name.
fn shared(login: &Login, mut ssh: Command) -> Command {
    let path = format!("ControlPath={}", login.path("shared").display());
    ssh.args(["-o", "ControlMaster=auto", "-o", "ControlPersist=60", "-o", &path, HOST]);
    ssh
}

/// Ends the shared connection.
fn end(login: &Login) {
    let mut ssh = shared(login, login.command("ssh"));
    login.attempt(ssh.args(["-O", "exit"]), &[]);
}

/// Returns a command of a program that runs another one.
fn by(program: &[&str], command: &Command) -> Command {
    let mut outer = quiet(program[0]);
    outer
        .args(&program[1..])
        .arg(command.get_program())
        .args(command.get_args());
    outer.current_dir(command.get_current_dir().unwrap());
    outer
}

#[test]
fn a_signal_of_the_terminal_that_opened_a_shared_connection_does_not_end_the_other_sessions() {
    for signal in [Signal::INT, Signal::HUP] {
        let login = Login::through(&SWITCHBOARD);
        let mut opening = shared(&login, login.command("ssh"));
        opening.arg("true");
        // A script without job control: all that it starts is in one process group, as at a terminal. A signal that is
        // ignored at the start stays so.
        let script = "\"$@\"; echo opened; exec sleep 1000";
        let mut opening = by(&["env", "--default-signal=HUP,INT", "sh", "-c", script, "sh"], &opening);
        let mut group = opening.process_group(0).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(group.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "opened\n");
        let mut other = shared(&login, login.command("ssh"));
        let other = other.arg("cat").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut other = other.spawn().unwrap();
        let (mut keys, screen) = (other.stdin.take().unwrap(), other.stdout.take().unwrap());
        let mut screen = BufReader::new(screen);
        let mut echo = |text: &str| {
            keys.write_all(text.as_bytes()).unwrap();
            let mut line = String::new();
            screen.read_line(&mut line).unwrap();
            assert_eq!(line, text, "{signal:?}");
        };
        echo("before\n");
        kill_process_group(Pid::from_child(&group), signal).unwrap();
        // Its shell has ended by then, and a ProxyCommand that heeded the signal is ending.
        group.wait().unwrap();
        for number in 0..20 {
            echo(&format!("after {number}\n"));
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        drop(keys);
        assert!(other.wait().unwrap().success());
        end(&login);
    }
}

#[test]
fn the_prompt_of_a_credential_plugin_is_on_the_terminal_though_ssh_hides_stderr() {
    let login = Login::through(&SWITCHBOARD);
    let prompt = "open https://login.example/device and enter ABCD";
    let plugin = login.write(
        "plugin",
        format!("#!/bin/sh\necho '{prompt}' >&2\necho token\n").as_bytes(),
    );
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
    let command = format!(
        "{} connect --proxy http://{} --allow-cleartext --token-command {} %h %p",
        ours(),
        login.proxy.address,
        plugin.display()
    );
    let mut ssh = shared(&login, login.command_by(&command, "ssh"));
    ssh.arg("true");
    let words = [ssh.get_program()].into_iter().chain(ssh.get_args());
    let line: Vec<_> = words.map(|word| format!("'{}'", word.to_str().unwrap())).collect();
    let screen = login.path("screen");
    let mut script = quiet("script");
    script
        .args(["--quiet", "--flush", "--command", &line.join(" ")])
        .arg(&screen);
    let mut script = script.current_dir(login.path(".")).spawn().unwrap();
    eventually("the prompt is there", || {
        let shown = fs::read_to_string(&screen).unwrap_or_default();
        shown.contains(prompt).then_some(())
    });
    script.wait().unwrap();
    end(&login);
}
