//! Every call to an address that a user gave.
//!
//! Promises: a name is resolved once, every address it has is checked, and the connection goes to a checked address;
//! redirects are not followed and no proxy of the environment is used, so nothing walks around the check. A folder
//! given by a user stays below the operator's root. What a destination answered is told in the words of the API, and
//! never with more of a foreign answer than its error code. Leaves to others: when to write, and what.

pub mod destination;
pub mod guard;

pub use destination::{Begun, Destination, DestinationFailure, Reason, Settings, classify};
pub use guard::{Allowed, Call, CallError, Guard, Policy, Refused, Reply};
