//! `switchboard desk`: the page in a real Chromium, which real proxies answer, and what its port refuses.

mod access;
mod browser;
mod pictures;
mod shape;
mod stage;

use std::time::{Duration, SystemTime};

use rustix::process::Signal;
use serde_json::Value;

use self::browser::{ARROW_DOWN, Browser, END, ENTER, ESCAPE};
use self::stage::{Desk, Pretender, target, tunnel};
use crate::harness::ports::Ports as _;
use crate::harness::process::{Server, Settings};
use crate::harness::target::Target;
use crate::harness::{allow, eventually};
use crate::operators::all;

/// A proxy with the targets `one:22` and `other:22`.
fn proxy(one: &Target, other: &Target) -> Server {
    let list = allow(&[("one:22", one.address()), ("other:22", other.address())]);
    Server::with(&Settings::new(&list))
}

/// The texts of a column, from the top.
fn column(page: &Browser, name: &str) -> Vec<String> {
    let script = format!(
        "return [...document.querySelectorAll('#grid-tunnels .rows .row:not([hidden])')]
            .sort((one, other) => one.getAttribute('aria-rowindex') - other.getAttribute('aria-rowindex'))
            .map((row) => row.querySelector('.cell.{name}').textContent);"
    );
    serde_json::from_value(page.run(&script)).unwrap()
}

/// Waits until that many tunnels are listed.
#[track_caller]
fn lists(page: &Browser, count: usize) {
    page.waits(&format!(
        "document.querySelector('#grid-tunnels').getAttribute('aria-rowcount') == {}",
        count + 1
    ));
}

/// The page has complained of nothing: neither an error nor something that its policy forbids.
#[track_caller]
fn is_quiet(page: &Browser) {
    assert_eq!(page.complaints(), [""; 0]);
}

#[test]
fn tunnels_are_listed_searched_and_sorted() {
    let (one, other) = (Target::listen(), Target::listen());
    let server = proxy(&one, &other);
    let mut open = Vec::new();
    for (name, target, bytes) in [("one:22", &one, 10), ("other:22", &other, 3000), ("one:22", &one, 200)] {
        let (mut client, mut service) = server.tunnel(name, target);
        client.send("x".repeat(bytes));
        service.expect("x".repeat(bytes));
        open.push((client, service));
        // The page sorts by the time from which a tunnel is listed.
        all(&server, open.len());
    }
    let desk = Desk::of(&[server.admin()]);
    let page = desk.page();
    lists(&page, 3);
    assert_eq!(
        column(&page, "target"),
        ["static/one:22", "static/other:22", "static/one:22"]
    );
    page.click("#grid-tunnels .head .bytes button");
    page.waits("document.querySelector('.head .bytes').getAttribute('aria-sort') === 'descending'");
    // The last bytes may be counted a moment after the page has asked.
    eventually("the bytes are shown", || {
        (column(&page, "bytes") == ["2.93 KiB", "200 B", "10 B"]).then_some(())
    });
    page.click("#grid-tunnels .head .bytes button");
    page.waits("document.querySelector('.head .bytes').getAttribute('aria-sort') === 'ascending'");
    assert_eq!(column(&page, "bytes"), ["10 B", "200 B", "2.93 KiB"]);
    page.types("/");
    page.types("STATIC/oth 127.0.0.1");
    lists(&page, 1);
    assert_eq!(column(&page, "target"), ["static/other:22"]);
    assert_eq!(page.text("#matches"), "1 of 3 tunnels matches");
    page.types(ESCAPE);
    lists(&page, 3);
    // A tunnel that begins and one that ends are seen without a reload.
    drop(open.remove(0));
    lists(&page, 2);
    let _fourth = server.tunnel("one:22", &one);
    lists(&page, 3);
    is_quiet(&page);
}

