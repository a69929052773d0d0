//! What a box may not do from its first own instruction: capabilities, resource limits, system calls.

use std::io;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::{Mode, umask};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
};

use super::filter;

/// Root of the box manages files, users and processes of the box.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID);
const FILES: u64 = 65_536;
const LOCKED_BYTES: u64 = 8 << 20;

pub(super) fn confine() -> io::Result<()> {
    umask(Mode::from_bits_truncate(0o022));
    lower(Resource::RLIMIT_CORE, 0)?;
    lower(Resource::RLIMIT_NOFILE, FILES)?;
    lower(Resource::RLIMIT_MEMLOCK, LOCKED_BYTES)?;
    clear_ambient_capability_set()?;
    for number in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if !KEPT.contains(capability) && remove_capability_from_bounding_set(capability).is_err() {
            // The kernel knows no capability of this number and none behind it.
            break;
        }
    }
    let sets = CapabilitySets {
        effective: KEPT,
        permitted: KEPT,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, sets)?;
    // With it goes every way to other rights.
    nix::sys::prctl::set_no_new_privs()?;
    filter::apply()
}

fn lower(resource: Resource, limit: u64) -> io::Result<()> {
    let (_, hard) = getrlimit(resource)?;
    let limit = limit.min(hard);
    Ok(setrlimit(resource, limit, limit)?)
}
