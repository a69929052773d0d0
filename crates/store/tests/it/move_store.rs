//! The rows of a SQLite database, moved to PostgreSQL.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tokio::sync::Notify;
use towpath_store::move_store::{self, MoveError, MoveOptions, MoveReport, Progress, Stage};
use towpath_store::{Error, Options, Store};

use crate::migrations::filled::{self, ROWS};
use crate::migrations::{EmptyDatabase, RawConnection, SQLITE};

pub const LATER: &str = include_str!("move_store/later.sql");

/// Every row is a batch, so that there are many places to stop at.
const SMALL: MoveOptions = MoveOptions {
    rows: 1,
    bytes: 1024,
    replace_nul: false,
};

/// A source with rows in every table, and an empty target.
struct Databases {
    source: EmptyDatabase,
    target: EmptyDatabase,
}

impl Databases {
    /// `None` without a server.
    async fn new() -> Option<Self> {
        let target = EmptyDatabase::postgres().await?;
        let source = EmptyDatabase::sqlite();
        let mut raw = source.raw().await;
        raw.migrate(&SQLITE, 1).await.unwrap();
        raw.execute(filled::rows(ROWS, source.dialect)).await;
        let store = source.store().await;
        store.migrate().await.unwrap();
        store.close().await;
        raw.execute(filled::rows(LATER, source.dialect)).await;
        // The row with the last number is gone.
        raw.execute("UPDATE sqlite_sequence SET seq = 9 WHERE name = 'wal_unit'")
            .await;
        Some(Self { source, target })
    }

    fn file(&self) -> PathBuf {
        PathBuf::from(self.source.uri.trim_start_matches("sqlite://"))
    }

    fn marker(&self) -> PathBuf {
        self.file().with_extension("moved")
    }

    async fn run(&self, options: MoveOptions) -> Result<MoveReport, MoveError> {
        move_store::run(&self.file(), &self.target.uri, options, &mut |_| {}).await
    }

    /// Ends an attempt, as if its process were killed, after `turns` lines of progress that `is_turn` counts. `None` if
    /// it was ended.
    async fn stop_after(&self, turns: u32, is_turn: fn(Progress<'_>) -> bool) -> Option<Result<MoveReport, MoveError>> {
        let stop = Notify::new();
        let mut seen = 0;
        let mut observe = |progress: Progress<'_>| {
            if is_turn(progress) {
                seen += 1;
            }
            if seen == turns {
                stop.notify_one();
            }
        };
        let file = self.file();
        tokio::select! {
            biased;
            () = stop.notified() => None,
            moved = move_store::run(&file, &self.target.uri, SMALL, &mut observe) => Some(moved),
        }
    }
}

fn is_copying(progress: Progress<'_>) -> bool {
    matches!(
        progress,
        Progress::Table {
            stage: Stage::Copying,
            ..
        }
    )
}

fn is_batch(progress: Progress<'_>) -> bool {
    matches!(
        progress,
        Progress::Table {
            stage: Stage::Copying | Stage::Verifying,
            ..
        }
    )
}

fn is_verifying(progress: Progress<'_>) -> bool {
    matches!(progress, Progress::Begun(Stage::Verifying))
}

fn is_stage(progress: Progress<'_>) -> bool {
    matches!(progress, Progress::Begun(_))
}

