//! Databases for tests of every crate, and an object store that counts.
//!
//! Promises: each test gets a database of its own with the newest schema, as a copy of a template that is migrated once,
//! and the database is dropped when the test is over, also when it fails. Leaves to others: how a database is migrated.
//! Only tests depend on this crate; it depends on no crate of the product, so that those of the product can use it.

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
    Server(postgres::Dropped),
    Nothing,
}

/// Whether `TOWPATH_TEST_POSTGRES` names a server; said in one line where it names none.
#[must_use]
pub fn names_postgres() -> bool {
    postgres::server().is_some()
}

impl Database {
    /// A copy of a file that `migrate` has migrated.
    ///
    /// # Panics
    /// When the file cannot be made or copied.
    pub async fn sqlite(migrate: impl AsyncFnOnce(&str)) -> Self {
        let (folder, uri) = sqlite::place();
        sqlite::copy(SCHEMA, &uri, migrate).await;
        Self {
            uri,
            _resource: Resource::Folder(folder),
        }
    }

    /// The address of a file that is not there yet.
    ///
    /// # Panics
    /// When there is no room for temporary files.
    #[must_use]
    pub fn empty_sqlite() -> Self {
        let (folder, uri) = sqlite::place();
        Self {
            uri,
            _resource: Resource::Folder(folder),
        }
    }

    /// A copy of a database that `migrate` has migrated, in the server that `TOWPATH_TEST_POSTGRES` names. `None`, said in
    /// one line, where it names none.
    ///
    /// # Panics
    /// When the server refuses.
    pub async fn postgres(migrate: impl AsyncFnOnce(&str)) -> Option<Self> {
        Some(Self::on(postgres::copy(&postgres::server()?, SCHEMA, migrate).await))
    }

    /// A database without tables in the server that `TOWPATH_TEST_POSTGRES` names. `None`, said in one line, where it
    /// names none.
    ///
    /// # Panics
    /// When the server refuses.
    pub async fn empty_postgres() -> Option<Self> {
        Some(Self::on(postgres::make(&postgres::server()?).await))
    }

    /// A database without tables in the server at `admin`, which is gone when the test is over: nothing is dropped there.
    ///
    /// # Panics
    /// When the server refuses.
    pub async fn of_own_server(admin: &str) -> Self {
        Self {
            uri: postgres::make(admin).await.keep(),
            _resource: Resource::Nothing,
        }
    }

    /// A connection for looking at the rows of a PostgreSQL database.
    ///
    /// # Panics
    /// When it cannot be opened.
    pub async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.uri)
            .await
            .expect("the database of this test is there")
    }

    fn on(made: postgres::Dropped) -> Self {
        Self {
            uri: made.uri(),
            _resource: Resource::Server(made),
        }
    }
}
