//! The proxy's credentials, and the certificates that it trusts, change while it runs.

use std::time::Instant;

use serde_json::json;

use super::api::{Cut, Verb};
use super::lab;
use super::objects::{namespace, with};
use super::stage::Stage;

#[test]
fn a_token_that_is_replaced_in_its_file_is_taken_from_there() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[]).await;
        stage.serve("svc-a", "10.9.1.1").await;
        let hammer = stage.hammer("svc-a.team-a:22");
        stage.api.write_token("second");
        stage.api.rotate_token("second");
        stage.api.cut(Cut::Expired);
        stage.recovered("a rotated token", "after").await;
        // And one whose file comes late.
        let unauthorized = stage.errors("unauthorized").await;
        stage.api.rotate_token("third");
        stage.api.cut(Cut::Expired);
        stage.noticed("unauthorized", unauthorized).await;
        stage.is_unmoved("svc-a").await;
        stage.api.write_token("third");
        stage.recovered("a token whose file came late", "later").await;
        hammer.never_refused().await;
    });
}

#[test]
fn rights_that_are_lost_and_restored_change_nothing() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[]).await;
        stage.serve("svc-a", "10.9.1.1").await;
        let hammer = stage.hammer("svc-a.team-a:22");
        for plural in ["services", "endpointslices"] {
            let forbidden = stage.errors("forbidden").await;
            stage.api.allow(plural, false);
            // An open watch outlives the rights.
            stage.put(&format!("{plural}-open"), "10.9.1.2");
            stage
                .proxy
                .reaches(&format!("{plural}-open.team-a:22"), "10.9.1.2:22")
                .await;
            stage.api.cut(Cut::Expired);
            stage.noticed("forbidden", forbidden).await;
            stage.is_unmoved("svc-a").await;
            let name = format!("{plural}-back");
            stage.put(&name, "10.9.1.3");
            stage.api.allow(plural, true);
            stage.follows("rights given back", &name, Instant::now()).await;
        }
        hammer.never_refused().await;
    });
}

#[test]
fn a_new_certificate_or_authority_in_the_files_is_trusted() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[]).await;
        stage.serve("svc-a", "10.9.1.1").await;
        let hammer = stage.hammer("svc-a.team-a:22");
        stage.api.close().await;
        stage.api.open();
        stage.recovered("a new certificate", "certificate").await;
        stage.api.close().await;
        stage.api.renew_authority();
        stage.api.open();
        stage.recovered("a new authority", "authority").await;
        hammer.never_refused().await;
    });
}

#[test]
fn a_server_with_a_certificate_for_another_name_is_not_trusted() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[]).await;
        stage.serve("svc-a", "10.9.1.1").await;
        let connect = stage.errors("connect").await;
        stage.api.close().await;
        stage.api.certify("another.example");
        let lists = stage.api.seen(Verb::List);
        stage.api.lose(|_, _| true);
        stage.api.open();
        stage.noticed("connect", connect + 2.0).await;
        stage.is_unmoved("svc-a").await;
        assert_eq!(
            stage.api.seen(Verb::List),
            lists,
            "it is asked nothing, and no token is sent to it"
        );
        stage.api.close().await;
        stage.api.certify(&stage.api.name());
        stage.api.open();
        stage.recovered("the right certificate", "after").await;
    });
}

#[test]
fn a_namespace_opens_and_closes_with_its_labels() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[("namespace_selector", json!("ssh=yes"))]).await;
        stage.put("svc-a", "10.9.1.1");
        let open = namespace("team-a", &json!({"ssh": "yes"}));
        for _ in 0..2 {
            stage.proxy.refuses("svc-a.team-a:22", 403).await;
            stage.api.put(open.clone());
            stage.proxy.reaches("svc-a.team-a:22", "10.9.1.1:22").await;
            let mut tunnel = stage.proxy.connect("svc-a.team-a:22").await.unwrap();
            stage
                .api
                .put(with(open.clone(), "/metadata/labels", json!({"ssh": "no"})));
            tunnel.ended().await;
        }
        stage.proxy.refuses("svc-a.team-a:22", 403).await;
    });
}

#[test]
fn only_the_listed_namespaces_are_asked_for() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[("namespaces", json!(["team-a", "team-c"]))]).await;
        stage.api.put(super::objects::slice("team-b", "svc-b", &["10.9.1.2"]));
        stage.api.put(super::objects::service("team-b", "svc-b"));
        stage.serve("svc-a", "10.9.1.1").await;
        let refused = stage.proxy.connect("svc-b.team-b:22").await.unwrap_err();
        assert_eq!(refused.status, 403, "another namespace is not served");
    });
}
