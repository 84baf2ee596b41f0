//! The forms of single values: how a string is read, and the JSON Schema of the strings.
//!
//! A field takes one by `#[serde(deserialize_with = "forms::one::<forms::Timeout, _>")]`;
//! [`forms!`](crate::base::yaml::forms::forms) declares further ones.

use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::time::Duration;

use ipnet::IpNet;
use serde::de::{DeserializeSeed, Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};

use super::suggest;
use crate::base::units::{Rate, Size};
use crate::base::values::{self, unless};

/// The form of a single value: a text or a number in the file.
///
/// The schema accepts every text that the documentation names, and may accept a few that `parse` refuses, such as a
/// duration of more than a year.
pub(crate) trait Form {
    /// The value.
    type Value;
    /// The texts and numbers that `parse` accepts.
    const SCHEMA: Schema;
    /// The reason why a list of such values needs at least one; `None` if it may be empty.
    const AT_LEAST_ONE: Option<&'static str> = None;

    /// Parses a text.
    ///
    /// # Errors
    /// The form that was expected.
    fn parse(text: &str) -> Result<Self::Value, String>;
}

/// The values of one setting.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Schema {
    /// A whole number from 1 to this one.
    Count(u32),
    /// A whole number from 1 to this one, or the word.
    CountOr(u32, &'static str),
    /// A text that is not empty.
    Text,
    /// A text that matches this regular expression, in the subset of ECMA 262 that JSON Schema recommends.
    Pattern(&'static str),
    /// The same for an amount with a unit, or a word.
    Amount(&'static str),
    /// One of these words.
    Words(&'static [&'static str]),
}

impl Schema {
    /// Returns the JSON Schema, draft 7.
    pub(super) fn json(self) -> Value {
        match self {
            Self::Count(maximum) => json!({"type": "integer", "minimum": 1, "maximum": maximum}),
            Self::CountOr(maximum, word) => json!({"anyOf": [Self::Count(maximum).json(), {"enum": [word]}]}),
            Self::Text => json!({"type": "string", "minLength": 1}),
            Self::Pattern(pattern) | Self::Amount(pattern) => json!({"type": "string", "pattern": pattern}),
            Self::Words(words) => json!({"enum": words}),
        }
    }

    /// Returns the words that may be meant by another text; `None` where any text may be meant.
    pub(super) fn words(self) -> Option<Vec<&'static str>> {
        match self {
            Self::Count(_) => Some(Vec::new()),
            Self::CountOr(_, word) => Some(vec![word]),
            Self::Amount(_) => Some(vec!["unlimited", "off"]),
            Self::Words(words) => Some(words.to_vec()),
            Self::Text | Self::Pattern(_) => None,
        }
    }
}

/// Reads a value of that form.
pub(crate) fn one<'de, F: Form, D: Deserializer<'de>>(deserializer: D) -> Result<F::Value, D::Error> {
    Single::<F>(PhantomData).deserialize(deserializer)
}

/// Reads a value of that form, whose key may be absent.
pub(crate) fn some<'de, F: Form, D: Deserializer<'de>>(deserializer: D) -> Result<Option<F::Value>, D::Error> {
    one::<F, D>(deserializer).map(Some)
}

/// Reads a list of values of that form.
pub(crate) fn list<'de, F, D, L>(deserializer: D) -> Result<L, D::Error>
where
    F: Form,
    D: Deserializer<'de>,
    L: FromIterator<F::Value>,
{
    let items = deserializer.deserialize_seq(List {
        seed: || Single::<F>(PhantomData),
        at_least_one: F::AT_LEAST_ONE,
    })?;
    Ok(items.into_iter().collect())
}

/// Reads a list of maps to its end, even if some have faults.
pub(crate) fn items<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    deserializer.deserialize_seq(List {
        seed: || PhantomData::<T>,
        at_least_one: None,
    })
}

/// Reads a list of values of that form, whose key may be absent.
pub(crate) fn some_list<'de, F, D, L>(deserializer: D) -> Result<Option<L>, D::Error>
where
    F: Form,
    D: Deserializer<'de>,
    L: FromIterator<F::Value>,
{
    list::<F, D, L>(deserializer).map(Some)
}

/// The reader of one value of a form. `expecting` writes the form's schema for the module `schema`.
struct Single<F>(PhantomData<F>);

impl<'de, F: Form> DeserializeSeed<'de> for Single<F> {
    type Value = F::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<F::Value, D::Error> {
        match F::SCHEMA {
            Schema::Count(_) | Schema::CountOr(..) => deserializer.deserialize_u64(self),
            Schema::Text | Schema::Pattern(_) | Schema::Amount(_) | Schema::Words(_) => {
                deserializer.deserialize_str(self)
            }
        }
    }
}

