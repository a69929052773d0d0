//! The nouns of the agent server and the rules about them: runs on threads, what is streamed, how configurations merge.
//!
//! Field names and defaults are those of the agent protocol that the official clients speak.

