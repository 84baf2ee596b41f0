//! From another host the admin port can be read, and a drain cannot be begun.

use super::lab;
use super::proxy::{ADMIN_PORT, eventually};
use super::stage::Stage;

#[test]
fn a_drain_can_be_requested_on_the_proxys_host_only() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[]).await;
        stage.serve("svc-a", "10.9.1.1").await;
        let mut tunnel = stage.proxy.connect("svc-a.team-a:22").await.unwrap();
        let (status, answer) = stage.proxy.ask_admin("POST", "/drain").await.unwrap();
        assert_eq!(status, 403);
        assert!(answer.ends_with("\r\n\r\nonly from loopback\n"), "{answer}");
        let (status, progress) = stage.proxy.page("/drain").await.unwrap();
        assert_eq!(status, 200);
        assert!(progress.contains("\"phase\":\"serving\""), "{progress}");
        stage.is_unmoved("svc-a").await;

        let drain = |admin: &str| {
            let mut command = stage.lab.beside_proxy(env!("CARGO_BIN_EXE_switchboard"));
            command.args(["drain", "--admin", admin]).output().unwrap()
        };
        // Its own address is an address of its host, and still not loopback: other hosts can reach it.
        let by_address = drain(&format!("{}:{ADMIN_PORT}", lab::PROXY));
        assert_eq!(by_address.status.code(), Some(1));
        let told = String::from_utf8(by_address.stderr).unwrap();
        assert!(told.contains("403 Forbidden: only from loopback"), "{told}");
        stage.is_unmoved("svc-a").await;
        assert!(drain(&format!("127.0.0.1:{ADMIN_PORT}")).status.success());
        eventually("it is not ready", async || !stage.proxy.is_ready().await).await;
        tunnel.echo().await.unwrap();
    });
}
