//! One table of kubeconfigs, valid, odd and broken, through `connect`, `check`, `tunnels`, `targets` and `serve`.
//!
//! The verdict beside each is that of `kubectl get --raw /version` of kubectl 1.32.4, which was run with each of them, against
//! a server as this one.

mod api;

use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tempfile::TempDir;

use self::api::{Api, ForwardProxy};
use crate::credentials::demanding_proxy::DemandingProxy;
use crate::harness::eventually;
use crate::harness::process::{Process, Settings, switchboard};
use crate::programs::terminal::Terminal;

/// The end of one program.
#[derive(Clone, Copy, Debug)]
enum End {
    /// The server or the proxy sees this field, after `Authorization: ` or `Proxy-Authorization: `.
    Sent(&'static str),
    /// The program says this.
    Says(&'static str),
}

use End::{Says, Sent};

/// Returns whether `check` says it, too. It runs no plugin and asks no server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    Agrees,
    Accepts,
}

use Check::{Accepts, Agrees};

struct Row {
    cluster: &'static str,
    user: &'static str,
    /// What kubectl does.
    kubectl: &'static str,
    connect: End,
    /// The end of `tunnels`, `targets` and `serve`.
    others: End,
    check: Check,
}

impl Row {
    /// Runs a program to its end, which is no panic.
    fn ended(&self, mut command: Command) -> (Option<i32>, String) {
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!said.contains("panicked"), "{self}: {said}");
        (output.status.code(), said)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} (kubectl: {})", self.cluster, self.user, self.kubectl)
    }
}

const fn row(
    (cluster, user): (&'static str, &'static str),
    kubectl: &'static str,
    (connect, others): (End, End),
    check: Check,
) -> Row {
    Row {
        cluster,
        user,
        kubectl,
        connect,
        others,
        check,
    }
}

/// The same end of all programs.
const fn both(end: End) -> (End, End) {
    (end, end)
}

/// Rows that keep their lines.
macro_rules! rows {
    ($($row:expr;)+) => { &[$($row),+] };
}

const TOKEN: &str = "{token: abc}";
const SECURE: &str = "{server: 'https://HTTPS', certificate-authority: ca.pem}";
const ABC: End = Sent("Bearer abc");
const NOBODY: End = Sent("");

/// A cluster that the other three programs refuse, of which `connect` needs nothing.
const fn refused(cluster: &'static str, kubectl: &'static str, said: &'static str) -> Row {
    row((cluster, TOKEN), kubectl, (ABC, Says(said)), Agrees)
}

/// A cluster without TLS, to which no secret is sent.
const fn in_clear(cluster: &'static str) -> Row {
    row((cluster, TOKEN), "works, as nobody", (ABC, NOBODY), Agrees)
}

const fn works(cluster: &'static str) -> Row {
    row((cluster, TOKEN), "works", (ABC, ABC), Agrees)
}

