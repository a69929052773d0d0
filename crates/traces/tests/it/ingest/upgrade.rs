//! What an earlier build has acknowledged and not flushed is flushed by this one.

use sqlx::migrate::Migrator;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection as _, PgConnection, SqliteConnection};
use towpath_domain::{ProjectId, TenantId, TraceRunId, WalSegmentId};
use towpath_store::projects::{self, ProjectChange};
use towpath_store::{on, wal_segments};
use towpath_testing::Database;
use towpath_traces::accept::{AcceptedRequest, Route};
use towpath_traces::sample::Cell;
use towpath_traces::wal::{self, frame};

use super::world::{World, column, sent_by};

static SQLITE: Migrator = sqlx::migrate!("../store/migrations/sqlite");
static POSTGRES: Migrator = sqlx::migrate!("../store/migrations/postgres");

/// A world with the schema of the first release.
async fn of_the_first_release(database: Database) -> World {
    match database.uri.strip_prefix("sqlite://") {
        Some(file) => {
            let options = SqliteConnectOptions::new().filename(file).create_if_missing(true);
            let mut conn = SqliteConnection::connect_with(&options).await.unwrap();
            SQLITE.run_to(1, &mut conn).await.unwrap();
            conn.close().await.unwrap();
        }
        None => {
            let mut conn = database.connect().await;
            POSTGRES.run_to(1, &mut conn).await.unwrap();
            PgConnection::close(conn).await.unwrap();
        }
    }
    World::empty(database).await
}

/// Registers one object as the first release did.
async fn register(world: &World, frames: &[AcceptedRequest], touches: &[(TenantId, ProjectId)]) {
    let id = WalSegmentId::new();
    let path = wal::object_path(id);
    let pieces = frame::write(frames.iter().map(|accepted| &accepted.frame));
    let bytes: i64 = pieces.iter().map(|piece| piece.len() as i64).sum();
    world.objects.put(&path, pieces).await.unwrap();
    let registered = world.store.write(async |tx| {
        let now = tx.now();
        on!(tx, |conn| sqlx::query(
            "INSERT INTO wal_unit (id, path, bytes, operations, state, created_at) VALUES ($1, $2, $3, 1, 'open', $4)"
        )
        .bind(id)
        .bind(path.as_ref())
        .bind(bytes)
        .bind(now)
        .execute(conn)
        .await
        .map(drop))?;
        for (tenant, project) in touches {
            on!(tx, |conn| sqlx::query(
                "INSERT INTO wal_unit_project (unit_id, tenant_id, project_id) VALUES ($1, $2, $3)"
            )
            .bind(id)
            .bind(tenant)
            .bind(project)
            .execute(conn)
            .await
            .map(drop))?;
        }
        Ok(())
    });
    registered.await.unwrap();
}

async fn open_units_of_two_workspaces_are_folded_once(database: Database) {
    let world = of_the_first_release(database).await;
    let other = TenantId::new();
    let (canal, harbour) = (
        world.project_of(world.tenant, "canal").await,
        world.project_of(other, "harbour").await,
    );
    let (mine, theirs) = (TraceRunId::new(), TraceRunId::new());
    let post = |id: TraceRunId, name: &str, project: &str| {
        let body = format!(
            r#"{{"id":"{id}","name":"{name}","start_time":"2026-03-01T10:00:00Z","session_name":"{project}"}}"#
        );
        world.accept_json(Route::Run, &body)
    };
    let patch = |id: TraceRunId, name: &str| world.accept_json(Route::Patch(id), &format!(r#"{{"name":"{name}"}}"#));
    let of_other = |accepted| sent_by(other, accepted);
    // One object, in which both took turns; then one with what was said later of each.
    let first = [
        of_other(post(theirs, "their first", "harbour")),
        post(mine, "my first", "canal"),
        of_other(patch(theirs, "their second")),
        patch(mine, "my second"),
    ];
    let nil = ProjectId::nil();
    register(
        &world,
        &first,
        &[
            (world.tenant, canal),
            (world.tenant, nil),
            (other, harbour),
            (other, nil),
        ],
    )
    .await;
    let second = [patch(mine, "my third"), of_other(patch(theirs, "their third"))];
    register(&world, &second, &[(world.tenant, nil), (other, nil)]).await;

    world.store.migrate().await.unwrap();
    // Names are those of the day of the migration.
    let change = ProjectChange {
        name: Some("basin".to_owned()),
        ..ProjectChange::default()
    };
    let renamed = world
        .store
        .write(async |tx| projects::update(tx, other, harbour, &change).await);
    renamed.await.unwrap();
    // One more, of this build.
    world.unit(&[patch(mine, "my fourth")]).await;
    let open = world
        .store
        .read(async |tx| {
            Ok([
                wal_segments::open_of(tx, world.tenant).await?.len(),
                wal_segments::open_of(tx, other).await?.len(),
            ])
        })
        .await
        .unwrap();
    assert_eq!(open, [3, 2]);
    let folded = world.fold().await;
    assert_eq!((folded.wal_segments.len(), folded.operations), (5, 7), "each once");
    assert_eq!((folded.pending_operations.len(), folded.quarantined.len()), (0, 0));
    assert_eq!(world.open_units().await, 0);
    for (tenant, project, name) in [(world.tenant, canal, "my fourth"), (other, harbour, "their third")] {
        let rows = world.rows_of(tenant, project).await;
        let names: Vec<Cell> = rows
            .into_iter()
            .map(|mut row| row.swap_remove(column("name")))
            .collect();
        assert_eq!(names, [name.into()]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_units_of_two_workspaces_are_folded_once_on_sqlite() {
    open_units_of_two_workspaces_are_folded_once(Database::empty_sqlite()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_units_of_two_workspaces_are_folded_once_on_postgres() {
    if let Some(database) = Database::empty_postgres().await {
        open_units_of_two_workspaces_are_folded_once(database).await;
    }
}
