//! Opens the page in the operator's browser.

use std::env;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use aws_lc_rs::rand;

/// A file that redirects a browser to an address; removed on drop.
///
/// Every user of a computer may read the arguments of a program, but only this user may read the file.
#[derive(Debug)]
pub struct BrowserLaunch {
    file: PathBuf,
    program: Option<Child>,
}

impl BrowserLaunch {
    /// Opens an address in the user's browser.
    ///
    /// # Errors
    /// The file cannot be written, or there is no xdg-open.
    pub fn new(url: &str) -> io::Result<Self> {
        // A random name: the file of a desk that was killed may still exist.
        let mut number = [0; 8];
        rand::fill(&mut number).map_err(|_| io::Error::other("the system gives no random bytes"))?;
        let name = format!("switchboard-desk-{:016x}.html", u64::from_ne_bytes(number));
        let file = env::temp_dir().join(name);
        let mut written = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&file)?;
        let mut opening = Self { file, program: None };
        write!(
            written,
            "<!doctype html><meta name=\"referrer\" content=\"no-referrer\">\
             <meta http-equiv=\"refresh\" content=\"0;url={url}\"><title>switchboard desk</title>"
        )?;
        let mut program = Command::new("xdg-open");
        let program = program.arg(&opening.file).stdin(Stdio::null()).stdout(Stdio::null());
        opening.program = Some(program.spawn()?);
        Ok(opening)
    }
}

impl Drop for BrowserLaunch {
    fn drop(&mut self) {
        // The file may have been removed.
        fs::remove_file(&self.file).unwrap_or_default();
        if let Some(program) = &mut self.program {
            // Reaps xdg-open, if it has ended. If it has become the browser, it goes on.
            program.try_wait().ok();
        }
    }
}
