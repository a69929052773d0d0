//! The SQLite that is part of this program.

use sqlx::{Connection, SqliteConnection};

/// What `.cargo/config.toml` asks for reached it: a build that does not read that file works, and is slower.
#[tokio::test]
async fn it_is_built_as_the_repository_asks() {
    let mut memory = SqliteConnection::connect("sqlite::memory:").await.unwrap();
    let options: Vec<String> = sqlx::query_scalar("PRAGMA compile_options")
        .fetch_all(&mut memory)
        .await
        .unwrap();
    let has = |option: &str| options.iter().any(|one| one == option);
    let hint = "run cargo inside the repository, where it reads .cargo/config.toml, with LIBSQLITE3_FLAGS not set";
    assert!(has("DEFAULT_MEMSTATUS=0"), "{hint}: {options:?}");
    assert!(!has("ENABLE_MEMORY_MANAGEMENT"), "{hint}: {options:?}");
}
