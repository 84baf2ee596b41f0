//! Certificates, on either side of TLS: their contents, and the PEM files that they are in.

mod identity;
pub(crate) mod names;
pub(crate) mod pem;
pub(crate) mod presented;

pub use self::identity::CertificateNames;
pub use self::pem::PemError;

/// The largest PEM file, in bytes: a revocation list may be long.
pub(crate) const MAX_PEM_BYTES: u64 = 16 << 20;
