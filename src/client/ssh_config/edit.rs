//! The installation of a block: what it changes in which file, and how a file is replaced.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::block::{BlockFault, title};
use super::difference::difference;
use super::document::{self, DocumentFault};
use crate::base::file;
use crate::base::platform;

/// Where blocks are installed.
#[derive(Clone, Debug)]
pub struct Place {
    /// The user's file.
    pub config: PathBuf,
    /// Whether it is the one that ssh reads without `-F`: an Include of a bare name is below its folder.
    pub is_default: bool,
}

/// What happens to one file.
#[derive(Clone, Debug)]
pub struct Edit {
    path: PathBuf,
    /// What the file had, if it was there.
    old: Option<Vec<u8>>,
    /// What it is to have; `None` removes it.
    new: Option<Vec<u8>>,
}

/// A file that stays as it was.
#[derive(Debug, thiserror::Error)]
#[error("{} stays as it is", path.display())]
pub struct EditError {
    path: PathBuf,
    #[source]
    reason: Reason,
}

#[derive(Debug, thiserror::Error)]
enum Reason {
    #[error("{0}")]
    Document(DocumentFault),
    #[error("{0}")]
    Io(io::Error),
    #[error("{0}")]
    Block(BlockFault),
    #[error("it has changed meanwhile")]
    Changed,
    #[error("there is no folder {}", .0.display())]
    NoFolder(PathBuf),
    #[error("its path cannot be written in an Include")]
    Path,
}

/// The edits that install a block of these names, or remove that one if there is none, in the order in which each step
/// leaves both files sound.
///
/// # Errors
/// A file cannot be read, or is not understood.
pub fn plan(place: &Place, names: &[String], block: Option<&str>) -> Result<Vec<Edit>, EditError> {
    let of = |path: &Path| {
        let path = path.to_owned();
        move |reason| EditError { path, reason }
    };
    let title = title(names).map_err(|fault| of(&place.config)(Reason::Block(fault)))?;
    let (config, blocks) = (&place.config, place.config.with_file_name(BLOCKS));
    let include = match (place.is_default, blocks.to_str()) {
        (true, _) => BLOCKS,
        (false, Some(path)) if !path.contains(['"', '\'', '\n', '%', '*', '?', '[', '\\', '~']) => path,
        (false, _) => return Err(of(config)(Reason::Path)),
    };
    let old = read(config).map_err(|reason| of(config)(reason))?;
    let old_blocks = read(&blocks).map_err(|reason| of(&blocks)(reason))?;
    let (text, text_of_blocks) = (
        old.as_deref().unwrap_or_default(),
        old_blocks.as_deref().unwrap_or_default(),
    );
    let faulty = |fault| of(config)(Reason::Document(fault));
    let faulty_blocks = |fault| of(&blocks)(Reason::Document(fault));
    let edit = |path: &Path, old: &Option<Vec<u8>>, new: Vec<u8>| Edit {
        path: path.to_owned(),
        old: old.clone(),
        new: Some(new),
    };
    let Some(block) = block else {
        let rest = document::without_section(text_of_blocks, &title).map_err(faulty_blocks)?;
        // An Include of ours may be left of a file that the user has removed.
        if rest.is_none() && old_blocks.is_some() {
            return Ok(Vec::new());
        }
        let mut removal = edit(&blocks, &old_blocks, rest.unwrap_or_default());
        if removal.new.as_ref().is_some_and(Vec::is_empty) {
            removal.new = None;
            let without = document::without_include(text, include).map_err(faulty)?;
            let without = old.as_ref().map(|_| without);
            // ssh ignores an Include of a file that is not there; a file without its Include is ignored.
            return Ok(changes([
                Edit {
                    path: config.clone(),
                    old,
                    new: without,
                },
                removal,
            ]));
        }
        return Ok(changes([removal]));
    };
    let with = document::with_include(text, include).map_err(faulty)?;
    let section = document::with_section(text_of_blocks, &title, block).map_err(faulty_blocks)?;
    Ok(changes([edit(&blocks, &old_blocks, section), edit(config, &old, with)]))
}

fn changes<const N: usize>(edits: [Edit; N]) -> Vec<Edit> {
    edits.into_iter().filter(|edit| edit.old != edit.new).collect()
}

impl Edit {
    /// The change as diff(1) shows it.
    pub fn difference(&self) -> String {
        let text = |text: &Option<Vec<u8>>| text.clone().unwrap_or_default();
        difference(&self.path.display().to_string(), &text(&self.old), &text(&self.new))
    }

    /// Replaces or removes the file in one step. Its permissions and its owner stay, and so does a symbolic link to it.
    ///
    /// # Errors
    /// Those of the system; and the file is not any more what it was. It stays as it is then.
    pub fn apply(&self) -> Result<(), EditError> {
        self.try_apply().map_err(|reason| EditError {
            path: self.path.clone(),
            reason,
        })
    }

