//! The look of the page for all eyes and sizes: axe-core in light and dark, a phone, foreign texts.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::browser::{Browser, ENTER, ESCAPE, axe};
use super::stage::{Desk, Pretender, target, tunnel};
use super::{column, is_quiet, lists};
use crate::harness::allow;
use crate::harness::ports::Ports as _;
use crate::harness::process::{Server, Settings};
use crate::harness::target::Target;

fn furnished() -> Pretender {
    let targets = vec![
        target("team-a", "devbox", 2, false),
        target("team-a", "gpu-box", 1, true),
        target("team-b", "jump", 0, false),
    ];
    Pretender::start((0..60).map(tunnel).collect(), targets)
}

/// Returns the serious findings of axe-core: rule, and the elements.
fn serious(page: &Browser) -> Vec<String> {
    let found = page.run_async(
        "const done = arguments[0];
        axe.run(document, { resultTypes: ['violations'] }).then(
            ({ violations, passes }) => done([violations.map(({ id, impact, nodes }) =>
                [impact, id, ...nodes.slice(0, 5).map(({ html, failureSummary }) => `${html}: ${failureSummary}`)]), passes.length]),
            (error) => done(String(error)));",
    );
    let (violations, passes) = (found[0].as_array().unwrap_or_else(|| panic!("{found}")), &found[1]);
    // A run that has looked at nothing finds nothing.
    assert!(passes.as_u64().unwrap() > 10, "{found}");
    let is_serious = |one: &&Value| ["serious", "critical"].contains(&one[0].as_str().unwrap_or_default());
    violations.iter().filter(is_serious).map(ToString::to_string).collect()
}

fn axe_finds_nothing_serious_in_light_and_dark() {
    let replica = furnished();
    // One that does not answer is shown, too: at a port that the kernel gives to no other test.
    let gone = SocketAddr::from(([127, 0, 0, 1], 1));
    let desk = Desk::of(&[replica.address, gone]);
    let page = desk.page();
    lists(&page, 60);
    page.waits("!document.querySelector('#banner').hidden");
    page.run(&axe());
    // That it finds something where there is something.
    page.run("const image = document.createElement('img'); image.id = 'wrong'; document.querySelector('main').append(image);");
    assert!(serious(&page).iter().any(|found| found.contains("image-alt")));
    page.run("document.querySelector('#wrong').remove();");
    for scheme in ["light", "dark"] {
        page.prefers(scheme);
        let is_dark = page.run("return matchMedia('(prefers-color-scheme: dark)').matches;");
        assert_eq!(is_dark, scheme == "dark");
        let mut findings = Vec::new();
        let mut look = |what: &str| {
            findings.extend(
                serious(&page)
                    .into_iter()
                    .map(|found| format!("{scheme}, {what}: {found}")),
            )
        };
        page.types("1j");
        look("tunnels");
        page.types(ENTER);
        page.waits("!document.querySelector('#details').hidden");
        look("details");
        page.types("x");
        page.waits("document.querySelector('#dialog').open");
        look("question");
        page.types(ESCAPE);
        page.types(ESCAPE);
        page.types("?");
        page.waits("document.querySelector('#help').open");
        look("keys");
        page.types(ESCAPE);
        for (key, view) in [("2", "targets"), ("3", "refusals"), ("4", "replicas"), ("5", "ended")] {
            page.types(key);
            page.waits(&format!("!document.querySelector('#view-{view}').hidden"));
            look(view);
        }
        assert_eq!(findings, [""; 0]);
    }
}

