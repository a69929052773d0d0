//! The tables under all this.

use towpath_domain::{JobId, Shard, Timestamp};
use towpath_store::projects::{self, NewProject};
use towpath_store::{Error, segments, wal_segments};
use towpath_traces::body::Encoding;
use towpath_traces::sample::SampleOperations;
use uuid::Uuid;

use super::world::{ALL, DAY, World, on_both_databases, sample};

on_both_databases!(
    a_pin_keeps_what_it_saw,
    an_abandoned_intent_cannot_be_published,
    units_are_taken_in_order_and_within_bytes,
    projects_by_name_and_id,
);

async fn a_pin_keeps_what_it_saw(world: World) {
    let sample = sample(21);
    world
        .unit(&[world.accept(&sample.body(0..30, SampleOperations::Both, Encoding::Identity))])
        .await;
    world.fold().await;
    let project = world.project("canal").await;
    let (holder, last) = (Uuid::now_v7(), DAY + chrono::Days::new(2));
    let pin = async || {
        world
            .store
            .write(async |tx| segments::pin(tx, world.tenant, project, DAY, last, holder).await)
            .await
            .unwrap()
    };
    let first = pin().await;
    assert_eq!(first.iter().map(|part| part.part.rows).sum::<i64>(), 30);
    world
        .unit(&[world.accept(&sample.body(30..40, SampleOperations::Both, Encoding::Identity))])
        .await;
    world.fold().await;
    assert_eq!(pin().await, first);
    let live = world
        .store
        .read(async |tx| segments::live_parts(tx, world.tenant, project, DAY, last).await)
        .await
        .unwrap();
    assert!(live.len() > first.len());
    assert_eq!(
        world
            .store
            .write(async |tx| segments::unpin(tx, holder).await)
            .await
            .unwrap(),
        1
    );
    assert_eq!(pin().await, live);
    let elsewhere = world
        .store
        .write(async |tx| segments::pin(tx, towpath_domain::TenantId::new(), project, DAY, last, Uuid::now_v7()).await)
        .await
        .unwrap();
    assert!(elsewhere.is_empty());
}

async fn an_abandoned_intent_cannot_be_published(world: World) {
    let id = towpath_domain::SegmentId::new();
    let far_ahead = Timestamp::parse("2200-01-01").unwrap();
    let done = world
        .store
        .write(async |tx| {
            segments::intend(tx, world.tenant, id, "segments/x", Some(JobId::new())).await?;
            assert!(segments::abandon(tx, Timestamp::from_micros(0), 10).await?.is_empty());
            assert_eq!(segments::abandon(tx, far_ahead, 10).await?.len(), 1);
            assert!(matches!(
                segments::publish(tx, world.tenant, id, 1, 1, &[]).await,
                Err(Error::Stale)
            ));
            assert!(segments::deleting(tx, Timestamp::from_micros(0), 10).await?.is_empty());
            assert_eq!(segments::deleting(tx, far_ahead, 10).await?.len(), 1);
            segments::forget(tx, world.tenant, id).await?;
            segments::deleting(tx, far_ahead, 10).await
        })
        .await
        .unwrap();
    assert!(done.is_empty());
}

async fn units_are_taken_in_order_and_within_bytes(world: World) {
    let sample = sample(22);
    let body = world.accept(&sample.body(0..5, SampleOperations::Both, Encoding::Identity));
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(world.unit(std::slice::from_ref(&body)).await);
    }
    let job = JobId::new();
    world
        .store
        .write(async |tx| {
            let all = wal_segments::open(tx, i64::MAX).await?;
            assert_eq!(all.iter().map(|unit| unit.id).collect::<Vec<_>>(), ids);
            assert_eq!(wal_segments::open(tx, 1).await?.len(), 1);
            assert_eq!(wal_segments::open(tx, all[0].bytes * 2).await?.len(), 2);
            assert_eq!(wal_segments::backlog(tx).await?, (3, all[0].bytes * 3));
            assert_eq!(
                wal_segments::take(tx, job, Shard::of(world.tenant), ALL, &[])
                    .await?
                    .len(),
                3
            );
            assert_eq!(wal_segments::release(tx, job).await?, 3);
            wal_segments::mark_flushed(tx, job, &ids[..2]).await?;
            assert!(matches!(
                wal_segments::mark_flushed(tx, job, &ids[1..]).await,
                Err(Error::Stale)
            ));
            Ok(())
        })
        .await
        .unwrap();
}

async fn projects_by_name_and_id(world: World) {
    let named = |name: &str| NewProject {
        name: name.into(),
        description: Some("d".into()),
        ..NewProject::default()
    };
    world
        .store
        .write(async |tx| {
            let made = projects::create(tx, world.tenant, &named("canal")).await?;
            assert_eq!(projects::ensure(tx, world.tenant, "canal").await?, made.id);
            let taken = projects::create(tx, world.tenant, &named("canal")).await;
            assert!(matches!(taken, Err(Error::Conflict { column }) if column == "project.name"));
            let changed = projects::upsert(
                tx,
                world.tenant,
                &NewProject {
                    description: Some("e".into()),
                    ..named("canal")
                },
            )
            .await?;
            assert_eq!((changed.id, changed.description.as_deref()), (made.id, Some("e")));
            let same_id = projects::create(
                tx,
                world.tenant,
                &NewProject {
                    id: Some(made.id),
                    ..named("other")
                },
            )
            .await;
            assert!(matches!(same_id, Err(Error::Conflict { column }) if column == "project.id"));
            assert!(matches!(
                projects::create(tx, world.tenant, &named("a\0b")).await,
                Err(Error::Rejected(_))
            ));
            assert!(projects::by_name(tx, world.tenant, "a\0b").await?.is_none());
            projects::ensure(tx, world.tenant, "lock").await?;
            assert_eq!(
                projects::list(tx, world.tenant, &projects::Filter::default(), 10, 0)
                    .await?
                    .len(),
                2
            );
            let named = projects::Filter {
                name: Some("lock".to_owned()),
                ..projects::Filter::default()
            };
            assert_eq!(projects::list(tx, world.tenant, &named, 1, 0).await?.len(), 1);
            let stranger = towpath_domain::TenantId::new();
            assert!(matches!(
                projects::get(tx, stranger, made.id).await,
                Err(Error::NotFound)
            ));
            Ok(())
        })
        .await
        .unwrap();
}