/// The words in capitals are replaced by addresses, files and certificates.
const USERS: &[Row] = rows! {
    row((SECURE, TOKEN), "works", both(ABC), Agrees);
    // kubectl does not trim it, and net/http refuses the field.
    row((SECURE, "{token: \"abc\\n\"}"), "refused: header", both(ABC), Agrees);
    row((SECURE, "{token: \"a:b_c\"}"), "works", both(Sent("Bearer a:b_c")), Agrees);
    row((SECURE, "{token: \"a\\u0001b\"}"), "refused: header", both(Says("cannot be sent")), Agrees);
    row((SECURE, "{tokenFile: token}"), "works, trimmed", both(ABC), Agrees);
    row((SECURE, "{tokenFile: token, token: other}"), "works, the file's", both(ABC), Agrees);
    row((SECURE, "{tokenFile: absent, token: abc}"), "works, the other", both(ABC), Agrees);
    row((SECURE, "{tokenFile: absent}"), "refused: no such file", both(Says("No such file")), Agrees);
    row((SECURE, "{tokenFile: empty}"), "asks for a username", both(Says("it is empty")), Agrees);
    row((SECURE, "{username: bob, password: x}"), "works", both(Sent("Basic Ym9iOng=")), Agrees);
    row((SECURE, "{token: abc, username: bob}"), "refused: more than one authentication method",
        both(Says("a token and a username")), Agrees);
    row((SECURE, "{}"), "asks for a username", (Says("has no credentials"), NOBODY), Agrees);
    row((SECURE, "{auth-provider: {name: gcp}}"), "refused: no Auth Provider", both(Says("auth-provider")), Agrees);
    row((SECURE, PLUGIN), "works", both(ABC), Agrees);
    row((SECURE, LINE_END_PLUGIN), "refused: header", both(ABC), Agrees);
    row((SECURE, "{exec: {apiVersion: VERSION, command: no-such-plugin, installHint: 'get it at example.com', interactiveMode: Never}}"),
        "refused, with the hint", both(Says("no-such-plugin: get it at example.com")), Agrees);
    row((SECURE, "{exec: {command: sh, interactiveMode: Never}}"), "refused: apiVersion must be specified",
        both(Says("has apiVersion")), Agrees);
    row((SECURE, "{exec: {apiVersion: VERSION, command: sh, interactiveMode: Always}}"), "refused without a terminal",
        (Says("stdin belongs to ssh"), Says("(interactiveMode: Always), and standard input is none")), Agrees);
    row((SECURE, "{exec: {apiVersion: VERSION, command: sh}}"), "refused: interactiveMode must be specified",
        both(Says("no valid interactiveMode")), Agrees);
    row((SECURE, "{client-certificate-data: CERT64, client-key-data: KEY64, exec: {apiVersion: VERSION, command: 'false'}}"),
        "works, without the plugin", (Says("only an https:// proxy"), NOBODY), Agrees);
    row((SECURE, "{client-certificate-data: CERT64, client-certificate: ca.pem, client-key-data: KEY64}"),
        "refused: both specified", both(Says("both client-certificate and")), Agrees);
    row((SECURE, "{exec: {apiVersion: VERSION, command: 'false', interactiveMode: Never}}"), "refused: exit code 1",
        both(Says("ended with exit status 1")), Accepts);
    row((SECURE, "{client-certificate-data: CERT64}"), "refused: client-key must be specified",
        both(Says("without its key")), Agrees);
    row((SECURE, "{token: abc, as: eve, as-groups: [a, b]}"), "works, impersonates",
        (ABC, Sent("Bearer abc as eve a b")), Agrees);
    row((SECURE, "{token: abc, as-groups: [a]}"), "refused: without impersonating a user", (ABC, Says("without `as`")),
        Agrees);
    row((SECURE, "{token: abc, as: \"e\\nve\"}"), "refused: header", (ABC, Says("`as` cannot be sent")), Agrees);
};

