//! A file with the last known objects: a restart while the API is away serves what was known before.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::model::{Key, Object};
use crate::fnv::fnv1a;

/// What a file holds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// When the cluster said so.
    pub(crate) saved: SystemTime,
    /// What it said.
    pub(crate) objects: Vec<(Key, Object)>,
}

/// Why a file is not used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SnapshotError {
    /// There is none yet, or it cannot be read.
    #[error("{0}")]
    Unreadable(#[from] io::Error),
    /// It is not a snapshot, or of another version.
    #[error("not a snapshot of this version")]
    Format,
    /// It was made with other settings: what it holds may not be wanted any more.
    #[error("made with other selectors or namespaces")]
    OtherSettings,
    /// It was changed or cut after it was written.
    #[error("damaged")]
    Damaged,
}

/// The text of a file. `settings` is any text that says which objects were asked for.
pub(crate) fn encode(objects: &[(Key, Object)], settings: &str, now: SystemTime) -> io::Result<Vec<u8>> {
    let body = serde_json::to_vec(objects)?;
    let saved = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (settings, sum) = (fnv1a(settings.as_bytes()), fnv1a(&body));
    let mut text = format!("{MAGIC} {saved} {settings:016x} {sum:016x}\n").into_bytes();
    text.extend(body);
    Ok(text)
}

/// Writes a file in the place of another: whenever the power fails, one of the two is there and whole.
pub(crate) fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let mut file = File::create(&beside)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&beside, path)
}

/// Reads a file.
///
/// # Errors
/// See [`SnapshotError`]: all of them mean to go on without it.
pub(crate) fn read(path: &Path, settings: &str) -> Result<Snapshot, SnapshotError> {
    let text = fs::read(path)?;
    let end = text
        .iter()
        .position(|byte| *byte == b'\n')
        .ok_or(SnapshotError::Format)?;
    let (head, body) = text.split_at(end + 1);
    let head = std::str::from_utf8(head).map_err(|_| SnapshotError::Format)?;
    let fields = head.trim_end().strip_prefix(MAGIC).ok_or(SnapshotError::Format)?;
    let fields: Vec<_> = fields.split_whitespace().collect();
    let [saved, of_settings, sum] = fields.as_slice() else {
        return Err(SnapshotError::Format);
    };
    if *of_settings != format!("{:016x}", fnv1a(settings.as_bytes())) {
        return Err(SnapshotError::OtherSettings);
    }
    if *sum != format!("{:016x}", fnv1a(body)) {
        return Err(SnapshotError::Damaged);
    }
    let saved = saved.parse().map_err(|_| SnapshotError::Format)?;
    Ok(Snapshot {
        saved: UNIX_EPOCH.checked_add(Duration::from_secs(saved)).unwrap_or(UNIX_EPOCH),
        objects: serde_json::from_slice(body).map_err(|_| SnapshotError::Format)?,
    })
}

/// With the version of the format: a change of the facts changes it.
const MAGIC: &str = "switchboard-snapshot 1";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::decode::{Reduced, reduce};
    use crate::kubernetes::model::Kind;
    use serde_json::json;

    fn objects() -> Vec<(Key, Object)> {
        let service = json!({
            "metadata": {"name": "a", "namespace": "n", "annotations": {
                "switchboard.dev/upload": "1MiB/s", "switchboard.dev/burst": "3KB", "switchboard.dev/idle-timeout": "off",
                "switchboard.dev/max-tunnels": "3", "switchboard.dev/download": "x",
            }},
            "spec": {"ports": [{"port": 22, "targetPort": "ssh", "name": "ssh"}]},
        });
        let slice = json!({
            "metadata": {"name": "a-1", "namespace": "n", "labels": {"kubernetes.io/service-name": "a"}},
            "addressType": "IPv6",
            "endpoints": [{"addresses": ["fd00::2"]}, {"addresses": ["fd00::1"], "conditions": {"ready": false}}],
            "ports": [{"name": "ssh", "port": 2222}],
        });
        let namespace = json!({"metadata": {"name": "n"}});
        [
            (Kind::Service, service),
            (Kind::Slice, slice),
            (Kind::Namespace, namespace),
        ]
        .into_iter()
        .map(
            |(kind, json)| match reduce(kind, &json.to_string(), "switchboard.dev/") {
                Reduced::Object(key, object) => (key, object),
                other @ (Reduced::Nothing(_) | Reduced::Malformed(_)) => panic!("{other:?}"),
            },
        )
        .collect()
    }

    #[test]
    fn what_is_written_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("snapshot");
        let saved = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        write(&path, &encode(&[], "s", UNIX_EPOCH).unwrap()).unwrap();
        write(&path, &encode(&objects(), "s", saved).unwrap()).unwrap();
        let objects = objects();
        assert_eq!(read(&path, "s").unwrap(), Snapshot { saved, objects });
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_cannot_be_trusted_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("snapshot");
        assert!(matches!(read(&path, "s"), Err(SnapshotError::Unreadable(_))));
        let text = encode(&objects(), "s", UNIX_EPOCH).unwrap();
        fs::write(&path, &text).unwrap();
        assert!(matches!(read(&path, "t"), Err(SnapshotError::OtherSettings)));
        for (text, damaged) in [
            (&text[..text.len() - 1], true),
            (&[&text[..], b" "].concat(), true),
            (&b"x"[..], false),
            (&b""[..], false),
            (&b"switchboard-snapshot 2 0 0 0\n[]"[..], false),
            (&b"switchboard-snapshot 1 0\n[]"[..], false),
        ] {
            fs::write(&path, text).unwrap();
            let error = read(&path, "s").unwrap_err();
            assert_eq!(matches!(error, SnapshotError::Damaged), damaged, "{error}");
        }
    }
}
