//! Secrets are sealed anew while one encryption key is replaced by another one.

use towpath_domain::export::DestinationKind;
use towpath_store::destinations;
use towpath_store::sealed::{self, Standing};
use towpath_store::sealing::{Keys, Sealer};
use towpath_workflows::reseal_secrets;

use crate::home::{Database, Home, on_both_databases};

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

impl Home {
    async fn stands(&self, fills: &[u8]) -> Standing {
        let sealer = sealer(fills);
        let compared = self.store().write(async |tx| sealed::ensure(tx, &sealer).await);
        compared.await.unwrap()
    }

    async fn keys_in_use(&self) -> Vec<String> {
        let counts = self.store().read(async |tx| sealed::counts(tx).await).await.unwrap();
        counts.into_iter().map(|count| count.key).collect()
    }

    /// Starts the job and answers how it ended.
    async fn reseal(&self) -> String {
        let started = self.store().write(async |tx| reseal_secrets::start(tx).await);
        started.await.unwrap();
        let job = self.until("reseal_secrets").await;
        self.perform(job).await;
        self.jobs().await
    }
}

async fn every_secret_comes_under_the_first_key(on: Database) {
    let mut home = Home::empty_on(&on, 1).await;
    // More than the one of the world itself.
    let config = home.s3.config("p/more");
    let added = home.add_destination(DestinationKind::S3, &config).await;
    assert_eq!(home.stands(&[1]).await, Standing::Known);
    home.world.sealer = sealer(&[2, 1]);
    home.reseal().await;
    assert_eq!(home.keys_in_use().await, [id(2)]);
    assert_eq!(home.stands(&[2]).await, Standing::Known, "the former key is not needed");
    assert_eq!(home.stands(&[1]).await, Standing::Unknown { key: id(2) });
    let read = home
        .store()
        .read(async |tx| destinations::get(tx, home.tenant, added).await);
    let opened = read.await.unwrap().credentials(&sealer(&[2])).unwrap();
    assert!(opened.is_some(), "it opens in its place");
}

async fn what_no_key_opens_keeps_the_former_key(on: Database) {
    let mut home = Home::empty_on(&on, 1).await;
    assert_eq!(home.stands(&[1]).await, Standing::Known);
    let config = home.s3.config("p/more");
    home.world.sealer = sealer(&[3]);
    home.add_destination(DestinationKind::S3, &config).await;
    home.world.sealer = sealer(&[2, 1]);
    let jobs = home.reseal().await;
    let mut keys = home.keys_in_use().await;
    keys.sort();
    let mut expected = [id(2), id(3)];
    expected.sort();
    assert_eq!(keys, expected, "{jobs}");
    assert_eq!(home.stands(&[1]).await, Standing::Known);
}
