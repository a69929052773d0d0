//! Lists of rows in one statement: the same result as a statement for each row.

use std::collections::BTreeSet;
use std::time::Duration;

use towpath_domain::{TenantId, Timestamp, TraceRunId};
use towpath_store::feedback::waste::{self, Position};
use towpath_store::feedback::{self, Attachment, Feedback};
use towpath_store::pending_patches::{self, Bounds, PendingPatch, Usage};
use towpath_store::{Store, on};
use uuid::Uuid;

use crate::database::Database;

/// Texts that JSON escapes, and one that reads like an escape.
const TEXTS: [&str; 6] = [
    "plain",
    "quotes \" and \\ and \u{1}",
    "{\"comment\": \"\\ud83d\", \"n\": 1e999}",
    "\u{10ffff} é 水路",
    "",
    "{\"feedback_source\": {\"type\": \"app\"}}",
];

const EPOCH: Timestamp = Timestamp::from_micros(0);

fn run(number: u128) -> TraceRunId {
    TraceRunId(Uuid::from_u128(number))
}

fn given(tenant: TenantId, id: u128, seq: i64, body: &str) -> Feedback {
    Feedback {
        tenant_id: tenant,
        id: Uuid::from_u128(id),
        run_id: (!id.is_multiple_of(3)).then(|| run(id)),
        key: format!("key {seq}"),
        body: body.to_owned(),
        seq,
        created_at: EPOCH,
        modified_at: None,
        deleted: false,
    }
}

fn file(tenant: TenantId, owner: u128, seq: i64, text: &str) -> Attachment {
    Attachment {
        tenant_id: tenant,
        run_id: run(owner),
        name: text.to_owned(),
        content_type: format!("text/{text}"),
        path: format!("attachments/{owner}/{seq}"),
        bytes: seq * 1000,
        seq,
        created_at: EPOCH,
    }
}

fn patch(tenant: TenantId, owner: u128, seq: i64, operation: &str) -> PendingPatch {
    PendingPatch {
        tenant_id: tenant,
        run_id: run(owner),
        seq,
        operation: operation.to_owned(),
        created_at: EPOCH,
    }
}

/// Two workspaces: into the one rows go one by one, into the other by lists.
struct TenantPair {
    store: Store,
    single: TenantId,
    listed: TenantId,
    _database: Database,
}

impl TenantPair {
    async fn new(database: Database) -> Self {
        let store = database.store.clone();
        store.migrate().await.unwrap();
        Self {
            store,
            single: TenantId::new(),
            listed: TenantId::new(),
            _database: database,
        }
    }

    async fn feedback(&self, tenant: TenantId) -> Vec<Feedback> {
        let mut rows: Vec<Feedback> = self
            .store
            .read(async |tx| {
                Ok(on!(tx, |conn| sqlx::query_as(
                    "SELECT * FROM feedback WHERE tenant_id = $1 ORDER BY id"
                )
                .bind(tenant)
                .fetch_all(conn)
                .await)?)
            })
            .await
            .unwrap();
        for row in &mut rows {
            (row.tenant_id, row.created_at) = (TenantId::nil(), EPOCH);
        }
        rows
    }

    async fn attachments(&self, tenant: TenantId) -> Vec<Attachment> {
        let mut rows: Vec<Attachment> = self
            .store
            .read(async |tx| {
                Ok(on!(tx, |conn| sqlx::query_as(
                    "SELECT * FROM attachment WHERE tenant_id = $1 ORDER BY run_id, seq"
                )
                .bind(tenant)
                .fetch_all(conn)
                .await)?)
            })
            .await
            .unwrap();
        for row in &mut rows {
            (row.tenant_id, row.created_at) = (TenantId::nil(), EPOCH);
        }
        rows
    }

    async fn patches(&self, tenant: TenantId) -> Vec<PendingPatch> {
        let mut rows: Vec<PendingPatch> = self
            .store
            .read(async |tx| {
                Ok(on!(tx, |conn| sqlx::query_as(
                    "SELECT * FROM pending_patch WHERE tenant_id = $1 ORDER BY run_id, seq"
                )
                .bind(tenant)
                .fetch_all(conn)
                .await)?)
            })
            .await
            .unwrap();
        for row in &mut rows {
            (row.tenant_id, row.created_at) = (TenantId::nil(), EPOCH);
        }
        rows
    }

    async fn sources(&self, tenant: TenantId) -> usize {
        let wanted = feedback::Filter {
            sources: vec!["app".to_owned()],
            ..feedback::Filter::default()
        };
        let found = self
            .store
            .read(async |tx| feedback::list(tx, tenant, &wanted, 10_000, 0).await);
        found.await.unwrap().len()
    }
}

