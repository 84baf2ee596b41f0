//! The credentials of `connect` by the real binary: real plugins as processes, signals, and ssh.

pub(crate) mod demanding_proxy;

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use tempfile::TempDir;

use self::demanding_proxy::DemandingProxy;
use crate::harness::process::{Process, ended, switchboard, switchboard_with_hangup};
use crate::harness::{DEADLINE, eventually, missing};
use crate::openssh::clients::{SWITCHBOARD, ours};
use crate::openssh::login::{HOST, Login};
use crate::openssh::process::Process as Guarded;

/// A user with a kubeconfig, whose plugin is a script.
struct User {
    home: TempDir,
}

impl User {
    /// `script` runs in the home, behind a line that counts it.
    fn with_plugin(script: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().display();
        fs::create_dir(home.path().join(".kube")).unwrap();
        fs::write(
            home.path().join("plugin"),
            format!("cd {folder} || exit\necho run >> runs\n{script}\n"),
        )
        .unwrap();
        let config = format!(
            "current-context: team\ncontexts: [{{name: team, context: {{cluster: east, user: alice}}}}]\nusers:\n\
             - name: alice\n  user: {{exec: {{apiVersion: {V1}, command: sh, args: [{folder}/plugin], interactiveMode: IfAvailable}}}}\n"
        );
        fs::write(home.path().join(".kube/config"), config).unwrap();
        Self { home }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn runs(&self) -> usize {
        let runs = fs::read_to_string(self.path("runs")).unwrap_or_default();
        runs.lines().count()
    }

    /// `connect` as this user, to a target of that proxy.
    fn connect(&self, proxy: &DemandingProxy, arguments: &[&str]) -> Command {
        self.settle(switchboard(&["connect"]), proxy, arguments)
    }

    fn settle(&self, mut command: Command, proxy: &DemandingProxy, arguments: &[&str]) -> Command {
        command
            .args(["--proxy", &format!("http://{}", proxy.address)])
            .args(arguments);
        command.arg("devbox:22").env("HOME", self.home.path());
        command.env_remove("KUBECONFIG");
        command
    }
}

/// The output of a plugin for that token.
fn prints(token: &str) -> String {
    format!(
        "printf '%s\\n' '{{\"kind\":\"ExecCredential\",\"apiVersion\":\"{V1}\",\"status\":{{\"token\":\"{token}\"}}}}'"
    )
}

const V1: &str = "client.authentication.k8s.io/v1";
const CONTEXT: &[&str] = &["--context", "team"];

#[test]
fn a_plugin_that_reads_stdin_takes_nothing_of_the_tunnels() {
    let user = User::with_plugin(&format!("cat > stolen; {}", prints("good")));
    let proxy = DemandingProxy::start("good", None);
    let mut command = user.connect(&proxy, CONTEXT);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"SSH-2.0-mine\r\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(fs::read(user.path("stolen")).unwrap(), b"");
    assert_eq!(proxy.received(), b"SSH-2.0-mine\r\n");
}

#[test]
fn a_signal_during_the_login_leaves_no_plugin() {
    let user = User::with_plugin("sleep 1000 & echo $! $$ > new; mv new ids; wait");
    let proxy = DemandingProxy::start("good", None);
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let command = user.settle(switchboard_with_hangup(&["connect"]), &proxy, CONTEXT);
        let mut process = Process::spawn(command);
        let ids = eventually("the plugin runs", || fs::read_to_string(user.path("ids")).ok());
        fs::remove_file(user.path("ids")).unwrap();
        process.signal(signal);
        assert_eq!(process.exit_status(), 1, "{signal:?}");
        for id in ids.split_whitespace() {
            eventually("it has ended", || has_ended(id).then_some(()));
        }
    }
    fs::write(user.path("plugin"), prints("good")).unwrap();
    let (status, stdout, _) = ended(user.connect(&proxy, CONTEXT));
    assert_eq!((status, stdout.as_str()), (0, "hello"));
}

/// Returns whether a process is gone, or waits for its parent only.
fn has_ended(id: &str) -> bool {
    let line = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    line.rsplit_once(") ")
        .is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
}

/// Neither in messages nor in the arguments or the environment of a plugin.
#[test]
fn the_token_is_nowhere_but_in_the_request() {
    let look =
        "tr '\\0' ' ' < /proc/$PPID/cmdline > arguments; tr '\\0' ' ' < /proc/$$/cmdline >> arguments; env > variables";
    let user = User::with_plugin(&format!("{look}; {}", prints("s3cret")));
    let proxy = DemandingProxy::start("another", None);
    let mut command = user.connect(&proxy, CONTEXT);
    command.env("SWITCHBOARD_TOKEN", "s3cret-of-the-environment");
    let (status, stdout, stderr) = ended(command);
    assert_eq!((status, stdout.as_str()), (1, ""));
    assert!(
        stderr.ends_with(": the proxy answered 407: the token is not this one") && stderr.lines().count() == 1,
        "{stderr}"
    );
    let seen = [user.path("arguments"), user.path("variables")].map(|path| fs::read_to_string(path).unwrap());
    assert!(seen[1].contains("KUBERNETES_EXEC_INFO="), "{seen:?}");
    assert!(!seen.concat().contains("s3cret"), "{seen:?}");
    // A flag goes before the environment.
    assert!(
        proxy.shown().iter().all(|field| field == "Bearer s3cret"),
        "{:?}",
        proxy.shown()
    );
    let mut command = user.connect(&proxy, &[]);
    command.env("SWITCHBOARD_TOKEN", "s3cret-of-the-environment");
    let (_, _, stderr) = ended(command);
    assert!(!stderr.contains("s3cret"), "{stderr}");
    assert_eq!(proxy.shown().last().unwrap(), "Bearer s3cret-of-the-environment");
}

