//! Rates and sizes, with their units as text.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

/// A data rate in bytes per second, at least 1, or unlimited.
///
/// Text: `unlimited`, or a whole number with a unit: bytes (`B/s KB/s MB/s GB/s`, powers of 1,000, and
/// `KiB/s MiB/s GiB/s`, powers of 1,024) or bits (`bit/s kbit/s Mbit/s Gbit/s`, powers of 1,000, eight to a byte).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(NonZeroU64);

impl Rate {
    /// No limit; compares as higher than every limited rate.
    pub const UNLIMITED: Self = Self(NonZeroU64::MAX);

    /// Returns a rate in bytes per second; `None` for 0, at which a tunnel would never move.
    pub fn per_second(bytes: u64) -> Option<Self> {
        NonZeroU64::new(bytes).map(Self)
    }

    /// Returns the bytes per second; `u64::MAX` if unlimited.
    pub fn get(self) -> u64 {
        self.0.get()
    }

    /// Returns whether there is no limit.
    pub fn is_unlimited(self) -> bool {
        self == Self::UNLIMITED
    }
}

/// Unlimited.
impl Default for Rate {
    fn default() -> Self {
        Self::UNLIMITED
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_unlimited() {
            return f.write_str("unlimited");
        }
        write!(f, "{}/s", Size(self.get()))
    }
}

impl FromStr for Rate {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        if text == "unlimited" {
            return Ok(Self::UNLIMITED);
        }
        let (number, unit) = number_and_unit(text)?;
        let (factor, divisor) = match unit {
            "bit/s" => (1, 8),
            "kbit/s" => (1_000, 8),
            "Mbit/s" => (1_000_000, 8),
            "Gbit/s" => (1_000_000_000, 8),
            _ => (
                byte_unit(unit.strip_suffix("/s").unwrap_or_default()).ok_or(UnitError::NotARate)?,
                1,
            ),
        };
        let bytes = number.checked_mul(factor).ok_or(UnitError::TooLarge)? / divisor;
        if bytes == u64::MAX {
            return Err(UnitError::TooLarge);
        }
        Self::per_second(bytes).ok_or(UnitError::Zero)
    }
}

/// A number of bytes, at least 1. Text: a whole number with a unit (`B KB MB GB`, `KiB MiB GiB`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(u64);

impl Size {
    /// 1 MiB.
    pub(crate) const MEBIBYTE: Self = Self(1 << 20);

    /// Returns a size in bytes; `None` for 0.
    pub const fn bytes(bytes: u64) -> Option<Self> {
        match bytes {
            0 => None,
            _ => Some(Self(bytes)),
        }
    }

    /// Returns the number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (factor, unit) in [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")] {
            if self.0.is_multiple_of(factor) {
                return write!(f, "{}{unit}", self.0 / factor);
            }
        }
        write!(f, "{}B", self.0)
    }
}

impl FromStr for Size {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (number, unit) = number_and_unit(text)?;
        let factor = byte_unit(unit).ok_or(UnitError::NotASize)?;
        let bytes = number.checked_mul(factor).ok_or(UnitError::TooLarge)?;
        Self::bytes(bytes).ok_or(UnitError::Zero)
    }
}

/// The reason why a text is not a rate or not a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// The text does not begin with a whole number.
    #[error("expected a whole number with a unit")]
    NoNumber,
    /// The unit is missing, or is not one of a rate.
    #[error("expected `unlimited` or a number with a unit such as `50MiB/s` or `80Mbit/s`")]
    NotARate,
    /// The unit is missing, or is not one of a size.
    #[error("expected a number with a unit such as `512KiB` or `1MiB`")]
    NotASize,
    /// The value is less than one byte.
    #[error("must be at least 1 byte")]
    Zero,
    /// The value is larger than the type holds.
    #[error("too large")]
    TooLarge,
}

fn number_and_unit(text: &str) -> Result<(u64, &str), UnitError> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(UnitError::NoNumber);
    }
    let number = number.parse().map_err(|_| UnitError::TooLarge)?;
    Ok((number, unit.trim_start_matches(' ')))
}

fn byte_unit(unit: &str) -> Option<u64> {
    Some(match unit {
        "B" => 1,
        "KB" | "kB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_parsed_with_their_units() {
        for (text, bytes) in [
            ("1B/s", 1),
            ("50MiB/s", 50 << 20),
            ("50 MiB/s", 50 << 20),
            ("80Mbit/s", 10_000_000),
            ("1Gbit/s", 125_000_000),
            ("3kB/s", 3_000),
            ("1GiB/s", 1 << 30),
        ] {
            assert_eq!(text.parse::<Rate>().map(Rate::get), Ok(bytes), "{text}");
        }
        assert_eq!("unlimited".parse(), Ok(Rate::UNLIMITED));
        assert!(Rate::UNLIMITED > "1000000GiB/s".parse().unwrap());
    }

    #[test]
    fn each_fault_of_a_rate_or_a_size_has_its_error() {
        for (text, error) in [
            ("", UnitError::NoNumber),
            ("fast", UnitError::NoNumber),
            ("-1MiB/s", UnitError::NoNumber),
            ("50", UnitError::NotARate),
            ("50MiB", UnitError::NotARate),
            ("1.5MiB/s", UnitError::NotARate),
            ("50Mb/s", UnitError::NotARate),
            ("0MiB/s", UnitError::Zero),
            ("7bit/s", UnitError::Zero),
            ("99999999999GiB/s", UnitError::TooLarge),
            ("18446744073709551615B/s", UnitError::TooLarge),
            ("99999999999999999999B/s", UnitError::TooLarge),
        ] {
            assert_eq!(text.parse::<Rate>(), Err(error), "{text:?}");
        }
        for (text, error) in [
            ("1", UnitError::NotASize),
            ("1MiB/s", UnitError::NotASize),
            ("0B", UnitError::Zero),
        ] {
            assert_eq!(text.parse::<Size>(), Err(error), "{text:?}");
        }
    }

    #[test]
    fn a_printed_rate_parses_as_itself() {
        for text in ["unlimited", "50MiB/s", "10000000B/s", "1GiB/s", "64KiB/s"] {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
        }
    }
}
