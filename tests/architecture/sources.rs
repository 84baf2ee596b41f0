//! Reads the sources: each file's module, its code, and the modules that it names.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A path of modules and, at its end, perhaps an item: `["net", "tls", "Session"]` for `crate::net::tls::Session`.
pub(crate) type ModulePath = Vec<String>;

/// A source file that is not a test as a whole.
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    /// The module that the file holds. `main` is one of its own, beside those of the library.
    pub(crate) module: ModulePath,
    /// The code without tests and comments, and with empty strings.
    pub(crate) code: String,
    /// The code without `use` statements.
    body: String,
    /// The names that the file imports.
    uses: Vec<Use>,
}

/// A name that a `use` statement brings into a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Use {
    name: String,
    /// As the file writes it.
    path: ModulePath,
    is_public: bool,
}

impl Source {
    fn of(path: PathBuf, module: ModulePath, text: &str) -> Self {
        let code = strip(text);
        let (uses, body) = uses(&code);
        Self {
            path,
            module,
            code,
            body,
            uses,
        }
    }

    /// The first name of the module: the part that the file belongs to.
    pub(crate) fn part(&self) -> &str {
        &self.module[0]
    }

    /// The module as code names it, such as `net::tls`.
    pub(crate) fn name(&self) -> String {
        self.module.join("::")
    }
}

/// All source files, by module.
pub(crate) struct Sources(BTreeMap<ModulePath, Source>);

impl Sources {
    /// Reads the folder `src`, but for the files that are tests as a whole.
    pub(crate) fn read() -> Self {
        let mut found = Vec::new();
        let mut folders = vec![root().join("src")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_str().unwrap();
                let is_test = ["tests", "tests.rs", "test_support.rs"].contains(&name);
                if path.is_dir() && !is_test {
                    folders.push(path);
                } else if name.ends_with(".rs") && !is_test && name != "lib.rs" {
                    let inside = path.strip_prefix(root().join("src")).unwrap().with_extension("");
                    let module = inside.iter().map(|name| name.to_str().unwrap().to_owned()).collect();
                    let text = fs::read_to_string(&path).unwrap();
                    found.push(Source::of(path, module, &text));
                }
            }
        }
        assert!(found.len() > 50, "the sources were not found");
        Self::of(found)
    }

    fn of(found: Vec<Source>) -> Self {
        Self(
            found
                .into_iter()
                .map(|source| (source.module.clone(), source))
                .collect(),
        )
    }

    /// Every file, in the order of their modules.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Source> {
        self.0.values()
    }

    /// The modules with children, each with the names of these; the first one is the crate's root.
    pub(crate) fn folders(&self) -> BTreeMap<ModulePath, BTreeSet<String>> {
        let mut folders: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for module in self.0.keys() {
            for length in 0..module.len() {
                let children = folders.entry(module[..length].to_vec()).or_default();
                children.insert(module[length].clone());
            }
        }
        folders
    }

    /// The paths that a file names, from the crate's root.
    pub(crate) fn imports(&self, source: &Source) -> Vec<ModulePath> {
        let by_use = source.uses.iter().filter_map(|used| self.absolute(source, &used.path));
        by_use.chain(self.named(source)).collect()
    }

    /// The modules whose files define what a file names, itself excepted. A name that a folder's own file only passes on
    /// from a child is not among them: the folder shows it, and does not use it.
    pub(crate) fn needs(&self, source: &Source) -> BTreeSet<&ModulePath> {
        let used: BTreeSet<_> = words(&source.body).collect();
        let by_use = source.uses.iter().filter_map(|import| {
            let file = self.definition(&self.absolute(source, &import.path)?)?;
            let is_passed_on = import.is_public && !used.contains(&*import.name);
            (!is_passed_on || !file.module.starts_with(&source.module)).then_some(file)
        });
        let named = self.named(source);
        let by_path = named.iter().filter_map(|path| self.definition(path));
        let files = by_use.chain(by_path).map(|file| &file.module);
        files.filter(|module| **module != source.module).collect()
    }

    /// The paths outside of `use` statements.
    fn named(&self, source: &Source) -> Vec<ModulePath> {
        let paths = paths(&source.body).into_iter();
        paths.filter_map(|path| self.absolute_in_body(source, &path)).collect()
    }

    /// The file that defines what a path names: the deepest module on the path, through imports of that file.
    fn definition(&self, path: &[String]) -> Option<&Source> {
        let file = self.file(path)?;
        let origin = path.get(file.module.len()).and_then(|name| {
            let import = file.uses.iter().find(|import| import.name == *name)?;
            self.absolute(file, &import.path)
        });
        match origin.filter(|origin| origin != path) {
            Some(origin) => self.definition(&origin),
            None => Some(file),
        }
    }

    /// A path as the body of a file writes it, which may begin with a name that the file imports.
    fn absolute_in_body(&self, source: &Source, path: &[String]) -> Option<ModulePath> {
        self.absolute(source, path).or_else(|| {
            let import = source.uses.iter().find(|import| import.name == path[0])?;
            let start = self.absolute(source, &import.path)?;
            Some([&start, &path[1..]].concat())
        })
    }

    /// A path as the file writes it, from the crate's root. `None` for a path into another crate.
    fn absolute(&self, source: &Source, path: &[String]) -> Option<ModulePath> {
        let mut base = source.module.clone();
        let mut rest = path;
        match rest.first()?.as_str() {
            "crate" | "switchboard" => {
                base.clear();
                rest = &rest[1..];
            }
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|name| name == "super") {
                    base.pop();
                    rest = &rest[1..];
                }
            }
            child => {
                let module = [&source.module, &[child.to_owned()][..]].concat();
                self.0.get(&module)?;
            }
        }
        base.extend(rest.iter().filter(|name| *name != "self").cloned());
        (!base.is_empty()).then_some(base)
    }

    fn file(&self, path: &[String]) -> Option<&Source> {
        (1..=path.len()).rev().find_map(|length| self.0.get(&path[..length]))
    }
}

