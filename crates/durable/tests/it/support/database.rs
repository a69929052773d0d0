//! A database of its own.

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

pub struct Database {
    pub uri: String,
    _folder: Option<tempfile::TempDir>,
}

impl Database {
    pub fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let uri = format!("sqlite://{}", folder.path().join("towpath.db").display());
        Self {
            uri,
            _folder: Some(folder),
        }
    }

    /// A fresh database in the server that `TOWPATH_TEST_POSTGRES` names.
    #[expect(
        clippy::disallowed_methods,
        reason = "tests learn from the environment which servers there are"
    )]
    pub async fn postgres() -> Option<Self> {
        let Ok(admin) = std::env::var("TOWPATH_TEST_POSTGRES") else {
            println!("skipped: TOWPATH_TEST_POSTGRES names no server");
            return None;
        };
        let name = format!("towpath_{}", uuid::Uuid::now_v7().simple());
        let mut conn = PgConnection::connect(&admin).await.unwrap();
        conn.execute(AssertSqlSafe(format!("CREATE DATABASE {name}")))
            .await
            .unwrap();
        let (server, query) = admin
            .split_once('?')
            .map_or((admin.as_str(), ""), |(server, query)| (server, query));
        let (server, _) = server.rsplit_once('/').unwrap();
        let question = if query.is_empty() { "" } else { "?" };
        Some(Self {
            uri: format!("{server}/{name}{question}{query}"),
            _folder: None,
        })
    }
}
