//! The pictures of the page: `make screenshots` has them taken into `docs/desk/`, with more rates to draw.

use std::path::Path;
use std::{env, fs};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use super::browser::ENTER;
use super::lists;
use super::stage::{Desk, Pretender, target, tunnel};

fn the_page_is_drawn_in_light_in_dark_and_on_a_phone() {
    let folder = env::var_os("SWITCHBOARD_PICTURES");
    // With a folder until the sparklines are full.
    let steps: u64 = if folder.is_some() { 70 } else { 2 };
    let targets = vec![
        target("team-a", "devbox", 2, false),
        target("team-a", "gpu-box", 2, true),
    ];
    let half = |first: usize| Pretender::start((first..48).step_by(2).map(tunnel).collect(), targets.clone());
    let replicas = [half(0), half(1)];
    let desk = Desk::of(&replicas.each_ref().map(|replica| replica.address));
    let page = desk.page();
    lists(&page, 48);
    // Rates that go up and down.
    for step in 0..steps {
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
    let take = |name: &str, size: [u32; 2]| {
        let picture = BASE64_STANDARD.decode(page.picture()).unwrap();
        assert_eq!(size_of(&picture), size, "{name}");
        if let Some(folder) = &folder {
            fs::write(Path::new(folder).join(format!("{name}.png")), picture).unwrap();
        }
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
        take(scheme, [1200, 560]);
    }
    page.click("#details-close");
    page.prefers("light");
    page.resize(360, 640);
    let answers = page
        .run("return Number(document.body.dataset.answers);")
        .as_u64()
        .unwrap();
    page.waits(&format!("document.body.dataset.answers > {answers} + 1"));
    take("phone", [360, 640]);
}

/// The width and the height of a PNG (RFC 2083, sections 3.1 and 4.1.1).
#[track_caller]
fn size_of(picture: &[u8]) -> [u32; 2] {
    let head: &[u8; 24] = picture.first_chunk().unwrap();
    assert_eq!((&head[..8], &head[12..16]), (&b"\x89PNG\r\n\x1a\n"[..], &b"IHDR"[..]));
    [16, 20].map(|at| u32::from_be_bytes(head[at..at + 4].try_into().unwrap()))
}

tests_in! { slow: the_page_is_drawn_in_light_in_dark_and_on_a_phone }
