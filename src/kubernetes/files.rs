//! Checks the files of the settings before they are used: whether a kubeconfig names an API server, and whether a
//! snapshot can be written.

use std::env;
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, accessat};

use crate::uplink::api_server::ClusterLogin;

/// Returns why this kubeconfig file, or that of KUBECONFIG, leads to no API server; `None` if it does. Nothing is sent, and no
/// plugin is run. Without either, the service account of a pod may be meant, which runs elsewhere.
pub(crate) fn kubeconfig_fault(path: Option<&Path>) -> Option<String> {
    let login = ClusterLogin {
        kubeconfig: path.map(Path::to_owned),
        context: None,
    };
    let is_named = path.is_some() || env::var_os("KUBECONFIG").is_some_and(|files| !files.is_empty());
    login.check().err().filter(|_| is_named)
}

/// Returns why no snapshot can be written at this path; `None` if it can. Nothing is written.
pub(crate) fn snapshot_fault(path: &Path) -> Option<String> {
    if path.is_dir() {
        return Some("is a folder".to_owned());
    }
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        Some(_) | None => Path::new("."),
    };
    // A snapshot is written to another file, which is then renamed: the folder alone decides. With the dot the check
    // fails for a path that is not a folder. EACCESS checks the effective user, not the real one.
    let may = Access::WRITE_OK | Access::EXEC_OK;
    let error = accessat(CWD, folder.join("."), may, AtFlags::EACCESS).err()?;
    Some(format!("cannot be written to {}: {error}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    use serde_json::{Value, json};

    fn kubeconfig() -> Value {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "here",
            "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:6443"}}],
            "users": [{"name": "u", "user": {"token": "s3cret"}}],
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        })
    }

    #[test]
    fn a_kubeconfig_leads_to_a_server_or_has_a_fault() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubeconfig");
        let fault_of = |pointer: &str, value: Value| {
            let mut file = kubeconfig();
            *file.pointer_mut(pointer).unwrap() = value;
            fs::write(&path, file.to_string()).unwrap();
            kubeconfig_fault(Some(&path))
        };
        assert_eq!(fault_of("/current-context", json!("here")), None);
        for (pointer, value, told) in [
            ("/current-context", json!("there"), "there"),
            ("/current-context", json!(null), "current context"),
            ("/contexts/0/context/cluster", json!("d"), "has no cluster"),
            ("/clusters/0/cluster/server", json!(null), "has no server"),
            ("/clusters/0/cluster/server", json!("http://[::"), "not a URL"),
            ("/contexts", json!("s3cret"), "not a kubeconfig"),
        ] {
            let fault = fault_of(pointer, value.clone()).unwrap();
            assert!(fault.contains(told) && !fault.contains("s3cret"), "{value}: {fault}");
        }
        let mut with_authority = kubeconfig();
        with_authority["clusters"][0]["cluster"]["certificate-authority"] = json!("absent.pem");
        fs::write(&path, with_authority.to_string()).unwrap();
        assert!(kubeconfig_fault(Some(&path)).unwrap().contains("absent.pem"));
        for (path, told) in [
            (folder.path().join("absent"), "No such file"),
            (folder.path().to_owned(), "not a regular file"),
            ("/dev/zero".into(), "not a regular file"),
        ] {
            let fault = kubeconfig_fault(Some(&path)).unwrap();
            assert!(fault.contains(told), "{fault}");
        }
    }

    #[test]
    fn a_snapshot_needs_a_folder_that_can_be_written_and_leaves_nothing_in_it() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(snapshot_fault(&folder.path().join("snapshot")), None);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        let file = folder.path().join("file");
        fs::write(&file, "old").unwrap();
        assert_eq!(snapshot_fault(&file), None);
        assert_eq!(fs::read(&file).unwrap(), b"old");
        for (path, told) in [
            (folder.path().to_owned(), "is a folder"),
            (folder.path().join("absent/snapshot"), "No such file"),
            (file.join("snapshot"), "Not a directory"),
        ] {
            let fault = snapshot_fault(&path).unwrap();
            assert!(fault.contains(told), "{fault}");
        }
    }
}
