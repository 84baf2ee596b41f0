//! Notices about Services: a log line for the operator, and an Event for the tenant.

use std::net::SocketAddr;
use std::time::Duration;

use tracing::{info, warn};

use super::address_filter::AddressClass;
use crate::kubernetes::objects::annotations::AnnotationError;
use crate::kubernetes::objects::model::Key;
use crate::kubernetes::writes::event_recorder::ServiceEvent;
use crate::tunnel::limits::event_rate::EventWindow;

/// A notice about a Service for its tenant and the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ServiceNotice {
    /// The Service was added to the allowlist, with this port.
    Added(Key, u16),
    /// The Service was removed from the allowlist.
    Removed(Key),
    /// An annotation is invalid or missing, exceeds the ceiling, or has no effect.
    Annotation(Key, AnnotationError),
    /// An endpoint is not dialled, because of its address.
    EndpointForbidden(Key, SocketAddr, AddressClass),
    /// An address of the EndpointSlice of this name, or its port, cannot be dialled.
    SliceUnusable(Key, Box<str>),
    /// The Service is of type ExternalName, and never on the allowlist.
    ExternalName(Key),
}

impl ServiceNotice {
    /// Writes it to the log.
    fn log(&self) {
        match self {
            Self::Added(service, _) => info!(%service, "the Service is on the allowlist"),
            Self::Removed(service) => info!(%service, "the Service is no longer on the allowlist"),
            Self::Annotation(service, fault) => {
                let (key, reason) = (&fault.key, &fault.reason);
                info!(%service, annotation = %key, "the annotation does not apply as written: {reason}");
            }
            Self::EndpointForbidden(service, address, class) => {
                let class = class.name();
                warn!(%service, %address, class, "the endpoint is not dialled: its address is not allowed");
            }
            Self::SliceUnusable(service, slice) => {
                warn!(%service, %slice, "the EndpointSlice cannot be dialled as it is: {NEEDED}");
            }
            Self::ExternalName(service) => info!(%service, "an ExternalName Service is never on the allowlist"),
        }
    }

    /// Returns the Event for it.
    pub(super) fn note(&self) -> ServiceEvent {
        match self {
            Self::Added(service, port) => {
                let message = format!("Exposed as {}:{port}", service.target_id().short_name());
                ServiceEvent::normal(service.clone(), "Exposed", &message)
            }
            Self::Removed(service) => {
                let message = "No longer exposed: no client reaches it";
                ServiceEvent::normal(service.clone(), "Withdrawn", message)
            }
            Self::Annotation(service, fault) => {
                let (key, reason) = (&fault.key, &fault.reason);
                // Without a port, the annotation `port` is missing, or another notice reports its own error.
                let (word, message) = match fault.is_without_port {
                    true => ("NoUsablePort", format!("No port reaches sshd: {reason}")),
                    false => ("IgnoredAnnotation", format!("Ignored annotation {key}: {reason}")),
                };
                ServiceEvent::warning(service.clone(), word, &message)
            }
            Self::EndpointForbidden(service, address, class) => {
                let message = format!("Endpoint {address} is not dialled: {}", class.name());
                ServiceEvent::warning(service.clone(), "EndpointRefused", &message)
            }
            Self::SliceUnusable(service, slice) => {
                let message = format!("EndpointSlice {slice} cannot be dialled as it is: {NEEDED}");
                ServiceEvent::warning(service.clone(), "EndpointRefused", &message)
            }
            Self::ExternalName(service) => {
                let message = "A Service of type ExternalName is never exposed";
                ServiceEvent::warning(service.clone(), "NotExposed", message)
            }
        }
    }
}

/// The log lines of the current minute. Tenants cause them, so their number is bounded.
#[derive(Debug, Default)]
pub(super) struct NoticeLog {
    lines: EventWindow,
}

impl NoticeLog {
    /// Logs a notice, unless the minute's lines are used up.
    pub(super) fn write(&mut self, notice: &ServiceNotice) {
        let dropped = self.lines.refused(MAX_LINES);
        if dropped > 0 && self.lines.is_over(MINUTE) {
            info!(lines = dropped, "log lines about Services were dropped");
        }
        if self.lines.admit(MAX_LINES, MINUTE) {
            notice.log();
        }
    }
}

const MINUTE: Duration = Duration::from_secs(60);
/// Lines per minute.
const MAX_LINES: u32 = 200;
/// The needs of an EndpointSlice.
const NEEDED: &str = "it needs the addressType IPv4 or IPv6, addresses of that type, and a TCP port from 1 to 65535";
