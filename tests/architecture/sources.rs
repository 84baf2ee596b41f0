//! Reads the sources: each file's module, its code, and the modules that it names.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A path of modules and, at its end, perhaps an item: `["connect", "http2", "Request"]` for `crate::connect::http2::Request`.
pub(crate) type ModulePath = Vec<String>;

/// A source file that is not a test as a whole.
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    /// The module that the file holds. `main` is one of its own, beside those of the library.
    pub(crate) module: ModulePath,
    /// The code up to its tests, without comments and with empty strings.
    pub(crate) code: String,
}

impl Source {
    /// The first name of the module: the folder that the file belongs to.
    pub(crate) fn folder(&self) -> &str {
        &self.module[0]
    }

    /// The library's paths that the file names, from the crate's root.
    pub(crate) fn imports(&self, sources: &Sources) -> Vec<ModulePath> {
        let mut found: Vec<ModulePath> = Vec::new();
        for tree in uses(&self.code) {
            found.extend(tree.into_iter().filter_map(|path| self.absolute(&path, sources)));
        }
        for path in inline_paths(&self.code) {
            found.extend(self.absolute(&path, sources));
        }
        found
    }

    /// The names that the file re-exports from its own modules, and where they come from.
    fn exports(&self, sources: &Sources) -> BTreeMap<String, ModulePath> {
        let public = self.code.split(';').filter_map(|statement| {
            let start = statement.rfind("pub")?;
            let statement = &statement[start..];
            let statement = statement.strip_prefix("pub").unwrap();
            let statement = statement.strip_prefix("(crate)").unwrap_or(statement);
            let statement = statement.strip_prefix("(super)").unwrap_or(statement);
            statement.trim_start().strip_prefix("use ").map(expand)
        });
        let paths = public.flatten().filter_map(|path| self.absolute(&path, sources));
        paths
            .filter_map(|path| Some((path.last()?.clone(), path.clone())))
            .collect()
    }

    /// A path as the file writes it, from the crate's root. `None` for a path into another crate.
    fn absolute(&self, path: &[String], sources: &Sources) -> Option<ModulePath> {
        let mut base = self.module.clone();
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
                let mut module = self.module.clone();
                module.push(child.to_owned());
                sources.file(&module).filter(|file| file.module == module)?;
            }
        }
        base.extend(rest.iter().filter(|name| *name != "self").cloned());
        (!base.is_empty()).then_some(base)
    }
}

/// All source files, by module.
pub(crate) struct Sources(pub(crate) Vec<Source>);

impl Sources {
    /// Reads the folder `src`, but for the files that are tests as a whole.
    pub(crate) fn read() -> Self {
        let mut found = Vec::new();
        let mut folders = vec![root().join("src")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_str().unwrap();
                if path.is_dir() && name != "tests" {
                    folders.push(path);
                } else if name.ends_with(".rs") && name != "tests.rs" && name != "lib.rs" {
                    let inside = path.strip_prefix(root().join("src")).unwrap().with_extension("");
                    let module = inside.iter().map(|name| name.to_str().unwrap().to_owned()).collect();
                    let code = strip(&fs::read_to_string(&path).unwrap());
                    found.push(Source { path, module, code });
                }
            }
        }
        assert!(found.len() > 50, "the sources were not found");
        Self(found)
    }

    /// The file that defines what a path names: the deepest module on the path, through re-exports.
    pub(crate) fn definition(&self, path: &ModulePath) -> Option<&Source> {
        let file = self.file(path)?;
        let exported = path
            .get(file.module.len())
            .and_then(|name| file.exports(self).remove(name))
            .filter(|origin| origin != path);
        match exported {
            Some(origin) => self.definition(&origin),
            None => Some(file),
        }
    }

    fn file(&self, path: &ModulePath) -> Option<&Source> {
        let on_path = self.0.iter().filter(|source| path.starts_with(&source.module));
        on_path.max_by_key(|source| source.module.len())
    }
}

/// The folder of the project.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The code up to its tests, without comments and with empty strings.
pub(crate) fn strip(text: &str) -> String {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let mut stripped = String::new();
    for line in code.lines() {
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
    stripped.truncate(stripped.trim_end().len());
    stripped
}

/// The paths of every `use`, one list each.
fn uses(code: &str) -> Vec<Vec<ModulePath>> {
    let statements = code.split(';');
    let trees = statements.filter_map(|statement| {
        let start = statement.rfind("use ")?;
        let before = statement[..start].chars().next_back();
        before
            .is_none_or(char::is_whitespace)
            .then(|| expand(&statement[start + 4..]))
    });
    trees.collect()
}

/// The paths that begin with `crate::` or `super::` or, in `main`, with the crate's name, outside of a `use`.
fn inline_paths(code: &str) -> Vec<ModulePath> {
    let mut found = Vec::new();
    for start in ["crate::", "super::", "switchboard::"] {
        for (index, _) in code.match_indices(start) {
            let before = code[..index].chars().next_back();
            if before.is_some_and(|character| character.is_alphanumeric() || matches!(character, '_' | ':')) {
                continue;
            }
            let end =
                code[index..].find(|character: char| !character.is_alphanumeric() && !matches!(character, '_' | ':'));
            let path = &code[index..end.map_or(code.len(), |end| index + end)];
            found.push(
                path.split("::")
                    .filter(|name| !name.is_empty())
                    .map(str::to_owned)
                    .collect(),
            );
        }
    }
    found
}

/// The paths of a `use` tree such as `a::{b::C, d}`; an alias keeps the name that it stands for.
fn expand(tree: &str) -> Vec<ModulePath> {
    let tree = tree.trim();
    let Some((prefix, group)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or_default();
        return vec![
            path.split("::")
                .map(|name| name.trim().to_owned())
                .filter(|name| !name.is_empty())
                .collect(),
        ];
    };
    let prefix: ModulePath = prefix
        .split("::")
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .collect();
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
    let paths = members
        .into_iter()
        .filter(|member| !member.trim().is_empty())
        .flat_map(expand);
    paths.map(|path| [prefix.clone(), path].concat()).collect()
}
