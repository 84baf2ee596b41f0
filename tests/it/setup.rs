//! From a URL to a login: `switchboard config` with the real ssh, `--check`, the client's file and its variables.

mod check;
mod installed;
mod known_hosts;
mod settings;
mod shared;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::harness::process::switchboard;
use crate::harness::{eventually, missing};
use crate::openssh::clients::{SWITCHBOARD, ours};
use crate::openssh::login::{HOST, Login, PORT};
use crate::openssh::process::{Finished, program, quiet, run};

mod slow {
    use std::process::Stdio;

    use super::*;

    #[test]
    fn ten_programs_that_install_a_block_at_once_lose_none() {
        for round in 0..200 {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("config");
            fs::write(&path, "Host b\n").unwrap();
            let config = path.to_str().unwrap();
            let start = |number| {
                let name = format!("a{number}");
                let arguments = [
                    "config",
                    "--proxy",
                    "http://proxy:1",
                    "--name",
                    &name,
                    "--write",
                    config,
                ];
                switchboard(&arguments).stderr(Stdio::null()).spawn().unwrap()
            };
            let programs: Vec<_> = (0..10).map(start).collect();
            for mut program in programs {
                assert!(program.wait().unwrap().success(), "round {round}");
            }
            let text = fs::read_to_string(&path).unwrap();
            assert_eq!(
                (text.matches("Include ").count(), text.lines().last()),
                (1, Some("Host b"))
            );
            let blocks = fs::read_dir(folder.path().join("switchboard.d")).unwrap();
            assert_eq!(blocks.count(), 10, "round {round}");
        }
    }
}

