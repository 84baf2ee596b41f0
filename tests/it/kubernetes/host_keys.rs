//! The annotation `host-keys`: the keys of an SSH server, for clients that ask.

use super::lab;
use super::objects::{annotated, service, slice};
use super::proxy::eventually;
use super::stage::Stage;
use super::writes::told;

const KEY: &str = "AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB";
const ASKING: &str = "Switchboard-Host-Keys: ?1\r\n";

/// Returns the fields of the answer for a Service.
async fn fields(stage: &Stage, asks: &str) -> Vec<String> {
    stage.proxy.connect_with("devbox.team-a:22", asks).await.unwrap().fields
}

#[test]
fn the_keys_of_an_annotation_reach_clients_that_ask_and_an_invalid_one_is_an_event() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[("events", true.into())]).await;
        let devbox = |keys: &str| annotated(service("team-a", "devbox"), &[("host-keys", keys)]);
        stage.api.put(slice("team-a", "devbox", &["10.9.1.1"]));
        stage
            .api
            .put(devbox(&format!("# ssh-keyscan\nssh-ed25519 {KEY} root@devbox\n")));
        stage.proxy.reaches("devbox.team-a:22", "10.9.1.1:22").await;
        let published = format!("Switchboard-Host-Keys: (:{KEY}:);from=annotation");
        assert_eq!(fields(&stage, ASKING).await, [published]);
        assert_eq!(fields(&stage, "").await, [""; 0]);
        // They are not left to the lines of any server in the pod.
        for invalid in [&format!("@cert-authority ssh-ed25519 {KEY}"), "ssh-ed25519 AAAA"] {
            stage.api.put(devbox(invalid));
            told(&stage, "IgnoredAnnotation", "Ignored annotation host-keys: ").await;
            let none = ["Switchboard-Host-Keys: ();from=annotation"];
            eventually("they are withdrawn", async || fields(&stage, ASKING).await == none).await;
        }
    });
}