/// The folder of the project.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The code without tests and comments, and with empty strings.
pub(crate) fn strip(text: &str) -> String {
    let mut stripped = String::new();
    for line in text.lines() {
        let mut characters = line.chars().peekable();
        let mut in_string = false;
        while let Some(character) = characters.next() {
            match character {
                '\\' if in_string => _ = characters.next(),
                '"' => {
                    in_string = !in_string;
                    stripped.push('"');
                }
                _ if in_string => {}
                '\'' if characters.peek() == Some(&'"') => {
                    characters.next();
                    stripped.push('\'');
                }
                '/' if characters.peek() == Some(&'/') => break,
                _ => stripped.push(character),
            }
        }
        stripped.push('\n');
    }
    without_tests(&stripped)
}

/// The code without the items for tests. A module of tests in a file is its end.
fn without_tests(code: &str) -> String {
    let mut parts = code.split("#[cfg(test)]\n");
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let item = part.trim_start();
        if item.starts_with("mod ") && item.lines().next().is_some_and(|line| line.ends_with('{')) {
            break;
        }
        // Without a body it ends with its line, with one where the brace of its indentation closes it.
        let indentation = &part[..part.len() - item.len()];
        let end = match item.lines().next() {
            Some(line) if line.ends_with(';') => "\n".to_owned(),
            _ => format!("\n{indentation}}}\n"),
        };
        kept.push_str(part.split_once(&end).map_or("", |(_, after)| after));
    }
    kept.truncate(kept.trim_end().len());
    kept
}

/// The words of the code: names, keywords and numbers.
pub(crate) fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|character: char| !is_of_a_word(character))
        .filter(|word| !word.is_empty())
}

fn is_of_a_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// The names of every `use` statement, and the code without these.
fn uses(code: &str) -> (Vec<Use>, String) {
    let (mut found, mut body, mut rest) = (Vec::new(), String::new(), code);
    while let Some(start) = rest.find("use ") {
        let (before, statement) = rest.split_at(start);
        body.push_str(before);
        if before
            .chars()
            .next_back()
            .is_some_and(|character| !character.is_whitespace())
        {
            body.push_str("use ");
            rest = &statement[4..];
            continue;
        }
        let visibility = before
            .trim_end()
            .rsplit([';', '}', '{', ']'])
            .next()
            .unwrap_or_default();
        let (tree, after) = statement[4..].split_once(';').unwrap_or_default();
        let names = expand(tree).into_iter().map(|(name, path)| Use {
            name,
            path,
            is_public: visibility.trim_start().starts_with("pub"),
        });
        found.extend(names);
        rest = after;
    }
    body.push_str(rest);
    (found, body)
}

/// The paths of more than one name.
fn paths(code: &str) -> Vec<ModulePath> {
    let code = without_visibility(code);
    let runs = code.split(|character: char| !is_of_a_word(character) && character != ':');
    let paths = runs.filter(|run| run.contains("::") && !run.starts_with(':'));
    paths.map(names).collect()
}