#[test]
fn an_operator_ends_a_tunnel_with_a_reason_and_limits_another() {
    let (one, other) = (Target::listen(), Target::listen());
    let mut server = proxy(&one, &other);
    let (mut client, mut service) = server.tunnel("one:22", &one);
    all(&server, 1);
    let (mut kept, mut kept_service) = server.tunnel("other:22", &other);
    let desk = Desk::of(&[server.admin()]);
    let page = desk.page();
    lists(&page, 2);
    // The oldest one is at the top.
    page.types("jx");
    page.waits("document.querySelector('#dialog').open");
    let question = page.text("#dialog");
    for words in [
        "static/one:22",
        "A user of switchboard connect reads it in the terminal.",
    ] {
        assert!(question.contains(words), "{question}");
    }
    // Without a reason nothing is sent, and without a confirmation nothing ends.
    page.types(ENTER);
    assert_eq!(page.run("return document.querySelector('#dialog').open;"), true);
    page.types(ESCAPE);
    page.waits("!document.querySelector('#dialog').open");
    client.send("still");
    service.expect("still");
    page.types("x");
    page.types("it loops");
    page.types(ENTER);
    client.expect_reset();
    service.expect_reset();
    let line: Value = serde_json::from_str(&server.process.stdout.next().unwrap()).unwrap();
    assert_eq!(
        (&line["reason"], &line["operator.reason"]),
        (&"closed_by_operator".into(), &"it loops".into())
    );
    lists(&page, 1);
    assert_eq!(page.text("#said"), "The tunnel is told to end.");
    page.types("j");
    page.types(ENTER);
    page.waits("!document.querySelector('#details').hidden");
    page.click("#details-actions button[aria-keyshortcuts=l]");
    page.run("document.querySelector('#field-download').select();");
    page.types("1MB/x");
    page.types(ENTER);
    page.waits("!document.querySelector('#dialog-fault').hidden");
    assert!(
        page.text("#dialog-fault").starts_with("download"),
        "{}",
        page.text("#dialog-fault")
    );
    page.run("document.querySelector('#field-download').select();");
    page.types("64KiB/s");
    page.types(ENTER);
    page.waits("document.querySelector('#details-list').innerText.includes('64KiB/s, set by an operator')");
    kept.send("kept");
    kept_service.expect("kept");
    // The browser's own line for the rate that the proxy has refused.
    let complaints = page.complaints();
    assert!(complaints.len() == 1 && complaints[0].contains("400"), "{complaints:?}");
}

/// The page may be open on another computer, by a forwarded port.
#[test]
fn the_age_in_a_question_is_by_the_clock_of_the_desk() {
    let mut old = tunnel(0);
    old["since"] = humantime::format_rfc3339_millis(SystemTime::now() - Duration::from_hours(1))
        .to_string()
        .into();
    let replica = Pretender::start(vec![old], Vec::new());
    let desk = Desk::of(&[replica.address]);
    let page = desk.page();
    lists(&page, 1);
    page.run("const now = Date.now; Date.now = () => now() + 86_400_000 * 3;");
    let answers = page.run("return Number(document.body.dataset.answers);");
    page.waits(&format!("document.body.dataset.answers > {answers} + 1"));
    page.types("jx");
    page.waits("document.querySelector('#dialog').open");
    let age = page.run(
        "return [...document.querySelectorAll('#dialog-facts dt')]
            .find((term) => term.textContent === 'age').nextElementSibling.textContent;",
    );
    assert!(age.as_str().unwrap().starts_with("1 h"), "{age}");
}

#[test]
fn a_target_is_cordoned_its_tunnels_end_and_it_is_uncordoned() {
    let (one, other) = (Target::listen(), Target::listen());
    let server = proxy(&one, &other);
    let (mut client, _service) = server.tunnel("one:22", &one);
    let desk = Desk::of(&[server.admin()]);
    let page = desk.page();
    page.types("2");
    page.waits("document.querySelectorAll('#grid-targets .rows .row:not([hidden])').length === 2");
    page.waits("document.querySelector('#grid-targets .rows .tunnels').textContent === '1'");
    page.types("jc");
    page.waits("document.querySelector('#dialog').open");
    page.types(ENTER);
    page.waits("document.querySelector('#grid-targets .rows .state').textContent === 'cordoned'");
    assert!(server.answer("one:22").starts_with("HTTP/1.1 503 "));
    page.types("x");
    page.types("the node is replaced");
    page.types(ENTER);
    client.expect_reset();
    page.waits("document.querySelector('#grid-targets .rows .tunnels').textContent === '0'");
    page.types("c");
    page.waits("document.querySelector('#dialog').open");
    page.types(ENTER);
    page.waits("document.querySelector('#grid-targets .rows .state').textContent === 'open'");
    drop(server.tunnel("one:22", &one));
    is_quiet(&page);
}