fn a_phone_shows_everything_without_scrolling_sideways() {
    let desk = Desk::of(&[furnished().address]);
    let page = desk.page();
    page.resize(360, 740);
    lists(&page, 60);
    let fits = || {
        let widths = page.run(
            "const wide = [...document.querySelectorAll('body *')].filter((one) => {
                const { left, right, width } = one.getBoundingClientRect();
                return width > 1 && (left < -1 || right > innerWidth + 1);
            });
            return [document.documentElement.scrollWidth - innerWidth, wide.map((one) => one.outerHTML.slice(0, 200)),
                [...document.querySelectorAll('.grid, .page, #details')].map((one) => one.scrollWidth - one.clientWidth)];",
        );
        assert_eq!(page.run("return innerWidth;"), 360);
        assert!(widths[0].as_i64().unwrap() <= 0, "{widths}");
        assert_eq!(widths[1], json!([]), "{widths}");
        assert!(
            widths[2]
                .as_array()
                .unwrap()
                .iter()
                .all(|one| one.as_i64().unwrap() <= 0),
            "{widths}"
        );
    };
    fits();
    page.click("#grid-tunnels .rows .row");
    page.waits("!document.querySelector('#details').hidden");
    fits();
    page.click("#details-actions .dangerous");
    page.waits("document.querySelector('#dialog').open");
    fits();
    page.click("#dialog-cancel");
    page.click("#details-close");
    for view in ["targets", "refusals", "replicas", "ended"] {
        page.click(&format!("[data-view={view}]"));
        page.waits(&format!("!document.querySelector('#view-{view}').hidden"));
        fits();
    }
    // Its order is chosen without a head of columns.
    page.click("[data-view=tunnels]");
    page.run("const sorting = document.querySelector('#sorting'); sorting.value = 'bytes'; sorting.dispatchEvent(new Event('change'));");
    page.waits("document.querySelector('.head .bytes').getAttribute('aria-sort') === 'descending'");
    is_quiet(&page);
}

/// The rows whose text has no room in its column, or more than it needs.
const UNFIT: &str = "const cells = [...document.querySelectorAll('#grid-tunnels .rows .row:not([hidden]) .cell')]
        .filter((cell) => getComputedStyle(cell).display !== 'none' && !cell.querySelector('canvas'));
    const columns = new Map();
    for (const cell of cells) {
        const range = document.createRange();
        range.selectNodeContents(cell);
        const text = range.getBoundingClientRect().width;
        const known = columns.get(cell.classList[1]) ?? { column: cell.clientWidth, text: 0 };
        columns.set(cell.classList[1], { ...known, text: Math.max(known.text, text) });
    }
    return [...columns].filter(([, { column, text }]) => column < text - 1 || column > Math.max(90, text * 1.4 + 20))
        .map(([name, { column, text }]) => `${name}: ${column} for ${text}`);";

#[test]
fn columns_are_as_wide_as_their_content_and_the_chart_as_the_page() {
    let short = Pretender::start(vec![tunnel(3)], Vec::new());
    let mut long = tunnel(3);
    long["user.name"] = "system:serviceaccount:research-and-development:notebook".into();
    long["target.service"] = "a-target-with-a-very-long-name-indeed".into();
    let long = Pretender::start(vec![long], Vec::new());
    for replica in [short, long] {
        let desk = Desk::of(&[replica.address]);
        let page = desk.page();
        page.resize(1900, 700);
        lists(&page, 1);
        page.waits("document.querySelector('#grid-tunnels .rows .row:not([hidden]) .client')");
        assert_eq!(page.run(UNFIT), json!([]));
        // What is drawn reaches both ends.
        page.waits("document.body.dataset.answers > 3");
        let drawn = page.run(
            "const chart = document.querySelector('#sum-chart');
            const { data } = chart.getContext('2d').getImageData(0, 0, chart.width, chart.height);
            const middle = (x) => { for (let y = 8; y < chart.height - 8; y += 1) if (data[4 * (y * chart.width + x) + 3]) return true; return false; };
            return [chart.getBoundingClientRect().right > innerWidth - 20, middle(3), middle(chart.width - 4)];",
        );
        assert_eq!(drawn, json!([true, true, true]));
        is_quiet(&page);
    }
}

