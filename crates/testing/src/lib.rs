//! Test databases for every crate, and a counting object store.
//!
//! Each test gets its own database with the newest schema, as a copy of a template that is migrated once; it is dropped
//! after the test, even after a failure. Only tests depend on this crate; it depends on no product crate, so that all
//! of them can use it.

pub mod objects;
mod postgres;
mod sqlite;

use sqlx::{Connection as _, PgConnection};
use tempfile::TempDir;

/// Names the schema of the templates.
const SCHEMA: &str = env!("TOWPATH_TESTING_SCHEMA");

/// A database of one test. Dropping it drops the database.
#[derive(Debug)]
pub struct Database {
    /// Its address, for `DATABASE_URI`.
    pub uri: String,
    _resource: Resource,
}

#[derive(Debug)]
#[expect(dead_code, reason = "they act when they are dropped")]
enum Resource {
    Folder(TempDir),
    Server(postgres::TemporaryDatabase),
    Nothing,
}

/// Whether `TOWPATH_TEST_POSTGRES` names a server; otherwise prints one line.
#[must_use]
pub fn names_postgres() -> bool {
    postgres::server().is_some()
}

impl Database {
    /// A copy of a file that `migrate` has migrated.
    ///
    /// # Panics
    /// If the file cannot be created or copied.
    pub async fn sqlite(migrate: impl AsyncFnOnce(&str)) -> Self {
        let (folder, uri) = sqlite::place();
        sqlite::copy(SCHEMA, &uri, migrate).await;
        Self {
            uri,
            _resource: Resource::Folder(folder),
        }
    }

    /// The address of a file that does not exist yet.
    ///
    /// # Panics
    /// If temporary files cannot be created.
    #[must_use]
    pub fn empty_sqlite() -> Self {
        let (folder, uri) = sqlite::place();
        Self {
            uri,
            _resource: Resource::Folder(folder),
        }
    }

    /// A copy of a database that `migrate` has migrated, in the server of `TOWPATH_TEST_POSTGRES`. `None`, with a
    /// printed line, if it is not set.
    ///
    /// # Panics
    /// If the server refuses.
    pub async fn postgres(migrate: impl AsyncFnOnce(&str)) -> Option<Self> {
        Some(Self::on(postgres::copy(&postgres::server()?, SCHEMA, migrate).await))
    }

    /// A database without tables in the server of `TOWPATH_TEST_POSTGRES`. `None`, with a printed line, if it is not
    /// set.
    ///
    /// # Panics
    /// If the server refuses.
    pub async fn empty_postgres() -> Option<Self> {
        Some(Self::on(postgres::make(&postgres::server()?).await))
    }

    /// A database without tables in the server at `admin`, which is removed after the test: nothing is dropped there.
    ///
    /// # Panics
    /// If the server refuses.
    pub async fn of_own_server(admin: &str) -> Self {
        Self {
            uri: postgres::make(admin).await.keep(),
            _resource: Resource::Nothing,
        }
    }

    /// A connection for reading rows of a PostgreSQL database.
    ///
    /// # Panics
    /// If it cannot be opened.
    pub async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.uri)
            .await
            .expect("the database of this test is there")
    }

    fn on(made: postgres::TemporaryDatabase) -> Self {
        Self {
            uri: made.uri(),
            _resource: Resource::Server(made),
        }
    }
}