/// Numbers that look accidental and are the same in every run.
fn numbers(count: u64) -> impl Iterator<Item = u64> {
    (1..=count).scan(88_172_645_463_325_252_u64, |state, _| {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        Some(*state)
    })
}

async fn feedback_of_lists(twins: TenantPair) {
    for round in 0..3 {
        // Ids come again within a list and in the next one, later and earlier.
        let rows: Vec<(u128, i64, &str)> = numbers(2_500)
            .skip(round * 50)
            .map(|number| {
                let seq = i64::try_from(number % 1_000_000).unwrap();
                (u128::from(number >> 20) % 900, seq, TEXTS[(number % 6) as usize])
            })
            .collect();
        let of = |tenant| -> Vec<Feedback> {
            let rows = rows.iter();
            rows.map(|&(id, seq, body)| given(tenant, id, seq, body)).collect()
        };
        let (single, listed) = (of(twins.single), of(twins.listed));
        let written = twins.store.write(async |tx| {
            for row in &single {
                feedback::put(tx, row).await?;
            }
            feedback::put_all(tx, &listed).await
        });
        written.await.unwrap();
        let (single, listed) = (twins.feedback(twins.single).await, twins.feedback(twins.listed).await);
        assert_eq!(single, listed);
        assert!(single.len() > 700, "{}", single.len());
    }
    assert!(twins.sources(twins.single).await > 0);
    assert_eq!(twins.sources(twins.single).await, twins.sources(twins.listed).await);
    // What was changed or taken back by hand is replaced by what was accepted later, and by nothing else.
    let changed = Feedback {
        deleted: true,
        ..given(twins.listed, 5, 2_000_000, "{}")
    };
    let again = [given(twins.listed, 5, 2_000_000, "{\"again\": 1}")];
    let written = twins.store.write(async |tx| {
        feedback::change(tx, &changed).await?;
        feedback::put_all(tx, &again).await
    });
    written.await.unwrap();
    let found = twins
        .store
        .read(async |tx| feedback::find(tx, twins.listed, again[0].id).await)
        .await
        .unwrap()
        .unwrap();
    assert!(found.deleted && found.body == "{}", "{found:?}");
    let later = [given(twins.listed, 5, 2_000_001, "{\"later\": 1}")];
    let found = twins
        .store
        .write(async |tx| {
            feedback::put_all(tx, &later).await?;
            feedback::find(tx, twins.listed, later[0].id).await
        })
        .await
        .unwrap()
        .unwrap();
    assert!(!found.deleted && found.modified_at.is_none(), "{found:?}");
    assert_eq!(found.body, "{\"later\": 1}");
}

async fn attachments_of_lists(twins: TenantPair) {
    let rows: Vec<(u128, i64, &str)> = numbers(3_000)
        .map(|number| {
            let seq = i64::try_from(number % 1_000_000).unwrap();
            (u128::from(number >> 20) % 200, seq, TEXTS[(number % 6) as usize])
        })
        .collect();
    for rows in rows.chunks(1_500) {
        let of = |tenant| -> Vec<Attachment> {
            let rows = rows.iter();
            rows.map(|&(owner, seq, name)| file(tenant, owner, seq, name)).collect()
        };
        let (single, listed) = (of(twins.single), of(twins.listed));
        let written = twins.store.write(async |tx| {
            for row in &single {
                feedback::attach(tx, row).await?;
            }
            feedback::attach_all(tx, &listed).await
        });
        written.await.unwrap();
        let rows = twins.attachments(twins.single).await;
        assert!(rows.len() > 500, "{}", rows.len());
        assert_eq!(rows, twins.attachments(twins.listed).await);
    }
}

