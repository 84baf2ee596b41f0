//! What a request for a list asks for: which items, in which order, and which part of them.

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
pub(super) type Place = (u64, String);

impl Part {
    /// The part of those items, in the order of their places, the largest key first.
    ///
    /// An item whose key changes between two requests may be in both parts or in none.
    ///
    /// # Errors
    /// What is wrong with the cursor.
    pub(super) fn of<T>(&self, mut items: Vec<T>, place: impl Fn(&T) -> Place) -> Result<Listed<T>, String> {
        let descending = |(key, name): Place| (u64::MAX - key, name);
        let total = items.len();
        items.sort_by_cached_key(|item| descending(place(item)));
        if let Some(cursor) = &self.cursor {
            let last = parse(cursor).ok_or_else(|| format!("cursor: {cursor:?} is not the `next` of an answer"))?;
            let last = descending(last);
            items.retain(|item| descending(place(item)) > last);
        }
        let limit = self.limit.unwrap_or(USUAL_LIMIT).clamp(1, LARGEST_LIMIT);
        let next = (items.len() > limit).then(|| {
            items.truncate(limit);
            items
                .last()
                .map(&place)
                .map(|(key, name)| URL_SAFE_NO_PAD.encode(format!("{key}:{name}")))
        });
        Ok(Listed {
            items,
            total,
            next: next.flatten(),
        })
    }
}

fn parse(cursor: &str) -> Option<Place> {
    let decoded = String::from_utf8(URL_SAFE_NO_PAD.decode(cursor).ok()?).ok()?;
    let (key, name) = decoded.split_once(':')?;
    Some((key.parse().ok()?, name.to_owned()))
}

const USUAL_LIMIT: usize = 100;
const LARGEST_LIMIT: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn place(item: &(u64, &str)) -> Place {
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
