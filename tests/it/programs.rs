//! The programs of operators against real proxies: lists, ends, rates and cordons over all replicas at once, whatever some of
//! them do.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::thread;

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::ports::Ports;
use crate::harness::process::{Process, Server, Settings, switchboard};
use crate::harness::target::{Closed, Target};
use crate::harness::{allow, eventually};

mod cluster;
pub(crate) mod terminal;

/// The output of a program, and its exit status.
#[derive(Debug)]
struct Said {
    status: i32,
    stdout: Vec<String>,
    stderr: Vec<String>,
}

impl Said {
    /// The line with that text in it.
    #[track_caller]
    fn line(&self, text: &str) -> &str {
        let line = self.stdout.iter().find(|line| line.contains(text));
        line.unwrap_or_else(|| panic!("no {text:?} in {self:#?}"))
    }

    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout.join("\n")).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }
}

fn run(arguments: &[&str]) -> Said {
    let mut process = Process::spawn(switchboard(arguments));
    let (stdout, stderr) = (process.stdout.rest(), process.stderr.rest());
    Said {
        status: process.exit_status(),
        stdout,
        stderr,
    }
}

/// A program that asks these replicas. The deadline is longer than a busy machine takes.
fn ask(program: &[&str], replicas: &[&Server]) -> Said {
    let addresses: Vec<_> = replicas.iter().map(|server| server.admin().to_string()).collect();
    let addresses = addresses.join(",");
    run(&[program, &["--timeout", "60s", "--admin", &addresses]].concat())
}

/// Two replicas with the same two targets.
struct Pair {
    one: Target,
    other: Target,
    replicas: [Server; 2],
}

impl Pair {
    fn start() -> Self {
        let (one, other) = (Target::listen(), Target::listen());
        let list = allow(&[("one:22", one.address()), ("other:22", other.address())]);
        let server = || Server::with(&Settings::new(&list));
        Self {
            replicas: [server(), server()],
            one,
            other,
        }
    }

    fn all(&self) -> [&Server; 2] {
        self.replicas.each_ref()
    }

    /// Waits until that many tunnels are listed: a client has its 200 a moment before.
    fn lists(&self, count: usize) -> Value {
        eventually("the tunnels are listed", || {
            let listed = ask(&["tunnels", "--json"], &self.all()).json();
            (listed["total"] == count).then_some(listed)
        })
    }
}

