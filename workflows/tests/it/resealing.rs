//! Resealing secrets while one encryption key is replaced by another.

use towpath_domain::export::DestinationKind;
use towpath_store::destinations;
use towpath_store::sealed::{self, KeyStatus};
use towpath_store::sealing::{Keys, Sealer};
use towpath_workflows::reseal_secrets;

use crate::fixture::{Database, WorkflowFixture, on_both_databases};

on_both_databases! {
    every_secret_comes_under_the_first_key,
    what_no_key_opens_keeps_the_former_key,
}

fn sealer(fills: &[u8]) -> Sealer {
    let keys: Vec<String> = fills.iter().map(|fill| format!("{fill:02x}").repeat(32)).collect();
    Sealer::new(Keys::parse(&keys.join(",")).unwrap())
}

fn id(fill: u8) -> String {
    sealer(&[fill]).key_ids().concat()
}

impl WorkflowFixture {
    async fn stands(&self, fills: &[u8]) -> KeyStatus {
        let sealer = sealer(fills);
        let compared = self.store().write(async |tx| sealed::ensure(tx, &sealer).await);
        compared.await.unwrap()
    }

    async fn keys_in_use(&self) -> Vec<String> {
        let counts = self.store().read(async |tx| sealed::counts(tx).await).await.unwrap();
        counts.into_iter().map(|count| count.key).collect()
    }

    /// Starts the job and returns its result.
    async fn reseal(&self) -> String {
        let started = self.store().write(async |tx| reseal_secrets::start(tx).await);
        started.await.unwrap();
        let job = self.until("reseal_secrets").await;
        self.perform(job).await;
        self.jobs().await
    }
}

async fn every_secret_comes_under_the_first_key(on: Database) {
    let mut fixture = WorkflowFixture::empty_on(&on, 1).await;
    // More than the fixture's own one.
    let config = fixture.s3.config("p/more");
    let added = fixture.add_destination(DestinationKind::S3, &config).await;
    assert_eq!(fixture.stands(&[1]).await, KeyStatus::Known);
    fixture.world.sealer = sealer(&[2, 1]);
    fixture.reseal().await;
    assert_eq!(fixture.keys_in_use().await, [id(2)]);
    assert_eq!(
        fixture.stands(&[2]).await,
        KeyStatus::Known,
        "the former key is not needed"
    );
    assert_eq!(fixture.stands(&[1]).await, KeyStatus::Unknown { key: id(2) });
    let read = fixture
        .store()
        .read(async |tx| destinations::get(tx, fixture.tenant, added).await);
    let opened = read.await.unwrap().credentials(&sealer(&[2])).unwrap();
    assert!(opened.is_some(), "it opens in its place");
}

async fn what_no_key_opens_keeps_the_former_key(on: Database) {
    let mut fixture = WorkflowFixture::empty_on(&on, 1).await;
    assert_eq!(fixture.stands(&[1]).await, KeyStatus::Known);
    let config = fixture.s3.config("p/more");
    fixture.world.sealer = sealer(&[3]);
    fixture.add_destination(DestinationKind::S3, &config).await;
    fixture.world.sealer = sealer(&[2, 1]);
    let jobs = fixture.reseal().await;
    let mut keys = fixture.keys_in_use().await;
    keys.sort();
    let mut expected = [id(2), id(3)];
    expected.sort();
    assert_eq!(keys, expected, "{jobs}");
    assert_eq!(fixture.stands(&[1]).await, KeyStatus::Known);
}
