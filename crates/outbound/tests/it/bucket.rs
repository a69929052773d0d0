use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};
use towpath_domain::Secret;
use towpath_domain::export::{Credentials, DestinationConfig, DestinationKind};
use towpath_outbound::{Destination, DestinationFailure, Guard, OpenUpload, Policy, Reason, Settings};

use crate::s3::{Fault, KEY_ID, S3};

fn open(policy: Policy, config: &DestinationConfig, credentials: &Credentials) -> Destination {
    let settings = Settings {
        guard: Guard::new(policy),
        file_root: None,
        environment_credentials: None,
    };
    Destination::open(&settings, DestinationKind::S3, config, Some(credentials)).unwrap()
}

fn file() -> Path {
    Path::from("p/tmp/x.txt")
}

async fn refusal(config: &DestinationConfig, credentials: &Credentials) -> DestinationFailure {
    open(Policy::development(), config, credentials)
        .test(&file())
        .await
        .unwrap_err()
}

#[tokio::test]
async fn the_test_file_is_written_below_the_prefix_and_deleted() {
    let s3 = S3::start().await;
    open(Policy::development(), &s3.config("p"), &S3::credentials())
        .test(&file())
        .await
        .unwrap();
    assert!(s3.calls()[0].starts_with("PUT p/tmp/x.txt?"), "{:?}", s3.calls());
    assert!(s3.keys().is_empty());

    // Without the right to delete it stays, which is not a failure.
    s3.fail(Fault::new("delete", 403, "AccessDenied", 9));
    open(Policy::development(), &s3.config("p"), &S3::credentials())
        .test(&file())
        .await
        .unwrap();
    assert_eq!(s3.keys().len(), 1);
}

#[tokio::test]
async fn what_s3_says_is_told_in_the_words_of_the_api() {
    let s3 = S3::start().await;
    let good = s3.config("p");

    let unknown = Credentials {
        access_key_id: Secret::new("AKIAOTHER"),
        ..S3::credentials()
    };
    let failure = refusal(&good, &unknown).await;
    assert_eq!(failure.reason(), Reason::KeyIdUnknown);
    assert!(
        failure
            .to_string()
            .starts_with("Key ID you provided does not exist: InvalidAccessKeyId (403) for key p/tmp/x.txt")
    );

    let elsewhere = DestinationConfig {
        bucket_name: Some("nowhere".to_owned()),
        ..good.clone()
    };
    assert_eq!(
        refusal(&elsewhere, &S3::credentials()).await.reason(),
        Reason::BucketInvalid
    );

    s3.fail(Fault::new("PUT p/tmp", 403, "AccessDenied", 1));
    assert_eq!(refusal(&good, &S3::credentials()).await.reason(), Reason::AccessDenied);

    let closed = DestinationConfig {
        endpoint_url: Some("http://127.0.0.1:1".to_owned()),
        ..good
    };
    let failure = refusal(&closed, &S3::credentials()).await;
    assert!(failure.to_string().starts_with("Invalid endpoint: "), "{failure}");
    assert!(!format!("{failure:?} {failure}").contains("hush"));
}

#[tokio::test]
async fn what_passes_is_repeated() {
    let s3 = S3::start().await;
    s3.fail(Fault::new("PUT p/tmp", 503, "SlowDown", 2));
    open(Policy::development(), &s3.config("p"), &S3::credentials())
        .test(&file())
        .await
        .unwrap();
    assert_eq!(s3.calls().iter().filter(|call| call.starts_with("PUT")).count(), 3);
}

#[tokio::test]
async fn an_inner_address_is_not_even_called() {
    let s3 = S3::start().await;
    for policy in [
        Policy::default(),
        Policy::with_allow_list(vec!["10.0.0.0/8".parse().unwrap()]),
    ] {
        let failure = open(policy, &s3.config("p"), &S3::credentials())
            .test(&file())
            .await
            .unwrap_err();
        assert_eq!(failure.reason(), Reason::InvalidEndpoint);
        assert!(failure.to_string().contains("loopback"), "{failure}");
    }
    // By name it is the same.
    let mut named = s3.config("p");
    named.endpoint_url = named.endpoint_url.map(|url| url.replace("127.0.0.1", "localhost"));
    let failure = open(Policy::default(), &named, &S3::credentials())
        .test(&file())
        .await
        .unwrap_err();
    assert_eq!(failure.reason(), Reason::InvalidEndpoint, "{failure}");
    assert!(s3.calls().is_empty());

    // Listed by the operator, it is.
    open(
        Policy::with_allow_list(vec!["localhost".parse().unwrap()]),
        &named,
        &S3::credentials(),
    )
    .test(&file())
    .await
    .unwrap();
}

#[tokio::test]
async fn an_upload_is_visible_when_it_is_complete_and_can_be_given_up_by_its_id() {
    let s3 = S3::start().await;
    let destination = open(Policy::development(), &s3.config(""), &S3::credentials());
    let path = Path::from("x/one");
    let mut upload = destination.objects().put_multipart(&path).await.unwrap();
    let (one, two) = (
        upload.put_part(PutPayload::from("one ")),
        upload.put_part(PutPayload::from("two")),
    );
    two.await.unwrap();
    one.await.unwrap();
    assert!(s3.keys().is_empty());
    assert_eq!(
        destination.open_uploads(),
        [OpenUpload {
            path: "x/one".to_owned(),
            id: "upload-1".to_owned()
        }]
    );
    upload.complete().await.unwrap();
    assert_eq!(s3.object("x/one").unwrap(), "one two");
    assert!(destination.open_uploads().is_empty());

    drop(destination.objects().put_multipart(&path).await.unwrap());
    assert_eq!(s3.open_uploads(), 1);
    let left = destination.open_uploads().remove(0);
    let other = open(Policy::development(), &s3.config(""), &S3::credentials());
    other.abort(&left).await.unwrap();
    other.abort(&left).await.unwrap();
    assert_eq!(s3.open_uploads(), 0);
    assert!(s3.calls().iter().all(|call| !call.contains(KEY_ID)));
}