/// The ids of the tunnels of one replica.
fn ids(listed: &Value, replica: &Server) -> Vec<String> {
    let rows = listed["items"].as_array().unwrap().iter();
    let own = rows.filter(|row| row["replica"] == replica.admin().to_string());
    own.map(|row| row["tunnel_id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_tunnels_of_all_replicas_are_one_table() {
    let pair = Pair::start();
    let [first, second] = pair.all();
    let _open = [
        first.tunnel("one:22", &pair.one),
        second.tunnel("one:22", &pair.one),
        second.tunnel("other:22", &pair.other),
    ];
    let listed = pair.lists(3);
    assert_eq!((ids(&listed, first).len(), ids(&listed, second).len()), (1, 2));
    let narrow = ask(&["tunnels"], &pair.all());
    assert_eq!(
        narrow.stdout[0].split_whitespace().collect::<Vec<_>>(),
        ["ID", "CLIENT", "TARGET", "AGE", "IDLE"]
    );
    let said = ask(&["tunnels", "-o", "wide"], &pair.all());
    assert_eq!((said.status, &said.stderr), (0, &Vec::new()));
    assert!(
        said.stdout[0].starts_with("ID ") && said.stdout[0].contains("  REPLICA"),
        "{said:#?}"
    );
    let line = said.line(&ids(&listed, first)[0]);
    for words in [
        &first.admin().to_string(),
        "127.0.0.1",
        "static/one:22",
        "h1",
        &pair.one.address().to_string(),
    ] {
        assert!(line.contains(words), "{words}: {line}");
    }
    said.line("3 tunnels on 2 of 2 replicas: a restart");
    said.line(&format!("  of {} moves 0 and cuts 1", first.admin()));
    said.line(&format!("  of {} moves 0 and cuts 2", second.admin()));
    let some = ask(&["tunnels", "list", "--target", "static/other:22"], &pair.all());
    assert_eq!((some.status, some.stdout.len()), (0, 5), "{some:#?}");
    let few = ask(&["tunnels", "--sort", "rate", "--limit", "2", "--json"], &pair.all()).json();
    assert_eq!((few["items"].as_array().unwrap().len(), &few["total"]), (2, &3.into()));
    let clients = ask(&["clients"], &pair.all());
    assert!(clients.stdout[0].contains("DOWN/S  UP/S"), "{clients:#?}");
    assert!(clients.line("127.0.0.1").contains(" 3 "), "{clients:#?}");
    let rates = ask(&["tunnels", "--sort", "rate"], &pair.all());
    assert_eq!((rates.status, rates.stdout.len()), (0, 7), "{rates:#?}");
    for (sort, columns) in [
        ("rate", &["ID", "CLIENT", "TARGET", "DOWN/S", "UP/S"]),
        ("bytes", &["ID", "CLIENT", "TARGET", "DOWN", "UP"]),
        ("idle", &["ID", "CLIENT", "TARGET", "AGE", "IDLE"]),
    ] {
        let sorted = ask(&["tunnels", "--sort", sort], &pair.all());
        let head: Vec<_> = sorted.stdout[0].split_whitespace().collect();
        assert_eq!(head, columns, "{sort}");
    }
    for faulty in [
        ["tunnels", "--sort", "size"],
        ["tunnels", "--target", "one"],
        ["tunnels", "--client", "x"],
    ] {
        assert_eq!(ask(&faulty, &pair.all()).status, 2, "{faulty:?}");
    }
}

#[test]
fn why_a_name_is_on_the_allowlist_or_not_is_said_once_for_replicas_that_agree() {
    let pair = Pair::start();
    let [first, second] = pair.all();
    let why = |name: &str| {
        let said = ask(&["targets", "why", name], &pair.all());
        assert_eq!((said.status, &said.stderr), (0, &Vec::new()), "{said:#?}");
        said.stdout
    };
    let both = format!("{}, {}", first.admin(), second.admin());
    let is_static = "  it is a static target of this proxy's configuration";
    let listed = |name: &str| format!("{name}: static/one:22 is on the allowlist");
    assert_eq!(why("one:22"), [listed(&both), is_static.to_owned()]);
    let unknown = format!("{both}: team/none is not on the allowlist");
    let no_cluster = "  it is no static target, and this proxy watches no cluster (`allowlist.kubernetes`)";
    assert_eq!(why("team/none"), [unknown.clone(), no_cluster.to_owned()]);
    assert_eq!(why("none.team:22"), [unknown, no_cluster.to_owned()]);
    assert!(why("none:22")[1].contains("SERVICE.NAMESPACE"));
    ask(&["targets", "cordon", "one:22"], &[second]);
    let said = why("one:22");
    assert_eq!(
        said[..3],
        [
            listed(&first.admin().to_string()),
            is_static.to_owned(),
            listed(&second.admin().to_string())
        ]
    );
    assert_eq!(
        said[4],
        "  an operator has cordoned it: switchboard targets uncordon static/one:22"
    );
}

/// A server that answers every request with that.
fn answers(answer: impl AsRef<[u8]> + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else {
                return;
            };
            let asked = stream.read(&mut [0; 1024]);
            asked.and_then(|_| stream.write_all(answer.as_ref())).ok();
        }
    });
    address
}

