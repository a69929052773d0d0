//! Passes a socket between processes.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::sockopt::{socket_acceptconn, socket_domain};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use tokio::io::Interest;
use tokio::net::UnixStream;

/// A socket travels with a byte.
const MARK: u8 = b'.';

/// Sends a socket. Its byte fits into the buffer of a connection that has carried next to nothing.
pub(crate) fn send(stream: &UnixStream, socket: &impl AsFd) -> io::Result<()> {
    let sockets = [socket.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&sockets)) {
        return Err(io::Error::other("the socket does not fit into a message"));
    }
    sendmsg(stream, &[IoSlice::new(&[MARK])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a listening socket. The sender is not trusted: anything else is an error.
pub(crate) async fn receive_listener(stream: &UnixStream) -> io::Result<TcpListener> {
    let received = stream.async_io(Interest::READABLE, || receive(stream)).await?;
    let socket = received.ok_or_else(|| io::Error::other("it sent no socket"))?;
    let is_inet = matches!(socket_domain(&socket), Ok(AddressFamily::INET | AddressFamily::INET6));
    if !is_inet || !socket_acceptconn(&socket).unwrap_or(false) {
        return Err(io::Error::other("it sent something other than a listening socket"));
    }
    Ok(TcpListener::from(socket))
}

fn receive(stream: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(
        stream,
        &mut [IoSliceMut::new(&mut byte)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    // What is not taken is closed.
    let first = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut sockets) => sockets.next(),
        _ => None,
    });
    Ok(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_listening_socket_arrives_and_nothing_else() {
        let (near, far) = UnixStream::pair().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        send(&near, &listener).unwrap();
        let received = receive_listener(&far).await.unwrap();
        assert_eq!(received.local_addr().unwrap(), listener.local_addr().unwrap());

        let file = std::fs::File::open("/dev/null").unwrap();
        send(&near, &file).unwrap();
        assert!(receive_listener(&far).await.is_err());
        send(&near, &near).unwrap();
        assert!(receive_listener(&far).await.is_err());
        drop(near);
        assert!(receive_listener(&far).await.is_err());
    }
}
