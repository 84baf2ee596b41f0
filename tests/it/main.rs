//! The integration tests, as one program: `cargo test --test it`, or a part of them, `cargo test --test it tls::`.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a failed assumption fails the test"
)]
#![expect(clippy::large_futures, reason = "scripts live as long as their test")]

/// Makes tests of functions in a module below theirs, whose name says when they run: `slow` in `make test-all` only, and
/// `measured` there alone, since they hold a figure.
macro_rules! tests_in {
    ($module:ident: $($test:ident),+ $(,)?) => {
        mod $module {
            $(
                #[test]
                fn $test() {
                    super::$test();
                }
            )+
        }
    };
}

mod access_control;
mod access_log;
mod admin;
mod anchor;
mod budgets;
mod caps;
mod cli;
mod client_leaves;
mod clients_table;
mod close_reasons;
mod connect_rate;
mod corpus;
mod credentials;
mod desk;
mod dial_in;
mod drain;
mod end_notice;
mod files;
mod forward;
mod harness;
mod host_keys;
mod http2;
mod identities;
mod import;
mod in_band;
#[cfg(feature = "jump")]
mod jump;
mod kubeconfigs;
mod kubernetes;
mod limits;
mod logs;
mod model;
mod names;
mod openssh;
mod operators;
mod programs;
mod proxy_protocol;
mod proxy_url;
mod readme;
mod refusals;
mod relay;
mod reload;
mod report;
mod requests;
mod resumable;
mod resume;
mod seccomp;
mod setup;
mod ssh_only;
mod takeover;
mod threats;
mod tls;
mod truncation;
mod trust;
mod unfinished;
mod wait;
mod websocket;
