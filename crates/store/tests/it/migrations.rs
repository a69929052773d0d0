//! The schema: one for both databases, frozen, and refused where another build made it.

mod filled;
mod raw;

use sqlx::SqlSafeStr as _;
use sqlx::migrate::{Migration, MigrationType, Migrator};
use towpath_store::{Error, migrations};

use self::raw::{Fresh, Raw};

static SQLITE: Migrator = sqlx::migrate!("migrations/sqlite");
static POSTGRES: Migrator = sqlx::migrate!("migrations/postgres");

/// Every pair: its name, and the SHA-384 of both files as `sha384sum` prints it.
const FROZEN: [(&str, &str, &str); 2] = [
    (
        "0001_schema",
        "c4db30111ae96418f211e34839f1381a5261911e2abfa72dac41ba95d3590445d75a798854843b8b9665375088877b90",
        "d29c2b5ff15427719ec9d7cb84d597dcc15d0ea93955c2a3007f9e3feb69d57c81b8bee156f4fc34377c2fc185645760",
    ),
    (
        "0005_project_key",
        "a20d22797e67209eeafcdd477a86d0eadc2132b38d1f7fc04eab87796ae0256a571dafd7062abe5c27367441586fdaae",
        "e0290b49edacdf8ae9289a14bdce51f4173f8dac6ef74de1921b16d018e757c88034306d58f16e39c8576fc70248410d",
    ),
];

#[test]
fn migrations_come_in_pairs_and_are_frozen() {
    let names = |migrator: &Migrator| -> Vec<String> {
        let names = migrator
            .iter()
            .map(|one| format!("{:04}_{}", one.version, one.description.replace(' ', "_")));
        names.collect()
    };
    let listed = FROZEN.map(|(name, ..)| name);
    assert_eq!(
        names(&SQLITE),
        listed,
        "migrations/sqlite: a pair has the same name in both folders and stands in FROZEN"
    );
    assert_eq!(
        names(&POSTGRES),
        listed,
        "migrations/postgres: a pair has the same name in both folders and stands in FROZEN"
    );
    for (migrator, folder) in [(&SQLITE, "sqlite"), (&POSTGRES, "postgres")] {
        for (one, (name, sqlite, postgres)) in migrator.iter().zip(FROZEN) {
            let expected = if folder == "sqlite" { sqlite } else { postgres };
            assert_eq!(
                hex::encode(&one.checksum),
                expected,
                "migrations/{folder}/{name}.sql was edited; databases that have it would be refused. Restore the file, \
                 comments too, and put the change into a new pair"
            );
        }
    }
}

/// What a table, its indexes and its foreign keys are, in words that are the same for both databases.
async fn catalog(raw: &mut Raw) -> Vec<String> {
    let columns = raw.ask(
        "SELECT t.name || '.' || c.name || ' ' || c.type
                || CASE WHEN c.\"notnull\" OR c.pk THEN ' NOT NULL' ELSE '' END
                || CASE WHEN c.dflt_value IS NULL THEN '' ELSE ' DEFAULT' END
         FROM sqlite_master t, pragma_table_info(t.name) c
         WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite~_%' ESCAPE '~' AND t.name <> '_sqlx_migrations'
         ORDER BY t.name, c.cid",
        "SELECT table_name || '.' || column_name || ' '
                || CASE data_type WHEN 'uuid' THEN 'BLOB' WHEN 'bytea' THEN 'BLOB' WHEN 'text' THEN 'TEXT' WHEN 'date' THEN 'TEXT'
                                  WHEN 'jsonb' THEN 'TEXT' WHEN 'double precision' THEN 'REAL' ELSE 'INTEGER' END
                || CASE is_nullable WHEN 'NO' THEN ' NOT NULL' ELSE '' END
                || CASE WHEN column_default IS NULL THEN '' ELSE ' DEFAULT' END
         FROM information_schema.columns WHERE table_schema = current_schema() AND table_name <> '_sqlx_migrations'
         ORDER BY table_name, ordinal_position",
    );
    let mut catalog = columns.await;
    let indexes = raw.ask(
        "SELECT tbl_name || ' has ' || name || CASE WHEN sql LIKE 'CREATE UNIQUE %' THEN ' UNIQUE' ELSE '' END
                || CASE WHEN sql LIKE '% WHERE %' THEN ' WHERE' ELSE '' END AS what
         FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL ORDER BY tbl_name, name",
        "SELECT t.relname || ' has ' || i.relname || CASE WHEN x.indisunique THEN ' UNIQUE' ELSE '' END
                || CASE WHEN x.indpred IS NULL THEN '' ELSE ' WHERE' END
         FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_class t ON t.oid = x.indrelid
         WHERE t.relnamespace = current_schema()::regnamespace
           AND NOT EXISTS (SELECT 1 FROM pg_constraint WHERE conindid = x.indexrelid) ORDER BY t.relname, i.relname",
    );
    catalog.extend(indexes.await);
    let keys = raw.ask(
        "SELECT DISTINCT t.name || ' names ' || k.\"table\" || ' ON DELETE ' || k.on_delete
         FROM sqlite_master t, pragma_foreign_key_list(t.name) k WHERE t.type = 'table' ORDER BY 1",
        "SELECT conrelid::regclass || ' names ' || confrelid::regclass || ' ON DELETE '
                || CASE confdeltype WHEN 'c' THEN 'CASCADE' ELSE 'NO ACTION' END COLLATE \"C\"
         FROM pg_constraint WHERE contype = 'f' AND connamespace = current_schema()::regnamespace ORDER BY 1",
    );
    catalog.extend(keys.await);
    catalog
}