/// Every row as text that is the same for both databases. JSON of `jsonb` columns and numbers with a fraction are left
/// to tests of their own.
async fn contents(source: &mut RawConnection, target: &mut RawConnection) -> [BTreeMap<String, Vec<String>>; 2] {
    let mut both = [BTreeMap::new(), BTreeMap::new()];
    for table in source.tables().await {
        let text = format!(
            "SELECT column_name::text || ' ' || udt_name::text FROM information_schema.columns
             WHERE table_schema = current_schema() AND table_name = '{table}' ORDER BY column_name"
        );
        let (mut sqlite, mut postgres) = (Vec::new(), Vec::new());
        for column in target.texts(text).await.unwrap() {
            let (name, kind) = column.split_once(' ').unwrap();
            let (left, right) = match kind {
                "uuid" => (
                    format!("lower(hex(\"{name}\"))"),
                    format!("replace(\"{name}\"::text, '-', '')"),
                ),
                "bytea" => (format!("lower(hex(\"{name}\"))"), format!("encode(\"{name}\", 'hex')")),
                "bool" => (format!("\"{name}\""), format!("\"{name}\"::int::text")),
                "timestamptz" => (
                    format!("\"{name}\""),
                    format!("(extract(epoch FROM \"{name}\") * 1000000)::bigint::text"),
                ),
                "jsonb" | "float8" => ("'?'".to_owned(), "'?'".to_owned()),
                _ => (format!("\"{name}\""), format!("\"{name}\"::text")),
            };
            // SQLite has no NULL as bytes in hexadecimal digits.
            sqlite.push(format!("CASE WHEN \"{name}\" IS NULL THEN '-' ELSE {left} END"));
            postgres.push(format!("CASE WHEN \"{name}\" IS NULL THEN '-' ELSE {right} END"));
        }
        let statement = |cells: Vec<String>| format!("SELECT '' || {} FROM \"{table}\"", cells.join(" || ',' || "));
        let rows = [
            source.texts(statement(sqlite)).await.unwrap(),
            target.texts(statement(postgres)).await.unwrap(),
        ];
        for (side, mut rows) in both.iter_mut().zip(rows) {
            rows.sort_unstable();
            side.insert(table.clone(), rows);
        }
    }
    both
}

/// The target has every row once, and is an ordinary database.
async fn assert_moved(databases: &Databases) {
    let (mut source, mut target) = (databases.source.raw().await, databases.target.raw().await);
    // They belong to processes of the source.
    source.execute("DELETE FROM deployment_keeper").await;
    source.execute("DELETE FROM sandbox_host").await;
    source.execute("DELETE FROM sandbox_node").await;
    let [expected, found] = contents(&mut source, &mut target).await;
    assert!(expected.len() > 80, "{}", expected.len());
    assert_eq!(found, expected);
    let broken = target
        .texts(
            "SELECT conname::text FROM pg_constraint WHERE NOT convalidated
             UNION ALL SELECT tgname::text FROM pg_trigger WHERE tgenabled = 'D'
             UNION ALL SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid",
        )
        .await
        .unwrap();
    assert_eq!(broken, Vec::<String>::new());
    let sqlite = "SELECT CAST(count(*) AS TEXT) FROM (SELECT DISTINCT t.name, k.id FROM sqlite_master t,
                  pragma_foreign_key_list(t.name) k WHERE t.type = 'table')";
    let postgres = "SELECT count(*)::text FROM pg_constraint WHERE contype = 'f'";
    assert_eq!(
        target.texts(postgres).await.unwrap(),
        source.texts(sqlite).await.unwrap()
    );
}

#[tokio::test]
async fn every_row_of_every_table_is_moved() {
    let Some(databases) = Databases::new().await else {
        return;
    };
    let mut raw = databases.source.raw().await;
    assert_eq!(
        filled::empty(&mut raw).await,
        Vec::<String>::new(),
        "move_store/later.sql has no values for these"
    );
    let report = databases.run(MoveOptions::default()).await.unwrap();
    assert!(!report.was_finished);
    let names: Vec<String> = report.tables.iter().map(|table| table.name.clone()).collect();
    assert_eq!(names, raw.tables().await, "a table was not moved");
    for table in &report.tables {
        assert!(table.rows > 0, "{}", table.name);
    }
    assert_eq!(report.assistant_workspaces.len(), 1);
    assert_moved(&databases).await;
    // The trigger was off while rows were copied, and works now.
    let mut target = databases.target.raw().await;
    let usage = "SELECT patches::text FROM pending_usage ORDER BY tenant_id";
    let before = target.texts(usage).await.unwrap();
    assert_eq!(
        before,
        raw.texts("SELECT CAST(patches AS TEXT) FROM pending_usage ORDER BY tenant_id")
            .await
            .unwrap()
    );
    target.execute("DELETE FROM pending_patch").await;
    assert_ne!(target.texts(usage).await.unwrap(), before);
    // Numbers go on behind the last one that was given out.
    let next = "SELECT nextval(pg_get_serial_sequence('wal_unit', 'seq'))::text";
    assert_eq!(target.texts(next).await.unwrap(), ["10"]);
    // A server uses it.
    let store = databases.target.store().await;
    store.migrate().await.unwrap();
    store.close().await;
    let again = databases.run(MoveOptions::default()).await.unwrap();
    assert!(again.was_finished);
    assert_eq!(again.tables, report.tables);
}

