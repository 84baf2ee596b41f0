//! A user whose network changes: two uplinks lead from its network namespace to the proxy.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::kubernetes::lab::{self, Lab};
use crate::openssh::clients::ours;
use crate::openssh::lines::Lines;
use crate::openssh::login::{HOST, PATIENCE, noise, options};
use crate::openssh::process::{Process, program, until};
use crate::openssh::proxy::Proxy;
use crate::openssh::sshd::Sshd;

use super::Shell;
use super::anchor::Anchor;

/// The user's network, and all that the user reaches through it.
struct Uplinks {
    proxy: Proxy,
    _anchor: Anchor,
    sshd: Sshd,
    lab: Lab,
}

impl Uplinks {
    /// With a path over the first uplink only.
    fn start(lab: Lab) -> Self {
        lab.ip(&format!(
            "link add second type veth peer name uplink netns {}\n\
             address add 10.8.1.1/24 dev second\nlink set second up\naddress add {PROXY}/32 dev lo",
            lab.holder()
        ));
        // The first one is `proxy`, with 10.8.0.2: the place of the proxy in other tests.
        lab.ip_beside_proxy(&format!(
            "address add 10.8.1.2/24 dev uplink\nlink set uplink up\nroute add {PROXY} via 10.8.0.1"
        ));
        let directory = lab.directory();
        let sshd = Sshd::start(directory);
        let anchor = Anchor::start(sshd.address);
        let proxy = Proxy::start_at(&format!("address: \"{PROXY}:0\""), directory, anchor.address, "");
        Self {
            proxy,
            _anchor: anchor,
            sshd,
            lab,
        }
    }

    /// Lets the path lead over the first or the second uplink, and takes the other one away.
    fn take(&self, second: bool) {
        let (gateway, up, down) = if second {
            ("10.8.1.1", "uplink", "proxy")
        } else {
            ("10.8.0.1", "proxy", "uplink")
        };
        self.lab.ip_beside_proxy(&format!(
            "link set {down} down\nlink set {up} up\nroute replace {PROXY} via {gateway}"
        ));
    }

    fn directory(&self) -> &Path {
        self.lab.directory()
    }

    fn command(&self, name: &str) -> Command {
        let binary = ours();
        let proxy_command = format!("{binary} connect --proxy http://{} %h:%p", self.proxy.address);
        let path = program(name, "openssh-client");
        let mut command = self.lab.beside_proxy(path.to_str().unwrap());
        command
            .args(options(self.directory(), &self.sshd.user, &proxy_command))
            .current_dir(self.directory())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .env("LC_ALL", "C");
        command
    }

    /// The clients' addresses in the proxy's access log, of so many tunnels that have ended.
    fn sources(&self, tunnels: usize) -> Vec<String> {
        let source = |line: &String| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            line["client.address"].as_str().unwrap().to_owned()
        };
        self.proxy.access_lines(tunnels).iter().map(source).collect()
    }
}

fn a_copy_goes_on_while_its_source_address_changes() {
    lab::run_with_sshd(async |lab| {
        let way = Uplinks::start(lab);
        let content = noise(128 << 20);
        let (here, there) = (way.directory().join("here"), way.directory().join("there"));
        fs::write(&here, &content).unwrap();
        let mut command = way.command("scp");
        command.arg(&here).arg(format!("{HOST}:{}", there.display()));
        let mut process = Process::start(command.stderr(Stdio::piped()));
        let said = Lines::of(process.child().stderr.take().unwrap());
        let copied = || fs::metadata(&there).map_or(0, |file| file.len());
        for change in 0..CHANGES {
            // More than what is on the way, so that the change before has been overcome.
            let next = copied() + (16 << 20);
            until(PATIENCE, "the copy grows", || {
                assert!(!process.has_ended(), "{}", said.all().join("\n"));
                (copied() >= next).then_some(())
            });
            way.take(change % 2 == 0);
        }
        let status = process.wait(PATIENCE);
        assert!(status.success(), "{}\n{}", said.all().join("\n"), way.proxy.log());
        assert!(fs::read(&there).unwrap() == content, "the copy is another one");
        let sources = way.sources(CHANGES);
        for source in ["10.8.0.2", "10.8.1.2"] {
            assert!(sources.iter().any(|line| line == source), "{sources:?}");
        }
    });
}

