//! What a request for a list asks for: which items, in which order, and which part of them.

use std::cmp::Reverse;
use std::fmt::Display;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

/// The part of a list.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Part {
    /// Items at most.
    pub(super) limit: Option<usize>,
    /// The value of `next` of the part before: a place in the order, in letters that need no escapes in a URL.
    pub(super) cursor: Option<String>,
}

/// A part of a list.
#[derive(Debug)]
pub(super) struct Listed<T> {
    pub(super) items: Vec<T>,
    pub(super) total: usize,
    pub(super) next: Option<String>,
}

/// The place of an item in the order of a list. Of two items with one key, the one with the smaller name comes first.
pub(super) type Place<N> = (u64, N);

impl Part {
    /// The part of those items, in the order of their places, the largest key first. Each place is looked at once.
    ///
    /// An item whose key changes between two requests may be in both parts or in none.
    ///
    /// # Errors
    /// What is wrong with the cursor.
    pub(super) fn of<T, N>(&self, items: Vec<T>, place: impl Fn(&T) -> Place<N>) -> Result<Listed<T>, String>
    where
        N: Ord + Display + FromStr,
    {
        let last = self.cursor.as_ref().map(|cursor| {
            let last = parse(cursor).ok_or_else(|| format!("cursor: {cursor:?} is not the `next` of an answer"))?;
            Ok::<_, String>(descending(last))
        });
        let last = last.transpose()?;
        let total = items.len();
        let placed = items.into_iter().map(|item| (descending(place(&item)), item));
        let mut placed: Vec<_> = placed
            .filter(|(place, _)| last.as_ref().is_none_or(|last| place > last))
            .collect();
        let limit = self.limit.unwrap_or(USUAL_LIMIT).clamp(1, LARGEST_LIMIT);
        let is_last = placed.len() <= limit;
        if !is_last {
            // What is behind the part need not be in order.
            placed.select_nth_unstable_by(limit, |(one, _), (other, _)| one.cmp(other));
            placed.truncate(limit);
        }
        placed.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        let next = placed
            .last()
            .filter(|_| !is_last)
            .map(|((Reverse(key), name), _)| URL_SAFE_NO_PAD.encode(format!("{key}:{name}")));
        let items = placed.into_iter().map(|(_, item)| item).collect();
        Ok(Listed { items, total, next })
    }
}

fn descending<N>((key, name): Place<N>) -> (Reverse<u64>, N) {
    (Reverse(key), name)
}

fn parse<N: FromStr>(cursor: &str) -> Option<Place<N>> {
    let decoded = String::from_utf8(URL_SAFE_NO_PAD.decode(cursor).ok()?).ok()?;
    let (key, name) = decoded.split_once(':')?;
    Some((key.parse().ok()?, name.parse().ok()?))
}

const USUAL_LIMIT: usize = 100;
/// The JSON of an answer is in memory: that of 2,000 tunnels takes 2 MB.
const LARGEST_LIMIT: usize = 2000;

#[cfg(test)]
mod tests {
    use super::*;

    fn place(item: &(u64, &str)) -> Place<String> {
        (item.0, item.1.to_owned())
    }

    #[test]
    fn the_parts_of_a_list_are_all_of_it_in_order() {
        let items = vec![(1, "a"), (3, "c"), (3, "b"), (u64::MAX, "d"), (0, "e")];
        let mut seen = Vec::new();
        let mut part = Part {
            limit: Some(2),
            cursor: None,
        };
        loop {
            let listed = part.of(items.clone(), place).unwrap();
            assert_eq!(listed.total, 5);
            seen.extend(listed.items.iter().map(|(_, name)| *name));
            match listed.next {
                Some(next) => part.cursor = Some(next),
                None => break,
            }
        }
        assert_eq!(seen, ["d", "b", "c", "a", "e"]);
    }

    #[test]
    fn a_part_is_of_the_items_of_one_moment() {
        // Keys that change with each look, as bytes do.
        let looks = std::cell::Cell::new(0);
        let place = |item: &u64| {
            looks.set(looks.get() + 1);
            (looks.get(), *item)
        };
        let part = Part {
            limit: Some(3),
            cursor: None,
        };
        let listed = part.of((0..10).collect(), place).unwrap();
        assert_eq!((looks.get(), listed.items), (10, vec![9, 8, 7]));
        assert_eq!(parse(&listed.next.unwrap()), Some((8_u64, 7_u64)));
    }

    #[test]
    fn a_cursor_that_is_none_is_named() {
        for cursor in ["", "x", "x:y", "-1:y"] {
            let part = Part {
                limit: None,
                cursor: Some(cursor.to_owned()),
            };
            let said = part.of(vec![(1, "a")], place).unwrap_err();
            assert!(said.contains(&format!("{cursor:?}")), "{said}");
        }
    }
}
