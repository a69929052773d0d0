use std::net::{IpAddr, SocketAddr};

use super::*;

fn check(policy: Policy, host: &str, ip: &str, port: u16) -> Result<(), AddressRefusal> {
    let ip: IpAddr = ip.parse().unwrap();
    Guard::new(policy).check(host, SocketAddr::new(ip, port), Scheme::Https)
}

fn list(entries: &[&str]) -> Policy {
    Policy::with_allow_list(entries.iter().map(|entry| entry.parse().unwrap()).collect())
}

#[tokio::test]
async fn the_table_of_addresses() {
    let table = [
        (
            Kind::Loopback,
            "127.0.0.1 127.1.2.3 127.255.255.255 ::1 ::ffff:127.0.0.1 64:ff9b::7f00:1",
        ),
        (
            Kind::Private,
            "10.0.0.1 10.255.255.255 172.16.0.1 172.31.255.255 192.168.0.1 192.168.255.255 100.64.0.1",
        ),
        (
            Kind::Private,
            "100.127.255.255 fc00::1 fd12:3456::1 fdff::1 fec0::1 ::ffff:10.0.0.1 64:ff9b::a00:1",
        ),
        (
            Kind::LinkLocal,
            "169.254.0.1 169.254.255.255 fe80::1 febf::1 ::ffff:169.254.1.1",
        ),
        (
            Kind::Metadata,
            "169.254.169.254 169.254.170.2 169.254.170.23 100.100.100.200 168.63.129.16 192.0.0.192",
        ),
        (
            Kind::Metadata,
            "fd00:ec2::254 fd00:ec2::23 ::ffff:169.254.169.254 64:ff9b::a9fe:a9fe",
        ),
        (
            Kind::Special,
            "0.0.0.0 0.1.2.3 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255 192.0.0.1 192.0.2.1",
        ),
        (
            Kind::Special,
            "192.88.99.1 198.18.0.1 198.19.255.255 198.51.100.1 203.0.113.1 :: ::2 ::127.0.0.1 ff02::1",
        ),
        (
            Kind::Special,
            "2001:db8::1 2001::1 2001:10::1 2002:7f00:1:: 3fff::1 100::1 5f00::1 64:ff9b:1::7f00:1 4000::1",
        ),
        (
            Kind::Public,
            "1.1.1.1 8.8.8.8 172.15.255.255 172.32.0.1 100.63.255.255 100.128.0.1 169.253.1.1 11.0.0.1",
        ),
        (
            Kind::Public,
            "223.255.255.255 2606:4700::1111 2a00:1450::1 2001:4860::8888 ::ffff:8.8.8.8 64:ff9b::808:808",
        ),
    ];
    let mut seen = 0;
    for (expected, addresses) in table {
        for address in addresses.split(' ') {
            let ip = address.parse().unwrap();
            assert_eq!(kind(ip), expected, "{address}");
            let allowed = check(Policy::default(), address, address, 443).is_ok();
            assert_eq!(allowed, expected == Kind::Public, "{address}");
            let developing = check(Policy::development(), address, address, 443).is_ok();
            assert_eq!(
                developing,
                matches!(expected, Kind::Public | Kind::Loopback),
                "{address}"
            );
            seen += 1;
        }
    }
    assert!(seen >= 60, "{seen}");
}

