//! Bearer tokens, and the claims of a JWT (RFC 7519). They are not trusted: the signature is not checked here.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::Value;

use crate::base::secret::Secret;

/// A JWT.
pub struct Jwt {
    token: Secret,
    /// The length of the header and the payload.
    signed: usize,
    /// The header.
    pub header: Object,
    /// The claims.
    pub claims: Object,
}

impl Jwt {
    /// Parses a bearer token (RFC 6750 section 2.1) of at most 12 KiB; `None` if it is not a JWT.
    ///
    /// # Errors
    /// The error, in ASCII, for the client. It holds no part of the token.
    pub fn read(token: &str) -> Result<Option<Self>, Box<str>> {
        if token.is_empty() {
            return Err("the token is empty".into());
        }
        if token.len() > MAX_BYTES {
            return Err("the token is longer than 12 KiB".into());
        }
        // A space is not trimmed: the API server ignores a token that begins with one, and authenticates its bearer as
        // `system:anonymous`.
        let is_part =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'+' | b'/' | b'=');
        if !token.bytes().all(is_part) {
            return Err("the token has characters that no token has".into());
        }
        // The header of a JWT is a JSON object in Base64.
        if !token.starts_with("eyJ") {
            return Ok(None);
        }
        let parts = token.rsplit_once('.');
        let parts = parts.and_then(|(message, signature)| Some((message, message.split_once('.')?, signature)));
        let Some((message, (header, payload), _)) = parts else {
            return Err(cut(token.len()));
        };
        if payload.contains('.') {
            return Err("the token is malformed: a signed JWT has three parts".into());
        }
        Ok(Some(Self {
            token: token.into(),
            signed: message.len(),
            header: Object::decode(header).ok_or(MALFORMED)?,
            claims: Object::decode(payload).ok_or(MALFORMED)?,
        }))
    }

    /// Returns the signed text: header and payload, as they arrived.
    pub fn message(&self) -> &str {
        self.token.expose().get(..self.signed).unwrap_or_default()
    }

    /// Returns the signature, in Base64.
    pub fn signature(&self) -> &str {
        self.token.expose().get(self.signed + 1..).unwrap_or_default()
    }

    /// Returns the error for a truncated token, whose signature is too short for the header's algorithm.
    pub fn cut(&self) -> Option<Box<str>> {
        let length = self.token.expose().len();
        // In characters of Base64: RFC 7518 sections 3.2 to 3.5, RFC 8037 section 3.1. RSA keys have 2,048 bits by
        // section 3.3. A shorter key is accepted unless clients truncate at the token's length.
        let rsa = if CUT.contains(&length) { 342 } else { 171 };
        let min = match self.header.text("alg").unwrap_or_default() {
            "HS256" => 43,
            "HS384" => 64,
            "HS512" | "ES256" | "EdDSA" | "Ed25519" => 86,
            "ES384" => 128,
            "ES512" => 176,
            "RS256" | "RS384" | "RS512" | "PS256" | "PS384" | "PS512" => rsa,
            _ => 0,
        };
        (self.signature().len() < min).then(|| cut(length))
    }

    /// Returns why the token cannot be accepted now, regardless of its signature: it has expired or is not valid yet,
    /// by more than [`SKEW`], or none of its audiences is among `audiences`. An empty string in `audiences` is the API
    /// server's own audience: it is not known here, so the token may have any.
    ///
    /// The sentence is for the client.
    pub fn obviously_refused(&self, now: SystemTime, audiences: &[Box<str>]) -> Option<&'static str> {
        let is_open = self.claims.list("aud").is_none_or(<[Value]>::is_empty)
            || audiences.iter().any(|audience| audience.is_empty());
        let is_foreign = !is_open && !self.is_for(audiences);
        self.refused_by_time(now).or(is_foreign.then_some(OTHER_AUDIENCE))
    }

    /// Returns why the token cannot be accepted at this time; `None` if it can.
    pub fn refused_by_time(&self, now: SystemTime) -> Option<&'static str> {
        let time = |name| self.claims.time(name).ok().flatten();
        let has_expired = |expires: SystemTime| expires.checked_add(SKEW).is_some_and(|last| last < now);
        if time("exp").is_some_and(has_expired) {
            Some("the token has expired")
        } else if time("nbf").is_some_and(|start| is_early(start, now)) {
            Some("the token is not valid yet")
        } else {
            None
        }
    }

    /// Returns whether the token names one of these audiences.
    pub fn is_for(&self, audiences: &[Box<str>]) -> bool {
        let own = self.claims.list("aud").unwrap_or_default();
        own.iter()
            .any(|own| audiences.iter().any(|audience| own.as_str() == Some(audience)))
    }

    /// Returns when the token expires; `None` without a valid `exp`.
    pub fn expires(&self) -> Option<SystemTime> {
        self.claims.time("exp").ok().flatten()
    }
}

