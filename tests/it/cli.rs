//! The command line of the real binary: what it prints, its exit status, and what goes before what.

mod check;

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::net::{Ipv6Addr, TcpListener};
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use crate::harness::ports::Ports;
use crate::harness::process::{
    Process, Server, Settings, ended, switchboard, switchboard_with_descriptors, with_limit,
};
use crate::harness::target::{Closed, Target};
use crate::harness::{CONFIRMATION, allow, missing, refused};
use rustix::process::geteuid;
use switchboard::tunnel::outcome::RefusalReason;

#[test]
fn a_stderr_that_is_full_changes_no_exit_status() {
    let settings = Settings::new("timeout: {}\n");
    for arguments in [
        ["check", "--config", settings.path()],
        ["serve", "--config", settings.path()],
    ] {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let status = switchboard(&arguments).stderr(full).status().unwrap();
        assert_eq!(status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn too_few_descriptors_for_a_start_are_told_in_one_line() {
    let settings = Settings::new("");
    for most in (4..24).chain([64, 127]) {
        let mut process = Process::spawn(switchboard_with_descriptors(
            most,
            &["serve", "--config", settings.path()],
        ));
        let line = process.stderr.next().unwrap_or_default();
        if line.contains(" WARN ") || line.contains(" INFO ") {
            // The limit is high enough for the messages.
            let said = process.stderr.rest();
            let expected = format!("switchboard: the limit of open files is {most}, and has to be 128 at least");
            assert!(said.last().is_some_and(|line| line.starts_with(&expected)), "{said:#?}");
            assert_eq!(process.exit_status(), 1, "{most}");
            continue;
        }
        assert_eq!(process.exit_status(), 1, "{most}: {line}");
        assert_eq!(process.stderr.rest(), [""; 0], "{most}: {line}");
        assert!(line.starts_with("switchboard: "), "{most}: {line}");
    }
}

#[test]
fn a_program_of_a_user_or_an_operator_with_too_few_descriptors_says_so() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = format!("box={}", taken.local_addr().unwrap().port());
    let to = ["--proxy", "http://127.0.0.1:1"];
    for arguments in [
        [&["connect"], &to[..], &["box:22"]].concat(),
        [&["forward"], &to[..], &[&port]].concat(),
        [&["known-hosts"], &to[..], &["box"]].concat(),
        [&["ls"], &to[..]].concat(),
        vec!["tunnels"],
        vec!["targets"],
        vec!["clients"],
        vec!["refusals"],
        vec!["drain"],
    ] {
        for most in 4..20 {
            let (status, _, said) = ended(switchboard_with_descriptors(most, &arguments));
            assert!(
                status == 1 && said.lines().all(|line| line.starts_with("switchboard: ")) && !said.is_empty(),
                "{most} {arguments:?}: {status} {said}"
            );
        }
    }
}

#[test]
fn an_argument_that_is_not_utf_8_is_named() {
    for (arguments, flag, named) in [
        (&["connect", "--ca"][..], "--context", "--context <NAME>"),
        (&["ls", "--ca"], "--server-name", "--server-name <NAME>"),
        (&["tunnels", "--user"], "--node", "--node <NODE>"),
    ] {
        let mut command = switchboard(arguments);
        command.arg("x").arg(flag).arg(OsStr::from_bytes(b"\xff"));
        let (status, _, said) = ended(command);
        let expected = format!("error: the value of {named} is not UTF-8");
        assert_eq!((status, said.lines().next()), (2, Some(&*expected)), "{said}");
    }
}

#[test]
fn an_output_beyond_the_largest_size_of_files_is_told() {
    let proxy = Target::listen();
    let url = format!("http://{}", proxy.address());
    let connect = switchboard(&["connect", "--resume", "off", "--proxy", &url, "box:22"]);
    let mut client = Process::spawn_into(with_limit("-f 1", &connect), tempfile::tempfile().unwrap());
    let mut tunnel = proxy.accept();
    tunnel.read_past("\r\n\r\n");
    tunnel.send(CONFIRMATION);
    tunnel.try_send([7; 64 << 10]).ok();
    assert_eq!(client.exit_status(), 1);
    let expected = "switchboard: box:22: cannot write to stdout: File too large (os error 27)";
    assert_eq!(client.stderr.rest(), [expected]);
}

#[test]
fn an_output_to_a_full_disk_is_told() {
    for arguments in [
        &["--help"][..],
        &["--version"],
        &["connect", "--help"],
        &["completions", "bash"],
    ] {
        let mut command = switchboard(arguments);
        command.stdout(OpenOptions::new().write(true).open("/dev/full").unwrap());
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let expected = "switchboard: cannot write to stdout: No space left on device (os error 28)\n";
        assert_eq!((output.status.code(), &*said), (Some(1), expected), "{arguments:?}");
    }
}

#[test]
fn faulty_usage_or_settings_end_with_status_2() {
    let (faulty, missing) = (Settings::new("unknown: 1\n"), missing());
    let selects = Settings::new("allowlist: {kubernetes: {enabled: true, selector: '!!'}}\n");
    let ports = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let table: [(&[&str], &str); 20] = [
        (&[], "Usage"),
        (&["dance"], "dance"),
        (&["check"], "--config"),
        (&["check", "a", "b"], "b"),
        (&["check", "--format", "xml", "a"], "--format"),
        (&["check", "--listen", "localhost", "a"], "localhost"),
        (&["serve", "--unknown"], "--unknown"),
        (&["tunnels", "--namespace", ""], "--namespace"),
        (&["serve", "more"], "more"),
        (&["serve", "--listen", "localhost"], "localhost"),
        (&["serve", "--admin", "127.0.0.1"], "127.0.0.1"),
        (&["serve", "--allow", "devbox:22"], "NAME:PORT=ADDR"),
        (&["serve", "--allow", "devbox:22=localhost:22"], "not resolved"),
        (&["serve", "--allow", "dev_box:x=127.0.0.1:22"], "bad name"),
        (
            &["serve", "--config", faulty.path()],
            ":3:1: error: unknown: unknown key",
        ),
        (
            &["serve", "--config", &missing],
            &format!("{missing}: error: cannot be read: No such file"),
        ),
        (&["serve", "--config", selects.path()], "a label selector"),
        (&["check", "--config", selects.path()], "a label selector"),
        (&["serve", "--log", "a=b=c"], "--log"),
        (&["serve", "--log-format", "xml"], "--log-format"),
    ];
    for (arguments, told) in table {
        // The ports, so that one that starts against all expectations does no harm.
        let served = arguments.first() == Some(&"serve") && !arguments.iter().any(|argument| ports.contains(argument));
        let arguments = [arguments, if served { &ports[..] } else { &[] }].concat();
        let (status, stdout, stderr) = ended(switchboard(&arguments));
        assert_eq!((status, stdout.as_str()), (2, ""), "{arguments:?}: {stderr}");
        assert!(stderr.contains(told), "{told:?} in {stderr}");
    }
    for (name, value) in [
        ("SWITCHBOARD_LISTEN", "here"),
        ("SWITCHBOARD_ADMIN", "here"),
        ("SWITCHBOARD_ALLOW", "here"),
        ("SWITCHBOARD_CONFIG", missing.as_str()),
        ("SWITCHBOARD_LOG", "a=b=c"),
        ("SWITCHBOARD_LOG_FORMAT", "xml"),
    ] {
        let mut command = switchboard(&["serve"]);
        command.env("SWITCHBOARD_LISTEN", "127.0.0.1:0");
        command.env("SWITCHBOARD_ADMIN", "127.0.0.1:0");
        command.env(name, value);
        assert_eq!(ended(command).0, 2, "{name}");
    }
}

#[test]
fn a_port_in_use_ends_with_status_1() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    for [listen, admin] in [[taken.as_str(), "127.0.0.1:0"], ["127.0.0.1:0", taken.as_str()]] {
        let (status, stdout, stderr) = ended(switchboard(&["serve", "--listen", listen, "--admin", admin]));
        assert_eq!((status, stdout.as_str()), (1, ""), "{stderr}");
        assert!(stderr.contains(&format!("cannot listen on {taken}")), "{stderr}");
        assert!(stderr.contains("in use"), "{stderr}");
    }
}

/// It takes six besides the first: those of the two logs, and four workers.
#[test]
fn without_its_threads_it_ends_with_one_line_and_status_1() {
    let is_root = geteuid().is_root();
    for limit in 1..=6 {
        // The limit is one of a user, and does not apply to root. Nothing else runs as the user of this number.
        let user: &[&str] = match is_root {
            // With the capability to read where the binary is, even in a folder of root's.
            true => &[
                "setpriv",
                "--reuid=54321",
                "--regid=54321",
                "--clear-groups",
                "--inh-caps=+dac_override",
                "--ambient-caps=+dac_override",
            ],
            false => &["env"],
        };
        let mut command = Command::new(user[0]);
        command.args(&user[1..]);
        command.args(["bash", "-c", &format!("ulimit -u {limit} && exec \"$0\" \"$@\"")]);
        command.arg(switchboard(&[]).get_program());
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        command.env("TOKIO_WORKER_THREADS", "4");
        let (status, stdout, stderr) = ended(command);
        assert_eq!((status, stdout.as_str()), (1, ""), "{limit}: {stderr}");
        assert!(
            (stderr.starts_with("switchboard: the thread main has failed")
                || stderr.starts_with("switchboard: cannot start a thread: "))
                && stderr.lines().count() == 1,
            "{limit}: {stderr}"
        );
    }
}

#[test]
fn a_flag_overrides_the_environment_and_that_the_file() {
    let [by_file, by_environment, by_flag] = [Target::listen(), Target::listen(), Target::listen()];
    let lead = |target: &Target| format!("devbox:22={}", target.address());
    let settings = Settings::new(&allow(&[
        ("devbox:22", by_file.address()),
        ("file:22", by_file.address()),
    ]));
    // Each source has addresses of its own to listen on; one that is not in 127.0.0.0/8 would not be this host's.
    for (environment, flag, host, leads_to) in [
        (false, false, "127.0.0.1", &by_file),
        (true, false, "127.0.0.2", &by_environment),
        (true, true, "127.0.0.3", &by_flag),
        (false, true, "127.0.0.3", &by_flag),
    ] {
        let mut command = switchboard(&["serve"]);
        if environment {
            command.env("SWITCHBOARD_LISTEN", "127.0.0.2:0");
            command.env("SWITCHBOARD_ADMIN", "127.0.0.2:0");
            command.env("SWITCHBOARD_ALLOW", lead(&by_environment));
        }
        if flag {
            command.args([
                "--listen",
                "127.0.0.3:0",
                "--admin",
                "127.0.0.3:0",
                "--allow",
                &lead(&by_flag),
            ]);
            // The file that the environment names is not even read.
            command
                .env("SWITCHBOARD_CONFIG", missing())
                .args(["--config", settings.path()]);
        } else {
            command.env("SWITCHBOARD_CONFIG", settings.path());
        }
        let server = Server::start(command);
        assert_eq!(server.public().ip().to_string(), host);
        assert_eq!(server.admin().ip().to_string(), host);
        server.tunnel("devbox:22", leads_to);
        // The file's other settings still hold.
        server.tunnel("file:22", &by_file);
    }
}

#[test]
fn several_listeners_and_targets_come_from_flags_alone() {
    let (one, two) = (Target::listen(), Target::listen());
    let many = format!("one:22={},{}", one.address(), one.address());
    let other = format!("[fd00::2]:22={}", two.address());
    let server = Server::start(switchboard(&[
        "serve",
        "--listen=127.0.0.1:0",
        "--listen=127.0.0.2:0",
        "--admin=127.0.0.1:0",
        "--allow",
        &many,
        "--allow",
        &other,
    ]));
    server.tunnel("one:22", &one);
    server.tunnel("[fd00::2]:22", &two);
    assert_eq!(server.answer("two:22"), refused(RefusalReason::NotAllowed));
}

#[test]
fn one_number_may_be_had_for_each_family() {
    let target = Target::listen();
    let settings = Settings::new(&allow(&[("devbox:22", target.address())]));
    let port = Closed::on(Ipv6Addr::UNSPECIFIED);
    let number = port.address().port();
    let (v4, v6) = (format!("0.0.0.0:{number}"), format!("[::]:{number}"));
    for listen in [[&*v4, &*v6], [&*v6, &*v4]] {
        let mut command = switchboard(&["serve", "--config", settings.path()]);
        command.args(["--admin", "127.0.0.1:0", "--listen", listen[0], "--listen", listen[1]]);
        let mut process = Process::spawn(command);
        process.stderr.find(&format!("public port {}", listen[1]));
        for host in ["127.0.0.1", "[::1]"] {
            let mut client = std::net::TcpStream::connect(format!("{host}:{number}")).unwrap();
            client
                .write_all(b"CONNECT devbox:22 HTTP/1.1\r\nHost: devbox:22\r\n\r\n")
                .unwrap();
            let mut answer = [0; 12];
            client.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"HTTP/1.1 200", "{host}");
        }
    }
}