#[tokio::test]
async fn an_operator_lists_hosts_networks_and_ports() {
    let minio = list(&["Minio.internal:9000"]);
    assert!(check(minio.clone(), "minio.internal.", "10.0.0.7", 9000).is_ok());
    assert!(check(minio.clone(), "minio.internal", "10.0.0.7", 9001).is_err());
    assert!(check(minio.clone(), "other.internal", "10.0.0.7", 9000).is_err());
    assert!(check(minio, "minio.internal", "169.254.169.254", 9000).is_err());

    let network = list(&["10.1.0.0/16", "[fd00::/8]:9000"]);
    assert!(check(network.clone(), "x", "10.1.2.3", 1).is_ok());
    assert!(check(network.clone(), "x", "::ffff:10.1.2.3", 1).is_ok());
    assert!(check(network.clone(), "x", "10.2.0.1", 1).is_err());
    assert!(check(network.clone(), "x", "fd00::1", 9000).is_ok());
    assert!(check(network, "x", "fd00::1", 9001).is_err());

    let port = list(&[":9000", "3900"]);
    assert!(check(port.clone(), "x", "10.2.0.1", 9000).is_ok());
    assert!(check(port.clone(), "x", "127.0.0.1", 3900).is_ok());
    assert!(check(port.clone(), "x", "169.254.169.254", 9000).is_err());
    assert!(check(port, "x", "10.2.0.1", 9001).is_err());

    for entry in [
        "minio.internal:9000",
        "10.0.0.0/8",
        "10.0.0.7:80",
        "[fd00::/8]:9000",
        "[fd00::1]",
        ":9000",
    ] {
        assert_eq!(entry.parse::<AllowEntry>().unwrap().to_string(), entry);
    }
    for bad in ["", "a b", "http://x", "10.0.0.0/33", "x:port", "x:99999"] {
        assert!(bad.parse::<AllowEntry>().is_err(), "{bad}");
    }
}

#[tokio::test]
async fn plain_http_is_for_listed_addresses() {
    let public: SocketAddr = "8.8.8.8:80".parse().unwrap();
    let here: SocketAddr = "127.0.0.1:80".parse().unwrap();
    let guard = Guard::new(Policy::development());
    assert_eq!(
        guard.check("dns", public, Scheme::Http),
        Err(AddressRefusal::Plain { host: "dns".to_owned() })
    );
    assert_eq!(guard.check("dns", public, Scheme::Https), Ok(()));
    assert_eq!(guard.check("here", here, Scheme::Http), Ok(()));
}

#[tokio::test]
async fn odd_spellings_of_an_address_are_read_as_the_client_reads_them() {
    let guard = Guard::new(Policy::default());
    for url in [
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0177.0.0.1/",
        "https://127.1/",
        "https://[::ffff:7f00:1]/",
        "https://[::1]:9000/",
        "https://localhost/",
        "https://①②⑦.0.0.1/",
        "https://169.254.169.254.:443/latest",
    ] {
        let refused = guard.check_url(url).await.unwrap_err();
        assert!(matches!(refused, AddressRefusal::Address { .. }), "{url}: {refused:?}");
    }
    for url in ["ftp://x/", "file:///etc/passwd", "nonsense", "https://", "javascript:1"] {
        assert!(
            matches!(guard.check_url(url).await, Err(AddressRefusal::Malformed(_))),
            "{url}"
        );
    }
}

#[tokio::test]
async fn this_machine_can_be_excluded() {
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();
    for policy in [Policy::development(), list(&["127.0.0.0/8", "::1", "10.0.0.7"])] {
        let guard = Guard::new(policy);
        let stricter = guard.without_loopback();
        for text in ["127.0.0.1:80", "[::1]:80", "[::ffff:127.0.0.1]:80"] {
            guard.check("here", address(text), Scheme::Https).unwrap();
            let refused = stricter.check("here", address(text), Scheme::Https).unwrap_err();
            assert!(
                matches!(refused, AddressRefusal::ThisMachine { .. }),
                "{text}: {refused}"
            );
        }
        stricter.check("there", address("1.1.1.1:443"), Scheme::Https).unwrap();
    }
    let listed = Guard::new(list(&["10.0.0.7"])).without_loopback();
    listed.check("10.0.0.7", address("10.0.0.7:80"), Scheme::Http).unwrap();
}

#[test]
fn entries_that_can_allow_this_machine_are_known() {
    for (entry, expected) in [
        ("127.0.0.1:8080", true),
        ("127.0.0.0/8", true),
        ("::1", true),
        ("0.0.0.0/0", true),
        (":9000", true),
        ("localhost", true),
        ("10.0.0.0/8", false),
        ("10.0.0.7:80", false),
    ] {
        let entry: AllowEntry = entry.parse().unwrap();
        assert_eq!(entry.reaches_loopback(), expected, "{entry}");
    }
}