/// Returns whether a time is in the future by more than the clocks may differ.
pub fn is_early(start: SystemTime, now: SystemTime) -> bool {
    now.checked_add(SKEW).is_some_and(|latest| start > latest)
}

/// Returns the error for a truncated token of that length.
fn cut(length: usize) -> Box<str> {
    match CUT.contains(&length) {
        true => format!("the token is cut: this client sends at most {length} characters").into(),
        false => format!("the token is cut: {length} characters have arrived, and its end is missing").into(),
    }
}

/// A JSON object without duplicate names: two parsers might use different values of a duplicate (RFC 7519 section 4).
pub struct Object(BTreeMap<Box<str>, Value>);

impl Object {
    fn decode(part: &str) -> Option<Self> {
        serde_json::from_slice(&decoded(part)?).ok()
    }

    /// Returns whether there is a member of that name, with any value.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Returns the value of that name; `None` for null.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// Returns the string of that name.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(Value::as_str)
    }

    /// Returns the values of a list, or the value itself, as `aud` may be either (RFC 7519 section 4.1.3).
    pub fn list(&self, name: &str) -> Option<&[Value]> {
        let value = self.get(name)?;
        Some(value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice))
    }

    /// Returns the time of that name, in seconds since 1970, perhaps with a fraction (`NumericDate`, RFC 7519 section
    /// 2). A time before 1970 becomes 1970.
    ///
    /// # Errors
    /// The value is not a time, or after the year 9999.
    pub fn time(&self, name: &str) -> Result<Option<SystemTime>, &'static str> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let seconds = value.as_f64().filter(|seconds| *seconds <= LAST_SECOND);
        let since = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).ok());
        let time = since.and_then(|since| UNIX_EPOCH.checked_add(since));
        time.map(Some).ok_or("the token has an invalid time")
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = Object;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut values = BTreeMap::new();
                while let Some((name, value)) = map.next_entry()? {
                    if values.insert(name, value).is_some() {
                        return Err(A::Error::custom("a name is there twice"));
                    }
                }
                Ok(Object(values))
            }
        }
        deserializer.deserialize_map(Names)
    }
}

/// Prints no values, as they are untrusted.
impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Object")
    }
}

/// Prints no parts.
impl fmt::Debug for Jwt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Jwt")
    }
}

/// Decodes a segment of a JWT, or a member of a key.
pub fn decoded(part: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(part).ok()
}

