//! Where the settings of a client come from: flags, variables, the file of the user.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::thread;

use tempfile::TempDir;

use crate::credentials::demanding_proxy::DemandingProxy;
use crate::harness::missing;
use crate::harness::process::{ended, switchboard};
use crate::openssh::clients::ours;
use crate::openssh::process::quiet;

/// A folder of settings, with that file for the client.
fn with_file(text: &str) -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join("switchboard")).unwrap();
    fs::write(folder.path().join("switchboard/config.yaml"), text).unwrap();
    folder
}

#[test]
fn the_file_names_the_proxy_of_a_name_and_its_credentials() {
    let (one, two) = (DemandingProxy::start("one", None), DemandingProxy::start("two", None));
    let folder = with_file(&format!(
        "proxies:\n- names: ['*.one.example']\n  proxy: http://{}\n  token_command: echo one\n- names: ['*']\n  proxy: \
         http://{}\n  token_file: token\n",
        one.address, two.address
    ));
    fs::write(folder.path().join("switchboard/token"), "two\n").unwrap();
    for (target, proxy) in [(["a.one.example", "22"], &one), (["fd00::1", "22"], &two)] {
        let mut command = switchboard(&[&["connect"], &target[..]].concat());
        command.env("XDG_CONFIG_HOME", folder.path());
        let (status, stdout, stderr) = ended(command);
        assert_eq!((status, stdout.as_str()), (0, "hello"), "{stderr}");
        assert_eq!(proxy.shown().len(), 1);
    }
    // A flag names another proxy: the credentials of the file are not for it.
    let mut command = switchboard(&[
        "connect",
        "--proxy",
        &format!("http://{}", two.address),
        "a.one.example:22",
    ]);
    command.env("XDG_CONFIG_HOME", folder.path());
    assert_eq!(ended(command).0, 1);
    assert_eq!(two.shown(), ["Bearer two", ""]);
}

#[test]
fn the_faults_of_the_file_are_told_at_once_with_their_places() {
    let folder = with_file("proxies:\n- names: [a]\n  proxy: ftp://u:s3cret@p\n  contxt: prod\n");
    let mut command = switchboard(&["connect", "a:22"]);
    command.env("XDG_CONFIG_HOME", folder.path());
    let (status, _, stderr) = ended(command);
    assert_eq!(status, 2, "{stderr}");
    assert!(
        stderr.contains("config.yaml:3:10: error: proxies[0].proxy: the proxy URL must begin with"),
        "{stderr}"
    );
    assert!(
        stderr.contains("config.yaml:4:3: error: proxies[0].contxt: unknown key; did you mean `context`?"),
        "{stderr}"
    );
    assert!(!stderr.contains("s3cret"), "{stderr}");
    let missing = missing();
    let (status, _, stderr) = ended(switchboard(&["connect", "--config", &missing, "a:22"]));
    assert!(
        status == 2 && stderr.contains(&format!("{missing}: error: cannot be read")),
        "{stderr}"
    );
}

/// `check --client` is the same in every build; that of the client alone has no other `check`, and takes it without the flag.
#[test]
fn check_tells_the_faults_of_the_clients_file_and_of_the_files_that_it_names() {
    let folder = with_file(
        "proxies:\n- names: [a]\n  proxy: https://p\n  ca: there.pem\n  token_file: absent\n- names: [b]\n  proxy: http://p\n",
    );
    fs::write(folder.path().join("switchboard/there.pem"), "").unwrap();
    let check = |arguments: &[&str]| {
        let mut command = quiet(ours());
        command.args(["check", "--client"]).args(arguments);
        command.env("XDG_CONFIG_HOME", folder.path());
        ended(command)
    };
    let file = folder.path().join("switchboard/config.yaml");
    let file = file.to_str().unwrap();
    let (status, stdout, stderr) = check(&[]);
    let fault = format!(
        "{file}:5:15: error: proxies[0].token_file: {} cannot be read: No such file or directory (os error 2)",
        folder.path().join("switchboard/absent").display()
    );
    assert_eq!((status, &*stdout, &*stderr), (2, "", &*fault));
    let token = folder.path().join("switchboard/absent");
    fs::write(&token, "token\n").unwrap();
    fs::set_permissions(&token, PermissionsExt::from_mode(0o644)).unwrap();
    let (status, _, stderr) = check(&[]);
    assert!(
        status == 0 && stderr.contains("5:15: warning: proxies[0].token_file: other users may read the file"),
        "{stderr}"
    );
    fs::set_permissions(&token, PermissionsExt::from_mode(0o600)).unwrap();
    for arguments in [&[][..], &[file]] {
        assert_eq!(check(arguments), (0, format!("{file}: ok"), String::new()));
    }
    // `connect` asks for no file there: without one it takes a flag or a variable.
    let missing = missing();
    let (status, _, stderr) = check(&[&missing]);
    assert!(
        status == 2 && stderr.starts_with(&format!("{missing}: error: cannot be read")),
        "{stderr}"
    );
}

