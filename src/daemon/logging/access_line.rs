//! What sets access lines apart from messages. A connection, tunnel or session has one at its end, and a tunnel another one at
//! its beginning.

/// The tracing target of access lines.
pub(crate) const ACCESS: &str = "access";
/// The name of the field that holds all members of an access event of the proxy, ready to be written, each with a comma in
/// front. Those of the anchor have a field for each member.
pub(crate) const MEMBERS: &str = "members";