const CLUSTERS: &[Row] = rows! {
    in_clear("{server: 'HTTP'}");
    in_clear("{server: 'HTTP', certificate-authority-data: CA64}");
    in_clear("{server: 'http://HTTP'}");
    row(("{server: 'http://HTTP'}", "{as: eve, exec: {command: 'false'}}"), "works, impersonates, without the plugin",
        (Says("has apiVersion"), Sent(" as eve ")), Agrees);
    row(("{server: 'https://bob:x@HTTPS', certificate-authority: ca.pem}", TOKEN), "works, with the password",
        (ABC, Sent("Basic Ym9iOng=")), Agrees);
    works("{server: 'https://HTTPS/k8s/clusters/c-1/', certificate-authority: ca.pem}");
    works("{server: 'https://HTTPS', certificate-authority-data: CA64}");
    works("{server: 'https://HTTPS', certificate-authority-data: LINES64}");
    works("{server: 'https://HTTPS', certificate-authority: ca.pem}");
    works("{server: 'https://HTTPS', insecure-skip-tls-verify: true}");
    works("{server: 'https://HTTPS', certificate-authority: ca.pem, tls-server-name: localhost}");
    row(("{server: 'https://HTTPS', certificate-authority: ca.pem}", "{client-certificate-data: CERT64, client-key-data: KEY64}"),
        "works", (Says("only an https:// proxy"), NOBODY), Agrees);
    refused("{}", "asks localhost:8080", "it has no server");
    refused("{server: 'http://[::'}", "refused: host must be a URL", "its server is not a URL");
    refused("{server: 'ftp://HTTP'}", "refused: unsupported protocol scheme", "its server is not a URL");
    refused("{server: 'HTTP/path'}", "refused: host must be a URL or a host:port pair", "its server is not a URL");
    refused("{server: 'https://HTTPS', certificate-authority-data: '!!'}", "refused: illegal base64",
        "certificate-authority-data of the kubeconfig is not base64");
    refused("{server: 'https://HTTPS', certificate-authority-data: aGVsbG8=}",
        "refused: unable to load root certificates", "there is no certificate in it");
    refused("{server: 'https://HTTPS', certificate-authority: absent}", "refused: no such file", "No such file");
    refused("{server: 'https://HTTPS', certificate-authority-data: CA64, certificate-authority: ca.pem}",
        "refused: both specified", "both certificate-authority and");
    refused("{server: 'https://HTTPS', certificate-authority: ca.pem, insecure-skip-tls-verify: true}",
        "refused: not allowed with the insecure flag", "remove one of them");
    row(("{server: 'https://HTTPS'}", TOKEN), "refused: unknown authority",
        (ABC, Says("which this machine does not trust")), Accepts);
    row(("{server: 'https://HTTPS', certificate-authority: ca.pem, tls-server-name: other}", TOKEN),
        "refused: not valid for the name", (ABC, Says("(tls-server-name in the kubeconfig sets")), Accepts);
};

const WAYS: &[Row] = rows! {
    row(("{server: 'http://HTTP', proxy-url: 'http://PROXY'}", TOKEN), "works, by a GET to the proxy, as nobody",
        (ABC, NOBODY), Agrees);
    row(("{server: 'https://HTTPS', certificate-authority: ca.pem, proxy-url: 'http://PROXY'}", TOKEN),
        "works, through the proxy", both(ABC), Agrees);
    row(("{server: 'https://HTTPS', certificate-authority: ca.pem, proxy-url: 'socks5://PROXY'}", TOKEN),
        "works, through the proxy", both(ABC), Agrees);
    refused("{server: 'http://HTTP', proxy-url: 'ftp://PROXY'}", "refused: unsupported scheme", "its proxy-url");
    refused("{server: 'http://HTTP', proxy-url: 'PROXY'}", "refused: unsupported scheme", "its proxy-url");
    row(("{server: 'http://HTTP', proxy-url: 'http://CLOSED'}", TOKEN), "refused: connection refused",
        (ABC, Says("of the kubeconfig's proxy-url is not reached: cannot connect to ")), Accepts);
};

const PLUGIN: &str = "{exec: {apiVersion: VERSION, command: ./plugin, args: [abc], interactiveMode: Never}}";
const LINE_END_PLUGIN: &str =
    "{exec: {apiVersion: VERSION, command: ./plugin, args: ['abc\\n'], interactiveMode: Never}}";
const VERSION: &str = "client.authentication.k8s.io/v1";

/// A folder with the files that rows name, and an API server.
struct World {
    folder: TempDir,
    api: Api,
    proxy: ForwardProxy,
}

impl World {
    fn new() -> Self {
        let (folder, api) = (TempDir::new().unwrap(), Api::start());
        let world = Self {
            folder,
            api,
            proxy: ForwardProxy::start(),
        };
        world.write("ca.pem", &world.api.certificate);
        world.write("stranger.pem", &api::self_signed("stranger").0);
        world.write("token", "abc\n");
        world.write("empty", "");
        world.program_file(
            "plugin",
            &format!(
                "printf '{{\"apiVersion\":\"{VERSION}\",\"kind\":\"ExecCredential\",\"status\":{{\"token\":\"%s\"}}}}' \"$1\"\n"
            ),
        );
        world
    }

