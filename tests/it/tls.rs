//! A platform that speaks TLS.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;
use reqwest::Certificate;
use towpath_tests::{Process, Program, free_address, http, until};

const LIMIT: Duration = Duration::from_secs(60);
const FIRST: &[u8] = include_bytes!("../../crates/testing/certificates/first.pem");
const FIRST_KEY: &[u8] = include_bytes!("../../crates/testing/certificates/first.key.pem");
const SECOND: &[u8] = include_bytes!("../../crates/testing/certificates/second.pem");
const SECOND_KEY: &[u8] = include_bytes!("../../crates/testing/certificates/second.key.pem");

/// Asks on a connection of its own, trusting this certificate alone.
async fn asked(address: SocketAddr, trusted: &[u8]) -> reqwest::Result<u16> {
    let client = reqwest::Client::builder()
        .no_proxy()
        .tls_built_in_root_certs(false)
        .add_root_certificate(Certificate::from_pem(trusted)?)
        .build()?;
    let answer = client.get(format!("https://{address}/livez")).send().await?;
    Ok(answer.status().as_u16())
}

fn put(folder: &Path, certificate: &[u8], key: &[u8]) {
    fs::write(folder.join("cert.pem"), certificate).unwrap();
    fs::write(folder.join("key.pem"), key).unwrap();
}

#[tokio::test]
async fn a_certificate_is_replaced_while_the_platform_runs() {
    let folder = tempfile::tempdir().unwrap();
    let (listen, plain) = (free_address(), free_address());
    put(folder.path(), FIRST, FIRST_KEY);
    let file = |name: &str| folder.path().join(name).display().to_string();
    let env = [
        ("TOWPATH_DATA_DIR", file("data")),
        ("TOWPATH_TLS_CERT", file("cert.pem")),
        ("TOWPATH_TLS_KEY", file("key.pem")),
        ("TOWPATH_TLS_PLAIN_LISTEN", plain.to_string()),
        ("TOWPATH_DEPLOYMENTS_BACKEND", "none".to_owned()),
    ];
    let program = Program {
        name: "serve".to_owned(),
        args: ["serve", "--role", "all", "--listen", &listen.to_string()]
            .map(str::to_owned)
            .to_vec(),
        env: env.map(|(name, value)| (name.to_owned(), value)).to_vec(),
        // This machine asks without TLS.
        address: Some(plain),
        folder: folder.path().to_owned(),
    };
    let mut server = Process::start(&program).await;
    assert_eq!(asked(listen, FIRST).await.unwrap(), 200);
    let clear = http().get(format!("http://{listen}/livez")).send().await;
    assert!(clear.is_err(), "the address of everybody speaks nothing but TLS");

    put(folder.path(), SECOND, SECOND_KEY);
    server.signal(Signal::SIGHUP);
    until("the second certificate to be shown", LIMIT, async || {
        asked(listen, SECOND).await.ok()
    })
    .await;
    assert!(asked(listen, FIRST).await.is_err(), "the first is not shown any more");

    put(folder.path(), FIRST, SECOND_KEY);
    server.signal(Signal::SIGHUP);
    until("the key of another certificate to be refused", LIMIT, async || {
        let said = server.log_text();
        said.contains("the old certificate stays in use").then_some(())
    })
    .await;
    assert_eq!(asked(listen, SECOND).await.unwrap(), 200);
    assert!(
        server.log_text().contains("it does not belong to tls.cert"),
        "{}",
        server.log_text()
    );
    server.terminate(LIMIT).await;
}
