//! Calls to addresses supplied by users.
//!
//! A name is resolved once, every address is checked, and the connection goes to a checked address; redirects are not
//! followed and proxies of the environment are ignored, so the check cannot be bypassed. A user's folder stays below
//! the operator's root. Failures of a destination are reported in the API's words, with nothing of the foreign answer
//! but its error code.

pub mod destination;
pub mod guard;

pub use destination::{Destination, DestinationFailure, OpenUpload, Reason, Settings, classify};
pub use guard::{AddressRefusal, AllowEntry, Call, CallError, Guard, Policy, Reply, Scheme};
