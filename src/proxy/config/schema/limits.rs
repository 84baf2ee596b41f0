//! The section `limits`: rates, sizes and counts.

use std::num::NonZeroU32;

use crate::base::values::{count, unless};
use crate::proxy::config::form::{BOOLEAN, COUNT, Form, RATE, SIZE, Schema, TIMEOUT_OR_UNLIMITED};
use crate::proxy::config::section::Section;
use crate::tunnel::limits::{
    Caps, Ceiling, ClientCaps, Limits, SharedLimits, TargetCaps, TotalCaps, TunnelLimits, TunnelOverrides, UserCaps,
};

/// Reads the section.
pub(super) fn read(section: &mut Section<'_>) -> Limits {
    let tunnel = section.field("tunnel").and_then(|field| field.section(tunnel));
    let target = section.field("target").and_then(|field| field.section(target));
    let client = section.field("client").and_then(|field| field.section(client));
    let user = section.field("user").and_then(|field| field.section(user));
    let total = section.field("total").and_then(|field| field.section(total));
    let ceiling = section.field("ceiling").and_then(|field| field.section(ceiling));
    let (target, of_target) = target.unwrap_or_default();
    let (client, of_client) = client.unwrap_or_default();
    let (user, of_user) = user.unwrap_or_default();
    let (total, of_all) = total.unwrap_or_default();
    Limits {
        tunnel: TunnelLimits::default().overridden(&tunnel.unwrap_or_default()),
        target,
        client,
        user,
        total,
        ceiling: ceiling.unwrap_or_default(),
        caps: Caps {
            total: of_all,
            client: of_client,
            user: of_user,
            target: of_target,
        },
        ..Limits::default()
    }
}

/// Reads `limits.tunnel`, or the `limits` of a static target.
pub(super) fn tunnel(section: &mut Section<'_>) -> TunnelOverrides {
    TunnelOverrides {
        download: section.value("download", &RATE),
        upload: section.value("upload", &RATE),
        burst: section.value("burst", &SIZE),
        lifetime: section.value("lifetime", &TIMEOUT_OR_UNLIMITED),
        ..TunnelOverrides::default()
    }
}

fn target(section: &mut Section<'_>) -> (SharedLimits, TargetCaps) {
    let default = TargetCaps::default();
    let caps = TargetCaps {
        tunnels: section
            .value("max_tunnels", &COUNT_OR_UNLIMITED)
            .unwrap_or(default.tunnels),
        dials: section.value("max_dials", &COUNT_OR_UNLIMITED).unwrap_or(default.dials),
    };
    (shared(section), caps)
}

fn client(section: &mut Section<'_>) -> (SharedLimits, ClientCaps) {
    let default = ClientCaps::default();
    let caps = ClientCaps {
        tunnels: section
            .value("max_tunnels", &COUNT_OR_UNLIMITED)
            .unwrap_or(default.tunnels),
        unfinished: section
            .value("max_unfinished", &COUNT_OR_UNLIMITED)
            .unwrap_or(default.unfinished),
        connects_per_second: section
            .value("connects_per_second", &COUNT_OR_UNLIMITED)
            .unwrap_or(default.connects_per_second),
        connects_burst: section
            .value("connects_burst", &COUNT)
            .unwrap_or(default.connects_burst),
    };
    (shared(section), caps)
}

fn user(section: &mut Section<'_>) -> (SharedLimits, UserCaps) {
    let default = UserCaps::default();
    let caps = UserCaps {
        tunnels: section
            .value("max_tunnels", &COUNT_OR_UNLIMITED)
            .unwrap_or(default.tunnels),
    };
    (shared(section), caps)
}

fn total(section: &mut Section<'_>) -> (SharedLimits, TotalCaps) {
    let default = TotalCaps::default();
    let caps = TotalCaps {
        tunnels: section
            .value("max_tunnels", &COUNT_OR_UNLIMITED)
            .unwrap_or(default.tunnels),
        unfinished: section
            .value("max_unfinished", &COUNT_OR_UNLIMITED)
            .unwrap_or(default.unfinished),
    };
    (shared(section), caps)
}

fn shared(section: &mut Section<'_>) -> SharedLimits {
    let default = SharedLimits::default();
    SharedLimits {
        download: section.value("download", &RATE).unwrap_or(default.download),
        upload: section.value("upload", &RATE).unwrap_or(default.upload),
    }
}

fn ceiling(section: &mut Section<'_>) -> Ceiling {
    let default = Ceiling::default();
    Ceiling {
        download: section.value("download", &RATE).unwrap_or(default.download),
        upload: section.value("upload", &RATE).unwrap_or(default.upload),
        ssh_only: section.value("ssh_only", &BOOLEAN).unwrap_or(default.ssh_only),
    }
}

const COUNT_OR_UNLIMITED: Form<Option<NonZeroU32>, String> = Form {
    parse: |text| unless("unlimited", text, count),
    schema: Schema::CountOr(u32::MAX, "unlimited"),
};