/// The code without the paths of `pub(in …)`, which import nothing.
fn without_visibility(code: &str) -> String {
    let parts = code.split("(in ").enumerate();
    let kept = parts.map(|(index, part)| match part.split_once(')') {
        Some((_, after)) if index > 0 => after,
        _ => part,
    });
    kept.collect()
}

fn names(path: &str) -> ModulePath {
    let names = path.split("::").map(str::trim).filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}

/// The names of a `use` tree such as `a::{b::C, d as e}`, each with its path: here `C` and `e`.
fn expand(tree: &str) -> Vec<(String, ModulePath)> {
    let tree = tree.trim();
    let Some((prefix, group)) = tree.split_once('{') else {
        let (path, alias) = tree.split_once(" as ").unwrap_or((tree, ""));
        let path = names(path);
        let own = path.iter().rfind(|name| *name != "self").cloned().unwrap_or_default();
        let name = if alias.is_empty() { own } else { alias.to_owned() };
        return vec![(name, path)];
    };
    let prefix = names(prefix);
    let group = group.rsplit_once('}').map_or(group, |(group, _)| group);
    let (mut depth, mut start) = (0, 0);
    let mut members = Vec::new();
    for (index, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                members.push(&group[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    members.push(&group[start..]);
    let members = members.into_iter().filter(|member| !member.trim().is_empty());
    let paths = members.flat_map(expand).map(|(name, path)| {
        let is_the_prefix = path == ["self"] && name.is_empty();
        let name = if is_the_prefix {
            prefix.last().cloned().unwrap_or_default()
        } else {
            name
        };
        (name, [prefix.clone(), path].concat())
    });
    paths.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_use_tree_is_expanded_and_comments_and_strings_are_not_read() {
        let code = strip(
            "pub(in crate::m) struct N;\nuse crate::{a::{self, B, C}, d as e};\nfn f() { super::g::h() } // crate::i\nlet s = \"crate::j\";\npub(crate) use k::L;\n",
        );
        let (uses, body) = uses(&code);
        let uses: Vec<_> = uses
            .iter()
            .map(|used| format!("{} {} {}", used.name, used.path.join("::"), used.is_public))
            .collect();
        assert_eq!(
            uses,
            [
                "a crate::a::self false",
                "B crate::a::B false",
                "C crate::a::C false",
                "e crate::d false",
                "L k::L true"
            ]
        );
        assert_eq!(paths(&body), [["super", "g", "h"]]);
        assert_eq!(strip("a '\"' b \"x\" c"), "a '' b \"\" c");
    }

    #[test]
    fn items_for_tests_are_left_out() {
        let code = "a\n#[cfg(test)]\nmod b;\nc {\n    #[cfg(test)]\n    fn d() {\n        e\n    }\n    f\n}\n#[cfg(test)]\nmod tests {\n    g\n}\n";
        assert_eq!(strip(code).split_whitespace().collect::<String>(), "ac{f}");
    }

    fn of(files: &[(&str, &str)]) -> Sources {
        let files = files.iter().map(|(module, code)| {
            let module = names(module);
            Source::of(PathBuf::new(), module, code)
        });
        Sources::of(files.collect())
    }

    fn needs(sources: &Sources, module: &str) -> Vec<String> {
        let source = &sources.0[&names(module)];
        sources.needs(source).iter().map(|module| module.join("::")).collect()
    }

    #[test]
    fn a_path_leads_through_a_re_export_to_the_file_that_defines_it() {
        let sources = of(&[
            ("a", "pub use self::b::{C, D};\nmod b;"),
            ("a::b", "pub struct C;"),
            ("e", "use crate::a::C;\nuse std::fmt;"),
            ("f", "use super::a;\nfn g() -> a::D {}"),
        ]);
        assert_eq!(needs(&sources, "e"), ["a::b"]);
        assert_eq!(needs(&sources, "f"), ["a", "a::b"]);
    }

    #[test]
    fn an_own_file_needs_the_children_that_it_uses_and_not_those_that_it_shows() {
        let sources = of(&[
            ("a", "pub use self::b::B;\npub use self::c::C;\nfn f(c: C) { d::g() }"),
            ("a::b", "pub struct B;"),
            ("a::c", "pub struct C;"),
            ("a::d", "use super::f;\nfn g() {}"),
        ]);
        assert_eq!(needs(&sources, "a"), ["a::c", "a::d"]);
        assert_eq!(needs(&sources, "a::d"), ["a"]);
    }
}
