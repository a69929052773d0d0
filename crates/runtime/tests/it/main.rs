//! Graphs run against a host in memory.
