//! Published host keys: a strict first login with the real ssh, keys that change, and publishers that lie.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::anchor::Anchor;
use crate::dial_in::DialledIn;
use crate::harness::authority::Authority;
use crate::harness::peer::Peer;
use crate::harness::ports::Ports;
use crate::harness::process::{self, Process, Server, Settings};
use crate::harness::{CONFIRMATION, eventually};
use crate::http2;
use crate::identities::LINE;
use crate::openssh::clients::ours;
use crate::openssh::login::PATIENCE;
use crate::openssh::process::{Finished, program, quiet, run};
use crate::openssh::sshd::Sshd;

mod files;

/// A user without any known host, a proxy, and an SSH server.
struct World {
    folder: TempDir,
    sshd: Sshd,
    authority: Authority,
    settings: Settings,
    server: Server,
}

impl World {
    /// Starts it with these settings.
    fn new(make: impl FnOnce(&Path, &Sshd) -> Parts) -> Self {
        let folder = tempfile::Builder::new().prefix("switchboard-").tempdir().unwrap();
        let (sshd, authority) = (Sshd::start(folder.path()), Authority::new());
        fs::create_dir(folder.path().join("home")).unwrap();
        fs::write(folder.path().join("users"), LINE).unwrap();
        let settings = Settings::new(&make(folder.path(), &sshd).text(&authority));
        let config = format!(
            "User {}\nIdentityFile {}\nIdentitiesOnly yes\nIdentityAgent none\nGlobalKnownHostsFile /dev/null\n\
             UserKnownHostsFile {}\nBatchMode yes\n",
            sshd.user,
            folder.path().join("client_key").display(),
            folder.path().join("own_known_hosts").display(),
        );
        fs::write(folder.path().join("config"), config).unwrap();
        Self {
            server: Server::with(&settings),
            folder,
            sshd,
            authority,
            settings,
        }
    }

    /// Starts one whose target has these keys in the configuration.
    fn of_files() -> Self {
        Self::new(files)
    }

    /// Starts one whose target is an anchor that listens, and tells the key of the server.
    fn of_listening_anchor(allowlist: &'static str) -> (Self, Anchor) {
        let mut anchor = None;
        let world = Self::new(|folder, sshd| {
            let key = folder.join("host_key.pub").display().to_string();
            let listening = anchor.insert(Anchor::start(sshd.address, &["--host-keys", &key]));
            Parts {
                target: format!("addresses: [\"{}\"]", listening.address()),
                allowlist,
                ..Parts::default()
            }
        });
        (world, anchor.unwrap())
    }