#[test]
fn a_replica_that_dies_is_shown_as_such_and_the_others_go_on() {
    let (one, other) = (Target::listen(), Target::listen());
    let (dying, staying) = (proxy(&one, &other), proxy(&one, &other));
    let _cut = dying.tunnel("one:22", &one);
    let _kept = staying.tunnel("other:22", &other);
    let desk = Desk::of(&[dying.admin(), staying.admin()]);
    let page = desk.page();
    lists(&page, 2);
    let name = dying.admin().to_string();
    drop(dying);
    page.waits("document.querySelector('.row.silent:not([hidden])')");
    assert!(column(&page, "idle").contains(&"?".to_owned()));
    assert!(
        page.text("#banner").contains(&format!("{name} does not answer")),
        "{}",
        page.text("#banner")
    );
    assert_eq!(page.text("#said"), format!("No answer from {name}"));
    // It takes no commands.
    page.click(".row.silent:not([hidden])");
    page.types("x");
    assert_eq!(page.run("return document.querySelector('#dialog').open;"), false);
    assert!(page.text("#details").contains("the replica does not answer"));
    // The other one still tells what happens.
    let _further = staying.tunnel("other:22", &other);
    lists(&page, 3);
    page.types("4");
    page.waits("document.querySelectorAll('#replica-list li').length === 2");
    let replicas = page.text("#replica-list");
    assert!(replicas.contains("does not answer: cannot be reached"), "{replicas}");
    assert!(replicas.contains("serves"), "{replicas}");
    is_quiet(&page);
}

#[test]
fn refusals_are_counted_by_reason() {
    let (one, other) = (Target::listen(), Target::listen());
    let server = proxy(&one, &other);
    let desk = Desk::of(&[server.admin()]);
    let page = desk.page();
    page.types("3");
    page.waits("!document.querySelector('#empty-refusals').hidden");
    assert!(server.answer("nowhere:22").starts_with("HTTP/1.1 403 "));
    page.waits("document.querySelector('#refusal-latest tbody tr')");
    page.waits("document.querySelector('#refusal-reasons tbody tr')");
    page.waits("document.querySelector('#count-refusals').textContent !== '0'");
    let sentence = "the target is not on the allowlist";
    assert_eq!(
        page.text("#refusal-reasons tbody td"),
        format!("{sentence} not_allowed")
    );
    assert_eq!(page.text("#refusal-reasons tbody td small"), "not_allowed");
    let latest = page.text("#refusal-latest tbody tr");
    assert!(latest.contains("nowhere:22") && latest.contains(sentence), "{latest}");
    is_quiet(&page);
}

#[test]
fn tunnels_that_have_ended_are_listed_with_the_reason() {
    let (one, other) = (Target::listen(), Target::listen());
    let server = proxy(&one, &other);
    let desk = Desk::of(&[server.admin()]);
    let page = desk.page();
    page.types("5");
    page.waits("!document.querySelector('#empty-ended').hidden");
    assert_eq!(page.text("#empty-ended"), "No tunnel has ended.");
    drop(server.tunnel("other:22", &other));
    page.waits("document.querySelector('#count-ended').textContent === '1'");
    let (mut client, _service) = server.tunnel("one:22", &one);
    page.types("1");
    // The one that has ended may still be the one that is listed.
    page.waits(
        "document.querySelector('#grid-tunnels').getAttribute('aria-rowcount') == 2
            && document.querySelector('#grid-tunnels .rows .row:not([hidden])')?.textContent.includes('one:22')",
    );
    page.types("jx");
    page.waits("document.querySelector('#dialog').open");
    page.types("it loops");
    page.types(ENTER);
    client.expect_reset();
    // Until the answer has come, a key is a letter in the dialog.
    page.waits("!document.querySelector('#dialog').open");
    page.types("5");
    page.waits("document.querySelector('#ended-latest tbody').textContent.includes('it loops')");
    let last = page.text("#ended-latest tbody tr");
    assert!(
        last.contains("an operator ended the connection: it loops closed_by_operator\t127.0.0.1\tstatic/one:22\t"),
        "{last:?}"
    );
    page.types("/other:22");
    page.waits("!document.querySelector('#ended-latest tbody').textContent.includes('it loops')");
    assert!(page.text("#ended-latest tbody tr").contains("static/other:22"));
    page.resize(360, 740);
    let overflows = "const view = document.querySelector('#view-ended'); return view.scrollWidth > view.clientWidth;";
    assert_eq!(page.run(overflows), false);
    is_quiet(&page);
}