#[tokio::test]
async fn a_move_that_is_ended_again_and_again_has_every_row_once() {
    let Some(databases) = Databases::new().await else {
        return;
    };
    let mut attempts = 0;
    let report = loop {
        attempts += 1;
        // Before the check, before the copy, then after every seventh batch.
        let ended = if attempts < 3 {
            databases.stop_after(2, is_stage).await
        } else {
            databases.stop_after(7, is_batch).await
        };
        if let Some(moved) = ended {
            break moved.unwrap();
        }
        assert!(attempts < 1000, "it does not come to its end");
    };
    assert!(attempts > 10, "{attempts}");
    assert!(!report.tables.is_empty());
    assert_moved(&databases).await;
}

#[tokio::test]
async fn nothing_uses_either_database_in_the_meantime() {
    let Some(databases) = Databases::new().await else {
        return;
    };
    assert!(databases.stop_after(3, is_copying).await.is_none());
    let refused = |opened: towpath_store::Result<Store>| match opened {
        Err(Error::Open(why)) => why,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("a server started"),
    };
    let source = refused(Store::open(&databases.source.uri, Options::default()).await);
    assert!(
        source.contains("were moved to") && source.contains(".moved"),
        "{source}"
    );
    let target = databases.target.store().await;
    let why = target.migrate().await.unwrap_err().to_string();
    assert!(why.contains("repeat towpath migrate-store"), "{why}");
    target.close().await;
    databases.run(SMALL).await.unwrap();
    assert_moved(&databases).await;
    refused(Store::open(&databases.source.uri, Options::default()).await);
    // Removing the file is the way back.
    std::fs::remove_file(databases.marker()).unwrap();
    Store::open(&databases.source.uri, Options::default()).await.unwrap();
}