/// Where a session ends with its connection, ssh has to find a dead one.
#[test]
fn a_block_has_keepalives_of_ssh_where_the_entry_of_a_name_switches_sessions_off() {
    let folder = with_file(
        "proxies:\n- {names: ['*.off'], proxy: 'https://p', resume: off}\n- {names: ['*.on'], proxy: 'https://p'}\n",
    );
    for (names, interval) in [
        (&["*.on"][..], "0"),
        (&["*.off"], "15"),
        (&["*.on", "!a.on"], "0"),
        (&["*.on", "*.off"], "15"),
    ] {
        let names = names.iter().flat_map(|name| ["--name", *name]);
        let mut command = switchboard(&[&["config"][..], &names.collect::<Vec<_>>()].concat());
        command.env("XDG_CONFIG_HOME", folder.path());
        let (status, stdout, stderr) = ended(command);
        let expected = format!("    ServerAliveInterval {interval}\n");
        assert!(status == 0 && (stdout + "\n").contains(&expected), "{stderr}");
    }
}

#[test]
fn a_file_that_others_may_write_is_not_read() {
    let folder = with_file("proxies:\n- names: ['*']\n  proxy: http://localhost:1\n  token_command: touch ran\n");
    let file = folder.path().join("switchboard/config.yaml");
    for (mode, reason) in [(0o666, "other users may write it"), (0o664, "its group may write it")] {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        // Root's group has the number of root: it is root.
        let is_own_group = rustix::process::getegid().as_raw() == rustix::process::geteuid().as_raw();
        let mut command = switchboard(&["connect", "a:22"]);
        command.env("XDG_CONFIG_HOME", folder.path()).current_dir(folder.path());
        let (status, _, stderr) = ended(command);
        if mode == 0o666 || !is_own_group {
            let expected = format!("config.yaml: error: is not read, as {reason}");
            assert!(status == 2 && stderr.contains(&expected), "{stderr}");
            assert!(!folder.path().join("ran").exists());
        } else {
            assert_eq!(status, 1, "{stderr}");
        }
    }
}

#[test]
fn a_file_without_an_entry_says_where_one_belongs() {
    for text in ["", "# proxies:\n", "{}\n"] {
        let folder = with_file(text);
        let mut command = switchboard(&["connect", "a:22"]);
        command.env("XDG_CONFIG_HOME", folder.path());
        let (status, _, stderr) = ended(command);
        assert!(
            status == 2 && stderr.contains("there is no proxy for the target: give --proxy URL"),
            "{text:?}: {stderr}"
        );
    }
}

#[test]
fn what_clap_would_misread_is_said_as_it_was_meant() {
    for (arguments, variables, expected) in [
        (
            &["connect", "--wait", "8s", "box:22"][..],
            &[][..],
            "--wait takes its duration after `=`: --wait=8s",
        ),
        (
            &["connect", "box:22"],
            &[("SWITCHBOARD_CLIENT_CONFIG", "")],
            "SWITCHBOARD_CLIENT_CONFIG in the environment is empty: unset it, or give it a value",
        ),
        (
            &["config", "--check", "box"],
            &[("SWITCHBOARD_CA", "")],
            "SWITCHBOARD_CA in the environment is empty",
        ),
    ] {
        let mut command = switchboard(arguments);
        command
            .env("SWITCHBOARD_PROXY", "http://localhost:1")
            .envs(variables.iter().copied());
        let (status, _, stderr) = ended(command);
        assert!(status == 2 && stderr.contains(expected), "{arguments:?}: {stderr}");
    }
}