/// With the program ssh alone.
#[test]
fn a_jump_host_is_installed_and_used_and_taken_away() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config");
    fs::write(&path, "Host *.team-a\n  ProxyJump own\n").unwrap();
    let config = path.to_str().unwrap();
    let of = |arguments: &[&str]| {
        let mut command = switchboard(&[&["config", "--name", "*.team-a"], arguments].concat());
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let jump = |host| {
        let mut ssh = quiet(program("ssh", "openssh-client"));
        let ssh = ssh.args(["-G", "-F", config, host]);
        let settings = run(ssh, &[], folder.path(), crate::openssh::login::PATIENCE)
            .succeeded()
            .stdout;
        let lines = settings.lines().filter(|line| line.starts_with("proxyjump"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    for host in [
        "ssh.example.com",
        "alice@ssh.example.com:2222",
        "[2001:db8::1]:22",
        "192.0.2.1",
    ] {
        let (status, said) = of(&["--jump", host, "--write", config]);
        assert_eq!(status, Some(0), "{said}");
        assert_eq!(
            jump("devbox.team-a"),
            [format!("proxyjump {}", host.replace("192.0.2.1", "[192.0.2.1]"))]
        );
        assert_eq!(jump("ssh.example.com"), Vec::<String>::new());
    }
    // A name that has another one, by a narrower block.
    let narrow = [
        "config",
        "--name",
        "s*.team-a",
        "--jump",
        "elsewhere",
        "--write",
        config,
    ];
    assert!(switchboard(&narrow).output().unwrap().status.success());
    let (status, said) = of(&["--jump", "ssh.example.com", "--write", config]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("its ProxyJump there is: elsewhere"), "{said}");
    for (arguments, expected) in [
        (&["--jump", "a,b"][..], "\"a,b\" is not a jump host"),
        (
            &["--jump", "a", "--proxy", "https://b"],
            "--proxy is for `switchboard connect`, which --jump does without",
        ),
        (&["--jump", "a,b", "--check", "c"], "\"a,b\" is not a jump host"),
    ] {
        let (status, said) = of(arguments);
        assert_eq!(status, Some(2), "{said}");
        assert!(said.contains(expected), "{said}");
    }
    let (status, said) = of(&["--remove", "--write", config]);
    assert_eq!(status, Some(0), "{said}");
    assert_eq!(jump("devbox.team-a"), ["proxyjump own"]);
}

/// The proxy, sshd and the user's own settings, as in a `~/.ssh/config` of the user's.
struct Setup {
    login: Login,
    own: String,
}

impl Setup {
    fn new() -> Self {
        let login = Login::through(&SWITCHBOARD);
        let path = |name| login.path(name).display().to_string();
        let own = format!(
            "# mine\nUser {}\nHost *\n    Port {PORT}\n    IdentityFile {}\n    UserKnownHostsFile {}\n    GlobalKnownHostsFile \
             /dev/null\n    IdentitiesOnly yes\n    IdentityAgent none\n    StrictHostKeyChecking yes\n    BatchMode yes\n    \
             ServerAliveInterval 7",
            login.sshd.user,
            path("client_key"),
            path("known_hosts"),
        );
        login.write("config", own.as_bytes());
        Self { login, own }
    }

    fn config(&self) -> String {
        self.login.path("config").display().to_string()
    }

    fn url(&self, scheme: &str) -> String {
        format!("{scheme}://{}", self.login.proxy.address)
    }

    /// The settings that ssh has for a name.
    fn settings(&self, name: &str) -> String {
        let mut ssh = self.ssh();
        self.login.run(ssh.args(["-G", name]), &[]).stdout
    }

    fn ssh(&self) -> Command {
        let mut ssh = quiet(program("ssh", "openssh-client"));
        ssh.args(["-F", &self.config()]).current_dir("/");
        ssh
    }

    #[track_caller]
    fn logs_in(&self) {
        let mut ssh = self.ssh();
        let finished = self.login.run(ssh.args([HOST, "cat"]), b"through the proxy\n");
        assert_eq!(finished.stdout, "through the proxy\n", "{finished}");
    }

    /// Runs our program by that path.
    fn by(&self, path: &Path, arguments: &[&str]) -> Finished {
        run(
            quiet(path).arg("config").args(arguments),
            &[],
            &self.login.path("."),
            crate::openssh::login::PATIENCE,
        )
        .succeeded()
    }
}

#[test]
fn one_command_leads_to_a_login_and_another_one_back() {
    let setup = Setup::new();
    let config = setup.config();
    let ca = setup.login.path("ca.crt").display().to_string();
    fs::set_permissions(&config, fs::Permissions::from_mode(0o640)).unwrap();
    // A path that both ssh and the shell have to leave as it is.
    let folder = setup.login.path("my 100% $HOME 'tools'");
    fs::create_dir(&folder).unwrap();
    let spaced = folder.join("switchboard");
    symlink(ours(), &spaced).unwrap();
    for (path, arguments) in [
        (Path::new(&ours()), vec!["--proxy", &setup.url("http")]),
        (&spaced, vec!["--proxy", &setup.url("https"), "--ca", &ca]),
        (
            &spaced,
            vec!["--proxy", &setup.url("https"), "--ca", &ca, "--resume", "off"],
        ),
    ] {
        let install = [&arguments[..], &["--write", &config]].concat();
        let installed = setup.by(path, &install);
        assert!(
            installed.stdout.is_empty() && installed.stderr.contains("switchboard: changed /"),
            "{installed}"
        );
        let again = setup.by(path, &install);
        assert!(again.stderr.contains("nothing to change"), "{again}");
        setup.logs_in();
        let found = setup.settings(HOST);
        let interval = if arguments.contains(&"off") { "15" } else { "0" };
        assert!(
            found.contains(&format!("\nserveraliveinterval {interval}\n")),
            "{found}"
        );
        // The lines after the Include hold for all other names as before.
        let other = setup.settings("elsewhere.example.com");
        assert!(
            other.contains("\nserveraliveinterval 7\n") && !other.contains("proxycommand"),
            "{other}"
        );
        assert!(other.contains(&format!("user {}\n", setup.login.sshd.user)), "{other}");
    }
    assert_eq!(fs::metadata(&config).unwrap().permissions().mode() & 0o777, 0o640);
    // Another block is read beside it, whatever its name is.
    let other = ["--name", ".hidden[a]", "--name", "*.b", "--write", &config];
    setup.by(&spaced, &[&other[..], &["--proxy", "https://b"]].concat());
    let found = setup.settings("x.b");
    assert!(found.contains(" connect --proxy https://b %h %p\n"), "{found}");
    setup.by(&spaced, &[&["--remove"], &other[..]].concat());
    assert!(!setup.settings("x.b").contains("proxycommand"));
    setup.logs_in();
    setup.by(&spaced, &["--remove", "--write", &config]);
    assert_eq!(fs::read_to_string(&config).unwrap(), setup.own);
    assert!(!setup.login.path("switchboard.d").exists());
}

#[test]
fn ssh_uses_the_block_of_the_narrower_names_in_whichever_order_they_come() {
    let setup = Setup::new();
    let config = setup.config();
    let ours = ours();
    let write = |more: &[&str]| setup.by(Path::new(&ours), &[&["--write", &config], more].concat());
    for inline in [&[][..], &["--inline"]] {
        write(&[&["--proxy", "https://wide"], inline].concat());
        for (name, host) in [
            ("*.zeta.svc.cluster.local", "devbox.zeta.svc.cluster.local"),
            ("*.alpha.svc.cluster.local", "devbox.alpha.svc.cluster.local"),
            ("build.team-a.svc.cluster.local", "build.team-a.svc.cluster.local"),
            ("db-?.svc.cluster.local", "db-1.svc.cluster.local"),
        ] {
            let names = ["--proxy", "https://narrow", "--name", name];
            write(&[&names, inline].concat());
            assert!(setup.settings(host).contains("--proxy https://narrow "), "{name}");
            let others = setup.settings("x.svc.cluster.local");
            assert!(others.contains("--proxy https://wide "), "{name}");
            let other = setup.settings("elsewhere.example.com");
            assert!(other.contains("\nserveraliveinterval 7\n"), "{other}");
            setup.by(
                Path::new(&ours),
                &[&["--remove", "--write", &config], &names[2..]].concat(),
            );
            assert!(setup.settings(host).contains("--proxy https://wide "), "{name}");
        }
        write(&["--remove"]);
        assert_eq!(fs::read_to_string(&config).unwrap(), setup.own);
    }
}

#[test]
fn a_block_that_ssh_does_not_use_is_reported_with_the_reason() {
    let setup = Setup::new();
    let config = setup.config();
    let write = |config: &str| {
        let arguments = ["config", "--proxy", "https://p", "--write", config];
        let output = switchboard(&arguments).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let first = "Include switchboard.d/*.conf\nHost *\n    ProxyCommand nc %h %p\n";
    for (text, reason) in [
        // A user who includes the blocks last has other settings first.
        (format!("Host *\n    ProxyCommand nc %h %p\n{first}"), None),
        (
            format!(
                "ProxyCommand nc %h %p\nInclude \"{}/*.conf\"\n",
                setup.login.path("switchboard.d").display()
            ),
            Some("its ProxyCommand there is: nc %h %p"),
        ),
        (
            "Nonsense yes\n".to_owned(),
            Some("terminating, 1 bad configuration options"),
        ),
        // A child of ssh's shell, which does not end with the shell.
        (
            format!(
                "Match exec \"sleep 600 & echo $! > {}; wait\"\n",
                setup.login.path("sleeper").display()
            ),
            Some("`ssh -G` has not ended within 5 s: does a program of a Match exec wait?"),
        ),
    ] {
        fs::write(&config, &text).unwrap();
        let (status, said) = write(&config);
        let expected = "switchboard: ssh does not use this block for switchboard.svc.cluster.local: ";
        assert_eq!(status, Some(i32::from(reason.is_some())), "{text}: {said}");
        assert_eq!(said.contains(expected), reason.is_some(), "{text}: {said}");
        assert!(said.contains(reason.unwrap_or_default()), "{text}: {said}");
        assert!(said.contains("paramiko and some editors, need --inline"), "{said}");
        fs::remove_dir_all(setup.login.path("switchboard.d")).unwrap();
    }
    let sleeper = fs::read_to_string(setup.login.path("sleeper")).unwrap();
    let sleeper = Path::new("/proc").join(sleeper.trim());
    eventually("the sleeper has gone", || (!sleeper.exists()).then_some(()));
}

#[test]
fn an_ssh_that_expects_a_descriptor_is_named() {
    let setup = Setup::new();
    setup.by(
        Path::new(&ours()),
        &["--proxy", &setup.url("http"), "--write", &setup.config()],
    );
    // The ProxyCommand ends after ssh, if it is not ended with it.
    eventually("the reason", || {
        let mut ssh = setup.ssh();
        let fdpass = ssh.args(["-o", "ProxyUseFdpass=yes", HOST, "true"]);
        let finished = setup.login.attempt(fdpass, &[]);
        assert_eq!(finished.status.code(), Some(255), "{finished}");
        let said = fs::read_to_string(setup.login.path("stderr")).unwrap();
        said.contains("(ProxyUseFdpass of ssh is").then_some(())
    });
}

/// In containers and CI jobs HOME is often another folder. The ssh here has a home of its own.
#[test]
fn a_block_is_written_where_ssh_reads_and_not_where_home_points() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    for name in ["home", "passwd", "bin"] {
        fs::create_dir(path(name)).unwrap();
    }
    let real = program("ssh", "openssh-client").display().to_string();
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in\n*ControlPath*) echo \"controlpath {0}/.ssh/config\";;\n\
         *) exec {real} -F {0}/.ssh/config \"$@\";;\nesac\n",
        path("passwd")
    );
    let ssh = folder.path().join("bin/ssh");
    fs::write(&ssh, script).unwrap();
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).unwrap();
    let search = format!("{}:{}", path("bin"), std::env::var("PATH").unwrap());
    let run = |arguments: &[&str], search: &str| {
        let mut command = switchboard(&[&["config", "--proxy", "https://p"], arguments].concat());
        let output = command.env("HOME", path("home")).env("PATH", search).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (status, said) = run(&["--write"], &search);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains(&path("passwd/.ssh/config")), "{said}");
    assert!(!Path::new(&path("home/.ssh")).exists());
    let (status, said) = run(&["--remove"], &search);
    assert!(
        status == Some(0) && said.contains(&path("passwd/.ssh/config")),
        "{said}"
    );
    // Without ssh there is nobody to ask.
    let (status, said) = run(&["--write"], &path("passwd"));
    assert!(status == Some(0) && said.contains(&path("home/.ssh/config")), "{said}");
}