#[test]
fn a_replica_that_does_not_answer_is_named_and_hides_no_other() {
    let pair = Pair::start();
    let [first, hung] = pair.all();
    let _open = first.tunnel("one:22", &pair.one);
    pair.lists(1);
    hung.process.signal(Signal::STOP);
    let refuses = Closed::bind();
    let garbage = answers(b"\x00\xffSSH-2.0-x\x1b[2J\r\n\r\n");
    let page = answers(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n<html>\x1b[2");
    let addresses = [
        first.admin().to_string(),
        hung.admin().to_string(),
        refuses.address().to_string(),
        garbage,
        page,
    ];
    // The one that hangs is waited for: long enough for the one that answers, however busy the machine.
    let said = run(&["tunnels", "--timeout", "20s", "--admin", &addresses.join(",")]);
    hung.process.signal(Signal::CONT);
    assert_eq!(said.status, 3, "{said:#?}");
    said.line("static/one:22");
    said.line("1 tunnels on 1 of 5 replicas");
    for (address, words) in addresses.iter().skip(1).zip([
        "no answer within 20s",
        "cannot be reached: Connection refused",
        "does not answer as switchboard does",
        "does not answer as switchboard does",
    ]) {
        let is_it = |line: &&String| line.contains(address) && line.contains(words);
        assert!(
            said.stderr.iter().any(|line| is_it(&line)),
            "{address} {words}: {said:#?}"
        );
    }
    assert!(!said.stderr.join("").contains('\u{1b}'), "{said:#?}");
    let none = run(&["tunnels", "--timeout", "20s", "--admin", &refuses.address().to_string()]);
    assert_eq!(
        (none.status, &*none.stdout[1]),
        (1, "0 of 1 replicas answer"),
        "{none:#?}"
    );
}

#[test]
fn json_for_programs_is_safe_on_a_terminal_too() {
    let text = "a\u{202e}b\u{9b}c\u{7f}d\u{e0001}e\u{fc}\u{65e5}";
    let limit = serde_json::json!({"rate": "unlimited", "is_own": false, "waited_ms": 0});
    let item = serde_json::json!({
        "tunnel_id": "1-1", "client.address": "192.0.2.1", "user.name": text,
        "target.namespace": "static", "target.service": "one:22", "since": "", "age_ms": 0, "idle_ms": 0,
        "is_active": true, "last_active": "", "client.port": 1, "client.software": "", "http.version": "1",
        "tls.version": "", "server.address": "one", "server.port": 22, "upstream.node": "", "upstream.anchor": "",
        "upstream.software": "", "tunnel.resumable": false, "bytes_sent": 0, "bytes_received": 0, "sent_per_second": 0,
        "received_per_second": 0, "download": limit, "upload": limit,
    });
    let body = serde_json::json!({"tunnels": [item], "total": 1, "next": null}).to_string();
    let replica = answers(format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    let said = run(&["tunnels", "--json", "--timeout", "60s", "--admin", &replica]);
    assert_eq!(said.json()["items"][0]["user.name"], text);
    let escaped = r#""a\u202eb\u009bc\u007fd\udb40\udc01e"#.to_owned() + "\u{fc}\u{65e5}\"";
    assert!(said.line("user.name").contains(&escaped), "{said:#?}");
}

#[test]
fn tunnels_are_ended_on_whichever_replica_they_are() {
    let mut pair = Pair::start();
    let [first, second] = pair.all();
    let (mut kept, mut kept_service) = first.tunnel("one:22", &pair.one);
    let (mut named, _service) = second.tunnel("one:22", &pair.one);
    let (mut other, _other_service) = first.tunnel("other:22", &pair.other);
    let listed = pair.lists(3);
    let id = ids(&listed, second).remove(0);
    let unasked = ask(&["tunnels", "close", &id], &pair.all());
    assert_eq!(unasked.status, 1, "{unasked:#?}");
    assert!(unasked.stderr.join("").contains("say --yes"), "{unasked:#?}");
    let said = ask(&["tunnels", "close", &id, "--yes", "--reason", "it loops"], &pair.all());
    assert_eq!(said.status, 0, "{said:#?}");
    let expected = format!("closed {id} of 127.0.0.1 to static/one:22 on {}", second.admin());
    assert_eq!(said.stdout, [expected]);
    named.expect_reset();
    let again = ask(&["tunnels", "close", &id, "--yes"], &pair.all());
    assert_eq!(again.status, 1, "{again:#?}");
    let said = ask(
        &["tunnels", "close", "--target", "static/other:22", "-y", "--json"],
        &pair.all(),
    );
    assert_eq!(said.json()["changed"][0]["replica"], first.admin().to_string());
    other.expect_reset();
    kept.send("still");
    kept_service.expect("still");
    let line = pair.replicas[1].process.stdout.find("closed_by_operator");
    assert!(line.contains(r#""operator.reason":"it loops""#), "{line}");
    for faulty in [
        &["tunnels", "close"][..],
        &["tunnels", "close", "x", "--user", "y"],
        &["tunnels", "close", "x", "--yes", "--reason", "\u{200b}"],
    ] {
        assert_eq!(ask(faulty, &pair.all()).status, 2, "{faulty:?}");
    }
}

#[test]
fn the_ended_tunnels_of_all_replicas_are_one_list() {
    let pair = Pair::start();
    let [first, second] = pair.all();
    let (client, mut service) = first.tunnel("one:22", &pair.one);
    drop(client);
    assert!(service.rest().is_empty());
    drop(service);
    let (mut closed, _service) = second.tunnel("other:22", &pair.other);
    pair.lists(1);
    let close = [
        "tunnels",
        "close",
        "--target",
        "static/other:22",
        "-y",
        "--reason",
        "it loops",
    ];
    assert_eq!(ask(&close, &pair.all()).status, 0);
    closed.expect_reset();
    let ended = |more: &[&str]| ask(&[&["tunnels", "ended"], more].concat(), &pair.all());
    let listed = eventually("both ends are listed", || {
        let listed = ended(&[]);
        (listed.stdout.len() == 4).then_some(listed)
    });
    assert_eq!(
        listed.stdout[0].split_whitespace().collect::<Vec<_>>(),
        ["AGO", "CLIENT", "TARGET", "LASTED", "WHY"]
    );
    let line = listed.line("static/other:22");
    assert!(line.ends_with("an operator ended the connection: it loops"), "{line}");
    assert!(
        listed
            .line("static/one:22")
            .ends_with("the client closed the connection"),
        "{listed:#?}"
    );
    listed.line("2 tunnels ended on 2 of 2 replicas since 20");
    assert!(
        ended(&["-o", "wide"])
            .line("closed_by_operator")
            .contains(&second.admin().to_string())
    );
    let filtered = ended(&["--target", "static/one:22", "--json"]).json();
    assert_eq!(filtered["total"], 1);
    assert_eq!(filtered["items"][0]["replica"], first.admin().to_string());
    ended(&["--user", "alice"]).line("0 tunnels ended on 2 of 2 replicas");
}

#[test]
fn the_refusals_of_all_replicas_are_one_list() {
    let pair = Pair::start();
    let [first, second] = pair.all();
    for (server, count) in [(first, 2), (second, 1)] {
        for _ in 0..count {
            assert!(server.answer("nowhere:22").starts_with("HTTP/1.1 403 "));
        }
    }
    let refusals = |more: &[&str]| ask(&[&["refusals"], more].concat(), &pair.all());
    let listed = eventually("the refusals are listed", || {
        let listed = refusals(&[]);
        listed
            .stdout
            .last()
            .is_some_and(|line| line.starts_with("3 refusals on 2 of 2 "))
            .then_some(listed)
    });
    assert_eq!(listed.stdout.len(), 4, "{listed:#?}");
    let line = listed.line("nowhere:22");
    assert!(line.ends_with("the target is not on the allowlist"), "{line}");
    assert_eq!(refusals(&["--client", "192.0.2.1", "--json"]).json()["total"], 0);
    assert_eq!(refusals(&["--client", "nobody"]).status, 2);
}

#[test]
fn rates_are_set_and_all_of_a_tunnel_is_shown() {
    let pair = Pair::start();
    let [_, second] = pair.all();
    let _open = second.tunnel("one:22", &pair.one);
    let id = ids(&pair.lists(1), second).remove(0);
    let said = ask(&["tunnels", "limit", &id, "--download", "1MiB/s"], &pair.all());
    assert_eq!(said.status, 0, "{said:#?}");
    assert_eq!(
        said.stdout,
        [format!("{id} on {}: download 1MiB/s, upload unlimited", second.admin())]
    );
    let shown = ask(&["tunnels", "show", &id], &pair.all());
    assert!(
        shown.line("replica ").ends_with(&second.admin().to_string()),
        "{shown:#?}"
    );
    assert!(shown.line("download.is_own").ends_with(" true"), "{shown:#?}");
    let wrong = ask(&["tunnels", "limit", &id, "--upload", "fast"], &pair.all());
    assert_eq!(wrong.status, 1, "{wrong:#?}");
    assert!(wrong.stderr.join("").contains("upload: "), "{wrong:#?}");
    for program in [
        &["tunnels", "limit", "x", "--upload", "1MiB/s"][..],
        &["tunnels", "show", "x"],
    ] {
        assert_eq!(ask(program, &pair.all()).status, 1, "{program:?}");
    }
}

#[test]
fn an_unspecified_address_is_asked_on_the_loopback_address_that_answers() {
    for listening in ["127.0.0.1:0", "[::1]:0"] {
        let settings = Settings::new("");
        settings.write(&format!("listen: 127.0.0.1:0\nadmin: '{listening}'\n"));
        let server = Server::without_readiness(&settings);
        let address = format!("[::]:{}", server.admin().port());
        let output = switchboard(&["targets", "--admin", &address]).output().unwrap();
        assert!(output.status.success(), "{listening}: {output:?}");
    }
}

#[test]
fn the_tunnels_of_a_client_are_limited_on_all_replicas_for_some_time() {
    let pair = Pair::start();
    let [first, _] = pair.all();
    let _open = first.tunnel("one:22", &pair.one);
    pair.lists(1);
    let limit = ["tunnels", "limit", "--client", "127.0.0.1"];
    let said = ask(
        &[&limit[..], &["--download", "1MiB/s", "--for", "10m"]].concat(),
        &pair.all(),
    );
    assert_eq!((said.status, said.stdout.len()), (0, 2), "{said:#?}");
    let line = said.line(&first.admin().to_string());
    assert!(
        line.contains("each tunnel of client 127.0.0.1: download 1MiB/s until 20"),
        "{line}"
    );
    assert!(line.ends_with(", 1 are open"), "{line}");
    let listed = ask(&["tunnels", "limits"], &pair.all());
    assert_eq!(listed.stdout.len(), 3, "{listed:#?}");
    listed.line("client 127.0.0.1  download 1MiB/s");
    assert_eq!(ask(&["clients", "blocks", "--json"], &pair.all()).json()["total"], 0);
    let lifted = ask(&[&limit[..], &["--download", "default"]].concat(), &pair.all());
    assert_eq!((lifted.status, lifted.stdout.len()), (0, 2), "{lifted:#?}");
}

#[test]
fn a_client_is_blocked_on_all_replicas_for_some_time() {
    let pair = Pair::start();
    let [first, second] = pair.all();
    let (mut open, _service) = first.tunnel("one:22", &pair.one);
    pair.lists(1);
    let block = [
        "clients",
        "block",
        "--client",
        "127.0.0.1",
        "--for",
        "10m",
        "--reason",
        "it floods",
    ];
    let unasked = ask(&block, &pair.all());
    assert!(
        unasked.status == 1 && unasked.stderr.join("").contains("say --yes"),
        "{unasked:#?}"
    );
    let said = ask(&[&block[..], &["--yes"]].concat(), &pair.all());
    assert_eq!(said.status, 0, "{said:#?}");
    assert!(
        said.line(&first.admin().to_string()).ends_with(": 1 tunnels are ended"),
        "{said:#?}"
    );
    open.expect_reset();
    for server in [first, second] {
        assert!(
            server
                .answer("other:22")
                .contains("403 an operator has blocked this user or address: it floods")
        );
    }
    let blocks = ask(&["clients", "blocks"], &pair.all());
    assert!(blocks.line("client 127.0.0.1").ends_with("it floods"), "{blocks:#?}");
    let unblock = ["clients", "unblock", "--client", "127.0.0.1"];
    assert_eq!(ask(&unblock, &pair.all()).status, 0);
    assert_eq!(ask(&unblock, &pair.all()).status, 1);
    drop(second.tunnel("other:22", &pair.other));
    for faulty in [
        &["clients", "block", "--for", "10m", "--reason", "x"][..],
        &["clients", "block", "--user", "", "--for", "10m", "--reason", "x"],
        &[
            "clients",
            "block",
            "--user",
            "a",
            "--client",
            "192.0.2.1",
            "--for",
            "10m",
            "--reason",
            "x",
        ],
        &["clients", "block", "--user", "a", "--for", "never", "--reason", "x"],
        &["tunnels", "limit", "x", "--user", "a", "--upload", "1MiB/s"],
        &["tunnels", "limit", "--upload", "1MiB/s"],
    ] {
        assert_eq!(ask(faulty, &pair.all()).status, 2, "{faulty:?}");
    }
}

#[test]
fn a_target_is_cordoned_on_all_replicas() {
    let pair = Pair::start();
    let said = ask(&["targets", "cordon", "static/one:22"], &pair.all());
    assert_eq!((said.status, said.stdout.len()), (0, 2), "{said:#?}");
    for server in pair.all() {
        assert!(server.answer("one:22").starts_with("HTTP/1.1 503 "));
    }
    let listed = ask(&["targets"], &pair.all());
    assert!(listed.line("static/one:22").ends_with("  yes"), "{listed:#?}");
    assert!(listed.line("static/other:22").ends_with(" 0"), "{listed:#?}");
    let [first, _] = pair.all();
    // As clients request it.
    assert_eq!(ask(&["targets", "uncordon", "one:22"], &[first]).status, 0);
    let listed = ask(&["targets"], &pair.all());
    assert!(listed.line("static/one:22").ends_with("  on 1 of 2"), "{listed:#?}");
    let unknown = ask(&["targets", "cordon", "static/none:22"], &pair.all());
    assert_eq!(unknown.status, 1, "{unknown:#?}");
}
