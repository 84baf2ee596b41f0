//! Opens the page in the operator's browser.

use std::env;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use aws_lc_rs::rand;

/// The way of an address to a browser, until it is dropped.
///
/// The browser gets the name of a file that leads to the address: all users of a computer may read the arguments of its
/// programs, but only this user the file.
#[derive(Debug)]
pub struct BrowserLaunch {
    file: PathBuf,
    program: Option<Child>,
}

impl BrowserLaunch {
    /// Has the user's browser open an address.
    ///
    /// # Errors
    /// The file cannot be written, or there is no xdg-open.
    pub fn new(url: &str) -> io::Result<Self> {
        // A name that is there already, of a desk that was killed, would be an error.
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
        // It may have been removed.
        fs::remove_file(&self.file).unwrap_or_default();
        if let Some(program) = &mut self.program {
            // Ended long ago, most often; a browser that it has become goes on.
            program.try_wait().ok();
        }
    }
}
