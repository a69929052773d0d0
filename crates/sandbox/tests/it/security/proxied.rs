//! The network of a box with a proxy that allows `api.test`.

use super::case::{Case, blocked};

pub const CASES: &[Case] = &[
    // Addresses that are never allowed, in every spelling.
    blocked(
        "metadata through the proxy",
        "seen = tunnel('169.254.169.254:443')",
        "403",
    ),
    blocked(
        "metadata in hexadecimal through the proxy",
        "seen = tunnel('0xa9fea9fe:443')",
        "403|400",
    ),
    blocked(
        "metadata in decimal through the proxy",
        "seen = tunnel('2852039166:443')",
        "403|400",
    ),
    blocked(
        "metadata over IPv6 through the proxy",
        "seen = tunnel('[fd00:ec2::254]:443')",
        "403",
    ),
    blocked(
        "mapped metadata through the proxy",
        "seen = tunnel('[::ffff:169.254.169.254]:443')",
        "403",
    ),
    blocked(
        "metadata by NAT64 through the proxy",
        "seen = tunnel('[64:ff9b::a9fe:a9fe]:443')",
        "403",
    ),
    blocked(
        "metadata without TLS through the proxy",
        "seen = proxied('GET http://169.254.169.254/ HTTP/1.1\\r\\nHost: 169.254.169.254\\r\\n\\r\\n')",
        "403",
    ),
    blocked("loopback through the proxy", "seen = tunnel('127.0.0.1:443')", "403"),
    blocked(
        "loopback by its name through the proxy",
        "seen = tunnel('localhost:443')",
        "403",
    ),
    blocked(
        "loopback over IPv6 through the proxy",
        "seen = tunnel('[::1]:443')",
        "403",
    ),
    blocked(
        "server of the host through the proxy",
        "seen = tunnel('127.0.0.1:@PORT@')",
        "403",
    ),
    // Other hosts than the allowed one.
    blocked("another host", "seen = tunnel('other.test:443')", "403"),
    blocked("another port of an allowed host", "seen = tunnel('api.test:22')", "403"),
    blocked(
        "user name before an allowed host",
        "seen = tunnel('api.test@other.test:443')",
        "400|403",
    ),
    blocked(
        "another Host than the one in the address",
        "seen = proxied('GET http://api.test/ HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n')",
        "421",
    ),
    blocked(
        "two Hosts",
        "seen = proxied('GET http://api.test/ HTTP/1.1\\r\\nHost: api.test\\r\\nHost: other.test\\r\\n\\r\\n')",
        "400",
    ),
    blocked(
        "TLS for another host than the tunnel's",
        "seen = tls('api.test:443', 'other.test')",
        "refused",
    ),
    blocked("TLS without a name", "seen = tls('api.test:443', None)", "refused"),
    blocked(
        "plain text in a tunnel",
        "seen = tunnel('api.test:443', b'GET / HTTP/1.1\\r\\n\\r\\n')",
        "closed|ECONNRESET",
    ),
    // Ways around it.
    blocked("internet without the proxy", "connect('1.1.1.1', 443)", "ENETUNREACH"),
    blocked(
        "names without the proxy",
        "socket.getaddrinfo('api.test', 443)",
        "gaierror",
    ),
    blocked(
        "port of the proxy",
        "socket.create_server(('127.0.0.1', proxy_port()))",
        "EADDRINUSE",
    ),
    blocked(
        "port of the proxy, shared",
        "server = socket.socket()\n\
         server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)\n\
         server.bind(('127.0.0.1', proxy_port()))",
        "EADDRINUSE",
    ),
    blocked(
        "certificate of the proxy",
        "open('/run/towpath/authority.pem', 'r+b')",
        "EACCES|EROFS",
    ),
    blocked(
        "key of the proxy's authority",
        "seen = sorted(os.listdir('/run/towpath'))",
        "['agent', 'authority.pem', 'box.json', 'bundle.pem']",
    ),
];

pub const CASES_WITHOUT_PROXY: &[Case] = &[blocked(
    "a proxy that ended",
    "patience = 5\n\
     seen = tunnel('api.test:443')",
    "TimeoutError|timeout|ECONNREFUSED|ECONNRESET|closed",
)];