impl<F: Form> Visitor<'_> for Single<F> {
    type Value = F::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", F::SCHEMA.json())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<F::Value, E> {
        values::read(text, F::parse).map_err(|reason| {
            let meant = F::SCHEMA
                .words()
                .map(|words| suggest::value(text, &words, |text| F::parse(text).is_ok()));
            E::custom(reason + &meant.unwrap_or_default())
        })
    }
}

/// A list whose items are read by a seed each.
struct List<N> {
    seed: N,
    /// The reason why it needs at least one; `None` if it may be empty.
    at_least_one: Option<&'static str>,
}

impl<'de, S: DeserializeSeed<'de>, N: Fn() -> S> Visitor<'de> for List<N> {
    type Value = Vec<S::Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        if let (Some(0), Some(reason)) = (items.size_hint(), self.at_least_one) {
            return Err(A::Error::custom(reason));
        }
        let (mut values, mut failed) = (Vec::new(), None);
        loop {
            match items.next_element_seed((self.seed)()) {
                Ok(Some(value)) => values.push(value),
                Ok(None) => return failed.map_or(Ok(values), Err),
                // The items after it may have faults of their own.
                Err(error) => failed = Some(error),
            }
        }
    }
}

/// Declares forms, one a line: the type of the value, its parser, its schema, and the reason if a list of such values
/// needs at least one.
macro_rules! forms {
    ($($(#[$doc:meta])* $visibility:vis $Name:ident: $Value:ty = $parse:expr, $schema:expr $(, at least one: $reason:expr)?;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        $visibility enum $Name {}

        impl $crate::base::yaml::forms::Form for $Name {
            type Value = $Value;
            const SCHEMA: $crate::base::yaml::forms::Schema = $schema;
            $(const AT_LEAST_ONE: Option<&'static str> = Some($reason);)?

            fn parse(text: &str) -> Result<$Value, String> {
                $parse(text).map_err(|reason| reason.to_string())
            }
        }
    )*};
}
pub(crate) use forms;

/// The units are humantime's up to weeks; the documentation names the short ones.
macro_rules! duration {
    ($($word:literal)?) => {
        Schema::Amount(concat!(
            "^(", $($word, "|",)?
            "0|([0-9]+(\\.[0-9]+)? ?(nanos|nsec|ns|usec|us|µs|millis|msec|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h",
            "|days?|d|weeks?|wks?|w) ?)+)$"
        ))
    };
}

/// The values of a duration.
pub(crate) const DURATION: Schema = duration!();
/// The pattern of IP:port.
pub(crate) const ADDRESS: Schema = Schema::Pattern("^([0-9.]+|\\[[0-9a-fA-F:.%]+\\]):[0-9]{1,5}$");
const RATE: Schema = Schema::Amount("^(unlimited|[0-9]*[1-9][0-9]* *(([kKM]?|G|Ki|Mi|Gi)B|[kMG]?bit)/s)$");
const SIZE: Schema = Schema::Amount("^[0-9]*[1-9][0-9]* *([kKM]?|G|Ki|Mi|Gi)B$");

forms! {
    /// A whole number of at least 1.
    pub(crate) Count: NonZeroU32 = values::count, Schema::Count(u32::MAX);
    /// A whole number of at least 1; `None` for `unlimited`.
    pub(crate) Cap: Option<NonZeroU32> = |text| unless("unlimited", text, values::count),
        Schema::CountOr(u32::MAX, "unlimited");
    /// A TCP port.
    pub(crate) Port: u16 = values::port, Schema::Count(u16::MAX as u32);
    /// A duration of at most a year.
    pub(crate) AnyDuration: Duration = values::duration, DURATION;
    /// A duration of more than 0 s.
    pub(crate) Timeout: Duration = values::timeout, DURATION;
    /// A duration of more than 0 s; `None` for `off`.
    pub(crate) TimeoutOrOff: Option<Duration> = |text| unless("off", text, values::timeout), duration!("off");
    /// A duration of more than 0 s; `None` for `unlimited`.
    pub(crate) TimeoutOrUnlimited: Option<Duration> = |text| unless("unlimited", text, values::timeout), duration!("unlimited");
    /// A duration of at most an hour.
    pub(crate) Brief: Duration = values::brief, DURATION;
    /// A duration of more than 0 s and at most an hour.
    pub(crate) BriefTimeout: Duration = values::brief_timeout, DURATION;
    /// A DNS name.
    pub(crate) Domain: Box<str> = values::domain, Schema::Text;
    /// An IP address with the length of its prefix.
    pub(crate) Network: IpNet = values::network, Schema::Pattern("^[0-9a-fA-F:.]+/[0-9]{1,3}$");
    RateText: Rate = str::parse::<Rate>, RATE;
    SizeText: Size = str::parse::<Size>, SIZE;
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        one::<RateText, D>(deserializer)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        one::<SizeText, D>(deserializer)
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