#[test]
fn help_is_a_program_as_the_others_are() {
    let printed = |arguments: &[&str]| {
        let output = switchboard(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    for words in [&[][..], &["connect"], &["tunnels", "close"]] {
        assert_eq!(
            printed(&[&["help"], words].concat()),
            printed(&[words, &["--help"]].concat())
        );
    }
}

#[test]
fn ssh_reads_every_option_of_a_block_as_it_was_meant() {
    let setup = Setup::new();
    let arguments = [
        "--proxy",
        "https://ssh.example.com",
        "--name",
        "*.a.example",
        "--name",
        "!db.a.example",
        "--user",
        "alice",
        "--control-master",
        "--context",
        "prod cluster",
        "--token-command",
        "echo \"it's $HOME\"",
        "--server-name",
        "x.example",
        "--grace",
        "90m",
        "--window",
        "64KiB",
        "--no-env-proxy",
    ];
    let arguments: Vec<_> = arguments
        .into_iter()
        .filter(|word| !word.contains("prod") && *word != "--context")
        .collect();
    let printed = setup.by(Path::new(&ours()), &arguments);
    fs::write(setup.config(), printed.stdout).unwrap();
    let found = setup.settings("x.a.example");
    for line in [
        "user alice",
        "controlmaster auto",
        "controlpersist 600",
        "serveraliveinterval 0",
        &format!(
            "proxycommand {} connect --proxy https://ssh.example.com --server-name x.example --no-env-proxy --token-command \
             \"echo \\\"it's \\$HOME\\\"\" --grace 90m --window 64KiB %h %p",
            ours()
        ),
    ] {
        assert!(found.lines().any(|found| found == line), "{line}: {found}");
    }
    assert!(!setup.settings("db.a.example").contains("proxycommand"));
}

#[test]
fn contradictions_are_said_before_anything_is_written() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("config");
    let (file, missing) = (file.to_str().unwrap(), missing());
    for (arguments, expected) in [
        (&["--proxy", "https://u:s3cret@p"][..], "the proxy's URL has a password"),
        (&["--proxy", "http://p", "--ca", "/x"], "--ca is for an https:// proxy"),
        (&["--proxy", "https://p", "--name", "a b"], "is not a pattern of names"),
        (
            &["--proxy", "https://p", "--user", "a b"],
            "is not the name of an account",
        ),
        (
            &["--proxy", "https://p", "--token-file", "a", "--context", "b"],
            "cannot be used with each other",
        ),
        (&["--config", &missing], &format!("{missing}: error: cannot be read")),
    ] {
        let mut command = switchboard(&[&["config", "--write", file], arguments].concat());
        let output = command.output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(
            stderr.contains(expected) && !stderr.contains("s3cret"),
            "{arguments:?}: {stderr}"
        );
        assert!(!Path::new(file).exists());
    }
}

#[test]
fn completions_are_read_by_bash_and_know_the_tasks_and_flags() {
    let folder = tempfile::TempDir::new().unwrap();
    let script = switchboard(&["completions", "bash"]).output().unwrap();
    assert!(script.status.success());
    let file = folder.path().join("completions");
    fs::write(&file, script.stdout).unwrap();
    let complete = |words: &str| {
        let line = format!(
            ". \"$1\"; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _switchboard switchboard \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"; echo \"${{COMPREPLY[@]}}\""
        );
        let mut bash = quiet(program("bash", "bash"));
        let output = bash
            .args(["--norc", "-c", &line, "bash"])
            .arg(&file)
            .stdout(std::process::Stdio::piped())
            .output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    assert_eq!(complete("switchboard conn").trim(), "connect");
    assert_eq!(complete("switchboard config --contr").trim(), "--control-master");
    for shell in ["zsh", "fish", "powershell", "elvish"] {
        let script = switchboard(&["completions", shell]).output().unwrap();
        assert!(
            String::from_utf8(script.stdout).unwrap().contains("control-master"),
            "{shell}"
        );
    }
}

#[test]
fn manual_pages_are_formatted_without_a_warning() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().to_str().unwrap();
    assert!(switchboard(&["manual", path]).status().unwrap().success());
    for (page, expected) in [
        ("switchboard.1", "switchboard-connect(1)"),
        ("switchboard-config.1", "--control-master"),
    ] {
        let mut groff = quiet(program("groff", "groff"));
        let groff = groff
            .args(["-man", "-Tascii", "-P-cbou", "-ww"])
            .arg(folder.path().join(page));
        let output = groff
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .output()
            .unwrap();
        let (text, warnings) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        assert!(
            text.contains("NAME") && text.contains(expected) && warnings.is_empty(),
            "{page}: {warnings}\n{text}"
        );
    }
}
