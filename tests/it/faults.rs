//! Faults of what the product is on, each under load: lines that are slow, silent or cut, a database that restarts or
//! ends its sessions, disks without room. And clients that are slow or silent.
//!
//! Each is made while trace runs are sent and an export is at work. It must be hit, the process has to say what is
//! wrong, every refusal has to say when to come back, and when the fault is over everything continues by itself: what
//! was acknowledged is in its export once, with every value. The figures are printed as one row each of
//!
//! `| fault | hits | accepted | refused | cut off | slowest answer | told | back after | rows compared | tried again |`

mod clients;
mod cpu_lock;
mod disks;
mod lines;
mod postgres;
mod round;
