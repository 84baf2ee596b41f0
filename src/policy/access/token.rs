//! The shape of a token, and what a JWT says of itself: enough to refuse rubbish before anything is asked about it.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};

/// Checks that a text can be a token (RFC 6750 section 2.1), of at most 12 KiB; and that a JWT is whole (RFC 7519).
///
/// # Errors
/// The fault, in ASCII, for the client. It holds no part of the token.
pub fn check_shape(token: &str) -> Result<(), Box<str>> {
    if token.is_empty() {
        return Err("the token is empty".into());
    }
    if token.len() > LONGEST {
        return Err("the token is longer than 12 KiB".into());
    }
    // A space is not trimmed: the API server takes a token that begins with one for no token at all, and its bearer for
    // `system:anonymous`, who is authenticated.
    let is_part =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'+' | b'/' | b'=');
    if !token.bytes().all(is_part) {
        return Err("the token has characters that no token has".into());
    }
    if !is_jwt(token) {
        return Ok(());
    }
    let parts = token.split('.').count();
    if parts > 3 {
        return Err("the token is malformed: a signed JWT has three parts".into());
    }
    if parts == 3 && !is_signature_cut(token) {
        return Ok(());
    }
    let length = token.len();
    Err(match CUT.contains(&length) {
        true => format!("the token is cut: this client sends at most {length} characters").into(),
        false => format!("the token is cut: {length} characters have arrived, and its end is missing").into(),
    })
}

/// Whether the token is a JWT: its header is a JSON object in Base64.
fn is_jwt(token: &str) -> bool {
    token.starts_with("eyJ")
}

/// Whether the last part is shorter than any signature of the header's algorithm: then the token was cut within it.
fn is_signature_cut(token: &str) -> bool {
    #[derive(Deserialize)]
    struct Header<'a> {
        alg: &'a str,
    }
    let Some((signed, signature)) = token.rsplit_once('.') else {
        return true;
    };
    let header = signed.split('.').next().and_then(decoded);
    let Some(Header { alg }) = header.as_deref().and_then(|bytes| serde_json::from_slice(bytes).ok()) else {
        return false;
    };
    // In characters of Base64: RFC 7518 sections 3.2 to 3.5, RFC 8037 section 3.1. RSA keys have 2,048 bits by section 3.3;
    // a shorter one is believed where the length is not one at which clients cut.
    let rsa = if CUT.contains(&token.len()) { 342 } else { 171 };
    let shortest = match alg {
        "HS256" => 43,
        "HS384" => 64,
        "HS512" | "ES256" | "EdDSA" | "Ed25519" => 86,
        "ES384" => 128,
        "ES512" => 176,
        "RS256" | "RS384" | "RS512" | "PS256" | "PS384" | "PS512" => rsa,
        _ => 0,
    };
    signature.len() < shortest
}

/// What a JWT says of itself. It is read without trust: its signature has not been looked at.
#[derive(Clone, PartialEq, Eq, Deserialize)]
pub struct Claims {
    /// The issuer: `iss`.
    #[serde(rename = "iss")]
    pub issuer: Option<Box<str>>,
    /// Whom it is for: `aud`, as a list.
    #[serde(rename = "aud", default, deserialize_with = "one_or_many")]
    pub audiences: Vec<Box<str>>,
    /// When it expires: `exp`. A time that no clock can show is the end of time, and is left out.
    #[serde(rename = "exp", default, deserialize_with = "time")]
    pub expires: Option<SystemTime>,
    /// When it becomes valid: `nbf`.
    #[serde(rename = "nbf", default, deserialize_with = "time")]
    pub not_before: Option<SystemTime>,
    /// Whose it is: `sub`.
    #[serde(rename = "sub")]
    pub subject: Option<Box<str>>,
}

impl Claims {
    /// Reads them. `None` for what is no JWT, for one with a claim of the wrong type or with the same claim twice, and for
    /// a text that [`check_shape`] refuses.
    pub fn unverified(token: &str) -> Option<Self> {
        let parts: Vec<&str> = token.splitn(4, '.').collect();
        let &[_, payload, _] = parts.as_slice() else {
            return None;
        };
        if !is_jwt(token) || token.len() > LONGEST {
            return None;
        }
        serde_json::from_slice(&decoded(payload)?).ok()
    }

