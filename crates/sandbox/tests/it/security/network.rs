//! The network of a box without a proxy: a loopback interface of its own.

use super::case::{Case, accepted, blocked};

pub const CASES: &[Case] = &[
    blocked(
        "interfaces",
        "seen = [name for _, name in socket.if_nameindex()]",
        "['lo']",
    ),
    blocked("routes", "seen = len(open('/proc/net/route').readlines())", "1"),
    // Addresses of the machine.
    blocked("loopback of the host", "connect('127.0.0.1', @PORT@)", "ECONNREFUSED"),
    blocked(
        "loopback of the host over IPv6",
        "connect('::1', @PORT@, socket.AF_INET6)",
        "ECONNREFUSED|EAFNOSUPPORT|EADDRNOTAVAIL",
    ),
    blocked(
        "loopback of the host as 0.0.0.0",
        "connect('0.0.0.0', @PORT@)",
        "ECONNREFUSED",
    ),
    blocked("gateway of the host", "connect('10.0.0.1', 80)", "ENETUNREACH"),
    blocked("another box", "connect('127.0.0.1', 4711)", "ECONNREFUSED"),
    blocked(
        "abstract socket of the host",
        "socket.socket(socket.AF_UNIX).connect('\\0@ABSTRACT@')",
        "ECONNREFUSED",
    ),
    blocked(
        "abstract socket of another box",
        "socket.socket(socket.AF_UNIX).connect('\\0other-box')",
        "ECONNREFUSED",
    ),
    // The metadata service in every spelling.
    blocked("metadata", "connect('169.254.169.254', 80)", "ENETUNREACH"),
    blocked("metadata in hexadecimal", "connect('0xa9fea9fe', 80)", "ENETUNREACH"),
    blocked("metadata in decimal", "connect('2852039166', 80)", "ENETUNREACH"),
    blocked("metadata in octal", "connect('0251.0376.0251.0376', 80)", "ENETUNREACH"),
    blocked(
        "metadata over IPv6",
        "connect('fd00:ec2::254', 80, socket.AF_INET6)",
        "ENETUNREACH|EAFNOSUPPORT|EADDRNOTAVAIL",
    ),
    blocked(
        "metadata as a mapped address",
        "connect('::ffff:169.254.169.254', 80, socket.AF_INET6)",
        "ENETUNREACH|EAFNOSUPPORT|EADDRNOTAVAIL",
    ),
    blocked(
        "metadata by NAT64",
        "connect('64:ff9b::a9fe:a9fe', 80, socket.AF_INET6)",
        "ENETUNREACH|EAFNOSUPPORT|EADDRNOTAVAIL",
    ),
    // The internet.
    blocked("TCP", "connect('1.1.1.1', 443)", "ENETUNREACH"),
    blocked(
        "TCP over IPv6",
        "connect('2606:4700:4700::1111', 443, socket.AF_INET6)",
        "ENETUNREACH|EAFNOSUPPORT|EADDRNOTAVAIL",
    ),
    blocked(
        "UDP and QUIC",
        "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('1.1.1.1', 443))",
        "ENETUNREACH",
    ),
    blocked(
        "tunnel by questions to a name server",
        "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('1.1.1.1', 53))",
        "ENETUNREACH",
    ),
    blocked("names", "socket.getaddrinfo('example.com', 443)", "gaierror"),
    blocked(
        "multicast",
        "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('224.0.0.1', 5353))",
        "ENETUNREACH",
    ),
    // Other sockets.
    blocked(
        "raw IP",
        "socket.socket(type=socket.SOCK_RAW, proto=socket.IPPROTO_RAW)",
        "EPERM",
    ),
    blocked(
        "ICMP",
        "socket.socket(type=socket.SOCK_RAW, proto=socket.IPPROTO_ICMP)",
        "EPERM",
    ),
    blocked(
        "ICMP without rights",
        "socket.socket(type=socket.SOCK_DGRAM, proto=socket.IPPROTO_ICMP)",
        "EACCES",
    ),
    blocked("packets", "socket.socket(17, socket.SOCK_RAW)", "EPERM"),
    blocked(
        "host of a virtual machine (vsock)",
        "socket.socket(40, socket.SOCK_STREAM)",
        "EPERM",
    ),
    blocked(
        "cryptography of the kernel (AF_ALG)",
        "socket.socket(38, socket.SOCK_SEQPACKET)",
        "EPERM",
    ),
    blocked("Bluetooth", "socket.socket(31, socket.SOCK_RAW, 1)", "EPERM"),
    blocked(
        "pairs of other families",
        "socket.socketpair(40, socket.SOCK_STREAM)",
        "EPERM",
    ),
    // Changes of the network.
    blocked(
        "another interface",
        "with_netlink(0, 16, 0x605, struct.pack('BBHiII', 0, 0, 0, 0, 0, 0) + attribute(3, b'dummy0') \
         + attribute(0x8012, attribute(1, b'dummy')))",
        "EPERM",
    ),
    blocked(
        "another address",
        "with_netlink(0, 20, 0x605, struct.pack('BBBBI', 2, 24, 0, 0, 1) + attribute(2, bytes([10, 0, 0, 2])))",
        "EPERM",
    ),
    blocked(
        "another route",
        "with_netlink(0, 24, 0x605, struct.pack('8BI', 2, 0, 0, 0, 254, 3, 253, 1, 0) \
         + attribute(4, struct.pack('I', 1)))",
        "EPERM",
    ),
    blocked(
        "flushing nftables",
        "with_netlink(12, 0xa02, 5, bytes(4))",
        "EPERM|EPROTONOSUPPORT",
    ),
    blocked("tunnel interface", "open('/dev/net/tun', 'r+b')", "ENOENT"),
    blocked(
        "mark of packets",
        "socket.socket().setsockopt(socket.SOL_SOCKET, socket.SO_MARK, 1)",
        "EPERM",
    ),
    blocked(
        "transparent proxy",
        "socket.socket().setsockopt(socket.SOL_IP, 19, 1)",
        "EPERM",
    ),
    blocked(
        "TCP repair",
        "socket.socket().setsockopt(socket.IPPROTO_TCP, 19, 1)",
        "EPERM",
    ),
    accepted(
        "netlink of the own network",
        "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)",
        "done",
        "resolvers list interfaces with it; changes are refused",
    ),
];
