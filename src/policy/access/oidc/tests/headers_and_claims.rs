//! Headers and claims of tokens with a good signature.

use super::*;

#[tokio::test]
async fn a_header_with_what_is_not_understood_is_refused() {
    let signer = Signer::p256();
    let bench = Bench::new(issuer(), &[signer.jwk("1")]).await;
    let good = claims(&json!({})).to_string();
    for (header, expected) in [
        (
            r#"{"alg":"ES256","kid":"1","crit":["exp"],"exp":1}"#,
            "the token has extensions that are not known",
        ),
        (
            r#"{"alg":"ES256","kid":"1","crit":["b64"],"b64":false}"#,
            "the token has extensions that are not known",
        ),
        (
            r#"{"alg":"ES256","kid":"1","crit":[]}"#,
            "the token has extensions that are not known",
        ),
        (
            r#"{"alg":"ES256","kid":"1","typ":"logout+jwt"}"#,
            "the token is of another type",
        ),
        (r#"{"alg":"ES256","kid":"1","typ":7}"#, "the token is of another type"),
        (r#"{"alg":"none","alg":"ES256","kid":"1"}"#, "the token is malformed"),
        (r#"{"alg":"ES256","kid":"0","kid":"1"}"#, "the token is malformed"),
        (r#"{"alg":"ES256","kid":"1"} x"#, "the token is malformed"),
    ] {
        assert_eq!(
            bench.refusal(&signer.raw_token(header, &good)).await,
            expected,
            "{header}"
        );
    }
    for kind in ["JWT", "jwt", "at+jwt", "application/at+jwt"] {
        let header = json!({"alg": "ES256", "kid": "1", "typ": kind}).to_string();
        assert!(bench.judge(&signer.raw_token(&header, &good)).await.is_ok(), "{kind}");
    }
}

#[tokio::test]
async fn a_token_holds_for_its_time_and_audience_only() {
    let signer = Signer::p256();
    let bench = Bench::new(issuer(), &[signer.jwk("1")]).await;
    let header = json!({"alg": "ES256", "kid": "1"});
    let (expired, early) = (Some("the token has expired"), Some("the token is not valid yet"));
    let foreign = Some("the token is for another audience");
    let no_time = Some("the token has an invalid time");
    for (changes, expected) in [
        (json!({"exp": NOW - 60}), None),
        (json!({"exp": NOW - 61}), expired),
        (json!({"exp": -1e300}), expired),
        (json!({"exp": 1e300}), no_time),
        (json!({"exp": "1900000000"}), no_time),
        (json!({"exp": null}), Some("the token never expires (exp)")),
        (json!({"nbf": NOW + 60, "iat": NOW + 60}), None),
        (json!({"nbf": NOW + 61}), early),
        (json!({"iat": NOW + 61}), early),
        (json!({"nbf": null, "iat": null}), None),
        (json!({"nbf": "x"}), no_time),
        (json!({"nbf": -5.5}), None),
        (json!({"aud": ["x", "other"]}), None),
        (json!({"aud": ["x"]}), foreign),
        (json!({"aud": []}), foreign),
        (json!({"aud": ""}), foreign),
        (json!({"aud": {"switchboard": 1}}), foreign),
        (json!({"aud": null}), Some("the token has no audience (aud)")),
        (
            json!({"iss": "https://issuer.example/"}),
            Some("the token is of another issuer"),
        ),
    ] {
        let judged = bench.judge(&signer.token(&header, &claims(&changes))).await;
        assert_eq!(judged.err().as_deref(), expected, "{changes}");
    }
}

#[tokio::test]
async fn the_user_is_who_the_claims_say_but_never_one_of_the_cluster() {
    let signer = Signer::p256();
    let bench = Bench::new(issuer(), &[signer.jwk("1")]).await;
    let header = json!({"alg": "ES256", "kid": "1"});
    let unverified = "the token's e-mail address is not verified";
    let reserved = "the user's name begins with system:";
    let no_name = "the user's name is empty, too long or not printable";
    for (changes, expected) in [
        (json!({"email_verified": true}), None),
        (json!({"email_verified": false}), Some(unverified)),
        (json!({"email_verified": "false"}), Some(unverified)),
        (json!({"email_verified": "true"}), Some(unverified)),
        (
            json!({"email": null}),
            Some("the token has no claim with the user's name"),
        ),
        (json!({"email": 7}), Some("the token has no claim with the user's name")),
        (json!({"email": ""}), Some(no_name)),
        (json!({"email": " alice"}), Some(no_name)),
        (json!({"email": "a\nb"}), Some(no_name)),
        (json!({"email": "a\u{202e}b"}), Some(no_name)),
        (json!({"email": "a".repeat(513)}), Some(no_name)),
        (json!({"email": "system:admin"}), Some(reserved)),
        (json!({"email": "System:admin"}), Some(reserved)),
        (json!({"email": " system:admin"}), Some(reserved)),
        (json!({"email": "system:serviceaccount:kube-system:x"}), Some(reserved)),
        (
            json!({"groups": [["ops"]]}),
            Some("the token's groups are not a list of strings"),
        ),
        (
            json!({"groups": {"ops": true}}),
            Some("the token's groups are not a list of strings"),
        ),
    ] {
        let judged = bench.judge(&signer.token(&header, &claims(&changes))).await;
        assert_eq!(judged.err().as_deref(), expected, "{changes}");
    }
    for (groups, expected) in [
        (json!("ops"), vec!["ops"]),
        (json!(null), vec![]),
        (json!(["ops", "ops", "", "a\u{0}b", "dev"]), vec!["ops", "dev"]),
        (
            json!([
                "system:masters",
                "system:authenticated",
                "SYSTEM:masters",
                " system:masters"
            ]),
            vec![],
        ),
        (json!("system:masters"), vec![]),
    ] {
        let user = bench
            .judge(&signer.token(&header, &claims(&json!({ "groups": groups }))))
            .await;
        let mut expected: Vec<Box<str>> = expected.into_iter().map(Into::into).collect();
        expected.push(AUTHENTICATED.into());
        assert_eq!(user.unwrap().groups, expected, "{groups}");
    }
}

#[tokio::test]
async fn without_a_claim_for_groups_there_are_none_and_other_names_need_no_verified_address() {
    let signer = Signer::p256();
    let plain = Issuer {
        username: "sub".into(),
        groups: None,
        ..issuer()
    };
    let bench = Bench::new(plain, &[signer.jwk("1")]).await;
    let changed = claims(&json!({"email_verified": false, "groups": ["ops"]}));
    let user = bench
        .judge(&signer.token(&json!({"alg": "ES256", "kid": "1"}), &changed))
        .await
        .unwrap();
    assert_eq!(
        (&*user.name, user.groups.as_slice()),
        ("4711", [AUTHENTICATED.into()].as_slice())
    );
}

#[tokio::test]
async fn an_address_of_which_the_issuer_says_null_is_not_verified() {
    let signer = Signer::p256();
    let bench = Bench::new(issuer(), &[signer.jwk("1")]).await;
    let good = claims(&json!({})).to_string();
    for (claim, is_accepted) in [
        ("", true),
        ("\"email_verified\":true,", true),
        ("\"email_verified\":null,", false),
    ] {
        let token = good.replacen('{', &format!("{{{claim}"), 1);
        let judged = bench
            .judge(&signer.raw_token(r#"{"alg":"ES256","kid":"1"}"#, &token))
            .await;
        let expected = (!is_accepted).then_some("the token's e-mail address is not verified");
        assert_eq!(judged.err().as_deref(), expected, "{claim}");
    }
}

#[tokio::test]
async fn the_name_of_a_user_begins_with_the_prefix_of_its_issuer() {
    let signer = Signer::p256();
    let prefixed = Issuer {
        username_prefix: Some("oidc:".into()),
        ..issuer()
    };
    let bench = Bench::new(prefixed, &[signer.jwk("1")]).await;
    let header = json!({"alg": "ES256", "kid": "1"});
    let user = bench.judge(&signer.token(&header, &claims(&json!({})))).await.unwrap();
    assert_eq!(&*user.name, "oidc:alice@example.com");
    // A service account of another cluster: none of this one.
    let account = claims(&json!({"email": "system:serviceaccount:team-a:gpu"}));
    let user = bench.judge(&signer.token(&header, &account)).await.unwrap();
    assert_eq!(&*user.name, "oidc:system:serviceaccount:team-a:gpu");
    for email in [" system:admin", "system:a\nb"] {
        let token = signer.token(&header, &claims(&json!({"email": email})));
        assert!(bench.judge(&token).await.is_err(), "{email}");
    }
}

#[tokio::test]
async fn claims_that_two_readers_could_read_differently_are_refused() {
    let signer = Signer::p256();
    let bench = Bench::new(issuer(), &[signer.jwk("1")]).await;
    let good = claims(&json!({})).to_string();
    let inside = good.strip_prefix('{').unwrap();
    let deep = format!("{}1{}", "[".repeat(4000), "]".repeat(4000));
    for bad in [
        format!(r#"{{"email":"mallory@example.com",{inside}"#),
        format!(r#"{{"\u0065mail":"mallory@example.com",{inside}"#),
        format!(r#"{{"exp":1,{inside}"#),
        format!(r#"{{"x":{deep},{inside}"#),
        format!(r#"{{"x":1e400,{inside}"#),
        format!("{good}{good}"),
        format!("[{good}]"),
    ] {
        let token = signer.raw_token(r#"{"alg":"ES256","kid":"1"}"#, &bad);
        assert_eq!(bench.refusal(&token).await, "the token is malformed", "{:.80}", bad);
    }
}