#[test]
fn a_flag_goes_before_a_variable_and_a_variable_before_the_token_of_the_environment() {
    let proxy = DemandingProxy::start("right", None);
    let folder = TempDir::new().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (right, wrong) = (file("right", "right"), file("wrong", "wrong"));
    let connect = |flags: &[&str], variables: &[(&str, &str)]| {
        let mut command = switchboard(&[&["connect"], flags, &["a:22"]].concat());
        command.env("SWITCHBOARD_PROXY", format!("http://{}", proxy.address));
        command.envs(variables.iter().copied());
        ended(command)
    };
    for (flags, variables, status) in [
        (
            &["--token-file", &right][..],
            &[("SWITCHBOARD_TOKEN_FILE", wrong.as_str())][..],
            0,
        ),
        (
            &["--token-file", &right],
            &[("SWITCHBOARD_CONTEXT", "other"), ("SWITCHBOARD_TOKEN", "wrong")],
            0,
        ),
        (
            &[],
            &[
                ("SWITCHBOARD_TOKEN_COMMAND", "echo right"),
                ("SWITCHBOARD_TOKEN", "wrong"),
            ],
            0,
        ),
        (&[], &[("SWITCHBOARD_TOKEN", "right")], 0),
        (
            &[],
            &[("SWITCHBOARD_TOKEN_FILE", right.as_str()), ("SWITCHBOARD_CONTEXT", "x")],
            2,
        ),
        (&["--token-file", &right, "--token-command", "echo x"], &[], 2),
    ] {
        let (ended, _, stderr) = connect(flags, variables);
        assert_eq!(ended, status, "{flags:?} {variables:?}: {stderr}");
    }
}

#[test]
fn what_is_wrong_with_a_variable_is_said() {
    let proxy = DemandingProxy::start("", None);
    for (name, value, expected) in [
        (
            "SWITCHBOARD_CA",
            missing().as_str(),
            Some("SWITCHBOARD_CA is for an https:// proxy"),
        ),
        ("SWITCHBOARD_PROXY", "", Some("the proxy URL is empty")),
        ("https_proxy", "socks4://a", None),
        (
            "http_proxy",
            "socks4://u:s3cret@a",
            Some("http_proxy in the environment: a SOCKS proxy"),
        ),
    ] {
        let mut command = switchboard(&["connect", "a:22"]);
        command.env("SWITCHBOARD_PROXY", format!("http://{}", proxy.address));
        command.env(name, value);
        let (_, _, stderr) = ended(command);
        match expected {
            Some(expected) => assert!(stderr.contains(expected), "{name}: {stderr}"),
            None => assert!(!stderr.contains(name), "{name}: {stderr}"),
        }
        assert!(!stderr.contains("s3cret"), "{stderr}");
    }
}

/// A proxy of an office: it opens every tunnel, and counts them.
fn office() -> (SocketAddr, std::sync::mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, asked) = std::sync::mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, sender) = (stream.unwrap(), sender.clone());
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read == 1) {
                head.extend(byte);
            }
            let head = String::from_utf8(head).unwrap();
            let target = head.split(' ').nth(1).unwrap_or_default().to_owned();
            let Ok(to) = TcpStream::connect(&target) else { continue };
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
            sender.send(target).unwrap_or_default();
            for (mut from, mut to) in [(stream.try_clone().unwrap(), to.try_clone().unwrap()), (to, stream)] {
                thread::spawn(move || {
                    std::io::copy(&mut from, &mut to).unwrap_or_default();
                    to.shutdown(std::net::Shutdown::Write).unwrap_or_default();
                });
            }
        }
    });
    (address, asked)
}

#[test]
fn the_proxy_of_the_users_network_is_used_unless_it_is_switched_off_or_exempt() {
    let proxy = DemandingProxy::start("", None);
    let (office, asked) = office();
    for (flags, variables, is_used) in [
        (&[][..], &[][..], true),
        (&["--no-env-proxy"], &[], false),
        (&[], &[("NO_PROXY", "127.0.0.0/8")], false),
        (&[], &[("SWITCHBOARD_NO_ENV_PROXY", "1")], false),
    ] {
        let mut command = switchboard(
            &[
                &["connect", "--proxy", &format!("http://{}", proxy.address)],
                flags,
                &["a:22"],
            ]
            .concat(),
        );
        command
            .env("HTTP_PROXY", office.to_string())
            .envs(variables.iter().copied());
        // Without credentials: what the proxy answers came through.
        let (_, _, stderr) = ended(command);
        assert!(stderr.contains("a:22: the proxy answered 407"), "{stderr}");
        assert_eq!(
            asked.try_recv().ok(),
            is_used.then(|| proxy.address.to_string()),
            "{flags:?} {variables:?}"
        );
    }
}
