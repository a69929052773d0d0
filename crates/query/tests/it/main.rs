//! Filters over rows, and pages over segments.

mod filters;
mod naive;
mod open;
mod traces;