    /// Writes a program of the shell, which runs in the folder.
    fn program_file(&self, name: &str, lines: &str) {
        let path = self.write(name, &format!("#!/bin/sh\ncd \"${{0%/*}}\"\n{lines}"));
        fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    /// Writes a kubeconfig, with the words in capitals replaced.
    fn kubeconfig(&self, name: &str, text: &str) -> String {
        let encoded = STANDARD.encode(&self.api.certificate);
        let lines = encoded.as_bytes().chunks(76).map(String::from_utf8_lossy);
        let lines: Vec<_> = lines.collect();
        let replaced = [
            ("VERSION", VERSION.to_owned()),
            ("HTTPS", self.api.https.to_string()),
            ("HTTP", self.api.http.to_string()),
            ("PROXY", self.proxy.address.to_string()),
            ("CLOSED", "127.0.0.1:1".to_owned()),
            ("CA64", encoded.clone()),
            ("CERT64", encoded.clone()),
            ("LINES64", format!("\"{}\"", lines.join("\\n"))),
            ("KEY64", STANDARD.encode(&self.api.key)),
        ];
        let text = replaced
            .iter()
            .fold(text.to_owned(), |text, (word, value)| text.replace(word, value));
        self.write(name, &text)
    }

    /// A program of ours whose home is the folder.
    fn program(&self, named: &Named, arguments: &[&str]) -> Command {
        let mut command = switchboard(arguments);
        command.env("HOME", self.folder.path()).env_remove("KUBECONFIG");
        command.env("SSL_CERT_FILE", self.folder.path().join("stranger.pem"));
        command.envs(named.variables.iter().map(|(name, value)| (*name, value)));
        command
    }

    /// Runs the programs.
    fn assert(&self, named: &Named, row: &Row) {
        self.assert_connect(named, row);
        self.assert_tunnels(named, row);
        let kubeconfig = named.file.as_deref().unwrap_or("null");
        let settings = Settings::new("");
        settings.write(&format!(
            "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nallowlist: {{kubernetes: {{enabled: true, kubeconfig: {kubeconfig}}}}}\n"
        ));
        let (status, said) = row.ended(self.program(named, &["check", settings.path()]));
        match row.others {
            Says(sentence) if row.check == Agrees => {
                assert!(status == Some(2) && said.contains(sentence), "{row}: check: {said}");
            }
            Says(_) | Sent(_) => assert_eq!(status, Some(0), "{row}: check: {said}"),
        }
        self.api.forget();
        let mut served = Process::spawn(self.program(named, &["serve", "--config", settings.path()]));
        match row.others {
            Sent(field) => eventually("serve asks", || {
                self.api.seen().contains(&field.to_owned()).then_some(())
            }),
            Says(sentence) => drop(served.stderr.find(sentence)),
        }
        // A drain would take its time.
        served.signal(rustix::process::Signal::KILL);
        let rest = served.stderr.rest();
        assert!(!rest.iter().any(|line| line.contains("panicked")), "{row}: {rest:?}");
    }

    fn assert_connect(&self, named: &Named, row: &Row) {
        // Its 407 ends `connect` at once, where a 200 without an SSH server is waited for.
        let proxy = DemandingProxy::start("another", None);
        let url = format!("http://{}", proxy.address);
        let connect = ["connect", "--proxy", &url, "--context", "x", "devbox:22"];
        let (_, said) = row.ended(self.program(named, &[&connect[..], &named.flag()].concat()));
        match row.connect {
            Sent(field) => assert_eq!(proxy.shown().first().map(String::as_str), Some(field), "{row}: {said}"),
            Says(sentence) => assert!(said.contains(sentence), "{row}: connect: {said}"),
        }
    }

    fn assert_tunnels(&self, named: &Named, row: &Row) {
        let programs = ["tunnels", "targets"];
        let count = if row.kubectl == "works" { programs.len() } else { 1 };
        for program in programs.into_iter().take(count) {
            self.api.forget();
            let arguments = [program, "--namespace", "n"];
            let (_, said) = row.ended(self.program(named, &[&arguments[..], &named.flag()].concat()));
            match row.others {
                Sent(field) => {
                    assert!(said.contains("there are no replicas"), "{row}: {program}: {said}");
                    assert_eq!(self.api.seen(), [field], "{row}: {program}");
                }
                Says(sentence) => assert!(said.contains(sentence), "{row}: {program}: {said}"),
            }
        }
    }
}

/// A kubeconfig by its file, or by variables.
#[derive(Default)]
struct Named {
    file: Option<String>,
    variables: Vec<(&'static str, String)>,
}

impl Named {
    fn flag(&self) -> Vec<&str> {
        let file = self.file.iter();
        file.flat_map(|file| ["--kubeconfig", file.as_str()]).collect()
    }
}

fn config(cluster: &str, user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\nclusters: [{{name: c, cluster: {cluster}}}]\nusers: [{{name: u, user: {user}}}]\n\
         contexts: [{{name: x, context: {{cluster: c, user: u}}}}]\ncurrent-context: x\n"
    )
}

#[test]
fn every_kubeconfig_means_the_same_to_every_program() {
    let rows: Vec<_> = [USERS, CLUSTERS, WAYS].into_iter().flatten().collect();
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let world = World::new();
                while let Some(row) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let file = Some(world.kubeconfig("config", &config(row.cluster, row.user)));
                    let named = Named {
                        file,
                        ..Named::default()
                    };
                    world.assert(&named, row);
                }
            });
        }
    });
}