    /// Why the token cannot be accepted now, whatever its signature: its time has passed or has not begun, by more than
    /// [`SKEW`]; or it names audiences, and none of these. An empty text among these is the API server's own audience,
    /// which is not known here: then every audience may be right.
    ///
    /// The sentence is for the client.
    pub fn obviously_refused(&self, now: SystemTime, audiences: &[Box<str>]) -> Option<&'static str> {
        self.refused_by_time(now)
            .or_else(|| self.refused_by_audience(audiences))
    }

    /// Why the token cannot be accepted at this time.
    pub(super) fn refused_by_time(&self, now: SystemTime) -> Option<&'static str> {
        let has_expired = |expires: SystemTime| expires.checked_add(SKEW).is_some_and(|last| last < now);
        let is_early = |start: SystemTime| now.checked_add(SKEW).is_some_and(|latest| start > latest);
        if self.expires.is_some_and(has_expired) {
            Some("the token has expired")
        } else if self.not_before.is_some_and(is_early) {
            Some("the token is not valid yet")
        } else {
            None
        }
    }

    fn refused_by_audience(&self, audiences: &[Box<str>]) -> Option<&'static str> {
        let is_open = self.audiences.is_empty() || audiences.iter().any(|audience| audience.is_empty());
        let is_right = |audience| audiences.contains(audience);
        (!is_open && !self.audiences.iter().any(is_right)).then_some("the token is for another audience")
    }
}

/// Without the values: they are foreign text.
impl fmt::Debug for Claims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claims").finish_non_exhaustive()
    }
}

/// The bytes of a part of a JWT.
pub(super) fn decoded(part: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(part).ok()
}

/// A text, or a list of texts (RFC 7519 section 4.1.3).
fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Box<str>>, D::Error> {
    struct OneOrMany;
    impl<'de> Visitor<'de> for OneOrMany {
        type Value = Vec<Box<str>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a text or a list of texts")
        }

        fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
            Ok(vec![text.into()])
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(Vec::new())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut texts = Vec::new();
            while let Some(text) = list.next_element()? {
                texts.push(text);
            }
            Ok(texts)
        }
    }
    deserializer.deserialize_any(OneOrMany)
}

fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SystemTime>, D::Error> {
    let seconds = Option::<f64>::deserialize(deserializer)?;
    Ok(seconds.and_then(numeric_date))
}

/// A time in seconds since 1970, perhaps with a fraction (`NumericDate`, RFC 7519 section 2). Times before are 1970;
/// those after the year 9999 are none.
pub(super) fn numeric_date(seconds: f64) -> Option<SystemTime> {
    if seconds > LAST_SECOND {
        return None;
    }
    let since = Duration::try_from_secs_f64(seconds.max(0.0)).ok()?;
    UNIX_EPOCH.checked_add(since)
}

