//! The snapshot file: the last known objects, for a restart while the API server is unreachable.
//!
//! One line with the version, the time, a hash of the settings and a hash of the objects; then the objects as JSON.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::task::spawn_blocking;
use tokio::time::Instant;
use tracing::{error, info, warn};

use super::source::{Source, SourceHandle};
use crate::base::file;
use crate::base::fnv::fnv1a;
use crate::kubernetes::objects::model::{Key, Object};

/// The file with the last known objects. It is written a second after a change, but at most every 30 s.
#[derive(Debug)]
pub(crate) struct SnapshotFile {
    path: PathBuf,
    /// The kinds, namespaces, selectors and prefix of the objects: a file with other settings is not used.
    settings: String,
    /// The time of the next write; `None` if the file is up to date.
    due: Option<Instant>,
    written: Option<Instant>,
}

impl SnapshotFile {
    /// Creates a handle of the file, for the objects of these sources.
    pub(crate) fn new(path: PathBuf, handles: &[SourceHandle]) -> Self {
        Self {
            path,
            settings: handles.iter().map(|handle| settings(&handle.source)).collect(),
            due: None,
            written: None,
        }
    }

    /// Returns the time of the next write; `None` if the file is up to date.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Schedules a write, since the objects have changed.
    pub(crate) fn schedule(&mut self) {
        let now = Instant::now();
        let earliest = self.written.map_or(now, |written| written + WRITE_EVERY);
        self.due.get_or_insert(earliest.max(now + WRITE_AFTER));
    }

    /// Reads the snapshot; `None` if the file cannot be used.
    pub(crate) fn load(&self) -> Option<Snapshot> {
        let path = self.path.display();
        match read(&self.path, &self.settings) {
            Ok(snapshot) => {
                let age = snapshot.saved.elapsed().unwrap_or_default();
                let objects = snapshot.objects.len();
                warn!(%path, objects, ?age, "serving the last snapshot until the API server answers");
                Some(snapshot)
            }
            Err(error) => {
                info!(%path, "starting without a snapshot: {error}");
                None
            }
        }
    }

    /// Writes the objects to the file, in the background.
    pub(crate) fn save(&mut self, objects: Vec<(Key, Object)>) {
        self.due = None;
        self.written = Some(Instant::now());
        let (path, settings) = (self.path.clone(), self.settings.clone());
        // Detached: the next write is at least 30 s later.
        drop(spawn_blocking(move || {
            let text = encode(&objects, &settings, SystemTime::now());
            // Readable by its owner only: it contains the names of all targets, and the users of their lists.
            if let Err(error) = text.and_then(|text| file::replace(&path, &text, false)) {
                error!(path = %path.display(), "cannot write the snapshot: {error}");
            }
        }));
    }
}

fn settings(source: &Source) -> String {
    let Source {
        kind,
        namespace,
        selector,
        prefix,
        ..
    } = source;
    format!("{} {namespace:?} {selector:?} {prefix:?}\n", kind.name())
}

/// The contents of a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// The time of the write.
    pub(crate) saved: SystemTime,
    /// The objects at that time.
    pub(crate) objects: Vec<(Key, Object)>,
}

/// Encodes a file. `settings` is [`SnapshotFile::settings`].
fn encode(objects: &[(Key, Object)], settings: &str, now: SystemTime) -> io::Result<Vec<u8>> {
    let body = serde_json::to_vec(objects)?;
    let saved = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (settings, sum) = (fnv1a(settings.as_bytes()), fnv1a(&body));
    let mut text = format!("{MAGIC} {saved} {settings:016x} {sum:016x}\n").into_bytes();
    text.extend(body);
    Ok(text)
}

/// Reads a file.
///
/// # Errors
/// The reason why it is not used: it cannot be read, has another version or other settings, or was changed since.
fn read(path: &Path, settings: &str) -> Result<Snapshot, String> {
    let text = file::read(path, MAX_FILE_BYTES).map_err(|error| error.to_string())?;
    parse(&text, settings).map_err(ToOwned::to_owned)
}

fn parse(text: &[u8], settings: &str) -> Result<Snapshot, &'static str> {
    let end = text.iter().position(|byte| *byte == b'\n').ok_or(FORMAT)?;
    let (head, body) = text.split_at(end + 1);
    let head = std::str::from_utf8(head).map_err(|_| FORMAT)?;
    let fields = head.trim_end().strip_prefix(MAGIC).ok_or(FORMAT)?;
    let fields: Vec<_> = fields.split_whitespace().collect();
    let [saved, of_settings, sum] = fields.as_slice() else {
        return Err(FORMAT);
    };
    // Its objects may no longer be selected.
    if *of_settings != format!("{:016x}", fnv1a(settings.as_bytes())) {
        return Err("written with other selectors, namespaces, kinds or prefix");
    }
    if *sum != format!("{:016x}", fnv1a(body)) {
        return Err("damaged");
    }
    let saved = saved.parse().map_err(|_| FORMAT)?;
    Ok(Snapshot {
        saved: UNIX_EPOCH.checked_add(Duration::from_secs(saved)).unwrap_or(UNIX_EPOCH),
        objects: serde_json::from_slice(body).map_err(|_| FORMAT)?,
    })
}