#[test]
fn the_past_is_known_from_before_the_start_of_the_desk() {
    let (one, other) = (Target::listen(), Target::listen());
    let replicas = [proxy(&one, &other), proxy(&one, &other)];
    for (server, count) in replicas.iter().zip([2, 1]) {
        for _ in 0..count {
            assert!(server.answer("before:22").starts_with("HTTP/1.1 403 "));
        }
        let (client, mut service) = server.tunnel("one:22", &one);
        drop(client);
        assert!(service.rest().is_empty());
        drop(service);
        server.settles(r#"tunnels_closed_total{by="client",reason="eof"}"#, 1.0);
    }
    let desk = Desk::of(&replicas.each_ref().map(|server| server.admin()));
    let page = desk.page();
    page.waits("document.querySelector('#count-refusals').textContent === '3'");
    page.types("3");
    page.waits("document.querySelector('#refusal-reasons tbody tr')");
    let row = page.text("#refusal-reasons tbody tr");
    assert!(
        row.starts_with("the target is not on the allowlist not_allowed\t3\t"),
        "{row:?}"
    );
    page.waits("document.querySelectorAll('#refusal-latest tbody tr').length === 2");
    let latest = page.text("#refusal-latest tbody");
    assert!(
        latest.contains("the target is not on the allowlist × 2 not_allowed") && latest.contains("before:22"),
        "{latest:?}"
    );
    page.waits("document.querySelector('#count-ended').textContent === '2'");
    page.types("5");
    page.waits("document.querySelectorAll('#ended-latest tbody tr').length === 2");
    assert!(
        page.text("#ended-latest tbody tr")
            .contains("the client closed the connection eof\t127.0.0.1\tstatic/one:22\t")
    );
    is_quiet(&page);
}

#[test]
fn limits_and_blocks_are_listed_until_they_end() {
    let (one, other) = (Target::listen(), Target::listen());
    let server = proxy(&one, &other);
    let desk = Desk::of(&[server.admin()]);
    let page = desk.page();
    page.types("4");
    page.waits("document.querySelector('#replica-list').innerText.includes('serves')");
    assert_eq!(page.run("return document.querySelector('#restrictions').hidden;"), true);
    let restrict = |body: &str| assert_eq!(server.tell_admin("PUT", "/restrictions", body).status, 200);
    restrict(r#"{"user": "alice", "download": "1MiB/s", "for": "90m"}"#);
    restrict(r#"{"kind": "block", "client": "192.0.2.7", "reason": "it loops", "for": "10m"}"#);
    page.waits("document.querySelectorAll('#restrictions tbody tr').length === 2");
    let rows = page.text("#restrictions tbody");
    for words in [
        "user alice\tdownload 1MiB/s\t1 h 29 m\t0 tunnels",
        "client 192.0.2.7\tno new tunnels\t",
        "it loops",
    ] {
        assert!(rows.contains(words), "{rows:?}");
    }
    assert_eq!(
        server
            .tell_admin("DELETE", "/restrictions", r#"{"user": "alice"}"#)
            .status,
        200
    );
    page.waits("document.querySelectorAll('#restrictions tbody tr').length === 1");
    is_quiet(&page);
}

#[test]
fn the_drain_of_a_replica_is_shown() {
    let target = Target::listen();
    let settings = allow(&[("one:22", target.address())]) + "drain: {delay: 0s}\n";
    let draining = Server::with(&Settings::new(&settings));
    let (client, service) = draining.tunnel("one:22", &target);
    let desk = Desk::of(&[draining.admin()]);
    let page = desk.page();
    page.types("4");
    page.waits("document.querySelector('#replica-list').innerText.includes('serves')");
    draining.process.signal(Signal::TERM);
    page.waits("document.querySelector('#replica-list').innerText.includes('takes no new tunnels')");
    page.waits("!document.querySelector('#replica-list progress').hidden");
    assert!(
        page.text("#replica-list").contains("1 tunnel,"),
        "{}",
        page.text("#replica-list")
    );
    drop((client, service));
    page.waits("document.querySelector('#replica-list').innerText.includes('does not answer')");
    is_quiet(&page);
}

fn five_thousand_tunnels_are_few_rows_in_the_document() {
    let replica = Pretender::start(
        (0..5000).map(tunnel).collect(),
        vec![target("team-a", "devbox", 2, false)],
    );
    let desk = Desk::of(&[replica.address]);
    let page = desk.page();
    lists(&page, 5000);
    page.run(
        "window.long = []; new PerformanceObserver((seen) => long.push(...seen.getEntries().map((one) => one.duration)))
            .observe({ type: 'longtask' });",
    );
    let rows = "document.querySelectorAll('#grid-tunnels .rows .row').length";
    let answers = page
        .run("return Number(document.body.dataset.answers);")
        .as_u64()
        .unwrap();
    page.types("jjj");
    page.run("document.querySelector('#grid-tunnels').focus();");
    page.types(END);
    page.waits("document.querySelector('#grid-tunnels .row[aria-rowindex=\"5001\"][aria-selected=true]')");
    for share in [0.1, 0.5, 0.9, 0.2] {
        page.run(&format!(
            "const grid = document.querySelector('#grid-tunnels'); grid.scrollTop = grid.scrollHeight * {share};"
        ));
        page.waits("document.querySelector('#grid-tunnels .rows .row:not([hidden])')");
    }
    page.click("#grid-tunnels .head .down button");
    // All of them change at once, and most of them end.
    replica.change(|tunnels| tunnels.iter_mut().for_each(|one| one["sent_per_second"] = 2048.into()));
    page.waits("document.querySelector('#grid-tunnels .rows .row:not([hidden]) .down').textContent === '2.00 KiB/s'");
    page.waits("document.querySelector('#sum-down').textContent === '9.77 MiB/s'");
    assert!(page.run(&format!("return {rows};")).as_u64().unwrap() < 80);
    page.types("/");
    page.types("alice gpu-box node-3");
    page.waits("document.querySelector('#grid-tunnels').getAttribute('aria-rowcount') < 200");
    page.types(ESCAPE);
    lists(&page, 5000);
    replica.change(|tunnels| tunnels.truncate(10));
    lists(&page, 10);
    page.waits(&format!("document.body.dataset.answers > {answers} + 3"));
    let long = page.run("return [long.length, Math.round(Math.max(0, ...long)), document.body.dataset.answers];");
    eprintln!("figure: 5,000 tunnels: tasks over 50 ms, the longest of them in ms, answers: {long}");
    is_quiet(&page);
}

#[test]
fn the_focus_and_the_row_stay_over_updates() {
    let replica = Pretender::start((0..300).map(tunnel).collect(), Vec::new());
    let desk = Desk::of(&[replica.address]);
    let page = desk.page();
    lists(&page, 300);
    page.click("#grid-tunnels .head .age button");
    page.run("document.querySelector('#grid-tunnels').focus();");
    page.types(&ARROW_DOWN.repeat(3));
    let active = "const grid = document.querySelector('#grid-tunnels');
        const row = document.getElementById(grid.getAttribute('aria-activedescendant'));
        return [document.activeElement.id, row.querySelector('.client').textContent, row.getAttribute('aria-selected')];";
    let before = page.run(active);
    assert_eq!(before[0], "grid-tunnels");
    let answers = page
        .run("return Number(document.body.dataset.answers);")
        .as_u64()
        .unwrap();
    replica.change(|tunnels| {
        tunnels.drain(100..);
        tunnels.iter_mut().for_each(|one| one["bytes_sent"] = 1.into());
    });
    page.waits(&format!("document.body.dataset.answers > {answers} + 3"));
    lists(&page, 100);
    // The row of the three, if it is still there, else none: here it is looked at again after other rows have gone.
    let key = "return document.activeElement.id;";
    assert_eq!(page.run(key), "grid-tunnels");
    page.types(ARROW_DOWN);
    let row = page.run(active);
    replica.change(|tunnels| tunnels.iter_mut().for_each(|one| one["bytes_sent"] = 2.into()));
    page.waits(&format!("document.body.dataset.answers > {answers} + 6"));
    assert_eq!(page.run(active), row);
    // An open question keeps the focus, too.
    page.types("x");
    page.types("be");
    page.waits(&format!("document.body.dataset.answers > {answers} + 8"));
    page.types("cause");
    assert_eq!(page.run("return document.activeElement.value;"), "because");
    page.types(ESCAPE);
    assert_eq!(page.run(key), "grid-tunnels");
    is_quiet(&page);
}

tests_in! { slow: five_thousand_tunnels_are_few_rows_in_the_document }