#[tokio::test]
async fn both_databases_have_the_same_tables_and_columns() {
    let Some(postgres) = Fresh::postgres().await else {
        return;
    };
    let mut catalogs = Vec::new();
    for fresh in [Fresh::sqlite(), postgres] {
        let store = fresh.store().await;
        store.migrate().await.unwrap();
        catalogs.push(catalog(&mut fresh.raw().await).await);
        store.close().await;
    }
    for (sqlite, postgres) in catalogs[0].iter().zip(&catalogs[1]) {
        assert_eq!(sqlite, postgres, "SQLite has the left one, PostgreSQL the right one");
    }
    assert_eq!(catalogs[0].len(), catalogs[1].len());
    assert!(catalogs[0].len() > 400, "{}", catalogs[0].len());
}

/// Leaves what a build from before the first release does: other migrations under the same numbers, and more of them.
async fn older_build(fresh: &Fresh, migrations: i64) {
    let older = (1..=migrations).map(|version| {
        let text = format!("CREATE TABLE older_{version} (id INTEGER)");
        Migration::new(
            version,
            format!("older {version}").into(),
            MigrationType::Simple,
            sqlx::AssertSqlSafe(text).into_sql_str(),
            false,
        )
    });
    let older = Migrator::with_migrations(older.collect());
    fresh.raw().await.migrate(&older, migrations).await.unwrap();
}

/// Expects that `migrate` refuses, each time, and leaves the database as it is.
async fn refusal(fresh: &Fresh) -> Error {
    let before = fresh.raw().await.tables().await;
    let store = fresh.store().await;
    let first = store.migrate().await.unwrap_err().to_string();
    // Another process is not kept waiting by the first.
    let second = store.apart(1).unwrap().migrate().await.unwrap_err();
    assert_eq!(first, second.to_string());
    let seen = migrations::schema(&store).await.unwrap().check();
    assert_eq!(first, seen.unwrap_err().to_string());
    store.close().await;
    assert_eq!(fresh.raw().await.tables().await, before);
    assert_eq!(first.lines().count(), 1, "{first}");
    let name = fresh.uri.rsplit('/').next().unwrap();
    assert!(first.contains(name) && !first.contains('@'), "{first}");
    second
}

async fn an_older_build_is_refused(fresh: Fresh, migrations: i64) {
    older_build(&fresh, migrations).await;
    let refused = refusal(&fresh).await;
    assert!(matches!(refused, Error::OlderBuild { .. }), "{refused:?}");
    let text = refused.to_string();
    for part in [
        "older build",
        "cannot be carried over",
        "a new data folder or an empty database",
    ] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
}

async fn a_newer_build_is_refused(fresh: Fresh) {
    let store = fresh.store().await;
    store.migrate().await.unwrap();
    store.close().await;
    // Closed, it still holds the lock of its file.
    drop(store);
    let later = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
                 SELECT 9000, 'later', success, checksum, 0 FROM _sqlx_migrations WHERE version = 1";
    fresh.raw().await.execute(later).await;
    let refused = refusal(&fresh).await;
    assert!(
        matches!(refused, Error::NewerBuild { version: 9000, .. }),
        "{refused:?}"
    );
}

#[tokio::test]
async fn databases_of_other_builds_are_refused_on_sqlite() {
    an_older_build_is_refused(Fresh::sqlite(), 18).await;
    an_older_build_is_refused(Fresh::sqlite(), 1).await;
    a_newer_build_is_refused(Fresh::sqlite()).await;
}

#[tokio::test]
async fn databases_of_other_builds_are_refused_on_postgres() {
    for migrations in [18, 1] {
        if let Some(fresh) = Fresh::postgres().await {
            an_older_build_is_refused(fresh, migrations).await;
        }
    }
    if let Some(fresh) = Fresh::postgres().await {
        a_newer_build_is_refused(fresh).await;
    }
}
