//! Restrictions of a box from its first instruction: capabilities, resource limits, system calls.

use std::io;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::{Mode, umask};
use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
};

use super::seccomp;

/// Root of the box manages files, users and processes within the box.
const ALLOWED_CAPABILITIES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID);
const MAX_OPEN_FILES: u64 = 65_536;
const MAX_LOCKED_BYTES: u64 = 8 << 20;

pub(super) fn confine() -> io::Result<()> {
    umask(Mode::from_bits_truncate(0o022));
    // With a limit of 0 the kernel still passes core dumps to a program of the host, but not with 1.
    lower_limit(Resource::RLIMIT_CORE, 1)?;
    lower_limit(Resource::RLIMIT_NOFILE, MAX_OPEN_FILES)?;
    lower_limit(Resource::RLIMIT_MEMLOCK, MAX_LOCKED_BYTES)?;
    clear_ambient_capability_set()?;
    for number in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if ALLOWED_CAPABILITIES.contains(capability) {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            // The kernel does not know this capability, nor any higher one.
            Err(Errno::INVAL) => break,
            other => other?,
        }
    }
    let sets = CapabilitySets {
        effective: ALLOWED_CAPABILITIES,
        permitted: ALLOWED_CAPABILITIES,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, sets)?;
    // With it goes every way to other rights.
    nix::sys::prctl::set_no_new_privs()?;
    seccomp::apply()
}

fn lower_limit(resource: Resource, limit: u64) -> io::Result<()> {
    let (_, hard) = getrlimit(resource)?;
    let limit = limit.min(hard);
    Ok(setrlimit(resource, limit, limit)?)
}
