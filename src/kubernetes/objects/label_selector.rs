//! Checks label selectors by the grammar of the API server (labels.Parse of k8s.io/apimachinery). What the API server
//! refuses is a fault of the settings; to find it out by the first list would be an outage without end.

use crate::base::values::shown;

/// Checks a label selector. The empty one, which selects everything, is refused here and not by the API server.
///
/// # Errors
/// The reason why the API server refuses it.
pub(crate) fn check(text: &str) -> Result<(), String> {
    let mut tokens = Tokens(text);
    loop {
        requirement(&mut tokens)?;
        match tokens.next() {
            "" => return Ok(()),
            "," => {}
            found => return Err(unexpected("`,` or the end", found)),
        }
    }
}

/// `key`, `!key`, `key=value`, `key in (value, …)` and the like.
fn requirement(tokens: &mut Tokens<'_>) -> Result<(), String> {
    let is_absence = tokens.peek() == "!";
    if is_absence {
        tokens.next();
    }
    label(tokens.word("the name of a label")?)?;
    if is_absence || is_end(tokens.peek()) {
        return Ok(());
    }
    match tokens.next() {
        // Nothing behind it is the empty value.
        "=" | "==" | "!=" if is_end(tokens.peek()) => Ok(()),
        "=" | "==" | "!=" => value(tokens.word("a value")?),
        "<" | ">" => whole_number(tokens.word("a whole number")?),
        "in" | "notin" => values(tokens),
        found => Err(unexpected("`=`, `!=`, `in`, `notin`, `<` or `>`", found)),
    }
}

/// The values of `in` and `notin`, in parentheses. Each may be empty.
fn values(tokens: &mut Tokens<'_>) -> Result<(), String> {
    match tokens.next() {
        "(" => {}
        found => return Err(unexpected("`(`", found)),
    }
    loop {
        if is_word(tokens.peek()) {
            value(tokens.next())?;
        }
        match tokens.next() {
            ")" => return Ok(()),
            "," => {}
            found => return Err(unexpected("`,` or `)`", found)),
        }
    }
}

/// A name of up to 63 characters, behind a DNS name and a slash or without them.
fn label(key: &str) -> Result<(), String> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let is_valid = !name.is_empty() && is_label_text(name) && prefix.is_none_or(is_subdomain);
    is_valid.then_some(()).ok_or_else(|| {
        format!(
            "`{}` is not the name of a label: up to 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both \
             ends, alone or behind a DNS name and `/`",
            shown(key)
        )
    })
}

fn value(value: &str) -> Result<(), String> {
    is_label_text(value).then_some(()).ok_or_else(|| {
        format!(
            "`{}` is not the value of a label: up to 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both \
             ends",
            shown(value)
        )
    })
}

/// What `<` and `>` compare with: a value of a label, so that it has no sign.
fn whole_number(text: &str) -> Result<(), String> {
    let is_number = is_label_text(text) && text.parse::<i64>().is_ok();
    let reason = || format!("`<` and `>` need a whole number, not `{}`", shown(text));
    is_number.then_some(()).ok_or_else(reason)
}

/// Whether a text may be the value of a label, or a name that is not empty.
fn is_label_text(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let is_outer = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= LONGEST_LABEL && text.bytes().all(is_inner) && is_outer(bytes.first()) && is_outer(bytes.last())
}

/// Whether a text is a DNS name as the API server knows it (RFC 1123), whose labels may have any length.
fn is_subdomain(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_label = |label: &str| {
        !label.is_empty() && label.bytes().all(is_inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    text.len() <= LONGEST_SUBDOMAIN && text.split('.').all(is_label)
}

/// The rest of a selector. A token is an operator, a punctuation mark or a word, which is everything else up to the next
/// of them; the end is the empty token.
struct Tokens<'a>(&'a str);

impl<'a> Tokens<'a> {
    fn peek(&self) -> &'a str {
        let text = self.0.trim_start_matches(BLANKS);
        let length = match text.as_bytes() {
            [b'=' | b'!', b'=', ..] => 2,
            [first, ..] if MARKS.contains(&char::from(*first)) => 1,
            _ => {
                let end = |character| MARKS.contains(&character) || BLANKS.contains(&character);
                text.find(end).unwrap_or(text.len())
            }
        };
        text.get(..length).unwrap_or_default()
    }

    fn next(&mut self) -> &'a str {
        let token = self.peek();
        let text = self.0.trim_start_matches(BLANKS);
        self.0 = text.get(token.len()..).unwrap_or_default();
        token
    }

    /// The next token, if it is a word.
    fn word(&mut self, expected: &str) -> Result<&'a str, String> {
        match self.next() {
            word if is_word(word) => Ok(word),
            found => Err(unexpected(expected, found)),
        }
    }
}

fn is_word(token: &str) -> bool {
    token.chars().next().is_some_and(|first| !MARKS.contains(&first))
}

/// Whether a requirement ends before that token.
fn is_end(token: &str) -> bool {
    matches!(token, "" | ",")
}

fn unexpected(expected: &str, found: &str) -> String {
    match found {
        "" => format!("expected {expected} at its end"),
        found => format!("expected {expected} in place of `{}`", shown(found)),
    }
}