#[test]
fn a_broken_file_is_named_by_its_fault_in_every_program() {
    let world = World::new();
    for (text, kubectl, connect, others) in [
        (
            String::new(),
            "asks localhost:8080",
            Says("it has no context x"),
            "it has no current context",
        ),
        (
            "{".to_owned(),
            "refused: yaml",
            Says("not a kubeconfig"),
            "not a kubeconfig",
        ),
        (
            "\0\u{1}".to_owned(),
            "refused: yaml",
            Says("not a kubeconfig"),
            "not a kubeconfig",
        ),
        (
            config(SECURE, TOKEN).replace("current-context: x", "current-context: z"),
            "refused: context does not exist",
            ABC,
            "it has no context z (it has x)",
        ),
        (
            config(SECURE, TOKEN).replace("cluster: c,", "cluster: d,"),
            "asks localhost:8080",
            ABC,
            "has no cluster",
        ),
        (
            config(SECURE, TOKEN).replace("users: [", "users: [{name: u, user: {}}, "),
            "refused: duplicate name",
            Says("it has u twice in a list"),
            "it has u twice in a list",
        ),
    ] {
        let file = Some(world.kubeconfig("config", &text));
        let named = Named {
            file,
            ..Named::default()
        };
        world.assert(&named, &row(("file", ""), kubectl, (connect, Says(others)), Agrees));
    }
    // kubectl is nobody without a user, and `connect` has nobody to log in.
    let nobody = config(SECURE, TOKEN).replace(", user: u}", "}");
    let named = Named {
        file: Some(world.kubeconfig("config", &nobody)),
        ..Named::default()
    };
    let row = row(
        ("no user", ""),
        "asks for a username",
        (Says("has no user"), NOBODY),
        Agrees,
    );
    world.assert(&named, &row);
}

/// Returns KUBECONFIG with these files.
fn list(files: &[&str]) -> (&'static str, String) {
    ("KUBECONFIG", files.join(":"))
}