fn an_idle_session_takes_another_path_as_soon_as_the_kernel_does() {
    lab::run_with_sshd(async |lab| {
        let way = Uplinks::start(lab);
        let mut shell = Shell::start(way.command("ssh"));
        // Both uplinks stay up, and each would carry the session for ever.
        for (gateway, left) in [("10.8.1.1", "10.8.0.2"), ("10.8.0.1", "10.8.1.2")] {
            way.lab.ip_beside_proxy(&format!("route replace {PROXY} via {gateway}"));
            let tunnels = if left == "10.8.0.2" { 1 } else { 2 };
            assert_eq!(way.sources(tunnels)[tunnels - 1], left);
            shell.echo(&format!("left-{left}"));
        }
        shell.log_out();
    });
}

/// A way in which the path to the proxy is lost, and is there again.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// The user's link is down, and up again with the same address.
    Link,
    /// The user's link is down, and another one with another address is up.
    Address,
    /// Nothing arrives from the proxy any more, and no link tells.
    Silence,
}

fn a_session_goes_on_within_two_seconds_of_there_being_a_path() {
    lab::run_with_sshd(async |lab| {
        let way = Uplinks::start(lab);
        let mut shell = Shell::start(way.command("ssh"));
        let (mut delays, mut plain, mut second) = (Vec::new(), Duration::ZERO, false);
        for number in 0..CUTS {
            let begun = Instant::now();
            shell.echo(&format!("before-{number}"));
            plain = plain.max(begun.elapsed());
            let cut = [Cut::Link, Cut::Address, Cut::Silence][number % 3];
            let (link, gateway, far, own) = match second {
                true => ("uplink", "10.8.1.1", "second", "10.8.1.2"),
                false => ("proxy", "10.8.0.1", "pods", "10.8.0.2"),
            };
            match cut {
                Cut::Link | Cut::Address => way.lab.ip_beside_proxy(&format!("link set {link} down")),
                Cut::Silence => way.lab.ip(&format!(
                    "neighbour replace {own} lladdr 02:00:00:00:00:99 dev {far} nud permanent"
                )),
            }
            shell.type_in(&format!("after-{number}"));
            // Outages of 0.2 to 8 s, in an order that has all of them with each kind of cut.
            let outage = Duration::from_millis(200 + 7_800 * (number as u64 * 19 % CUTS as u64) / CUTS as u64);
            sleep(outage);
            let back = Instant::now();
            match cut {
                Cut::Link => way
                    .lab
                    .ip_beside_proxy(&format!("link set {link} up\nroute replace {PROXY} via {gateway}")),
                Cut::Address => {
                    second = !second;
                    way.take(second);
                }
                Cut::Silence => way.lab.ip(&format!("neighbour delete {own} dev {far}")),
            }
            shell.expect(&format!("after-{number}"));
            delays.push((back.elapsed(), cut, outage));
        }
        shell.log_out();
        delays.sort_unstable_by_key(|(delay, ..)| *delay);
        let (median, max) = (delays[CUTS / 2].0, delays[CUTS - 1].0);
        let last = &delays[CUTS - 8..];
        assert!(
            max <= Duration::from_secs(2) + plain,
            "{median:?} (p50), {max:?} (p99) after there is a path, plainly {plain:?}: {last:?}"
        );
    });
}

/// The proxy's address, which no link has.
const PROXY: &str = "10.8.2.1";
/// Changes of the uplink during a copy.
const CHANGES: usize = 4;
/// So many that the longest delay is the 99th percentile.
const CUTS: usize = 50;

tests_in! {
    measured:
    a_session_goes_on_within_two_seconds_of_there_being_a_path,
}

tests_in! {
    slow:
    a_copy_goes_on_while_its_source_address_changes,
    an_idle_session_takes_another_path_as_soon_as_the_kernel_does,
}
