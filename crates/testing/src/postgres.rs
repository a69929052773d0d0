//! Databases in a PostgreSQL server that tests share.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use uuid::Uuid;

/// Names the lock under which a template is made.
const LOCK: i64 = 0x0074_6f77_7061_7468;
/// Time limit for dropping a database, so that a hanging server does not hang the tests.
const LIMIT: Duration = Duration::from_secs(30);

/// The server from the environment, or a printed line.
#[expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "tests learn from the environment which servers there are, and say which are not"
)]
pub(crate) fn server() -> Option<String> {
    let named = std::env::var("TOWPATH_TEST_POSTGRES")
        .ok()
        .filter(|uri| !uri.is_empty());
    if named.is_none() {
        println!("skipped: TOWPATH_TEST_POSTGRES names no server");
    }
    named
}

/// A database that is dropped with this.
#[derive(Debug)]
pub(crate) struct TemporaryDatabase {
    admin: String,
    name: String,
}

impl TemporaryDatabase {
    pub(crate) fn uri(&self) -> String {
        template_name(&self.admin, &self.name)
    }

    /// Its address; the database stays.
    pub(crate) fn keep(self) -> String {
        let uri = self.uri();
        std::mem::forget(self);
        uri
    }
}

impl Drop for TemporaryDatabase {
    fn drop(&mut self) {
        // A separate thread: the runtime of the test may be busy with this very drop.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let text = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
                let gone = async {
                    let mut connection = PgConnection::connect(&self.admin).await?;
                    connection.execute(AssertSqlSafe(text)).await.map(drop)
                };
                let gone = runtime.map(|runtime| runtime.block_on(async { tokio::time::timeout(LIMIT, gone).await }));
                // A test that failed has more to say than this.
                if !matches!(gone, Ok(Ok(Ok(())))) && !std::thread::panicking() {
                    eprintln!("the database {} could not be dropped: {gone:?}", self.name);
                }
            });
        });
    }
}

/// Creates a database without tables.
pub(crate) async fn make(admin: &str) -> TemporaryDatabase {
    let mut connection = connect(admin).await;
    create(&mut connection, admin, "").await
}

/// Creates a copy of the template of `schema`, and first the template if it is missing.
pub(crate) async fn copy(admin: &str, schema: &str, migrate: impl AsyncFnOnce(&str)) -> TemporaryDatabase {
    let template = format!("towpath_template_{schema}");
    let mut connection = connect(admin).await;
    if !exists(&mut connection, &template).await {
        lock(&mut connection, "pg_advisory_lock").await;
        // Another test may have made it while this one waited.
        if !exists(&mut connection, &template).await {
            prepare(&mut connection, admin, &template, migrate).await;
        }
        lock(&mut connection, "pg_advisory_unlock").await;
    }
    create(&mut connection, admin, &format!(" TEMPLATE {template}")).await
}

/// Migrates a database under a temporary name and renames it when complete: an existing template is usable.
async fn prepare(connection: &mut PgConnection, admin: &str, template: &str, migrate: impl AsyncFnOnce(&str)) {
    let begun = format!("{template}_begun");
    run(connection, format!("DROP DATABASE IF EXISTS {begun} WITH (FORCE)")).await;
    run(connection, format!("CREATE DATABASE {begun}")).await;
    migrate(&template_name(admin, &begun)).await;
    // A database with sessions can be neither renamed nor copied, and sessions of a closed pool end a moment later.
    let ended =
        "SELECT coalesce(bool_and(pg_terminate_backend(pid, 5000)), true) FROM pg_stat_activity WHERE datname = $1";
    let ended = sqlx::query_scalar::<_, bool>(ended)
        .bind(&begun)
        .fetch_one(&mut *connection)
        .await;
    assert!(
        ended.expect("the server of the tests answers"),
        "sessions in {begun} do not end"
    );
    run(
        connection,
        format!("ALTER DATABASE {begun} WITH ALLOW_CONNECTIONS false"),
    )
    .await;
    run(connection, format!("ALTER DATABASE {begun} RENAME TO {template}")).await;
}

async fn create(connection: &mut PgConnection, admin: &str, from: &str) -> TemporaryDatabase {
    let name = format!("towpath_test_{}", Uuid::now_v7().simple());
    run(connection, format!("CREATE DATABASE {name}{from}")).await;
    TemporaryDatabase {
        admin: admin.to_owned(),
        name,
    }
}

async fn connect(admin: &str) -> PgConnection {
    let connected = PgConnection::connect(admin).await;
    connected.unwrap_or_else(|error| panic!("no connection to the server of TOWPATH_TEST_POSTGRES: {error}"))
}

async fn exists(connection: &mut PgConnection, name: &str) -> bool {
    let found = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM pg_database WHERE datname = $1)");
    found
        .bind(name)
        .fetch_one(connection)
        .await
        .expect("the server of the tests answers")
}

async fn lock(connection: &mut PgConnection, call: &str) {
    run(connection, format!("SELECT {call}({LOCK})")).await;
}

async fn run(connection: &mut PgConnection, text: String) {
    let done = connection.execute(AssertSqlSafe(text.clone())).await;
    done.unwrap_or_else(|error| panic!("{text}: {error}"));
}

/// The address of another database of the same server.
fn template_name(admin: &str, name: &str) -> String {
    let (before, query) = admin.split_once('?').unwrap_or((admin, ""));
    let (server, _) = before
        .rsplit_once('/')
        .expect("TOWPATH_TEST_POSTGRES ends with /database");
    let mark = if query.is_empty() { "" } else { "?" };
    format!("{server}/{name}{mark}{query}")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn a_template_is_made_once_and_copies_are_dropped() {
        let Some(admin) = server() else { return };
        let schema = Uuid::now_v7().simple().to_string();
        let made = Cell::new(0);
        let migrate = async |uri: &str| {
            made.set(made.get() + 1);
            let mut connection = connect(uri).await;
            run(&mut connection, "CREATE TABLE note (text TEXT)".to_owned()).await;
        };
        let one = copy(&admin, &schema, migrate).await;
        let two = copy(&admin, &schema, migrate).await;
        assert_eq!(made.get(), 1);
        // Each is a database of its own.
        run(
            &mut connect(&one.uri()).await,
            "INSERT INTO note VALUES ('one')".to_owned(),
        )
        .await;
        let notes: i64 = sqlx::query_scalar("SELECT count(*) FROM note")
            .fetch_one(&mut connect(&two.uri()).await)
            .await
            .unwrap();
        assert_eq!(notes, 0);

        let mut connection = connect(&admin).await;
        // A session that is still open keeps nothing.
        let _open = connect(&two.uri()).await;
        for database in [one, two] {
            let name = database.name.clone();
            assert!(exists(&mut connection, &name).await);
            drop(database);
            assert!(!exists(&mut connection, &name).await, "{name} was not dropped");
        }
        run(&mut connection, format!("DROP DATABASE towpath_template_{schema}")).await;
    }

    #[test]
    fn options_of_the_server_are_those_of_its_databases() {
        let address = template_name("postgres://u:p@h:1/postgres?sslmode=disable", "x");
        assert_eq!(address, "postgres://u:p@h:1/x?sslmode=disable");
        assert_eq!(template_name("postgres://h/postgres", "x"), "postgres://h/x");
    }
}