/// The words that go on in another line, the cells that are over another one, and the width of the page.
const BROKEN: &str = "const texts = document.createTreeWalker(document.querySelector('.work'), NodeFilter.SHOW_TEXT);
    const broken = [];
    while (texts.nextNode()) {
        const { data, parentElement } = texts.currentNode;
        if (!parentElement.checkVisibility()) continue;
        for (const word of data.matchAll(/[^\\s\\-\\/]+/g)) {
            const range = document.createRange();
            range.setStart(texts.currentNode, word.index);
            range.setEnd(texts.currentNode, word.index + word[0].length);
            if (new Set([...range.getClientRects()].map((one) => Math.round(one.top))).size > 1) broken.push(word[0]);
        }
    }
    const cells = [...document.querySelectorAll('td')].filter((cell) => cell.checkVisibility());
    const over = cells.filter((cell) => cells.some((other) => {
        const [one, two] = [cell, other].map((place) => place.getBoundingClientRect());
        return cell !== other && one.left < two.right - 1 && two.left < one.right - 1 && one.top < two.bottom - 1 && two.top < one.bottom - 1;
    }));
    return [broken, over.map((cell) => cell.textContent), document.documentElement.scrollWidth];";

#[test]
fn no_word_is_broken_and_no_text_is_over_another() {
    let (one, other) = (Target::listen(), Target::listen());
    let list = allow(&[
        ("devbox.team-a:22", one.address()),
        ("gpu-box.research:22", other.address()),
    ]);
    let server = Server::with(&Settings::new(&list));
    for name in ["devbox.team-a:22", "gpu-box.research:22"] {
        let target = if name.starts_with("dev") { &one } else { &other };
        let (client, mut service) = server.tunnel(name, target);
        drop(client);
        assert!(service.rest().is_empty());
    }
    assert!(
        server
            .answer("notebook.of.nobody.example.com:22")
            .starts_with("HTTP/1.1 403 ")
    );
    let block = r#"{"kind": "block", "user": "alice@example.com", "reason": "it loops all the time", "for": "10m"}"#;
    assert_eq!(server.tell_admin("PUT", "/restrictions", block).status, 200);
    let desk = Desk::of(&[server.admin()]);
    let page = desk.page();
    page.waits("document.querySelector('#count-ended').textContent === '2'");
    for (view, filled) in [
        ("targets", "#grid-targets .rows .row"),
        ("refusals", "#refusal-latest tbody tr"),
        ("replicas", "#restrictions tbody tr"),
        ("ended", "#ended-latest tbody tr"),
    ] {
        page.click(&format!("[data-view={view}]"));
        page.waits(&format!("document.querySelector('{filled}')"));
        for width in [390, 1200] {
            page.resize(width, 844);
            assert_eq!(page.run(BROKEN), json!([[], [], width]), "{view}");
            let is_wider = "return [...document.querySelectorAll('.page:not([hidden]) table')].some((one) => one.clientWidth > 1100);";
            assert_eq!(page.run(is_wider), false, "{view}: its table is as wide as its content");
        }
    }
    is_quiet(&page);
}

#[test]
fn what_peers_have_sent_is_text_and_nothing_else() {
    let hostile = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>\u{202e}";
    let mut bad = tunnel(0);
    for field in [
        "user.name",
        "client.software",
        "upstream.software",
        "server.address",
        "upstream.node",
        "upstream.anchor",
    ] {
        bad[field] = hostile.into();
    }
    bad["a.field.of.later"] = hostile.into();
    let mut place = target("team-a", "devbox", 2, false);
    place["target.service"] = hostile.into();
    let replica = Pretender::start(vec![bad], vec![place]);
    let desk = Desk::of(&[replica.address]);
    let page = desk.page();
    lists(&page, 1);
    assert!(column(&page, "client")[0].starts_with("<img src=x"));
    page.types("j");
    page.types(ENTER);
    page.waits("document.querySelector('#details-list').innerText.includes('<script>')");
    page.types("x");
    page.waits("document.querySelector('#dialog-facts').innerText.includes('<script>')");
    page.types(ESCAPE);
    page.types("2");
    page.waits("document.querySelector('#grid-targets .rows .name')?.textContent.includes('<script>')");
    assert_eq!(
        page.run("return document.querySelectorAll('img, main script').length;"),
        0
    );
    assert_eq!(page.run("return document.title;"), "switchboard desk");
    is_quiet(&page);
}

tests_in! { slow: axe_finds_nothing_serious_in_light_and_dark, a_phone_shows_everything_without_scrolling_sideways }