    fn try_apply(&self) -> Result<(), Reason> {
        if read(&self.path)? != self.old {
            return Err(Reason::Changed);
        }
        let Some(new) = &self.new else {
            return Ok(fs::remove_file(&self.path)?);
        };
        // Through symbolic links: dotfiles are kept elsewhere and linked.
        let path = match &self.old {
            Some(_) => fs::canonicalize(&self.path)?,
            None => self.path.clone(),
        };
        let folder = path.parent().unwrap_or(Path::new("."));
        if self.old.is_none() {
            // A home that is not there is meant to be none, such as /nonexistent.
            if let Some(above) = folder.parent().filter(|above| !above.is_dir()) {
                return Err(Reason::NoFolder(above.to_owned()));
            }
            platform::make_private_folder(folder)?;
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let start = format!(".{name}.switchboard-");
        remove_litter(folder, &start);
        let beside = folder.join(format!("{start}{}", std::process::id()));
        let written = self.write(&beside, &path, new);
        if written.is_err() {
            fs::remove_file(&beside).unwrap_or_default();
        }
        written
    }

    fn write(&self, beside: &Path, path: &Path, new: &[u8]) -> Result<(), Reason> {
        let mut file = platform::create_private(beside)?;
        file.write_all(new)?;
        if self.old.is_some() {
            platform::keep_owner(&file, &fs::metadata(path)?)?;
        }
        file.sync_all()?;
        // As late as it can be: an editor may have the file open.
        if read(&self.path)? != self.old {
            return Err(Reason::Changed);
        }
        Ok(fs::rename(beside, path)?)
    }
}

impl From<io::Error> for Reason {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Removes what a process left beside the file when it was killed. One that works at the same time has begun not long ago.
fn remove_litter(folder: &Path, start: &str) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(start));
        let is_ours =
            number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()));
        let age = || entry.metadata().ok()?.modified().ok()?.elapsed().ok();
        if is_ours && age().is_some_and(|age| age > LONGEST_WORK) {
            fs::remove_file(entry.path()).unwrap_or_default();
        }
    }
}