#[test]
fn what_a_plugin_says_on_stderr_is_shown_and_what_it_prints_is_not() {
    let user = User::with_plugin("echo 'open https://login.example.com' >&2; echo s3cret; exit 4");
    let (status, _, stderr) = ended(user.connect(&DemandingProxy::start("good", None), CONTEXT));
    assert_eq!(status, 1);
    assert_eq!(
        stderr,
        "open https://login.example.com\nswitchboard: devbox:22: cannot log in to the proxy: the credential plugin sh: it ended with \
         exit status 4"
    );
}

#[test]
fn two_sources_are_a_usage_error_and_the_environment_is_none_of_them() {
    let user = User::with_plugin(&prints("good"));
    let proxy = DemandingProxy::start("good", None);
    for arguments in [
        &["--token-file", "x", "--token-command", "y"][..],
        &["--token-file", "x", "--kubeconfig", "y"],
        &["--token-command", "x", "--context", "y"],
    ] {
        let (status, _, stderr) = ended(user.connect(&proxy, arguments));
        assert_eq!(status, 2);
        assert!(stderr.contains("cannot be used with"), "{stderr}");
    }
    let mut command = switchboard(&["connect", "--token-file", "x", "devbox:22"]);
    command.env("SWITCHBOARD_PROXY", "https://bob:s3cret@127.0.0.1:1");
    let (status, _, stderr) = ended(command);
    assert!(
        status == 2 && stderr.contains("the proxy's URL has a user, and an option names other credentials"),
        "{stderr}"
    );
    assert!(!stderr.contains("s3cret"), "{stderr}");
    // A token as an argument is no option, and is not repeated.
    for arguments in [
        &["--token", "s3cret"][..],
        &["--token=s3cret"],
        &["--token-file=x", "--bearer=s3cret"],
    ] {
        let (status, _, stderr) = ended(user.connect(&proxy, arguments));
        assert!(status == 2 && !stderr.contains("s3cret"), "{stderr}");
    }
    let mut command = switchboard(&[
        "connect",
        "--proxy",
        &format!("http://bob:x@{}", proxy.address),
        "devbox:22",
    ]);
    command.env("SWITCHBOARD_TOKEN", "good");
    assert_eq!(ended(command).0, 1);
    assert_eq!(proxy.shown(), ["Basic Ym9iOng="]);
}

#[test]
fn kubeconfig_is_found_as_kubectl_finds_it() {
    let user = User::with_plugin(&prints("good"));
    let proxy = DemandingProxy::start("good", None);
    let other = user.path("other");
    fs::write(&other, "users: [{name: alice, user: {token: other}}]\n").unwrap();
    let config = user.path(".kube/config");
    for (list, shown) in [
        (
            format!("{}:{}:{}", config.display(), other.display(), missing()),
            "Bearer good",
        ),
        (format!(":{}:{}", other.display(), config.display()), "Bearer other"),
        (String::new(), "Bearer good"),
    ] {
        let mut command = user.connect(&proxy, CONTEXT);
        command.env("KUBECONFIG", list);
        ended(command);
        assert_eq!(proxy.shown().last().unwrap(), shown);
    }
}

/// The first token is refused: a real ssh does not notice.
#[test]
fn ssh_logs_in_through_a_proxy_that_demands_a_token() {
    let login = Login::through(&SWITCHBOARD);
    let user = User::with_plugin(&format!(
        "if test $(wc -l < runs) -gt 1; then {}; else {}; fi",
        prints("good"),
        prints("stale")
    ));
    let proxy = DemandingProxy::start("good", Some(login.sshd.address));
    let binary = ours();
    let line = format!("{binary} connect --proxy http://{} --context team %h:%p", proxy.address);
    for _ in 0..2 {
        let mut ssh = login.command_by(&line, "ssh");
        ssh.env("HOME", user.home.path()).env_remove("KUBECONFIG");
        let finished = login.run(ssh.args([HOST, "cat"]), b"through the proxy");
        assert_eq!(finished.stdout, "through the proxy");
    }
    assert_eq!(user.runs(), 3);
    assert_eq!(proxy.shown(), ["Bearer stale", "Bearer good", "Bearer good"]);
    // ssh that is killed in the middle of a login sends no signal: its ProxyCommand notices, and ends the plugin.
    fs::write(
        user.path("plugin"),
        format!(
            "cd {}; echo $$ > new; mv new ids; sleep 1000",
            user.home.path().display()
        ),
    )
    .unwrap();
    let mut ssh = login.command_by(&line, "ssh");
    ssh.env("HOME", user.home.path()).env_remove("KUBECONFIG");
    let mut ssh = Guarded::start(ssh.args([HOST, "true"]));
    let id = eventually("the plugin runs", || fs::read_to_string(user.path("ids")).ok());
    ssh.signal(Signal::KILL);
    eventually("the plugin has ended", || has_ended(id.trim()).then_some(()));
    ssh.wait(DEADLINE);
}
