//! A user who abandons sessions before the login, beside users who log in and who have logged in.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;

use super::{HOST, Way};
use crate::anchor::client::{Client, block_on};
use crate::harness::target::Closed;

/// Begins a session without a key exchange, acknowledges the SSH server's first bytes, and drops its connection.
async fn abandon(anchor: SocketAddr) {
    let Ok((mut client, mut user)) = Client::begin(anchor).await else {
        return;
    };
    let talking = async {
        let mut bytes = [0; 64];
        user.read_exact(&mut bytes[..4]).await?;
        // It has the acknowledgement of these bytes in front of it.
        user.write_all(b"SSH-2.0-x\r\n").await?;
        // More than an identification: the SSH server has read that of the client.
        user.read_exact(&mut bytes).await
    };
    // An SSH server without a place for a login closes the connection.
    tokio::select! {
        _ = client.run() => {}
        _ = talking => {}
    }
}

#[test]
fn sessions_that_are_abandoned_before_the_login_keep_nobody_out_and_cost_nobody_a_session() {
    let way = Way::http();
    let mut shell = way.shell();
    let closed = Closed::bind();
    way.middle.lead_to(closed.address());
    way.middle.cut(false);
    // More than the SSH server has places for logins, eight at a time.
    block_on(async {
        for _ in 0..20 {
            let mut abandoned = JoinSet::new();
            for _ in 0..8 {
                abandoned.spawn(abandon(way.anchor.address));
            }
            abandoned.join_all().await;
        }
    });
    way.middle.lead_to(way.proxy.address);
    for _ in 0..5 {
        way.run(way.command("ssh").args([HOST, "true"]));
    }
    shell.echo("after-the-outage");
    shell.log_out();
}
