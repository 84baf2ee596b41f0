//! The forms of values: the parser of a text, and the values of JSON Schema that stand for the same texts.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use serde_json::{Value, json};

pub(crate) use super::forms::Schema;

use crate::base::units::{Rate, Size, UnitError};
use crate::base::values;

/// A parser together with the schema of the values that it accepts.
///
/// The schema accepts every text that the documentation names, and may accept a few that the parser refuses, such as a
/// duration of more than a year.
#[derive(Debug)]
pub(crate) struct Form<T, E = &'static str> {
    /// Makes a setting of a text.
    pub(crate) parse: fn(&str) -> Result<T, E>,
    /// The texts, numbers and truth values that `parse` accepts.
    pub(crate) schema: Schema,
}

impl Schema {
    /// JSON Schema, draft 7. `or_null`: whether null stands for the default.
    pub(crate) fn json_or_null(self, or_null: bool) -> Value {
        if or_null {
            super::schema::with_null(self.json())
        } else {
            self.json()
        }
    }
}

/// The value of `type`.
pub(crate) fn with_null(kind: &str, or_null: bool) -> Value {
    if or_null { json!([kind, "null"]) } else { json!(kind) }
}

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

pub(crate) const BOOLEAN: Form<bool> = Form {
    parse: values::boolean,
    schema: Schema::Words(&["true", "false"]),
};
pub(crate) const COUNT: Form<NonZeroU32> = Form {
    parse: values::count,
    schema: Schema::Count(u32::MAX),
};
pub(crate) const PORT: Form<u16> = Form {
    parse: values::port,
    schema: Schema::Count(u16::MAX as u32),
};
pub(crate) const DURATION: Form<Duration> = Form {
    parse: values::duration,
    schema: duration!(),
};
pub(crate) const TIMEOUT: Form<Duration> = Form {
    parse: values::timeout,
    schema: duration!(),
};
pub(crate) const TIMEOUT_OR_OFF: Form<Option<Duration>, String> = Form {
    parse: |text| values::unless("off", text, values::timeout),
    schema: duration!("off"),
};
pub(crate) const TIMEOUT_OR_UNLIMITED: Form<Option<Duration>, String> = Form {
    parse: |text| values::unless("unlimited", text, values::timeout),
    schema: duration!("unlimited"),
};
pub(crate) const BRIEF: Form<Duration> = Form {
    parse: values::brief,
    schema: duration!(),
};
pub(crate) const BRIEF_TIMEOUT: Form<Duration> = Form {
    parse: values::brief_timeout,
    schema: duration!(),
};
pub(crate) const RATE: Form<Rate, UnitError> = Form {
    parse: str::parse,
    schema: Schema::Amount("^(unlimited|[0-9]*[1-9][0-9]* *(([kKM]?|G|Ki|Mi|Gi)B|[kMG]?bit)/s)$"),
};
pub(crate) const SIZE: Form<Size, UnitError> = Form {
    parse: str::parse,
    schema: Schema::Amount("^[0-9]*[1-9][0-9]* *([kKM]?|G|Ki|Mi|Gi)B$"),
};
/// The pattern of IP:port.
pub(crate) const ADDRESS: &str = "^([0-9.]+|\\[[0-9a-fA-F:.%]+\\]):[0-9]{1,5}$";
pub(crate) const CLIENT_NAME: Form<Box<str>> = Form {
    parse: values::client_name,
    schema: Schema::Text,
};
pub(crate) const USER_NAME: Form<Box<str>> = Form {
    parse: values::user_name,
    schema: Schema::Text,
};
pub(crate) const DOMAIN: Form<Box<str>> = Form {
    parse: values::domain,
    schema: Schema::Text,
};
pub(crate) const NETWORK: Form<IpNet> = Form {
    parse: values::network,
    schema: Schema::Pattern("^[0-9a-fA-F:.]+/[0-9]{1,3}$"),
};
pub(crate) const PATH: Form<PathBuf> = Form {
    parse: values::path,
    schema: Schema::Text,
};