async fn patches_of_lists(twins: TenantPair) {
    // One that is bound by itself, among those that are not.
    let large = format!("\"{}\"", "large ".repeat(300_000));
    let mut rows: Vec<(u128, i64, &str)> = numbers(2_500)
        .map(|number| {
            let seq = i64::try_from(number % 1_000).unwrap();
            (u128::from(number >> 20) % 20, seq, TEXTS[seq as usize % 6])
        })
        .collect();
    rows[3].2 = &large;
    let of = |tenant| -> Vec<PendingPatch> {
        let rows = rows.iter();
        rows.map(|&(owner, seq, text)| patch(tenant, owner, seq, text))
            .collect()
    };
    let (mut single, mut listed) = (of(twins.single), of(twins.listed));
    // Where one comes twice, which of the two stays is not said; only one of each here.
    for rows in [&mut single, &mut listed] {
        rows.sort_by_key(|row| (row.run_id, row.seq, row.operation.clone()));
        rows.dedup_by_key(|row| (row.run_id, row.seq));
    }
    let written = twins.store.write(async |tx| {
        for row in &single {
            pending_patches::put(tx, row.tenant_id, row.run_id, row.seq, &row.operation).await?;
        }
        pending_patches::put_all(tx, &listed).await?;
        // A fold may be repeated.
        pending_patches::put_all(tx, &listed).await
    });
    written.await.unwrap();
    let rows = twins.patches(twins.single).await;
    assert_eq!(rows.len(), single.len());
    assert_eq!(rows, twins.patches(twins.listed).await);

    // Those of every other are removed, and some that are not there; each is one of run and seq together.
    let half = |rows: &[PendingPatch]| -> Vec<(TenantId, TraceRunId, i64)> {
        let rows = rows.iter().step_by(2);
        let keys = rows.map(|row| (row.tenant_id, row.run_id, row.seq));
        keys.chain([(TenantId::new(), run(1), 1)]).collect()
    };
    let (first, second) = (half(&single), half(&listed));
    let removed = twins
        .store
        .write(async |tx| {
            for &(tenant, run, seq) in &first {
                pending_patches::remove(tx, tenant, run, seq).await?;
            }
            pending_patches::remove_all(tx, &second).await
        })
        .await
        .unwrap();
    assert_eq!(removed, second.len() as u64 - 1);
    let rows = twins.patches(twins.single).await;
    assert_eq!(rows.len(), single.len() / 2);
    assert_eq!(rows, twins.patches(twins.listed).await);
}

/// However much waits for some runs, it is read a page at a time.
async fn what_waits_is_read_in_pages(twins: TenantPair) {
    let tenant = twins.listed;
    let sizes = [10, 20, 30, 500, 40];
    let mut put: Vec<PendingPatch> = sizes
        .iter()
        .zip(0_i64..)
        .map(|(size, seq)| patch(tenant, 1 + seq.unsigned_abs() as u128 % 2, seq, &"x".repeat(*size)))
        .collect();
    put.push(patch(tenant, 9, 9, "of another run"));
    put.push(patch(twins.single, 1, 1, "of another workspace"));
    twins
        .store
        .write(async |tx| pending_patches::put_all(tx, &put).await)
        .await
        .unwrap();
    let waiting = twins
        .store
        .read(async |tx| pending_patches::for_runs(tx, tenant, &[run(1), run(2), run(3)]).await)
        .await
        .unwrap();
    let listed: Vec<_> = waiting.iter().map(|patch| (patch.seq, patch.bytes)).collect();
    assert_eq!(listed, [(0, 10), (1, 20), (2, 30), (3, 500), (4, 40)]);
    let pages: Vec<_> = pending_patches::pages(&waiting, 60).collect();
    assert_eq!(pages.iter().map(|page| page.len()).collect::<Vec<_>>(), [3, 1, 1]);
    let page = twins
        .store
        .read(async |tx| {
            let first = pages[0];
            pending_patches::read(tx, tenant, &[first[0], first[2], pages[2][0]]).await
        })
        .await
        .unwrap();
    let mut read: Vec<_> = page
        .iter()
        .map(|patch| (patch.run_id, patch.seq, patch.operation.len()))
        .collect();
    read.sort_unstable_by_key(|(_, seq, _)| *seq);
    assert_eq!(read, [(run(1), 0, 10), (run(1), 2, 30), (run(1), 4, 40)]);
    assert_eq!(pending_patches::pages(&[], 60).count(), 0);
}

