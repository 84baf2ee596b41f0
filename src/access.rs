//! Who may go where: proves the user of a request, decides whether that user may reach the target, and takes it back.

pub mod oidc;
mod options;
pub mod passwords;
mod reviewer;
pub mod token;
mod user;

pub use self::options::{AtExpiry, Check, Cleartext, Issuer, Jwks, Kubernetes, Mode, Options, Tickets};
pub use self::reviewer::{Action, Change, Decision, Review, Reviewer, Unavailable, Verdict};
pub use self::user::{AUTHENTICATED, Method, User};
