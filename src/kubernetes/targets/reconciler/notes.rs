//! What a tenant is told of a Service, in an Event about it.

use crate::kubernetes::targets::join::{NEEDED, Remark};
use crate::kubernetes::writes::event_recorder::{Note, Recorder};
use crate::policy::allowlist::{Change, ServiceTarget};

/// Tells the tenants, where Events are written. The Services of the first list are no news.
pub(super) fn tell(recorder: Option<&Recorder>, remarks: &[Remark], changes: &[Change], is_first: bool) {
    let Some(recorder) = recorder else { return };
    let news = remarks
        .iter()
        .filter(|remark| !(is_first && matches!(remark, Remark::Added(_))));
    for note in news.filter_map(|remark| note(remark, changes)) {
        recorder.note(note);
    }
}

/// The Event for a remark. `changes` are those that it came with.
fn note(remark: &Remark, changes: &[Change]) -> Option<Note> {
    Some(match remark {
        Remark::Added(service) => {
            let target = changes.iter().find_map(|change| match change {
                Change::Set(target) => Some(&**target)
                    .filter(|target| *target.id.namespace == *service.namespace && *target.id.service == *service.name),
                Change::Remove(_) => None,
            });
            let ServiceTarget {
                name, ports: [port, _], ..
            } = target?;
            Note::normal(service.clone(), "Exposed", &format!("Exposed as {name}:{port}"))
        }
        Remark::Removed(service) => {
            let message = "No longer exposed: no client reaches it";
            Note::normal(service.clone(), "Withdrawn", message)
        }
        Remark::Annotation(service, fault) => {
            let (key, reason) = (&fault.key, &fault.reason);
            // It has no other port, or the wrong annotation has been told already.
            let (word, message) = match fault.is_without_port() {
                true => ("NoUsablePort", format!("No port leads to sshd: {reason}")),
                false => ("IgnoredAnnotation", format!("Ignored annotation {key}: {reason}")),
            };
            Note::warning(service.clone(), word, &message)
        }
        Remark::EndpointForbidden(service, address, class) => {
            let message = format!("Endpoint {address} is not dialled: {}", class.name());
            Note::warning(service.clone(), "EndpointRefused", &message)
        }
        Remark::SliceUnusable(service, slice) => {
            let message = format!("EndpointSlice {slice} cannot be dialled as it is: {NEEDED}");
            Note::warning(service.clone(), "EndpointRefused", &message)
        }
        Remark::ExternalName(service) => {
            let message = "A Service of type ExternalName is never exposed";
            Note::warning(service.clone(), "NotExposed", message)
        }
    })
}
