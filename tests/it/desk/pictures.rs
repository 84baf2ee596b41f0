//! The pictures of the page in `docs/desk/`: `make screenshots` takes them.

use std::fs;
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use super::browser::ENTER;
use super::lists;
use super::stage::{Desk, Pretender, target, tunnel};

#[test]
#[ignore = "it writes into docs/: make screenshots"]
fn screenshots() {
    let targets = vec![
        target("team-a", "devbox", 2, false),
        target("team-a", "gpu-box", 2, true),
    ];
    let half = |first: usize| Pretender::start((first..48).step_by(2).map(tunnel).collect(), targets.clone());
    let replicas = [half(0), half(1)];
    let desk = Desk::of(&replicas.each_ref().map(|replica| replica.address));
    let page = desk.page();
    lists(&page, 48);
    // Rates that go up and down, until the sparklines are full.
    for step in 0..70_u64 {
        for replica in &replicas {
            replica.change(|tunnels| {
                for (number, one) in (0_u64..).zip(tunnels.iter_mut()) {
                    if one["sent_per_second"].as_u64().is_some_and(|rate| rate > 0) {
                        let wave = (step * (3 + number % 5) + number * 7) % 23;
                        one["sent_per_second"] = (1 + wave.min(23 - wave) * (number * 7919 % 97) * 1311).into();
                        one["received_per_second"] = (1 + wave * 217).into();
                        one["bytes_sent"] = (one["bytes_sent"].as_u64().unwrap() + 1_000_000).into();
                    }
                }
            });
        }
        page.waits(&format!("document.body.dataset.answers > {step}"));
    }
    let take = |name: &str| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/desk");
        fs::create_dir_all(&folder).unwrap();
        let picture = BASE64_STANDARD.decode(page.picture()).unwrap();
        fs::write(folder.join(format!("{name}.png")), picture).unwrap();
    };
    page.resize(1200, 560);
    for scheme in ["light", "dark"] {
        page.prefers(scheme);
        if scheme == "dark" {
            page.types("jjjj");
            page.types(ENTER);
            page.waits("!document.querySelector('#details').hidden");
        }
        let answers = page
            .run("return Number(document.body.dataset.answers);")
            .as_u64()
            .unwrap();
        page.waits(&format!("document.body.dataset.answers > {answers} + 1"));
        take(scheme);
    }
    page.click("#details-close");
    page.prefers("light");
    page.resize(360, 640);
    let answers = page
        .run("return Number(document.body.dataset.answers);")
        .as_u64()
        .unwrap();
    page.waits(&format!("document.body.dataset.answers > {answers} + 1"));
    take("phone");
}
