//! Dice notation: `2d6`, `d20`, `4d8+3`.
//!
//! Parsing is strict and bounded, because the text comes from a language model. Every [`Error`]
//! says what to write instead. Keep-highest, exploding and nested rolls are not supported.

use std::{fmt, str::FromStr};

const MAX_COUNT: u32 = 100;
const MAX_SIDES: u32 = 1000;
const MAX_BONUS: u32 = 1_000_000;

/// Dice with the same number of sides, and a bonus to add to their sum.
///
/// After parsing, `count` is 1 to 100 and `sides` is 2 to 1000.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Dice {
    pub(crate) count: u32,
    pub(crate) sides: u32,
    pub(crate) bonus: i32,
}

/// Why a text is not valid dice notation. The messages are for the author of the text.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Error {
    Notation,
    Count,
    Sides,
    Bonus,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Notation => f.write_str("write dice as COUNTdSIDES+BONUS: 2d6, d20 or 4d8+3"),
            Self::Count => write!(f, "roll 1 to {MAX_COUNT} dice at a time"),
            Self::Sides => write!(f, "a die has 2 to {MAX_SIDES} sides"),
            Self::Bonus => write!(f, "a bonus is between -{MAX_BONUS} and +{MAX_BONUS}"),
        }
    }
}

impl FromStr for Dice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (count, rest) = text.trim().split_once(['d', 'D']).ok_or(Error::Notation)?;
        let (sides, bonus) = rest.split_at(rest.find(['+', '-']).unwrap_or(rest.len()));
        let (sign, bonus) = match bonus.split_at_checked(1) {
            Some(("-", digits)) => (-1, digits),
            Some((_, digits)) => (1, digits),
            None => (1, "0"),
        };
        let count = number(if count.is_empty() { "1" } else { count })?;
        let sides = number(sides)?;
        let bonus = number(bonus)?;
        let count = count
            .filter(|n| (1..=MAX_COUNT).contains(n))
            .ok_or(Error::Count)?;
        let sides = sides
            .filter(|n| (2..=MAX_SIDES).contains(n))
            .ok_or(Error::Sides)?;
        let bonus = bonus.filter(|n| *n <= MAX_BONUS).ok_or(Error::Bonus)?;
        Ok(Self {
            count,
            sides,
            bonus: sign * bonus.cast_signed(),
        })
    }
}

impl fmt::Display for Dice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}d{}", self.count, self.sides)?;
        match self.bonus {
            0 => Ok(()),
            bonus => write!(f, "{bonus:+}"),
        }
    }
}

/// Parses digits; `None` if the number does not fit.
fn number(digits: &str) -> Result<Option<u32>, Error> {
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Error::Notation);
    }
    Ok(digits.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expect: Result<&str, Error>) {
        let parsed = text.parse::<Dice>().map(|dice| dice.to_string());
        assert_eq!(parsed, expect.map(str::to_owned), "{text:?}");
    }

    #[test]
    fn notation() {
        check("2d6", Ok("2d6"));
        check(" 2D6 ", Ok("2d6"));
        check("d20", Ok("1d20"));
        check("4d8+3", Ok("4d8+3"));
        check("4d8-3", Ok("4d8-3"));
        check("100d1000+0", Ok("100d1000"));
    }

    #[test]
    fn what_is_refused() {
        for text in [
            "", "d", "six", "2d", "2d6+", "2d6+-1", "2 d 6", "2d6d6", "-1d6", "2d6+1.5", "２d6",
        ] {
            check(text, Err(Error::Notation));
        }
        check("0d6", Err(Error::Count));
        check("101d6", Err(Error::Count));
        check("99999999999999999999d6", Err(Error::Count));
        check("2d1", Err(Error::Sides));
        check("2d1001", Err(Error::Sides));
        check("2d6-1000001", Err(Error::Bonus));
    }
}
