//! The API server is killed and comes back, and what is taken back then ends soon: with a real one (`make test-restarts
//! KUBE=DIR`) twenty times within two seconds of its return, else with the fake one.

use std::time::{Duration, Instant, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use switchboard::policy::access::tickets::{NewTicket, Ticket};
use tokio::time::sleep;

use super::cluster::{self, Ground};
use super::objects::{role, role_binding, service, slice, with};
use super::proxy::{Refused, Tunnel, eventually};
use super::stage::RECOVERY;

/// Two users of one Service: an account by its token, and `carol` by a ticket.
struct Scene<'a> {
    ground: &'a Ground,
    target: String,
    token: String,
    binding: Value,
}

/// The times of one round, from the return of the API server on.
struct Ends {
    /// Both are taken back.
    revoked: Duration,
    /// The tunnel of the binding has ended.
    binding: Duration,
    ticket: Duration,
    /// Tunnels that the ticket has opened after it was taken back.
    opened: usize,
}

impl<'a> Scene<'a> {
    async fn new(ground: &'a Ground) -> Self {
        let here = &ground.here;
        let account =
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "ci", "namespace": here}});
        let subject = json!([{"kind": "ServiceAccount", "name": "ci", "namespace": here}]);
        for object in [
            account,
            role(here, "ssh", &[]),
            role_binding(here, "carol", "ssh", "carol"),
            slice(here, "box", &["10.9.1.1"]),
            service(here, "box"),
        ] {
            ground.apply(&object).await;
        }
        Self {
            ground,
            target: format!("box.{here}:22"),
            token: ground.token("ci").await,
            binding: with(role_binding(here, "ci", "ssh", ""), "/subjects", subject),
        }
    }

    fn secret(&self, data: &Value) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "switchboard.dev/tickets",
            "metadata": {"namespace": self.ground.here, "name": "switchboard-tickets"}, "data": data,
        })
    }

    async fn login(&self, credential: &str) -> Result<Tunnel, Refused> {
        let field = format!("Proxy-Authorization: Bearer {credential}\r\n");
        self.ground.proxy.connect_with(&self.target, &field).await
    }

    async fn logged_in(&self, credential: &str) -> Tunnel {
        let mut tunnel = None;
        eventually("a tunnel opens", async || {
            tunnel = self.login(credential).await.ok();
            tunnel.is_some()
        })
        .await;
        tunnel.unwrap()
    }

    /// Returns whether the approvals of both users would count in an outage.
    async fn remembers_both(&self) -> bool {
        let entries = self
            .ground
            .proxy
            .metric("switchboard_access_cache_entries", "cache=\"allowed\"");
        entries.await.is_some_and(|count| count >= 2.0)
    }

    /// One restart, after which both are taken back.
    async fn restart(&self, away: Duration) -> Ends {
        let ground = self.ground;
        let (minted, ticket) = ticket();
        ground.apply(&self.binding).await;
        ground.apply(&self.secret(&ticket)).await;
        let ticket = minted.ticket.expose();
        let mut by_token = self.logged_in(&self.token).await;
        let mut by_ticket = self.logged_in(ticket).await;
        // A change that a watch tells late has these reviewed again.
        eventually("both are remembered", async || self.remembers_both().await).await;
        ground.stop_api().await;
        sleep(away).await;
        if away > FAIL_STATIC {
            assert_eq!(
                self.login(ticket).await.unwrap_err().status,
                503,
                "it may have been taken back"
            );
            let is_remembered = self.remembers_both().await;
            match self.login(&self.token).await {
                Ok(mut tunnel) => drop(tunnel.echo().await.unwrap()),
                Err(refused) => assert!(!is_remembered, "{refused:?}"),
            }
        }
        by_ticket.echo().await.unwrap();
        by_token.echo().await.unwrap();
        let started = tokio::spawn(ground.start_api());
        eventually("it is ready", async || ground.is_api_ready().await).await;
        let since = Instant::now();
        let empty = self.secret(&json!({}));
        tokio::join!(ground.delete(&self.binding), ground.apply(&empty));
        let revoked = since.elapsed();
        let mut opened = 0;
        let keeps_trying = async {
            loop {
                opened += usize::from(self.login(ticket).await.is_ok());
                sleep(Duration::from_millis(10)).await;
            }
        };
        let ended = async {
            tokio::select! {
                () = by_ticket.ended() => since.elapsed(),
                () = keeps_trying => unreachable!("it goes on"),
            }
        };
        let (ticket_ended, binding_ended) = tokio::join!(ended, async {
            by_token.ended().await;
            since.elapsed()
        });
        for _ in 0..20 {
            assert!(self.login(ticket).await.is_err(), "it was taken back");
        }
        started.await.unwrap();
        Ends {
            revoked,
            binding: binding_ended,
            ticket: ticket_ended,
            opened,
        }
    }
}

/// A ticket, and the data of the Secret with it.
fn ticket() -> (NewTicket, Value) {
    let minted = NewTicket::new().unwrap();
    let ticket = Ticket {
        user: "carol".into(),
        groups: Vec::new(),
        expires: SystemTime::now() + Duration::from_hours(1),
        target: None,
    };
    let data = json!({ minted.key.to_string(): STANDARD.encode(ticket.encode().unwrap()) });
    (minted, data)
}

#[test]
fn what_is_taken_back_after_a_restart_of_the_api_server_ends_soon() {
    cluster::run_restarting(async |ground| {
        let scene = Scene::new(ground).await;
        let (rounds, max) = match ground.is_real() {
            true => (20, Duration::from_secs(2)),
            false => (2, RECOVERY),
        };
        let mut late = Vec::new();
        for round in 0..rounds {
            // From 1 to 10 s.
            let away = Duration::from_secs(1) + Duration::from_secs(9) * round / (rounds - 1);
            let Ends {
                revoked,
                binding,
                ticket,
                opened,
            } = scene.restart(away).await;
            eprintln!(
                "figure: restart {round}, {away:.1?} away: taken back {revoked:.2?} after the return, the tunnel of the \
                 binding ended {binding:.2?}, that of the ticket {ticket:.2?} after it, {opened} opened in between"
            );
            if binding.max(ticket) > max {
                late.push(round);
            }
        }
        assert!(late.is_empty(), "later than {max:?} in rounds {late:?}");
        let messages = ground.proxy.messages();
        assert!(!messages.contains("lacks the rule"), "a 403 has passed: {messages}");
    });
}

/// A ticket opens no tunnel so long after the start of an outage, with a second for its discovery.
const FAIL_STATIC: Duration = Duration::from_secs(6);
