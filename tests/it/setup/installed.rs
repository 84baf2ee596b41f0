//! Blocks that are installed: short names, ports of this host, and a check of what ssh uses.

use super::*;

use crate::forward::Forward;
use crate::harness::process::Process;

impl Setup {
    /// Runs our program where ssh reads the settings of this set-up, and returns the exit status and all that was printed.
    fn with_own_ssh(&self, arguments: &[&str]) -> (i32, String) {
        let folder = self.login.path("bin");
        fs::create_dir_all(&folder).unwrap();
        let ssh = folder.join("ssh");
        let real = program("ssh", "openssh-client").display().to_string();
        fs::write(&ssh, format!("#!/bin/sh\nexec {real} -F {} \"$@\"\n", self.config())).unwrap();
        fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = quiet(ours());
        let search = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
        command.args(arguments).env("PATH", search);
        let mut process = Process::spawn(command);
        let lines = [process.stdout.rest(), process.stderr.rest()].concat();
        (process.exit_status(), lines.join("\n"))
    }
}

#[test]
fn a_short_name_is_one_that_ssh_logs_in_to_and_a_check_uses_the_block() {
    let setup = Setup::new();
    let config = setup.config();
    let (url, alias) = (setup.url("http"), format!("box={HOST}"));
    let (status, said) = setup.with_own_ssh(&["config", "--check", "box"]);
    assert!(
        status == 2 && said.contains("there is no proxy for the target"),
        "{said}"
    );
    // A path with a space and quotation marks, as ssh and the check have to read it.
    let token = setup.login.write("a \"token\" of 100%", b"x\n").display().to_string();
    let write = [
        "--proxy",
        &url,
        "--token-file",
        &token,
        "--alias",
        &alias,
        "--write",
        &config,
    ];
    setup.by(
        Path::new(&ours()),
        &[&write[..], &["--alias", "other=devbox.team-a"]].concat(),
    );
    let known = setup.settings("box");
    assert!(known.contains(&format!("\nhostname {HOST}\n")), "{known}");
    assert!(setup.settings("other").contains("\nhostname devbox.team-a\n"));
    let mut ssh = setup.ssh();
    assert_eq!(
        setup.login.run(ssh.args(["box", "cat"]), b"by box\n").stdout,
        "by box\n"
    );
    for name in ["box", HOST, &format!("{HOST}:{PORT}")] {
        let (status, said) = setup.with_own_ssh(&["config", "--check", name]);
        assert_eq!(status, 0, "{said}");
        assert!(said.contains(&format!("opens a tunnel to {HOST}:{PORT}")), "{said}");
        assert!(
            said.contains(&format!("switchboard: as ssh connects to {name}, by {}", ours())),
            "{said}"
        );
    }
    // A flag goes before the block's.
    let (status, said) = setup.with_own_ssh(&["config", "--check", "box", "--token-file", &missing()]);
    assert!(
        status == 1 && said.contains("FAILS  settings  cannot log in to the proxy: cannot read the token in"),
        "{said}"
    );
    let (status, said) = setup.with_own_ssh(&["config", "--check", "box", "--proxy", &url]);
    assert!(
        status == 1 && said.contains("403: the target is not on the allowlist"),
        "{said}"
    );
    // The block has the aliases of the last --write.
    setup.by(Path::new(&ours()), &["--proxy", &url, "--write", &config]);
    assert!(setup.settings("box").contains("\nhostname box\n"));
    setup.by(Path::new(&ours()), &["--remove", "--write", &config]);
    assert_eq!(fs::read_to_string(&config).unwrap(), setup.own);
}

/// The recipe of docs/clients.md for a `Host box` of the user's own.
#[test]
fn a_host_line_of_the_users_own_reaches_the_proxy_by_a_match_after_it() {
    let setup = Setup::new();
    let matched = format!(
        "Host box\n    HostName {HOST}\n{}\nMatch host *.svc.cluster.local\n    ProxyCommand {}\n",
        setup.own,
        SWITCHBOARD.command(setup.login.proxy.address)
    );
    fs::write(setup.config(), matched).unwrap();
    let mut ssh = setup.ssh();
    assert_eq!(
        setup.login.run(ssh.args(["box", "cat"]), b"by box\n").stdout,
        "by box\n"
    );
    setup.logs_in();
}

#[test]
fn a_wildcard_is_no_alias() {
    for alias in ["box", "*=a", "b=*.a", "a b=c", "=a", "a="] {
        let mut command = switchboard(&["config", "--proxy", "https://p", "--alias", alias]);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{alias}");
    }
}

#[test]
fn a_port_of_this_host_has_a_block_with_the_targets_own_host_key() {
    let setup = Setup::new();
    let (config, target) = (setup.config(), format!("{HOST}:{PORT}"));
    let write = format!("--write={config}");
    let proxy = setup.login.proxy.address;
    let mut ports = Vec::new();
    for _ in 0..2 {
        let forward = Forward::start(proxy, &[&write, &target]);
        let mut ssh = setup.ssh();
        let name = format!("{HOST}-{PORT}-local");
        let said = setup.login.run(ssh.args([&name, "cat"]), b"by a port\n");
        assert_eq!(said.stdout, "by a port\n", "{said}");
        let settings = setup.settings(&name);
        for line in [
            "hostname 127.0.0.1".to_owned(),
            format!("port {}", forward.ports[0].port()),
            format!("hostkeyalias [{HOST}]:{PORT}"),
            "serveraliveinterval 0".to_owned(),
        ] {
            assert!(settings.lines().any(|found| found == line), "{line}: {settings}");
        }
        ports.push(forward);
    }
    let (status, said) = setup.with_own_ssh(&["forward", "--remove", &write, &target]);
    assert!(status == 0 && said.contains("switchboard: changed "), "{said}");
    assert_eq!(fs::read_to_string(&config).unwrap(), setup.own);
}
