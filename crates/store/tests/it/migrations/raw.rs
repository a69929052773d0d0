//! An empty database of its own for each test, also reached past the store.

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, SqliteConnection};
use towpath_store::{Dialect, Options, Store};
use towpath_testing::Database;

pub struct EmptyDatabase {
    pub dialect: Dialect,
    pub uri: String,
    _database: Database,
}

impl EmptyDatabase {
    pub fn sqlite() -> Self {
        Self::new(Dialect::Sqlite, Database::empty_sqlite())
    }

    pub async fn postgres() -> Option<Self> {
        Some(Self::new(Dialect::Postgres, Database::empty_postgres().await?))
    }

    fn new(dialect: Dialect, database: Database) -> Self {
        Self {
            dialect,
            uri: database.uri.clone(),
            _database: database,
        }
    }

    pub async fn store(&self) -> Store {
        Store::open(&self.uri, Options::default()).await.unwrap()
    }

    pub async fn raw(&self) -> RawConnection {
        match self.uri.strip_prefix("sqlite://") {
            Some(file) => {
                let options = SqliteConnectOptions::new().filename(file).create_if_missing(true);
                RawConnection::Sqlite(SqliteConnection::connect_with(&options).await.unwrap())
            }
            None => RawConnection::Postgres(PgConnection::connect(&self.uri).await.unwrap()),
        }
    }
}

/// A connection that is not the store's.
pub enum RawConnection {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
}

impl RawConnection {
    /// Applies migrations up to a version.
    pub async fn migrate(&mut self, migrator: &Migrator, to: i64) -> Result<(), MigrateError> {
        match self {
            Self::Sqlite(conn) => migrator.run_to(to, conn).await,
            Self::Postgres(conn) => migrator.run_to(to, conn).await,
        }
    }

    /// Runs any number of statements.
    pub async fn execute(&mut self, text: impl Into<String>) {
        let statements = sqlx::raw_sql(AssertSqlSafe(text.into()));
        let done = match self {
            Self::Sqlite(conn) => statements.execute(conn).await.map(drop),
            Self::Postgres(conn) => statements.execute(conn).await.map(drop),
        };
        done.unwrap();
    }

    /// A column of texts.
    pub async fn texts(&mut self, text: impl Into<String>) -> sqlx::Result<Vec<String>> {
        let statement = AssertSqlSafe(text.into());
        match self {
            Self::Sqlite(conn) => sqlx::query_scalar(statement).fetch_all(conn).await,
            Self::Postgres(conn) => sqlx::query_scalar(statement).fetch_all(conn).await,
        }
    }

    /// As [`RawConnection::texts`], where each database has a text of its own.
    pub async fn ask(&mut self, sqlite: &str, postgres: &str) -> Vec<String> {
        let text = match self {
            Self::Sqlite(_) => sqlite,
            Self::Postgres(_) => postgres,
        };
        self.texts(text).await.unwrap()
    }

    /// The tables, without the one that the migrations are recorded in.
    pub async fn tables(&mut self) -> Vec<String> {
        self.ask(
            "SELECT name FROM sqlite_master
             WHERE type = 'table' AND name NOT LIKE 'sqlite~_%' ESCAPE '~' AND name <> '_sqlx_migrations' ORDER BY name",
            "SELECT tablename::text FROM pg_tables
             WHERE schemaname = current_schema() AND tablename <> '_sqlx_migrations' ORDER BY tablename",
        )
        .await
    }

    pub async fn columns(&mut self, table: &str) -> Vec<String> {
        let sqlite = format!("SELECT name FROM pragma_table_info('{table}') ORDER BY cid");
        let postgres = format!(
            "SELECT column_name::text FROM information_schema.columns
             WHERE table_schema = current_schema() AND table_name = '{table}' ORDER BY ordinal_position"
        );
        self.ask(&sqlite, &postgres).await
    }
}