fn proxies(url: &str) -> [(&'static str, String); 2] {
    ["HTTP_PROXY", "HTTPS_PROXY"].map(|name| (name, url.to_owned()))
}

/// The lists of KUBECONFIG, the variables of forward proxies, and both against the pod's service account.
#[test]
fn the_environment_is_read_as_kubectl_reads_it() {
    let world = World::new();
    let good = world.kubeconfig("good", &config(SECURE, TOKEN));
    let users = world.write("users", "users: [{name: u, user: {token: of-users}}]\n");
    let absent = world.folder.path().join("absent").display().to_string();
    fs::create_dir(world.folder.path().join(".kube")).unwrap();
    world.kubeconfig(
        ".kube/config",
        &config(&SECURE.replace("ca.pem", "../ca.pem"), "{token: of-home}"),
    );
    let pod = || {
        [
            ("KUBERNETES_SERVICE_HOST", "127.0.0.1".to_owned()),
            ("KUBERNETES_SERVICE_PORT", "1".to_owned()),
        ]
    };
    let user_limits = Sent("Bearer of-users");
    for (variables, kubectl, ends) in [
        (vec![list(&[&good])], "works", (ABC, ABC)),
        (
            vec![list(&[&absent, &good])],
            "works, skips what is missing",
            (ABC, ABC),
        ),
        (vec![list(&["", "/dev/null", &good, &good])], "works", (ABC, ABC)),
        (
            vec![list(&[&users, &good])],
            "works, the first user counts",
            (user_limits, user_limits),
        ),
        (vec![list(&[&good, &users])], "works, the first user counts", (ABC, ABC)),
        (
            vec![],
            "works, the home's",
            (Sent("Bearer of-home"), Sent("Bearer of-home")),
        ),
        (
            [pod().to_vec(), vec![list(&[&good])]].concat(),
            "works, KUBECONFIG goes before the pod",
            (ABC, ABC),
        ),
        // Loopback hosts need no NO_PROXY (golang.org/x/net/http/httpproxy).
        (
            [proxies("http://127.0.0.1:1").to_vec(), vec![list(&[&good])]].concat(),
            "works, direct",
            (Says(""), ABC),
        ),
    ] {
        let named = Named {
            variables,
            ..Named::default()
        };
        world.assert(&named, &row(("variables", ""), kubectl, ends, Agrees));
    }
}

#[test]
fn the_forward_proxies_of_the_environment_lead_to_the_cluster() {
    let world = World::new();
    let broken = Says("HTTP_PROXY in the environment: ");
    // A name that only the forward proxy knows.
    let far = world.kubeconfig("far", &config("{server: 'http://api.invalid:80'}", TOKEN));
    let through = format!("http://{}", world.proxy.address);
    for (value, exempt, others, check) in [
        (through.clone(), "", NOBODY, Agrees),
        (through.replace("http", "socks5"), "other.invalid", NOBODY, Agrees),
        (through, ".invalid", Says("cannot look up api.invalid"), Accepts),
        ("socks4://u:s3cret@a".to_owned(), "", broken, Agrees),
    ] {
        let variables = [
            proxies(&value).to_vec(),
            vec![list(&[&far]), ("NO_PROXY", format!("127.0.0.1,{exempt}"))],
        ];
        let named = Named {
            variables: variables.concat(),
            ..Named::default()
        };
        world.proxy.lead(&world.api);
        // Of socks4:// kubectl makes a host of its own network.
        world.assert(&named, &row(("proxies", ""), "the same", (ABC, others), check));
    }
}

#[test]
fn a_plugin_asks_at_the_terminal_of_an_operators_program() {
    let world = World::new();
    world.program_file(
        "asks",
        "echo \"$KUBERNETES_EXEC_INFO\" >&2\nread word || exit 1\nexec ./plugin \"$word\"\n",
    );
    for mode in ["Always", "IfAvailable"] {
        let user = format!("{{exec: {{apiVersion: VERSION, command: ./asks, interactiveMode: {mode}}}}}");
        let file = world.kubeconfig("config", &config(SECURE, &user));
        world.api.forget();
        let mut terminal = Terminal::start(&["tunnels", "--namespace", "n", "--kubeconfig", &file]);
        terminal.shows("\"interactive\":true");
        terminal.press("abc\n");
        terminal.shows("there are no replicas");
        assert_eq!(world.api.seen(), ["Bearer abc"], "{mode}");
    }
}