fn refusal(moved: Result<MoveReport, MoveError>) -> String {
    match moved {
        Err(MoveError::Refused(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn databases_that_are_not_of_this_move_are_refused() {
    let Some(databases) = Databases::new().await else {
        return;
    };
    // In use.
    let store = databases.source.store().await;
    let why = refusal(databases.run(SMALL).await);
    assert!(why.contains("another process"), "{why}");
    store.close().await;
    drop(store);
    // Not there.
    let options = MoveOptions::default();
    let missing = move_store::run(
        Path::new("/no/such/file.db"),
        &databases.target.uri,
        options,
        &mut |_| {},
    )
    .await;
    assert!(refusal(missing).contains("there is no database"));
    // Not empty.
    let mut target = databases.target.raw().await;
    target.execute("CREATE TABLE notes (text text)").await;
    let why = refusal(databases.run(SMALL).await);
    assert!(why.contains("is not empty, it has notes"), "{why}");
    assert_eq!(target.tables().await, ["notes"]);
    target.execute("DROP TABLE notes").await;
    // Another target once rows were copied.
    assert!(databases.stop_after(3, is_copying).await.is_none());
    let Some(other) = EmptyDatabase::postgres().await else {
        return;
    };
    let elsewhere = move_store::run(&databases.file(), &other.uri, SMALL, &mut |_| {}).await;
    assert!(refusal(elsewhere).contains("repeat the move into that database"));
    assert_eq!(other.raw().await.tables().await, Vec::<String>::new());
    // A source that may have been used since.
    std::fs::remove_file(databases.marker()).unwrap();
    let why = refusal(databases.run(SMALL).await);
    assert!(why.contains("create a new database"), "{why}");
}

#[tokio::test]
async fn a_source_of_an_earlier_schema_is_refused() {
    let Some(target) = EmptyDatabase::postgres().await else {
        return;
    };
    let source = EmptyDatabase::sqlite();
    source.raw().await.migrate(&SQLITE, 1).await.unwrap();
    let file = PathBuf::from(source.uri.trim_start_matches("sqlite://"));
    let why = refusal(move_store::run(&file, &target.uri, SMALL, &mut |_| {}).await);
    assert!(why.contains("the schema of an earlier build"), "{why}");
    assert_eq!(target.raw().await.tables().await, Vec::<String>::new());
}

#[tokio::test]
async fn a_table_that_only_one_database_has_is_refused() {
    let Some(databases) = Databases::new().await else {
        return;
    };
    let mut raw = databases.source.raw().await;
    raw.execute("CREATE TABLE extra (id INTEGER PRIMARY KEY) STRICT; ALTER TABLE step ADD COLUMN note TEXT")
        .await;
    let why = refusal(databases.run(SMALL).await);
    for part in ["extra is missing in PostgreSQL", "step.note is missing in PostgreSQL"] {
        assert!(why.contains(part), "{part} is not in: {why}");
    }
}

#[tokio::test]
async fn values_that_postgres_refuses_are_named_before_anything_is_copied() {
    let Some(databases) = Databases::new().await else {
        return;
    };
    let mut raw = databases.source.raw().await;
    raw.execute(
        "UPDATE project SET name = 'a' || char(0) || 'b';
         UPDATE checkpoints SET metadata = '{\"text\": \"\\u0000\"}'",
    )
    .await;
    let Err(MoveError::Unfit { found, count }) = databases.run(SMALL).await else {
        panic!("it was not refused")
    };
    assert_eq!(count, found.len() as u64);
    let shown: Vec<String> = found.iter().map(ToString::to_string).collect();
    let named = |start: &str| {
        shown
            .iter()
            .any(|line| line.starts_with(start) && line.contains("--replace-nul"))
    };
    assert!(
        named("project.name of (00000000-0000-0000-0000-000000000060, "),
        "{shown:#?}"
    );
    assert!(named("checkpoints.metadata of ("), "{shown:#?}");
    let mut target = databases.target.raw().await;
    let copied = target.texts("SELECT count(*)::text FROM job").await.unwrap();
    assert_eq!(copied, ["0"]);
    assert!(!databases.marker().exists(), "a server may still use the source");
    let options = MoveOptions {
        replace_nul: true,
        ..SMALL
    };
    databases.run(options).await.unwrap();
    assert_eq!(target.texts("SELECT name FROM project").await.unwrap(), ["a\u{fffd}b"]);
    let texts = target
        .texts("SELECT DISTINCT metadata ->> 'text' FROM checkpoints")
        .await;
    assert_eq!(texts.unwrap(), ["\u{fffd}"]);
}

#[tokio::test]
async fn rows_without_the_row_they_refer_to_are_named() {
    let Some(databases) = Databases::new().await else {
        return;
    };
    let mut raw = databases.source.raw().await;
    raw.execute("PRAGMA foreign_keys = OFF; DELETE FROM dataset").await;
    let Err(MoveError::Unfit { found, .. }) = databases.run(SMALL).await else {
        panic!("it was not refused")
    };
    let tables: Vec<&str> = found.iter().map(|unfit| unfit.table.as_str()).collect();
    assert!(
        tables.contains(&"example") && tables.contains(&"dataset_tag"),
        "{tables:?}"
    );
    assert!(
        found[0].to_string().contains("rows of dataset that do not exist"),
        "{found:?}"
    );
}

#[tokio::test]
async fn rows_that_differ_are_named() {
    for (change, table, key) in [
        (
            "UPDATE job SET input = '{\"other\": 1}' WHERE kind = 'run_export'",
            "job",
            "00000000-0000-0000-0000-000000000010",
        ),
        ("DELETE FROM lane WHERE key = 'exports:a'", "lane", "\"exports:a\""),
        ("UPDATE checkpoints SET checkpoint = '{}'", "checkpoints", "\""),
        (
            "INSERT INTO lane (key, places) VALUES ('more', 1)",
            "lane",
            "3 rows in the target, 2",
        ),
    ] {
        let Some(databases) = Databases::new().await else {
            return;
        };
        assert!(databases.stop_after(1, is_verifying).await.is_none());
        databases.target.raw().await.execute(change).await;
        let moved = databases.run(SMALL).await;
        let Err(MoveError::Different { table: found, keys, .. }) = moved else {
            panic!("{change}: {moved:?}")
        };
        assert_eq!(found, table, "{change}");
        assert!(keys[0].contains(key), "{change}: {keys:?}");
        let again = databases.run(SMALL).await;
        assert!(matches!(again, Err(MoveError::Different { .. })), "{again:?}");
    }
}
