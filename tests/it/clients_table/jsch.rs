//! JSch, as a program that says what it was told.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use super::refusals::{Asked, PASSWORD, USER};
use crate::openssh::process::{program, quiet, run};

/// Logs in by JSch, and gives what its exception says.
pub(super) fn terminal(asked: &Asked, directory: &Path) -> String {
    let classes = format!("{JAR}:{}", CLASSES.display());
    let mut java = quiet(program("java", JDK));
    java.args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", &classes, "Login"])
        .args([
            asked.proxy.port().to_string(),
            asked.host.to_owned(),
            asked.port.to_string(),
        ])
        .arg(format!("{}000", asked.timeout));
    if asked.is_known {
        java.args([USER, PASSWORD]);
    }
    let finished = run(&mut java, &[], directory, super::programs::PATIENCE);
    finished.stdout + &finished.stderr
}

/// The compiled program: most of the time of a start from the source.
static CLASSES: LazyLock<PathBuf> = LazyLock::new(|| {
    assert!(
        Path::new(JAR).exists(),
        "no {JAR}: install the Debian package libjsch-java"
    );
    // Where cargo cleans up: nothing drops what is static.
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("jsch");
    fs::create_dir_all(&directory).unwrap();
    let source = directory.join("Login.java");
    fs::write(&source, include_str!("Login.java")).unwrap();
    let mut javac = quiet(program("javac", JDK));
    javac.args(["-cp", JAR, "-d"]).arg(&directory).arg(&source);
    run(&mut javac, &[], &directory, super::programs::PATIENCE).succeeded();
    directory
});

const JAR: &str = "/usr/share/java/jsch.jar";
const JDK: &str = "default-jdk-headless";
