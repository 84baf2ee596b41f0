//! A pod is told whose connection it gets, if its Service says that it wants to be.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::lab::{self, PROXY};
use super::objects::{annotated, service, slice};
use super::proxy::{PORT, eventually};
use super::stage::Stage;

#[test]
fn a_pod_gets_the_proxy_header_of_the_version_its_service_asks_for() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[]).await;
        stage.api.put(slice("team-a", "box", &["10.9.1.1"]));
        let faults = async || stage.proxy.metric("switchboard_annotation_errors_total", "").await;
        let none: fn(SocketAddr) -> Vec<u8> = |_| Vec::new();
        for (value, header) in [
            ("v1", v1 as fn(SocketAddr) -> Vec<u8>),
            ("v2", v2),
            ("off", none),
            ("v2", v2),
            ("3", none),
        ] {
            stage
                .api
                .put(annotated(service("team-a", "box"), &[("send-proxy-protocol", value)]));
            // A change of a Service takes a moment, and is for the tunnels that come then.
            eventually(&format!("the pod is told as {value:?} has it"), async || {
                let Ok(mut tunnel) = stage.proxy.connect("box.team-a:22").await else {
                    return false;
                };
                // It is a tunnel: nothing of the header was taken for the session.
                tunnel.echo().await.unwrap();
                stage.pods.last_told() == Some(header(tunnel.client()))
            })
            .await;
        }
        // It is counted after the allowlist has changed.
        eventually("a version that there is not is counted", async || {
            faults().await == Some(1.0)
        })
        .await;
    });
}

/// The header's text form: the client, and where it connected to.
fn v1(client: SocketAddr) -> Vec<u8> {
    format!("PROXY TCP4 {} {PROXY} {} {PORT}\r\n", client.ip(), client.port()).into()
}

/// The same in the binary form.
fn v2(client: SocketAddr) -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c".to_vec();
    for address in [client.ip(), PROXY] {
        header.extend(v4(address).octets());
    }
    for port in [client.port(), PORT] {
        header.extend(port.to_be_bytes());
    }
    header
}

fn v4(address: IpAddr) -> Ipv4Addr {
    match address {
        IpAddr::V4(address) => address,
        IpAddr::V6(address) => panic!("{address} is none of this test's addresses"),
    }
}
