//! A queue whose Redis does not exist.

use futures::FutureExt;
use towpath_domain::{Clock, JobId, Timestamp};
use towpath_queue::{Connections, Error, Options, Queue, Signal, State, Wake};

/// A port without a listener.
fn closed() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

#[tokio::test]
async fn what_is_no_redis_uri_is_an_error() {
    for uri in [
        "",
        "localhost",
        "http://localhost",
        "redis://",
        "redis://h:port",
        "redis://h/db",
        "rediss://h/#insecure",
    ] {
        let error = Queue::redis(uri, Options::default()).await.expect_err(uri);
        assert!(matches!(error, Error::Uri(_)), "{uri}: {error}");
    }
}

#[tokio::test]
async fn errors_carry_no_credentials() {
    for uri in [
        "redis://me:hunter2@h/db",
        "redis://me:hunter2@h:port",
        "rediss://me:hunter2@h/#hunter2",
    ] {
        let error = Queue::redis(uri, Options::default()).await.unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    }
    let uri = format!("redis://me:hunter2@127.0.0.1:{}", closed());
    let queue = Queue::redis(&uri, Options::default()).await.unwrap();
    assert!(!format!("{queue:?} {:?}", queue.health()).contains("hunter2"));
}

#[tokio::test]
async fn a_certificate_that_is_none_is_an_error() {
    let options = Options {
        tls_ca: Some(b"-----BEGIN CERTIFICATE-----\n!\n".to_vec()),
        ..Options::default()
    };
    let error = Queue::redis("rediss://localhost", options).await.unwrap_err();
    assert!(matches!(error, Error::Certificate(_)), "{error}");
}

#[tokio::test]
async fn starts_without_redis_and_works_within_the_process() {
    let start = Timestamp::parse("2026-03-01T12:00:00Z").unwrap();
    let options = Options {
        clock: Clock::stopped(start),
        ..Options::default()
    };
    let queue = Queue::redis(&format!("redis://127.0.0.1:{}", closed()), options)
        .await
        .unwrap();

    let mut wakes = queue.listen(["runs"]);
    let mut cancels = queue.cancels();
    assert_eq!(wakes.next().now_or_never(), Some(Wake::All));
    queue.wake("runs");
    assert_eq!(wakes.next().now_or_never(), Some(Wake::Pool("runs".into())));
    let job = JobId::new();
    queue.cancel(&[job]);
    assert_eq!(cancels.next().now_or_never(), Some(Signal::Job(job)));

    let health = queue.health();
    assert!(health.degraded());
    assert_eq!(health.dropped, 2, "hints for other processes are counted, not kept");
    let State::Down { since, error } = health.state else {
        panic!("{health:?}")
    };
    assert_eq!(since, start);
    assert!(error.contains("refused"), "{error}");
    assert_eq!(queue.connections(), Some(Connections { needed: 3, open: 0 }));
}

#[tokio::test]
async fn a_queue_within_a_process_is_healthy() {
    let health = Queue::local().health();
    assert_eq!(health.state, State::Local);
    assert_eq!(Queue::local().connections(), None);
    assert!(!health.degraded());
}