/// The longest token, in bytes: the head of a request has 16 KiB.
pub(super) const LONGEST: usize = 12 << 10;
/// How far the clocks of issuer and proxy may be apart: what the API server allows for the tokens of ServiceAccounts.
pub(super) const SKEW: Duration = Duration::from_secs(60);
/// The lengths, in characters, at which clients cut a password in silence. Seen with proxytunnel (66 by `-F`, 80 by
/// `-P`, 1,000 by `-H`), netcat-openbsd (255), socat (2,000), corkscrew (3,000) and connect-proxy (7,600).
const CUT: [usize; 7] = [66, 80, 255, 1000, 2000, 3000, 7600];
/// The end of the year 9999, in seconds since 1970.
const LAST_SECOND: f64 = 253_402_300_799.0;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn part(json: &str) -> String {
        URL_SAFE_NO_PAD.encode(json)
    }

    /// A JWT with this payload, and a signature of the length that ES256 has.
    fn jwt(payload: &str) -> String {
        format!("{}.{}.{}", part(r#"{"alg":"ES256"}"#), part(payload), "s".repeat(86))
    }

    #[test]
    fn a_token_has_the_characters_of_one_and_at_most_12_kib() {
        let longest = "x".repeat(LONGEST);
        for good in ["x", "abc.def~ghi+/_-==", "a.b", longest.as_str(), &jwt("{}")] {
            assert_eq!(check_shape(good), Ok(()), "{good}");
        }
        let control = "the token has characters that no token has";
        for (bad, expected) in [
            ("", "the token is empty"),
            (&format!("{longest}x"), "the token is longer than 12 KiB"),
            (" x", control),
            ("x ", control),
            ("x\0", control),
            ("x\r\nHost: y", control),
            ("caf\u{e9}", control),
            ("a:b", control),
            ("\"x\"", control),
            (
                &format!("{}.x", jwt("{}")),
                "the token is malformed: a signed JWT has three parts",
            ),
            ("eyJ.a.b.c.d", "the token is malformed: a signed JWT has three parts"),
        ] {
            assert_eq!(check_shape(bad), Err(expected.into()), "{bad}");
        }
    }

    #[test]
    fn a_jwt_that_a_client_has_cut_is_told_so() {
        let payload = part(&format!(r#"{{"iss":"{}"}}"#, "i".repeat(9000)));
        for (header, signature) in [
            ("RS256", 342),
            ("ES256", 86),
            ("EdDSA", 86),
            ("ES384", 128),
            ("PS512", 342),
        ] {
            let header = part(&format!(r#"{{"alg":"{header}","kid":"k"}}"#));
            // Cut in the payload, and in the signature, at each length.
            for length in CUT {
                let long = format!("{header}.{payload}");
                let expected = format!("the token is cut: this client sends at most {length} characters");
                assert_eq!(check_shape(&long[..length]), Err(expected.as_str().into()));
                if length < header.len() + 350 {
                    continue;
                }
                let body = "p".repeat(length - header.len() - 2 - 40);
                let whole = format!("{header}.{body}.{}", "s".repeat(signature));
                assert_eq!(check_shape(&whole), Ok(()));
                assert_eq!(check_shape(&whole[..length]), Err(expected.into()));
            }
            let expected = "the token is cut: 100 characters have arrived, and its end is missing";
            assert_eq!(check_shape(&format!("{header}.{payload}")[..100]), Err(expected.into()));
        }
        // A header that cannot be read is no proof that something is missing, and other tokens may have any length.
        for good in ["eyJ.a.b".to_owned(), "x".repeat(80), "x".repeat(255)] {
            assert_eq!(check_shape(&good), Ok(()));
        }
    }

    fn seconds(time: SystemTime) -> u64 {
        time.duration_since(UNIX_EPOCH).unwrap().as_secs()
    }

    #[test]
    fn claims_are_read_without_trust() {
        let claims = Claims::unverified(&jwt(
            r#"{"iss":"https://i","aud":["a","b"],"exp":1.7e9,"nbf":1600000000,"sub":"s","x":{"y":[1]}}"#,
        ));
        let claims = claims.unwrap();
        assert_eq!(claims.issuer.as_deref(), Some("https://i"));
        assert_eq!(claims.audiences, ["a".into(), "b".into()]);
        assert_eq!(claims.expires.map(seconds), Some(1_700_000_000));
        assert_eq!(claims.not_before.map(seconds), Some(1_600_000_000));
        assert_eq!(claims.subject.as_deref(), Some("s"));
        let single = Claims::unverified(&jwt(r#"{"aud":"a"}"#)).unwrap();
        assert_eq!(single.audiences, ["a".into()]);
        assert_eq!(single.issuer, None);
        for (payload, expires) in [
            (r#"{"exp":-5}"#, Some(0)),
            (r#"{"exp":-1e300}"#, Some(0)),
            (r#"{"exp":1e300}"#, None),
            (r#"{"exp":253402300800}"#, None),
            (r#"{"exp":253402300799}"#, Some(253_402_300_799)),
            (r#"{"exp":18446744073709551616}"#, None),
            (r#"{"exp":null}"#, None),
        ] {
            let claims = Claims::unverified(&jwt(payload)).unwrap();
            assert_eq!(claims.expires.map(seconds), expires, "{payload}");
        }
    }

    #[test]
    fn what_cannot_be_read_has_no_claims() {
        let deep = format!(r#"{{"aud":{}{}}}"#, "[".repeat(4000), "]".repeat(4000));
        let ignored = format!(r#"{{"x":{}1{}}}"#, "[".repeat(4000), "]".repeat(4000));
        for payload in [
            "",
            "[]",
            "null",
            "{",
            r#"{"exp":"1"}"#,
            r#"{"exp":1e400}"#,
            r#"{"exp":true}"#,
            r#"{"aud":1}"#,
            r#"{"aud":["a",1]}"#,
            r#"{"iss":["a"]}"#,
            r#"{"exp":1,"exp":9999999999}"#,
            r#"{"iss":"a","iss":"b"}"#,
            r#"{"aud":"a","aud":"b"}"#,
            &deep,
        ] {
            assert_eq!(Claims::unverified(&jwt(payload)), None, "{payload}");
        }
        // What is not looked at may be as deep as 12 KiB allow: no stack is used for it.
        Claims::unverified(&jwt(&ignored));
        let good = part(r#"{"iss":"i"}"#);
        for token in [
            "",
            ".",
            "..",
            "eyJ",
            &format!("x.{good}.y"),
            &format!("eyJ.{good}"),
            &format!("eyJ.{good}.x.y"),
            &format!("eyJ.{good}=.x"),
            &format!("eyJ.{good}.{}", "x".repeat(LONGEST)),
        ] {
            assert_eq!(Claims::unverified(token), None, "{token}");
        }
    }

    #[test]
    fn a_token_out_of_its_time_or_for_others_is_refused_without_a_question() {
        let now = UNIX_EPOCH + Duration::from_secs(1_000_000);
        let own: [Box<str>; 2] = ["switchboard".into(), "other".into()];
        let api_server: [Box<str>; 2] = ["switchboard".into(), "".into()];
        let expired = Some("the token has expired");
        let early = Some("the token is not valid yet");
        let foreign = Some("the token is for another audience");
        for (payload, audiences, expected) in [
            (r#"{"exp":999940}"#, &own, None),
            (r#"{"exp":999939}"#, &own, expired),
            (r#"{"exp":0}"#, &own, expired),
            (r#"{"exp":-1e300}"#, &own, expired),
            (r#"{"exp":1e300}"#, &own, None),
            (r#"{"nbf":1000060}"#, &own, None),
            (r#"{"nbf":1000061}"#, &own, early),
            (r#"{"nbf":1e300}"#, &own, None),
            (r#"{"aud":"switchboard"}"#, &own, None),
            (r#"{"aud":["x","other"]}"#, &own, None),
            (r#"{"aud":"Switchboard"}"#, &own, foreign),
            (r#"{"aud":["x","y"]}"#, &own, foreign),
            (r#"{"aud":["x","y"]}"#, &api_server, None),
            (r#"{"aud":[]}"#, &own, None),
            ("{}", &own, None),
        ] {
            let claims = Claims::unverified(&jwt(payload)).unwrap();
            assert_eq!(claims.obviously_refused(now, audiences), expected, "{payload}");
        }
    }

    #[test]
    fn claims_are_not_printed() {
        let claims = Claims::unverified(&jwt(r#"{"iss":"hunter2"}"#)).unwrap();
        assert_eq!(format!("{claims:?}"), "Claims { .. }");
    }

    proptest! {
        #[test]
        fn any_text_has_a_shape_or_a_fault_without_a_part_of_it(text in "\\PC{0,300}|[A-Za-z0-9._-]{0,300}|eyJ[A-Za-z0-9._-]{8,300}") {
            if let Err(fault) = check_shape(&text) {
                prop_assert!(fault.is_ascii() && fault.starts_with("the token "));
                prop_assert!(text.len() < 12 || !fault.contains(&text));
            }
            Claims::unverified(&text);
        }

        #[test]
        fn any_payload_has_claims_or_none(payload in "\\PC{0,300}|\\{\"(exp|aud|nbf|iss)\":\\PC{0,40}\\}") {
            if let Some(claims) = Claims::unverified(&jwt(&payload)) {
                claims.obviously_refused(SystemTime::now(), &["a".into()]);
            }
        }

        #[test]
        fn any_number_is_a_time_or_none(seconds in any::<f64>()) {
            numeric_date(seconds);
        }
    }
}