const WRITE_AFTER: Duration = Duration::from_secs(1);
const WRITE_EVERY: Duration = Duration::from_secs(30);
/// The version of the format. An incompatible change of the model must raise it.
const MAGIC: &str = "switchboard-snapshot 2";
/// In bytes: far more than the objects of the largest cluster.
const MAX_FILE_BYTES: u64 = 256 << 20;
const FORMAT: &str = "not a snapshot of this version";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::objects::decode::{DecodedObject, decode};
    use crate::kubernetes::objects::model::Kind;
    use serde_json::json;
    use std::fs;

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
            |(kind, json)| match decode(kind, &json.to_string(), "switchboard.dev/", "") {
                DecodedObject::Object(key, object) => (key, object),
                other @ (DecodedObject::Irrelevant(_) | DecodedObject::Malformed(_)) => panic!("{other:?}"),
            },
        )
        .collect()
    }

    #[test]
    fn a_written_snapshot_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("snapshot");
        let saved = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        file::replace(&path, &encode(&[], "s", UNIX_EPOCH).unwrap(), false).unwrap();
        file::replace(&path, &encode(&objects(), "s", saved).unwrap(), false).unwrap();
        let objects = objects();
        assert_eq!(read(&path, "s").unwrap(), Snapshot { saved, objects });
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    /// A change of these names needs another version of the format.
    #[test]
    fn the_names_of_the_format_are_those_of_its_version() {
        assert_eq!(MAGIC, "switchboard-snapshot 2");
        let text = concat!(
            r#"[[{"namespace":"n","name":"a"},{"Service":{"external":false,"publishes_not_ready":false,"#,
            r#""port":{"number":22,"name":"ssh","is_implied":false},"annotations":{"download":null,"upload":"#,
            r#""1MiB/s","burst":null,"max_tunnels":3,"idle_timeout":"Off","allowed_clients":null,"user_lists":null,"#,
            r#""send_proxy_header":"v2","ssh_only":false,"dials_in":null,"wake":null,"report_activity":null,"stopped":null,"host_keys":null},"#,
            r#""faults":[{"key":"download","reason":"x","is_without_port":false}]}}],[{"namespace":"n","name":"a-1"},"#,
            r#"{"Slice":{"service":"a","ports":[{"name":"ssh","number":2222}],"endpoints":[{"address":"10.0.0.1","#,
            r#""state":"Terminating","node":"worker","hostname":""}],"unusable_ports":[],"has_unusable_address":false}}],"#,
            r#"[{"namespace":"","name":"n"},"Namespace"]]"#,
        );
        let objects: Vec<(Key, Object)> = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&objects).unwrap(), text);
    }

    /// A restart during an outage must not open a Service to users that its annotations do not name.
    #[test]
    fn lists_of_users_are_kept() {
        let service = json!({
            "metadata": {"name": "a", "namespace": "n", "annotations": {
                "switchboard.dev/allowed-users": "alice", "switchboard.dev/allowed-groups": " ",
            }},
            "spec": {"ports": [{"port": 22}]},
        });
        let DecodedObject::Object(key, object) = decode(Kind::Service, &service.to_string(), "switchboard.dev/", "")
        else {
            panic!("{service}");
        };
        let text = encode(&[(key.clone(), object.clone())], "s", UNIX_EPOCH).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(
            text.contains(r#""user_lists":{"users":["alice"],"groups":[]}"#),
            "{text}"
        );
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("snapshot");
        fs::write(&path, text).unwrap();
        assert_eq!(read(&path, "s").unwrap().objects, [(key, object)]);
    }

    #[test]
    fn a_damaged_or_foreign_file_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("snapshot");
        assert!(read(&path, "s").unwrap_err().contains("No such file"));
        let text = encode(&objects(), "s", UNIX_EPOCH).unwrap();
        fs::write(&path, &text).unwrap();
        assert!(read(&path, "t").unwrap_err().contains("other selectors"));
        for (text, damaged) in [
            (&text[..text.len() - 1], true),
            (&[&text[..], b" "].concat(), true),
            (&b"x"[..], false),
            (&b""[..], false),
            (&b"switchboard-snapshot 1 0 0 0\n[]"[..], false),
            (&b"switchboard-snapshot 2 0\n[]"[..], false),
        ] {
            fs::write(&path, text).unwrap();
            let error = read(&path, "s").unwrap_err();
            assert_eq!(error == "damaged", damaged, "{error}");
        }
    }
}
