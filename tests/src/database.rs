//! A PostgreSQL database of a test's own.

use sqlx::{Connection, Executor, PgConnection};
use uuid::Uuid;

use crate::environment;

/// A database in the server that `TOWPATH_TEST_POSTGRES` names, made for one test and dropped by [`Database::remove`].
#[derive(Clone, Debug)]
pub struct Database {
    admin: String,
    name: String,
    /// Its address, for `DATABASE_URI`.
    pub uri: String,
}

impl Database {
    /// Makes one, or `None` where no server is given.
    ///
    /// # Panics
    /// If the server refuses.
    pub async fn create() -> Option<Self> {
        Some(Self::create_in(environment("TOWPATH_TEST_POSTGRES")?).await)
    }

    /// Makes one in the server that `admin` names.
    ///
    /// # Panics
    /// If the server refuses.
    pub async fn create_in(admin: String) -> Self {
        let name = format!("e2e_{}", Uuid::now_v7().simple());
        let mut connection = PgConnection::connect(&admin)
            .await
            .expect("the server of the tests is reachable");
        connection
            .execute(sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}")))
            .await
            .expect("the admin may make databases");
        let (server, _) = admin.rsplit_once('/').expect("an admin address ends with a database");
        let uri = format!("{server}/{name}");
        Self { admin, name, uri }
    }

    /// A connection of the test's own, for looking at rows.
    ///
    /// # Panics
    /// If it cannot be opened.
    pub async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.uri)
            .await
            .expect("our own database is reachable")
    }

    /// Drops the database, whoever is still connected.
    pub async fn remove(self) {
        if let Ok(mut connection) = PgConnection::connect(&self.admin).await {
            let _ = connection
                .execute(sqlx::AssertSqlSafe(format!(
                    "DROP DATABASE IF EXISTS {} WITH (FORCE)",
                    self.name
                )))
                .await;
        }
    }
}
