//! Changes of the mode while tunnels run.

use std::fs;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tempfile::TempDir;

use crate::harness::peer::Peer;
use crate::harness::ports::Ports;
use crate::harness::proxy::Proxy;
use crate::harness::target::Target;
use crate::harness::{CONFIRMATION, eventually};

/// The password of alice and bob is `correct`: made by htpasswd(1).
const HASH: &str = "$2y$05$C4ig4r120vyo1vh3fN8r8eElsx.pkSZw4WxY2QNujrvxq297xDBEu";

struct Scene {
    folder: TempDir,
    target: Target,
}

impl Scene {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("users"), format!("alice:{HASH}\nbob:{HASH}\n")).unwrap();
        Self {
            folder,
            target: Target::listen(),
        }
    }

    fn settings(&self, mode: &str, allowed: &str) -> String {
        format!(
            "ssh_only: false\naccess: {{mode: {mode}, users: {{file: \"{}\"}}}}\nallowlist: {{static: [{{name: \"box:22\", \
             addresses: [\"{}\"], allowed_users: [{allowed}]}}]}}\n",
            self.folder.path().join("users").display(),
            self.target.address()
        )
    }

    /// Both ends of a tunnel; of no user, if the name is empty.
    fn tunnel(&self, proxy: &Proxy, user: &str) -> (Peer, Peer) {
        let mut client = proxy.client(asked(user));
        client.expect(CONFIRMATION);
        (client, self.target.accept())
    }
}

fn asked(user: &str) -> String {
    let credential = match user {
        "" => String::new(),
        user => format!(
            "Proxy-Authorization: Basic {}\r\n",
            STANDARD.encode(format!("{user}:correct"))
        ),
    };
    format!("CONNECT box:22 HTTP/1.1\r\nHost: box:22\r\n{credential}\r\n")
}

/// Waits until a request of that user, or of none, is answered with that status.
fn answers(proxy: &Proxy, user: &str, status: &str) {
    eventually(&format!("{user:?} is answered {status}"), || {
        let said = proxy.client(asked(user)).read_once();
        String::from_utf8_lossy(&said)
            .starts_with(&format!("HTTP/1.1 {status} "))
            .then_some(())
    });
}

fn goes_on((client, upstream): &mut (Peer, Peer)) {
    client.send("ping");
    upstream.expect("ping");
    upstream.send("pong");
    client.expect("pong");
}

const CLOSED: &str = r#"tunnels_closed_total{by="proxy",reason="access_revoked"}"#;

/// As docs/access.md says: what was opened without a right has none that could be taken back.
#[test]
fn tunnels_of_the_modes_open_and_report_go_on_when_rights_are_enforced() {
    for mode in ["open", "report"] {
        let scene = Scene::new();
        let proxy = Proxy::start(&scene.settings(mode, "alice"));
        let mut running = ["", "alice", "bob"].map(|user| scene.tunnel(&proxy, user));
        proxy.reload(&scene.settings("enforce", "alice"));
        answers(&proxy, "", "407");
        answers(&proxy, "bob", "403");
        running.iter_mut().for_each(goes_on);
        // The right that alice had in `report` was not what opened the tunnel.
        proxy.reload(&scene.settings("enforce", "bob"));
        // Waited for by bob: a tunnel that alice still gets would be ended by the reload, and count as that.
        answers(&proxy, "bob", "200");
        answers(&proxy, "alice", "403");
        running.iter_mut().for_each(goes_on);
        assert_eq!(proxy.scrape().value(CLOSED), 0.0, "{mode}");
    }
}

#[test]
fn a_right_that_is_lost_while_it_is_not_enforced_ends_its_tunnel_when_it_is_again() {
    for mode in ["open", "report"] {
        let scene = Scene::new();
        let proxy = Proxy::start(&scene.settings("enforce", "alice, bob"));
        let [(mut client, mut upstream), mut bobs] = ["alice", "bob"].map(|user| scene.tunnel(&proxy, user));
        proxy.reload(&scene.settings(mode, "bob"));
        answers(&proxy, "", "200");
        client.send("ping");
        upstream.expect("ping");
        goes_on(&mut bobs);
        assert_eq!(proxy.scrape().value(CLOSED), 0.0, "{mode}");
        proxy.reload(&scene.settings("enforce", "bob"));
        client.expect_reset();
        proxy.settles(CLOSED, 1.0);
        goes_on(&mut bobs);
    }
}
