//! Enables the loopback interface of a new network namespace over netlink.

use std::io;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

const RTM_NEWLINK: u16 = 16;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLMSG_ERROR: u16 = 2;
/// Loopback has this index in every network namespace.
const LOOPBACK: i32 = 1;
const IFF_UP: u32 = 1;

pub(super) fn bring_up() -> io::Result<()> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    send(&socket, &link_up_request(), SendFlags::empty())?;
    let mut answer = [0_u8; 128];
    let (length, _) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
    // Header of 16 bytes, then the error as a number.
    let kind = answer.get(4..6).map(|kind| u16::from_ne_bytes([kind[0], kind[1]]));
    let code = answer
        .get(16..20)
        .map(|code| i32::from_ne_bytes([code[0], code[1], code[2], code[3]]));
    match (length >= 20).then_some(()).and(kind).zip(code) {
        Some((NLMSG_ERROR, 0)) => Ok(()),
        Some((NLMSG_ERROR, code)) => Err(io::Error::from_raw_os_error(code.saturating_neg())),
        _ => Err(io::Error::other("netlink gave no answer")),
    }
}

/// `nlmsghdr` and `ifinfomsg`.
fn link_up_request() -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[0..4].copy_from_slice(&32_u32.to_ne_bytes());
    bytes[4..6].copy_from_slice(&RTM_NEWLINK.to_ne_bytes());
    bytes[6..8].copy_from_slice(&(NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
    bytes[8..12].copy_from_slice(&1_u32.to_ne_bytes());
    bytes[20..24].copy_from_slice(&LOOPBACK.to_ne_bytes());
    bytes[24..28].copy_from_slice(&IFF_UP.to_ne_bytes());
    bytes[28..32].copy_from_slice(&IFF_UP.to_ne_bytes());
    bytes
}