    /// Starts one whose target is served by anchors, each with one of these keys, that have registered.
    fn of_dialling_anchors(allowlist: &'static str, keys: &[&str]) -> (Self, Vec<DialledIn>) {
        let world = Self::new(|folder, _| Parts {
            target: "dials_in: {users: [alice]}".to_owned(),
            more: format!("access: {{users: {{file: {}}}}}\n", folder.join("users").display()),
            allowlist,
        });
        let url = format!("http://alice:correct@{}", world.server.public());
        let start = |key: &&str| {
            let path = world.path(key);
            if !path.exists() {
                make_key(&path);
            }
            let public = path.with_extension("pub").display().to_string();
            DialledIn::start_with(
                &url,
                &format!("{HOST}:22"),
                world.sshd.address,
                &["--host-keys", &public],
            )
        };
        let anchors: Vec<_> = keys.iter().map(start).collect();
        eventually("all register", || {
            let registered = "anchor_registrations_total{result=\"registered\"}";
            (world.server.scrape().value(registered) == anchors.len() as f64).then_some(())
        });
        (world, anchors)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn proxy(&self, scheme: &str) -> [String; 2] {
        let proxy = format!("{scheme}://localhost:{}", self.server.public().port());
        let ca = self.authority.ca().display().to_string();
        [format!("--proxy={proxy}"), format!("--ca={ca}")]
    }

    fn ours(&self, arguments: &[&str]) -> Command {
        let mut command = quiet(ours());
        command.args(arguments).env("HOME", self.path("home"));
        command
    }

    fn run(&self, mut command: Command) -> Finished {
        run(&mut command, b"", self.folder.path(), PATIENCE)
    }

    /// Installs the block, without a question to anybody.
    fn install(&self, arguments: &[&str]) {
        let (config, [proxy, ca]) = (self.path("config"), self.proxy("https"));
        let config = config.to_str().unwrap();
        let write = ["config", &proxy, &ca, "--name", HOST, "--write", config];
        self.run(self.ours(&[&write, arguments].concat())).succeeded();
    }

    fn log_in(&self) -> Finished {
        let mut ssh = quiet(program("ssh", "openssh-client"));
        ssh.arg("-F").arg(self.path("config")).args([HOST, "echo logged in"]);
        ssh.env("HOME", self.path("home"));
        self.run(ssh)
    }

    #[track_caller]
    fn logs_in(&self) -> Finished {
        let finished = self.log_in();
        assert_eq!(finished.stdout, "logged in\n", "{finished}\n{}", self.sshd.log());
        finished
    }

    #[track_caller]
    fn is_refused(&self, why: &str) {
        let finished = self.log_in();
        assert_eq!(finished.status.code(), Some(255), "{finished}");
        assert!(finished.stderr.contains(why), "{finished}");
    }

    /// Runs `connect` where the program ssh is this script, up to the identification of the server.
    fn connect_with_ssh(&self, script: &str) {
        let program = self.path("ssh");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let path = format!("{}:{}", self.path("").display(), std::env::var("PATH").unwrap());
        let [proxy, ca] = self.proxy("https");
        let mut connect = self.ours(&["connect", &proxy, &ca, &format!("{HOST}:22")]);
        connect.env("PATH", path);
        let ended = run(&mut connect, b"SSH-2.0-x\r\n", self.folder.path(), PATIENCE);
        assert!(ended.stdout.starts_with("SSH-2.0-"), "{ended}");
    }

    fn published(&self) -> String {
        fs::read_to_string(self.path("home/.ssh/switchboard_known_hosts")).unwrap_or_default()
    }
}

/// The settings of a proxy with one target.
#[derive(Default)]
struct Parts {
    /// The keys of the target beside its name.
    target: String,
    /// Further lines.
    more: String,
    /// Further lines of `allowlist`.
    allowlist: &'static str,
}

impl Parts {
    fn text(&self, authority: &Authority) -> String {
        let Self {
            target,
            more,
            allowlist,
        } = self;
        format!(
            "listen: {{address: \"127.0.0.1:0\", tls: optional}}\ntls: {{certificates: [{}]}}\n{more}allowlist:\n{allowlist}  \
             static:\n    - {{name: \"{HOST}:22\", {target}}}\n",
            authority.server("server", &["localhost"]).setting()
        )
    }
}

/// A target with the key of the SSH server in that folder.
fn files(folder: &Path, sshd: &Sshd) -> Parts {
    with_key(sshd, &folder.join("host_key.pub"))
}

fn with_key(sshd: &Sshd, key: &Path) -> Parts {
    let target = format!("addresses: [\"{}\"], host_keys: [\"{}\"]", sshd.address, key.display());
    Parts {
        target,
        ..Parts::default()
    }
}

/// Makes another key, and returns its fingerprint.
fn make_key(path: &Path) -> String {
    let mut keygen = quiet(program("ssh-keygen", "openssh-client"));
    keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path);
    let folder = path.parent().unwrap();
    run(&mut keygen, b"", folder, PATIENCE).succeeded();
    fingerprint(&path.with_extension("pub"))
}

fn fingerprint(path: &Path) -> String {
    let mut keygen = quiet(program("ssh-keygen", "openssh-client"));
    keygen.arg("-lf").arg(path);
    let shown = run(&mut keygen, b"", path.parent().unwrap(), PATIENCE).succeeded();
    shown.stdout.split(' ').nth(1).unwrap().to_owned()
}