const MARKS: [char; 7] = ['=', '!', '(', ')', ',', '<', '>'];
const BLANKS: [char; 4] = [' ', '\t', '\r', '\n'];
/// In characters.
const LONGEST_LABEL: usize = 63;
const LONGEST_SUBDOMAIN: usize = 253;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Texts of the API server's own tests (labels/selector_test.go), and their neighbours.
    const ACCEPTED: [&str; 28] = [
        "x=a,y=b,z=c",
        "x!=a,y=b",
        "x=",
        "x= ",
        "x= ,z= ",
        "!x",
        "! x",
        "x>1,z<5",
        "\rx",
        "this-is-a-dns.domain.com/key-with-dash",
        "this-is-another-dns.domain.com/key-with-dash in (so,what)",
        "0.1.2.domain/99 notin (10.10.100.1, tick.tack.clock)",
        "foo  in\t (abc)",
        "x notin\n (abc)",
        "x in (abc,)",
        "x in (a,,,)",
        "x in ()",
        "x notin ( )",
        "x notin (, a)",
        "x notin (abc,,def),bar,z in (),w",
        "x,y in (a)",
        "x==a",
        "a ",
        "a in (x,y,notin, z,in)",
        "a in(b)",
        "in in (in)",
        "notin=in",
        "x>9223372036854775807",
    ];
    const REFUSED: [&str; 45] = [
        "",
        " ",
        "a in (b",
        "!!",
        "!!x",
        "!",
        "x=a||y=b",
        "x==a==b",
        "x===a",
        "x=!a",
        "!x=a",
        "!x in (a)",
        "x<a",
        "x<",
        "x>-1",
        "x>1.5",
        "x>9223372036854775808",
        "x>=1",
        "x,,y",
        ",x,y",
        "x,",
        "x nott in (y)",
        "a in (xyz),",
        "a in (xyz)b notin ()",
        "a in (xyz abc)",
        "a in b",
        "a notin(",
        "a in (b=c)",
        "a (",
        "(",
        "a b",
        "-x",
        "x-",
        "a/b/c",
        "/a",
        "a/",
        "A.example/b",
        "a..b/c",
        "-a/b",
        "x=-a",
        "x=a.",
        "x=a/b",
        "x=ä",
        "x=a\0",
        "x in (a,-)",
    ];

    #[test]
    fn a_selector_is_accepted_as_the_api_server_does() {
        for accepted in ACCEPTED {
            assert_eq!(check(accepted), Ok(()), "{accepted:?}");
        }
        for refused in REFUSED {
            assert!(check(refused).is_err(), "{refused:?}");
        }
        for (length, is_accepted) in [(63, true), (64, false)] {
            assert_eq!(check(&"a".repeat(length)).is_ok(), is_accepted);
            assert_eq!(check(&format!("x={}", "a".repeat(length))).is_ok(), is_accepted);
        }
        for (length, is_accepted) in [(253, true), (254, false)] {
            assert_eq!(check(&format!("{}/x", "a".repeat(length))).is_ok(), is_accepted);
        }
    }

    #[test]
    fn a_fault_names_its_place() {
        for (text, reason) in [
            ("a in (b", "expected `,` or `)` at its end"),
            ("!!", "expected the name of a label in place of `!`"),
            ("a b", "expected `=`, `!=`, `in`, `notin`, `<` or `>` in place of `b`"),
            ("x>y", "`<` and `>` need a whole number, not `y`"),
        ] {
            assert_eq!(check(text), Err(reason.to_owned()));
        }
    }

    fn blank() -> impl Strategy<Value = String> {
        "[ \t\r\n]{0,2}"
    }

    fn name() -> impl Strategy<Value = String> {
        "([a-z0-9]([-a-z0-9]{0,8}[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]{0,8}[a-z0-9])?){0,2}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,20}[A-Za-z0-9])?"
    }

    fn text() -> impl Strategy<Value = String> {
        "([A-Za-z0-9]([-A-Za-z0-9_.]{0,20}[A-Za-z0-9])?)?"
    }

    fn one() -> impl Strategy<Value = String> {
        let equals = prop::sample::select(vec!["=", "==", "!="]);
        let compares = prop::sample::select(vec!["<", ">"]);
        let sets = prop::sample::select(vec!["in", "notin"]);
        prop_oneof![
            name(),
            (blank(), name()).prop_map(|(blank, name)| format!("!{blank}{name}")),
            (name(), blank(), equals, blank(), text())
                .prop_map(|(name, before, sign, behind, text)| format!("{name}{before}{sign}{behind}{text}")),
            (name(), compares, 0..i64::MAX).prop_map(|(name, sign, number)| format!("{name}{sign}{number}")),
            (name(), sets, blank(), prop::collection::vec(text(), 0..4), blank()).prop_map(
                |(name, word, before, texts, behind)| format!(
                    "{name} {word}{before}({})",
                    texts.join(&format!(",{behind}"))
                )
            ),
        ]
    }

    fn selectors() -> impl Strategy<Value = String> {
        prop::collection::vec((blank(), one(), blank()), 1..4).prop_map(|all| {
            let all: Vec<_> = all
                .into_iter()
                .map(|(before, one, behind)| before + &one + &behind)
                .collect();
            all.join(",")
        })
    }

    proptest! {
        #[test]
        fn what_the_grammar_makes_is_accepted(selector in selectors()) {
            prop_assert_eq!(check(&selector), Ok(()));
        }

        /// A mark too many or too few, or a byte of no label, anywhere.
        #[test]
        fn what_is_damaged_is_refused(selector in selectors(), at in any::<prop::sample::Index>()) {
            let doubled = format!("{selector},,x");
            let open = format!("{selector},x in (");
            let mut foreign = selector.clone();
            foreign.insert(at.index(selector.len()), '|');
            for damaged in [doubled, open, foreign] {
                prop_assert!(check(&damaged).is_err(), "{:?}", damaged);
            }
        }

        #[test]
        fn no_text_panics(text in "[a-b0/.=!(),<> \\-in\u{e9}\0]{0,24}") {
            if check(&text).is_ok() {
                // What is accepted may be put together.
                prop_assert_eq!(check(&format!("{text},{text}")), Ok(()));
            }
        }
    }
}