#[test]
fn the_log_filter_quietens_messages_but_not_the_access_log() {
    let target = Target::listen();
    let settings = Settings::new(&allow(&[("devbox:22", target.address())]));
    let (status, _, stderr) = ended(switchboard(&["serve", "--log", "off", "--config", &missing()]));
    assert_eq!(status, 2);
    assert!(stderr.contains("cannot be read"), "{stderr}");
    let arguments = ["serve", "--log", "info,access=off", "--config", settings.path()];
    let mut server = Server::start(switchboard(&arguments));
    server.tunnel("devbox:22", &target);
    let line = server.process.stdout.next().unwrap();
    assert!(line.contains(r#""target.service":"devbox:22""#), "{line}");
}

#[test]
fn help_lists_the_commands_and_options() {
    let (status, stdout, _) = ended(switchboard(&["--help"]));
    assert_eq!(status, 0);
    for told in ["serve", "check", "--help", "--version"] {
        assert!(stdout.contains(told), "{told:?} in {stdout}");
    }
    let (status, stdout, _) = ended(switchboard(&["serve", "--help"]));
    assert_eq!(status, 0);
    for told in [
        "--config",
        "--listen",
        "--admin",
        "--allow",
        "--log",
        "NAME:PORT=ADDR[,ADDR…]",
        "SWITCHBOARD_CONFIG",
        "SWITCHBOARD_LISTEN",
        "SWITCHBOARD_ADMIN",
        "SWITCHBOARD_ALLOW",
        "SWITCHBOARD_LOG",
        "--log-format",
        "SWITCHBOARD_LOG_FORMAT",
        "Exit status: 0 drained, 1 runtime error, 2 usage or configuration, 3 tunnels were cut",
    ] {
        assert!(stdout.contains(told), "{told:?} in {stdout}");
    }
    let (status, stdout, _) = ended(switchboard(&["check", "--help"]));
    assert_eq!(status, 0);
    for told in [
        "[FILE]",
        "--config",
        "--format",
        "--schema",
        "--listen",
        "SWITCHBOARD_CONFIG",
        "Exit status: 0 `serve` accepts the configuration",
    ] {
        assert!(stdout.contains(told), "{told:?} in {stdout}");
    }
    let (status, stdout, _) = ended(switchboard(&["--version"]));
    assert_eq!(
        (status, stdout),
        (0, format!("switchboard {}", env!("CARGO_PKG_VERSION")))
    );
}

#[test]
fn the_options_of_a_session_are_checked_before_a_connection() {
    let (status, stdout, _) = ended(switchboard(&["connect", "--help"]));
    assert_eq!(status, 0);
    for told in [
        "--resume",
        "--grace",
        "--window",
        "SWITCHBOARD_RESUME",
        "[default: 24h]",
        "ServerAliveInterval",
    ] {
        assert!(stdout.contains(told), "{told:?} in {stdout}");
    }
    for (option, value, fault) in [
        ("--resume", "always", "[possible values: auto, off]"),
        ("--grace", "soon", "invalid value 'soon' for '--grace"),
        ("--grace", "0", "must be more than 0s"),
        ("--window", "1KiB", "a window has 4KiB to 64MiB"),
        ("--window", "65MiB", "a window has 4KiB to 64MiB"),
        ("--window", "many", "expected a whole number with a unit"),
    ] {
        let proxy = ["--proxy", "http://127.0.0.1:1", "host:22"];
        let (status, _, stderr) = ended(switchboard(&[&["connect", option, value], &proxy[..]].concat()));
        assert_eq!(status, 2, "{stderr}");
        assert!(stderr.contains(fault), "{fault:?} in {stderr}");
    }
}
