//! The access line, one at the end of each connection, tunnel or session: what sets it apart from messages.

/// The tracing target of access lines.
pub(crate) const ACCESS: &str = "access";
/// The name of the field of an access event that holds all of its members, ready to be written, each with a comma in front.
pub(crate) const MEMBERS: &str = "members";
