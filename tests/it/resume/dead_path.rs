//! A path that dies under a session without an anchor: no FIN, no reset, no packet at all.

use std::io::{Write, pipe};

use crate::harness::ports::Ports;
use crate::harness::process::{Process, Server, Settings};
use crate::harness::target::Target;
use crate::harness::{DEADLINE, allow, within};
use crate::kubernetes::lab;
use crate::openssh::clients::ours;

/// Without TCP_USER_TIMEOUT the kernel would repeat the bytes for 15 minutes, and keepalive take two minutes.
fn idle_and_busy_sessions_without_an_anchor_are_given_up_with_a_sentence() {
    lab::run_with_sshd(async |lab| {
        let target = Target::listen();
        let list = allow(&[("devbox:22", target.address())]);
        let server = Server::with(&Settings::new(&format!("listen: 10.8.0.1:0\n{list}")));
        let mut sessions = Vec::new();
        for is_busy in [false, true] {
            let mut command = lab.beside_proxy(&ours());
            let proxy = format!("http://10.8.0.1:{}", server.public().port());
            command.args(["connect", "--proxy", &proxy, "devbox:22"]);
            let (stdin, ssh) = pipe().unwrap();
            let mut client = Process::spawn_from(&mut command, stdin);
            drop(command);
            let mut service = target.accept();
            service.send("SSH-2.0-x\r\n");
            assert_eq!(client.stdout.next().as_deref(), Some("SSH-2.0-x"));
            sessions.push((client, service, ssh, is_busy));
        }
        lab.ip("link set pods down");
        for (_, _, ssh, _) in sessions.iter_mut().filter(|(.., is_busy)| *is_busy) {
            ssh.write_all(b"SSH-2.0-y\r\n").unwrap();
        }
        for (mut client, _service, _ssh, is_busy) in sessions {
            // The kernel takes a minute on a machine that is idle.
            let given_up = || (!client.is_running()).then_some(());
            within(5 * DEADLINE, "the client gives up", given_up);
            assert_eq!(client.exit_status(), 1, "busy: {is_busy}");
            let said = client.stderr.rest().join("\n");
            assert!(said.contains("the connection to the proxy was lost"), "{said}");
        }
    });
}

tests_in! { slow: idle_and_busy_sessions_without_an_anchor_are_given_up_with_a_sentence }