#[test]
fn a_first_strict_login_needs_no_question_and_the_one_after_new_keys_says_so() {
    let world = World::of_files();
    world.install(&["--strict"]);
    let first = world.logs_in();
    assert!(!first.stderr.contains("switchboard"), "{first}");
    let key = fs::read_to_string(world.path("host_key.pub")).unwrap();
    let key = key.rsplit_once(' ').unwrap().0;
    assert_eq!(world.published(), format!("{HOST} {key} switchboard:config\n"));
    let mode = fs::metadata(world.path("home/.ssh/switchboard_known_hosts"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(!world.path("own_known_hosts").exists());
    // The container is made again: another SSH server with other keys has its name.
    let again = world.path("again");
    fs::create_dir(&again).unwrap();
    let sshd = Sshd::start(&again);
    fs::copy(world.path("client_key.pub"), again.join("client_key.pub")).unwrap();
    world.settings.change(&files(&again, &sshd).text(&world.authority));
    world.server.process.signal(Signal::HUP);
    let [old, new] = [world.path("host_key.pub"), again.join("host_key.pub")].map(|path| fingerprint(&path));
    // A login during the reload may get the key of one server and reach the other.
    let second = eventually("the new keys are published", || {
        let login = world.log_in();
        login.stderr.contains(&new).then_some(login)
    });
    assert_eq!(second.stdout, "logged in\n", "{second}");
    let line = format!(
        "switchboard: the host key of {HOST} has changed from {old} to {new} (ssh-ed25519), as the configuration of the proxy \
         says\n"
    );
    assert!(second.stderr.contains(&line), "{second}");
    assert!(!world.logs_in().stderr.contains("changed"));
}

#[test]
fn a_file_that_is_replaced_is_read_again_and_one_that_is_damaged_changes_nothing() {
    let mut world = World::of_files();
    let key = world.path("host_key.pub");
    let good = fs::read_to_string(&key).unwrap();
    fs::write(&key, &good[..60]).unwrap();
    world.server.process.stderr.find("host_key.pub: the key is damaged");
    world.install(&["--strict"]);
    world.logs_in();
    make_key(&world.path("other"));
    fs::rename(world.path("other.pub"), &key).unwrap();
    world.server.process.stderr.find("have changed");
    world.is_refused("Host key verification failed");
}

/// Somebody between the proxy and the pod, or a key that nobody has published.
#[test]
fn another_key_than_the_published_one_is_refused_by_ssh() {
    let world = World::new(|folder, sshd| {
        make_key(&folder.join("other"));
        with_key(sshd, &folder.join("other.pub"))
    });
    for arguments in [&["--strict"][..], &[]] {
        world.install(arguments);
        world.is_refused("Host key verification failed");
    }
}

#[test]
fn nothing_is_known_without_a_publisher() {
    let world = World::new(|_, sshd| Parts {
        target: format!("addresses: [\"{}\"]", sshd.address),
        ..Parts::default()
    });
    world.install(&["--strict"]);
    world.is_refused("Host key verification failed");
    assert_eq!(world.published(), "");
    let [proxy, ca] = world.proxy("https");
    let none = world.run(world.ours(&["known-hosts", &proxy, &ca, HOST]));
    assert_eq!(none.status.code(), Some(1), "{none}");
    assert_eq!(none.stderr, format!("switchboard: {HOST}: no host key is published\n"));
}

#[test]
fn a_check_and_known_hosts_show_what_is_published() {
    let world = World::of_files();
    let [proxy, ca] = world.proxy("https");
    let key = fs::read_to_string(world.path("host_key.pub")).unwrap();
    let key = key.rsplit_once(' ').unwrap().0;
    let shown = world.run(world.ours(&["known-hosts", &proxy, &ca, HOST])).succeeded();
    assert_eq!(shown.stdout, format!("{HOST} {key}\n"));
    let checked = world
        .run(world.ours(&["config", "--check", HOST, &proxy, &ca]))
        .succeeded();
    let print = fingerprint(&world.path("host_key.pub"));
    let line = format!("ok     host key  ssh-ed25519 {print}, as the configuration of the proxy says");
    assert!(checked.stdout.contains(&line), "{checked}");
    assert_eq!(world.published(), "", "neither of them writes");
}

#[test]
fn a_client_that_does_not_ask_sees_no_keys_and_one_that_asks_does_over_both_versions() {
    let world = World::of_files();
    let key = fs::read_to_string(world.path("host_key.pub")).unwrap();
    let value = format!("(:{}:);from=config", key.split(' ').nth(1).unwrap());
    let head = |fields: &str| {
        let mut client = Peer::connect(world.server.public());
        client.send(format!("CONNECT {HOST}:22 HTTP/1.1\r\nHost: {HOST}:22\r\n{fields}\r\n"));
        client
    };
    head("").expect(CONFIRMATION);
    head("Switchboard-Host-Keys: ?0\r\n").expect(CONFIRMATION);
    head("Switchboard-Host-Keys: ?1\r\n").expect(format!(
        "HTTP/1.1 200 Connection established\r\nSwitchboard-Host-Keys: {value}\r\n\r\n"
    ));
    let mut peer = http2::peer::Peer::connect(world.server.public());
    peer.ask_with(
        1,
        &[
            (":method", "CONNECT"),
            (":authority", &format!("{HOST}:22")),
            ("switchboard-host-keys", "?1"),
        ],
    );
    assert_eq!(peer.expect_status(1, "200")["switchboard-host-keys"], value);
    peer.open(3, &format!("{HOST}:22"));
}

const WITHOUT_ANCHORS: &str = "  host_keys: [config, annotation]\n";

fn publishes_unless_forbidden(world: &World, allowlist: &str) {
    world.install(&["--strict"]);
    if allowlist.is_empty() {
        world.logs_in();
        assert!(world.published().ends_with(" switchboard:anchor\n"));
    } else {
        world.is_refused("Host key verification failed");
        assert_eq!(world.published(), "");
    }
}

#[test]
fn an_anchor_that_listens_publishes_the_keys_of_its_server_unless_the_operator_forbids_it() {
    for allowlist in ["", WITHOUT_ANCHORS] {
        let (world, _anchor) = World::of_listening_anchor(allowlist);
        publishes_unless_forbidden(&world, allowlist);
    }
}

#[test]
fn an_anchor_that_dials_in_publishes_the_keys_of_its_server_unless_the_operator_forbids_it() {
    for allowlist in ["", WITHOUT_ANCHORS] {
        let (world, _anchors) = World::of_dialling_anchors(allowlist, &["host_key"]);
        publishes_unless_forbidden(&world, allowlist);
    }
}

#[test]
fn a_file_that_cannot_be_written_is_one_warning_and_the_login_goes_on() {
    let world = World::of_files();
    world.install(&[]);
    let key = fs::read_to_string(world.path("host_key.pub")).unwrap();
    fs::write(world.path("own_known_hosts"), format!("{HOST} {key}")).unwrap();
    let home = world.path("home/.ssh");
    fs::create_dir_all(&home).unwrap();
    let ssh = program("ssh", "openssh-client").display().to_string();
    for (what, prepare) in [
        (
            "No space left on device",
            "mount -t tmpfs -o size=4k x {} && ! head -c 9999 /dev/zero >{}/all 2>/dev/null",
        ),
        ("Read-only file system", "mount -t tmpfs -o ro x {}"),
    ] {
        let script = prepare.replace("{}", home.to_str().unwrap()) + " && exec \"$@\"";
        let mut command = quiet(program("unshare", "util-linux"));
        command.args([
            "--user",
            "--map-root-user",
            "--mount",
            "sh",
            "-c",
            &script,
            "sh",
            &ssh,
            "-F",
        ]);
        command.arg(world.path("config")).args([HOST, "echo logged in"]);
        command.env("HOME", world.path("home"));
        let finished = world.run(command);
        assert_eq!(finished.stdout, "logged in\n", "{finished}");
        let warnings: Vec<_> = finished
            .stderr
            .lines()
            .filter(|line| line.starts_with("switchboard: "))
            .collect();
        assert_eq!(warnings.len(), 1, "{finished}");
        assert!(
            warnings[0].contains("the published host keys are not written: ") && warnings[0].contains(what),
            "{finished}"
        );
    }
}

const HOST: &str = "devbox.team-a.svc.cluster.local";

#[test]
fn the_keys_of_all_anchors_of_a_target_are_published_together() {
    let (world, _anchors) = World::of_dialling_anchors("", &["host_key", "other"]);
    let [proxy, ca] = world.proxy("https");
    let shown = world.run(world.ours(&["known-hosts", &proxy, &ca, HOST])).succeeded();
    let mut shown: Vec<_> = shown.stdout.lines().collect();
    shown.sort_unstable();
    let mut expected = ["host_key.pub", "other.pub"].map(|key| {
        let text = fs::read_to_string(world.path(key)).unwrap();
        format!(
            "{HOST} {}",
            text.split(' ').take(2).collect::<Vec<_>>().join(" ").trim()
        )
    });
    expected.sort_unstable();
    assert_eq!(shown, expected);
}

/// A program that connects again and again, such as one that looks whether a host is up.
#[test]
fn the_warnings_of_many_connections_to_a_port_are_bounded() {
    let world = World::of_files();
    fs::write(world.path("file"), "").unwrap();
    let [proxy, ca] = world.proxy("https");
    let known_hosts = format!("--known-hosts={}", world.path("file/below").display());
    let mut process = Process::spawn(world.ours(&["forward", &proxy, &ca, &known_hosts, HOST]));
    let line = process.stdout.next().unwrap();
    let port = line.split(' ').nth(2).unwrap().parse().unwrap();
    for _ in 0..30 {
        let mut client = Peer::connect(port);
        client.send("SSH-2.0-x\r\n");
        client.read_past("SSH-2.0-");
    }
    process.signal(Signal::TERM);
    let lines = process.stderr.rest();
    let warned = lines
        .iter()
        .filter(|line| line.contains("the published host keys are not written"));
    assert_eq!(warned.count(), 20, "{lines:#?}");
}

#[test]
fn an_anchor_that_listens_names_the_key_that_fits_into_no_line() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("rsa");
    let mut keygen = quiet(program("ssh-keygen", "openssh-client"));
    keygen.args(["-q", "-t", "rsa", "-b", "2048", "-N", "", "-f"]).arg(&key);
    run(&mut keygen, b"", folder.path(), PATIENCE).succeeded();
    let public = key.with_extension("pub");
    let arguments = [
        "anchor",
        "--listen=127.0.0.1:0",
        "--to=127.0.0.1:22",
        "--host-keys",
        public.to_str().unwrap(),
    ];
    let mut anchor = Process::spawn(process::anchor(&arguments));
    let line = anchor.stderr.find("a host key is not published at the port");
    assert!(
        line.contains(&format!("ssh-rsa {} does not fit into a line", fingerprint(&public))),
        "{line}"
    );
}

#[test]
fn keys_that_are_not_authenticated_are_not_added_where_a_file_of_the_users_own_has_one() {
    let (world, _anchor) = World::of_listening_anchor("");
    world.install(&[]);
    make_key(&world.path("other"));
    let other = fs::read_to_string(world.path("other.pub")).unwrap();
    let own = world.path("own_known_hosts");
    fs::write(&own, format!("{HOST} {other}")).unwrap();
    // As ssh says for a user whose configuration names that file: the test's own is not where ssh looks for it.
    world.connect_with_ssh(&format!("echo 'userknownhostsfile {}'", own.display()));
    assert_eq!(world.published(), "");
}

/// Such as by a `Match exec` of the user's configuration.
#[test]
fn an_ssh_that_does_not_say_its_files_is_stopped_and_the_login_goes_on_without_keys() {
    let (world, _anchor) = World::of_listening_anchor("");
    let pid = world.path("pid");
    world.connect_with_ssh(&format!("echo $$ >{}; exec sleep 1000", pid.display()));
    assert_eq!(world.published(), "");
    // Nor was it asked under the lock of the folder, which is made with the lock.
    assert!(!world.path("home/.ssh").exists());
    let process = Path::new("/proc").join(fs::read_to_string(pid).unwrap().trim());
    let command = fs::read_to_string(process.join("cmdline")).unwrap_or_default();
    assert_eq!(command, "", "ssh has been stopped");
}