/// What waits is counted the caller that adds and removes it, and of too much the oldest goes.
async fn usage_is_counted_and_bounded(twins: TenantPair) {
    let usage = async |tenant: TenantId| {
        let usage = twins.store.read(async |tx| pending_patches::usage(tx, tenant).await);
        usage.await.unwrap()
    };
    assert_eq!(usage(twins.single).await, Usage::default());
    let of = |tenant: TenantId, count: u128| -> Vec<PendingPatch> {
        // Accepted in another order than they are stored in.
        let numbers = (0..count).map(|number| number * 7919 % count);
        numbers
            .map(|number| {
                let seq = i64::try_from(number).unwrap();
                patch(tenant, number % 300, seq, &"é".repeat(number as usize % 50))
            })
            .collect()
    };
    let (single, listed) = (of(twins.single, 100), of(twins.listed, 3_000));
    let written = twins.store.write(async |tx| {
        for row in &single {
            pending_patches::put(tx, row.tenant_id, row.run_id, row.seq, &row.operation).await?;
        }
        pending_patches::put_all(tx, &listed).await?;
        pending_patches::put_all(tx, &listed).await?;
        pending_patches::remove(tx, twins.single, run(3), 3).await
    });
    written.await.unwrap();
    let weigh = |rows: &[PendingPatch]| Usage {
        patches: i64::try_from(rows.len()).unwrap(),
        bytes: rows.iter().map(|row| i64::try_from(row.operation.len()).unwrap()).sum(),
    };
    let kept = twins.patches(twins.single).await;
    assert_eq!(kept.len(), 99);
    assert_eq!(usage(twins.single).await, weigh(&kept));
    assert_eq!(usage(twins.listed).await, weigh(&listed));

    let bounds = |patches, bytes| Bounds { patches, bytes };
    let over = async |bounds| {
        let over = twins
            .store
            .read(async |tx| pending_patches::tenants_over_bounds(tx, bounds, 10).await);
        over.await.unwrap()
    };
    let trim = async |bounds| {
        let tenants = [twins.single, twins.listed, TenantId::new()];
        let trimmed = twins
            .store
            .write(async |tx| pending_patches::trim(tx, tenants, bounds).await);
        trimmed.await.unwrap()
    };
    let large = 1 << 40;
    assert_eq!(over(bounds(1_000, large)).await, [twins.listed]);
    assert_eq!(trim(bounds(3_000, large)).await, []);
    let dropped = trim(bounds(1_000, large)).await;
    assert_eq!(dropped.len(), 1);
    assert_eq!((dropped[0].tenant_id, dropped[0].usage.patches), (twins.listed, 2_000));
    let left = twins.patches(twins.listed).await;
    assert!(left.iter().all(|row| row.seq >= 2_000), "the oldest went");
    assert_eq!((usage(twins.listed).await, weigh(&left).patches), (weigh(&left), 1_000));
    // As few as it takes.
    let before = weigh(&left);
    let dropped = trim(bounds(large, before.bytes - 1)).await;
    let by_seq = left
        .iter()
        .filter(|row| !row.operation.is_empty())
        .map(|row| row.seq)
        .min();
    let dropped = dropped
        .iter()
        .find(|dropped| dropped.tenant_id == twins.listed)
        .unwrap();
    assert_eq!(dropped.usage.patches, by_seq.unwrap() - 2_000 + 1);
    assert_eq!(twins.patches(twins.single).await.len(), 99);
    assert_eq!(trim(bounds(0, 0)).await.len(), 2);
    assert_eq!(
        (usage(twins.single).await, usage(twins.listed).await),
        (Usage::default(), Usage::default())
    );
    assert_eq!(over(bounds(0, 0)).await, []);
}

/// Whatever order files of one name are stored in, exactly the objects that no row names are waste.
async fn replaced_files_are_waste(twins: TenantPair) {
    let tenant = twins.listed;
    let files: Vec<Attachment> = numbers(400)
        .enumerate()
        .map(|(seq, number)| {
            let mut file = file(tenant, u128::from(number) % 10, seq as i64, TEXTS[number as usize % 3]);
            file.path = format!("attachments/{}/{seq}", number % 10);
            file
        })
        .collect();
    let mut shuffled = files.clone();
    shuffled.sort_by_key(|file| file.seq * 7919 % 401);
    for files in shuffled.chunks(70) {
        let stored = twins.store.write(async |tx| {
            feedback::attach_all(tx, files).await?;
            // A fold may be repeated.
            feedback::attach_all(tx, files).await
        });
        stored.await.unwrap();
    }
    let later = twins.store.clock().now().plus(Duration::from_secs(1));
    let waste = async || {
        let waste = twins.store.read(async |tx| waste::before(tx, later, 1_000).await);
        let waste = waste.await.unwrap();
        assert!(waste.iter().all(|waste| !waste.named));
        waste.into_iter().map(|waste| waste.path).collect::<BTreeSet<_>>()
    };
    let rows = twins.attachments(tenant).await;
    let named: BTreeSet<String> = rows.iter().map(|row| row.path.clone()).collect();
    let all: BTreeSet<String> = files.iter().map(|file| file.path.clone()).collect();
    assert_eq!(rows.len(), 30);
    assert_eq!(waste().await, all.difference(&named).cloned().collect());

    // Only what is still the file that was looked at is forgotten.
    let (mut seen, again) = (rows.clone(), file(tenant, 0, 1_000, &rows[0].name));
    let again = Attachment {
        run_id: rows[0].run_id,
        ..again
    };
    seen.iter_mut().for_each(|row| row.tenant_id = tenant);
    let forgotten = twins
        .store
        .write(async |tx| {
            feedback::attach(tx, &again).await?;
            feedback::detach(tx, tenant, &seen).await
        })
        .await
        .unwrap();
    assert_eq!(forgotten, 29);
    let left = twins.attachments(tenant).await;
    assert_eq!((left.len(), left[0].path.as_str()), (1, again.path.as_str()));
    assert_eq!(waste().await, all);

    // Those that cannot be removed are behind the others.
    let paths: Vec<&str> = all.iter().map(String::as_str).collect();
    let (stuck, gone) = paths.split_at(10);
    let told = twins.store.write(async |tx| {
        waste::forget(tx, &gone[1..]).await?;
        waste::postpone(tx, stuck).await?;
        waste::before(tx, later, 1).await
    });
    assert_eq!(told.await.unwrap()[0].path, gone[0]);
    assert_eq!(waste().await.len(), 11);
}

