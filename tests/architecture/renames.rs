//! Finds the fields that a pattern binds to a name of another word: `Foo { config: rules, .. }`.

/// Returns the renamed fields of all patterns in a file's code, each as `field: name`.
pub(crate) fn renames(code: &str) -> Vec<String> {
    let fields = patterns(code).into_iter().flat_map(fields);
    let renamed =
        fields.filter(|(field, name)| !field.split('_').any(|word| name.split('_').any(|other| other == word)));
    renamed.map(|(field, name)| format!("{field}: {name}")).collect()
}

/// Returns the patterns of `let`, of `for`, of the arms of matches, and of parameters with the rest of their signature.
fn patterns(code: &str) -> Vec<&str> {
    let lets = starts(code, "let ").filter_map(|start| until(&code[start..], |rest| rest.starts_with('=')));
    let loops = starts(code, "for ").filter_map(|start| until(&code[start..], |rest| rest.starts_with("in ")));
    let arms = code.match_indices("=>").map(|(arrow, _)| {
        let before = arm(&code[..arrow]);
        before.split(" if ").next().unwrap_or_default()
    });
    let signatures = starts(code, "fn ").filter_map(|start| code[start..].split(" {\n").next());
    lets.chain(loops).chain(arms).chain(signatures).collect()
}

/// Returns the places after each such keyword.
fn starts<'a>(code: &'a str, keyword: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(keyword).filter_map(move |(start, _)| {
        let before = code[..start].chars().next_back();
        (!before.is_some_and(|character| character.is_alphanumeric() || character == '_'))
            .then_some(start + keyword.len())
    })
}

/// Returns the code up to the first place outside of brackets where a pattern ends; `None` if it is no pattern.
fn until(code: &str, ends: impl Fn(&str) -> bool) -> Option<&str> {
    let mut depth = 0;
    for (index, character) in code.char_indices() {
        match character {
            '{' if depth == 0 && !names_a_struct(&code[..index]) => return None,
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' | ';' if depth == 0 => return None,
            ')' | ']' | '}' => depth -= 1,
            _ if depth == 0 && ends(&code[index..]) => return Some(&code[..index]),
            _ => {}
        }
    }
    None
}

/// Returns whether a brace after this code opens the fields of a struct, and not a block.
fn names_a_struct(before: &str) -> bool {
    let name = before
        .trim_end()
        .rsplit(|character: char| !(character.is_alphanumeric() || character == '_'))
        .next();
    name.is_some_and(|name| name.starts_with(char::is_uppercase))
}

/// Returns the pattern at the end of the code: what an arrow of a match follows.
fn arm(code: &str) -> &str {
    let (mut depth, mut after) = (0, '=');
    for (index, character) in code.char_indices().rev() {
        match character {
            // The end of the arm before: rustfmt breaks the line there.
            '}' if depth == 0 && after == '\n' => return &code[index + 1..],
            ')' | ']' | '}' => depth += 1,
            '(' | '[' | '{' | ',' if depth == 0 => return &code[index + 1..],
            '(' | '[' | '{' => depth -= 1,
            _ => {}
        }
        after = character;
    }
    code
}

/// Returns the fields that a pattern binds to other names, each with its name.
fn fields(pattern: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    for (open, _) in pattern
        .match_indices('{')
        .filter(|(open, _)| names_a_struct(&pattern[..*open]))
    {
        let inner = pattern[open + 1..].split(['{', '}']).next().unwrap_or_default();
        found.extend(inner.split(',').filter_map(|field| {
            let (field, name) = field.split_once(": ")?;
            let name = name.trim().trim_start_matches("ref ").trim_start_matches("mut ");
            let is_plain = name.starts_with(char::is_lowercase)
                && !["true", "false"].contains(&name)
                && name
                    .chars()
                    .all(|character| character.is_alphanumeric() || character == '_');
            is_plain.then_some((field.trim(), name))
        }));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_field_that_a_pattern_binds_to_another_word_is_renamed() {
        for (code, expected) in [
            ("let Foo { config: rules, .. } = foo;", &["config: rules"][..]),
            ("if let Some(Foo { id: number }) = foo {}", &["id: number"]),
            ("for Foo { a: b } in all {}", &["a: b"]),
            (
                "match foo {\n    Foo { mode: how, .. } if x => 1,\n    (Foo { c: d }, _) => {\n    }\n    _ => 2,\n}",
                &["mode: how", "c: d"],
            ),
            (
                "let Foo { upload: early_upload, done: _, is: true, n: Some(m) } = foo;",
                &[],
            ),
            (
                "fn f(Foo { a: b }: Foo, c: u8) -> Bar {\n    Bar { d: e }\n}",
                &["a: b"],
            ),
            ("let foo = Foo { config: rules };", &[]),
            (
                "match x {\n    A => Foo { config: rules },\n    B => {\n        f(Foo { a: b })\n    }\n    C => 1,\n}",
                &[],
            ),
            (
                "impl<T> From<T> for Foo {\n    fn f() {\n        Self { a: b }\n    }\n}",
                &[],
            ),
        ] {
            assert_eq!(renames(code), expected, "{code}");
        }
    }
}