/// The error for a malformed JWT.
pub const MALFORMED: &str = "the token is malformed";
/// The error for a token with other audiences.
pub const OTHER_AUDIENCE: &str = "the token is for another audience";
/// The maximum length of a token in bytes: the head of a request has 16 KiB.
const MAX_BYTES: usize = 12 << 10;
/// The maximum difference between the clocks of issuer and proxy, as the API server allows for ServiceAccount tokens.
pub const SKEW: Duration = Duration::from_secs(60);
/// The lengths, in characters, at which clients silently truncate a password. Seen with proxytunnel (66 by `-F`, 80 by
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

    /// Returns a JWT with this payload, and a signature of the length that ES256 has.
    fn jwt(payload: &str) -> String {
        format!("{}.{}.{}", part(r#"{"alg":"ES256"}"#), part(payload), "s".repeat(86))
    }

    fn fault(token: &str) -> String {
        let read = Jwt::read(token).map(|jwt| jwt.and_then(|jwt| jwt.cut()));
        read.unwrap_or_else(Some).unwrap_or_default().into()
    }

    #[test]
    fn a_token_has_the_characters_of_one_and_at_most_12_kib() {
        let max = "x".repeat(MAX_BYTES);
        for good in ["x", "abc.def~ghi+/_-==", "a.b", max.as_str(), &jwt("{}")] {
            assert!(Jwt::read(good).is_ok(), "{good}");
        }
        let control = "the token has characters that no token has";
        for (bad, expected) in [
            ("", "the token is empty"),
            (&format!("{max}x"), "the token is longer than 12 KiB"),
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
            assert_eq!(fault(bad), expected, "{bad}");
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
                assert_eq!(fault(&long[..length]), expected);
                if length < header.len() + 350 {
                    continue;
                }
                let bytes = (length - header.len() - 2 - 40) / 4 * 3;
                let body = part(&format!(r#"{{"x":"{}"}}"#, "p".repeat(bytes - 8)));
                let whole = format!("{header}.{body}.{}", "s".repeat(signature));
                assert_eq!(fault(&whole), "");
                assert_eq!(fault(&whole[..length]), expected);
            }
            let expected = "the token is cut: 100 characters have arrived, and its end is missing";
            assert_eq!(fault(&format!("{header}.{payload}")[..100]), expected);
        }
        // An unreadable header does not prove that the token is truncated, and other tokens may have any length.
        assert_eq!(fault("eyJ.a.b"), MALFORMED);
        for good in ["x".repeat(80), "x".repeat(255)] {
            assert!(matches!(Jwt::read(&good), Ok(None)));
        }
    }

    fn seconds(time: SystemTime) -> u64 {
        time.duration_since(UNIX_EPOCH).unwrap().as_secs()
    }

    #[test]
    fn claims_are_read_without_trust() {
        let token = jwt(r#"{"iss":"https://i","aud":["a","b"],"exp":1.7e9,"nbf":1600000000,"sub":"s","x":{"y":[1]}}"#);
        let read = Jwt::read(&token).unwrap().unwrap();
        assert_eq!(read.claims.text("iss"), Some("https://i"));
        assert!(read.is_for(&["b".into()]) && !read.is_for(&["c".into()]));
        assert_eq!(read.expires().map(seconds), Some(1_700_000_000));
        assert_eq!(read.claims.time("nbf").unwrap().map(seconds), Some(1_600_000_000));
        assert_eq!(read.claims.get("x").unwrap()["y"][0], 1);
        assert_eq!(read.header.text("alg"), Some("ES256"));
        assert_eq!(format!("{}.{}", read.message(), read.signature()), token);
        let token = jwt(r#"{"aud":"a"}"#);
        let single = Jwt::read(&token).unwrap().unwrap();
        assert!(single.is_for(&["a".into()]) && single.claims.text("iss").is_none());
        for (payload, expires) in [
            (r#"{"exp":-5}"#, Some(0)),
            (r#"{"exp":-1e300}"#, Some(0)),
            (r#"{"exp":1e300}"#, None),
            (r#"{"exp":253402300800}"#, None),
            (r#"{"exp":253402300799}"#, Some(253_402_300_799)),
            (r#"{"exp":18446744073709551616}"#, None),
            (r#"{"exp":null}"#, None),
            (r#"{"exp":"1"}"#, None),
            (r#"{"exp":true}"#, None),
        ] {
            assert_eq!(
                Jwt::read(&jwt(payload)).unwrap().unwrap().expires().map(seconds),
                expires,
                "{payload}"
            );
        }
    }

    #[test]
    fn what_cannot_be_read_or_could_be_read_differently_is_malformed() {
        let deep = format!(r#"{{"x":{}1{}}}"#, "[".repeat(4000), "]".repeat(4000));
        for payload in [
            "",
            "[]",
            "null",
            "{",
            "{} x",
            r#"{"exp":1e400}"#,
            r#"{"exp":1,"exp":9999999999}"#,
            r#"{"iss":"a","iss":"b"}"#,
            r#"{"x":"a","\u0078":"b"}"#,
            &deep,
        ] {
            assert_eq!(fault(&jwt(payload)), MALFORMED, "{payload}");
        }
        let good = part(r#"{"iss":"i"}"#);
        for token in [format!("eyJ.{good}.x"), format!("{good}.{good}=.x")] {
            assert_eq!(fault(&token), MALFORMED, "{token}");
        }
        for other in [".", "..", &format!("x.{good}.y")] {
            assert!(matches!(Jwt::read(other), Ok(None)), "{other}");
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
            let token = jwt(payload);
            let refused = Jwt::read(&token).unwrap().unwrap().obviously_refused(now, audiences);
            assert_eq!(refused, expected, "{payload}");
        }
    }

    #[test]
    fn claims_are_not_printed() {
        let token = jwt(r#"{"iss":"hunter2"}"#);
        let read = Jwt::read(&token).unwrap().unwrap();
        assert_eq!(format!("{read:?} {:?}", read.claims), "Jwt Object");
    }

    proptest! {
        #[test]
        fn any_text_has_a_shape_or_a_fault_without_a_part_of_it(text in "\\PC{0,300}|[A-Za-z0-9._-]{0,300}|eyJ[A-Za-z0-9._-]{8,300}") {
            if let Err(fault) = Jwt::read(&text) {
                prop_assert!(fault.is_ascii() && fault.starts_with("the token "));
                prop_assert!(text.len() < 12 || !fault.contains(&text));
            }
        }

        #[test]
        fn any_payload_has_claims_or_none(payload in "\\PC{0,300}|\\{\"(exp|aud|nbf|iss)\":\\PC{0,40}\\}") {
            if let Some(read) = Jwt::read(&jwt(&payload)).ok().flatten() {
                read.obviously_refused(SystemTime::now(), &["a".into()]);
            }
        }

        #[test]
        fn any_number_is_a_time_or_none(seconds in any::<f64>()) {
            Object(BTreeMap::from([("exp".into(), seconds.into())])).time("exp").ok();
        }
    }
}