/// A walk meets each attachment once, also where many were stored at the same moment.
async fn a_walk_meets_every_file(twins: TenantPair) {
    let files: Vec<Attachment> = (0..250)
        .map(|number| {
            let tenant = [twins.single, twins.listed][number as usize % 2];
            file(tenant, number, number as i64, TEXTS[number as usize % 3])
        })
        .collect();
    let stored = twins.store.write(async |tx| feedback::attach_all(tx, &files).await);
    stored.await.unwrap();
    let now = twins.store.clock().now();
    let (mut seen, mut position) = (Vec::new(), Position::start());
    loop {
        // As it is kept between two sweeps.
        position = serde_json::from_str(&serde_json::to_string(&position).unwrap()).unwrap();
        let later = now.plus(Duration::from_secs(1));
        let step = twins.store.read(async |tx| waste::walk(tx, &position, later, 60).await);
        let step = step.await.unwrap();
        let Some(last) = step.last() else { break };
        position = Position::of(last);
        seen.extend(step.into_iter().map(|file| file.path));
    }
    let expected: BTreeSet<_> = files.iter().map(|file| file.path.clone()).collect();
    assert_eq!(seen.len(), 250);
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), expected);
    let early = now.minus(Duration::from_secs(60));
    let step = twins
        .store
        .read(async |tx| waste::walk(tx, &Position::start(), early, 60).await);
    assert_eq!(step.await.unwrap(), [], "they are too young");
}

/// A list that PostgreSQL refused would stop every fold.
async fn lists_hold_any_text(twins: TenantPair) {
    let mut row = given(twins.listed, 1, 1, "a\0b");
    row.key = "k\0".to_owned();
    let mut file = file(twins.listed, 1, 1, "a\0b");
    file.content_type = "text/\0".to_owned();
    let written = twins.store.write(async |tx| {
        feedback::put_all(tx, std::slice::from_ref(&row)).await?;
        feedback::attach_all(tx, std::slice::from_ref(&file)).await?;
        feedback::put_all(tx, &[]).await?;
        feedback::attach_all(tx, &[]).await?;
        pending_patches::put_all(tx, &[]).await?;
        pending_patches::remove_all(tx, &[]).await
    });
    assert_eq!(written.await.unwrap(), 0);
    let found = &twins.feedback(twins.listed).await[0];
    assert_eq!((found.key.as_str(), found.body.as_str()), ("k\u{fffd}", "a\u{fffd}b"));
    let found = &twins.attachments(twins.listed).await[0];
    assert_eq!(
        (found.name.as_str(), found.content_type.as_str()),
        ("a\u{fffd}b", "text/\u{fffd}")
    );
}

macro_rules! on_both {
    ($($name:ident),+ $(,)?) => {
        mod sqlite {
            $(#[tokio::test]
            async fn $name() {
                super::$name(super::TenantPair::new(super::Database::sqlite().await).await).await;
            })+
        }
        mod postgres {
            $(#[tokio::test]
            async fn $name() {
                if let Some(database) = super::Database::postgres().await {
                    super::$name(super::TenantPair::new(database).await).await;
                }
            })+
        }
    };
}

on_both! {
    feedback_of_lists,
    attachments_of_lists,
    patches_of_lists,
    lists_hold_any_text,
    what_waits_is_read_in_pages,
    usage_is_counted_and_bounded,
    replaced_files_are_waste,
    a_walk_meets_every_file,
}