/// The text of a file; `None` if there is none. A link that leads nowhere is an error.
fn read(path: &Path) -> Result<Option<Vec<u8>>, Reason> {
    match file::read(path, LARGEST) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(path).is_err() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Our file, beside the user's.
const BLOCKS: &str = "switchboard.conf";
/// More than a process takes for its edits.
const LONGEST_WORK: Duration = Duration::from_secs(60 * 60);
/// The largest file that is read: 1 MiB.
const LARGEST: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::text::chain;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    struct Home {
        folder: tempfile::TempDir,
        place: Place,
    }

    impl Home {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let config = folder.path().join(".ssh/config");
            Self {
                folder,
                place: Place {
                    config,
                    is_default: true,
                },
            }
        }

        fn with(text: &str) -> Self {
            let home = Self::new();
            fs::create_dir(home.folder.path().join(".ssh")).unwrap();
            fs::write(&home.place.config, text).unwrap();
            home
        }

        fn change(&self, block: Option<&str>) -> Result<usize, String> {
            let edits = plan(&self.place, &["a".to_owned()], block).map_err(|error| chain(&error))?;
            for edit in &edits {
                edit.apply().map_err(|error| chain(&error))?;
            }
            let left = fs::read_dir(self.place.config.parent().unwrap()).unwrap();
            let names = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            assert_eq!(names.filter(|name| name.contains(".switchboard-")).count(), 0);
            Ok(edits.len())
        }

        fn text(&self) -> String {
            fs::read_to_string(&self.place.config).unwrap()
        }
    }

    #[test]
    fn a_home_that_is_not_there_is_not_made() {
        let mut home = Home::new();
        let absent = home.folder.path().join("absent");
        home.place.config = absent.join(".ssh/config");
        let edits = plan(&home.place, &["a".to_owned()], Some("x")).unwrap();
        let told = chain(&edits[0].apply().unwrap_err());
        assert!(
            told.ends_with(&format!("there is no folder {}", absent.display())),
            "{told}"
        );
        assert!(!absent.exists());
    }

    #[test]
    fn a_block_is_installed_once_changed_and_removed_with_the_users_bytes_as_they_were() {
        let before = "User x\n\nHost b\n  Port 1";
        let home = Home::with(before);
        assert_eq!(home.change(Some("Host a\n")), Ok(2));
        assert!(home.text().ends_with(&format!(":\nInclude switchboard.conf\n{before}")));
        assert_eq!(home.change(Some("Host a\n")), Ok(0));
        assert_eq!(home.change(Some("Host a\n    Port 2\n")), Ok(1));
        assert_eq!(home.change(None), Ok(2));
        assert_eq!(home.text(), before);
        assert!(!home.place.config.with_file_name("switchboard.conf").exists());
        assert_eq!(home.change(None), Ok(0));
    }

    #[test]
    fn what_is_the_users_own_stays_when_nothing_of_ours_is_there_or_left() {
        for before in ["Include switchboard.conf\nHost b\n", "Include  \"switchboard.conf\"\n"] {
            for blocks in ["", "Host c\n", "# mine"] {
                let home = Home::with(before);
                let file = home.place.config.with_file_name("switchboard.conf");
                fs::write(&file, blocks).unwrap();
                assert_eq!(home.change(None), Ok(0));
                home.change(Some("Host a\n")).unwrap();
                home.change(None).unwrap();
                assert_eq!(home.text(), before);
                assert_eq!(fs::read_to_string(&file).unwrap_or_default(), blocks);
            }
        }
        // Its file is gone: ours is an Include of nothing.
        let home = Home::with("Host b\n");
        home.change(Some("Host a\n")).unwrap();
        fs::remove_file(home.place.config.with_file_name("switchboard.conf")).unwrap();
        assert_eq!(home.change(None), Ok(1));
        assert_eq!(home.text(), "Host b\n");
    }

    #[test]
    fn what_a_killed_process_has_left_is_removed_an_hour_later() {
        let home = Home::with("");
        let path = |name: &str| home.place.config.with_file_name(name);
        let names = [
            ".config.switchboard-12",
            ".switchboard.conf.switchboard-13",
            ".config.switchboard-x",
            ".config.switchboard-14",
        ];
        for name in names {
            let file = fs::File::create(path(name)).unwrap();
            let hours = if name.ends_with("14") { 0 } else { 2 };
            let then = std::time::SystemTime::now() - Duration::from_secs(hours * 3600);
            file.set_modified(then).unwrap();
        }
        for edit in plan(&home.place, &["a".to_owned()], Some("Host a\n")).unwrap() {
            edit.apply().unwrap();
        }
        assert_eq!(names.map(|name| path(name).exists()), [false, false, true, true]);
    }

    #[test]
    fn where_there_is_no_folder_and_no_file_both_are_made_for_the_user_alone() {
        let home = Home::new();
        assert_eq!(home.change(Some("Host a\n")), Ok(2));
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&home.folder.path().join(".ssh")), 0o700);
        assert_eq!(mode(&home.place.config), 0o600);
        assert_eq!(mode(&home.place.config.with_file_name("switchboard.conf")), 0o600);
    }

    #[test]
    fn permissions_and_symbolic_links_stay() {
        let home = Home::with("");
        let real = home.folder.path().join("dotfiles");
        fs::write(&real, "Host b\n").unwrap();
        fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).unwrap();
        fs::remove_file(&home.place.config).unwrap();
        symlink("../dotfiles", &home.place.config).unwrap();
        assert_eq!(home.change(Some("Host a\n")), Ok(2));
        assert!(fs::symlink_metadata(&home.place.config).unwrap().is_symlink());
        assert_eq!(fs::metadata(&real).unwrap().mode() & 0o777, 0o640);
        assert!(
            fs::read_to_string(&real)
                .unwrap()
                .ends_with(":\nInclude switchboard.conf\nHost b\n")
        );
    }

    #[test]
    fn what_is_not_understood_or_would_be_lost_stays_as_it_is() {
        let home = Home::with("Host b\n<<<<<<< HEAD\n");
        let line = home.change(Some("Host a\n")).unwrap_err();
        assert!(
            line.ends_with("/config stays as it is: line 2: no keyword of ssh_config(5)"),
            "{line}"
        );
        assert!(!home.place.config.with_file_name("switchboard.conf").exists());

        let home = Home::with("Host b\n");
        fs::hard_link(&home.place.config, home.folder.path().join("other")).unwrap();
        let line = home.change(Some("Host a\n")).unwrap_err();
        assert!(
            line.contains("several hard links") && home.text() == "Host b\n",
            "{line}"
        );

        let home = Home::with("Host b\n");
        fs::remove_file(&home.place.config).unwrap();
        symlink("nowhere", &home.place.config).unwrap();
        home.change(Some("Host a\n")).unwrap_err();

        let home = Home::with("Host b\n");
        fs::remove_file(&home.place.config).unwrap();
        fs::create_dir(&home.place.config).unwrap();
        home.change(Some("Host a\n")).unwrap_err();

        let home = Home::with("Host b\n");
        let edits = plan(&home.place, &["a".to_owned()], Some("Host a\n")).unwrap();
        fs::write(&home.place.config, "Host c\n").unwrap();
        let line = chain(&edits[1].apply().unwrap_err());
        assert!(
            line.contains("it has changed meanwhile") && home.text() == "Host c\n",
            "{line}"
        );
    }

    #[test]
    fn another_file_includes_ours_by_its_whole_path() {
        let home = Home::with("");
        let config = home.folder.path().join("other");
        let place = Place {
            config,
            is_default: false,
        };
        let edits = plan(&place, &["a".to_owned()], Some("Host a\n")).unwrap();
        let ours = home.folder.path().join("switchboard.conf");
        assert!(
            edits[1]
                .difference()
                .contains(&format!("+Include {}\n", ours.display()))
        );
    }
}
