//! The rows of the engine compared with a model: random sequences of all operations on jobs, on real SQL, compared
//! after each. Time stands still and is moved by the sequence. `PROPTEST_CASES` raises the number of cases.

mod puppet;
mod reference;
mod system;

use proptest::test_runner::Config;
use proptest_state_machine::prop_state_machine;

use self::system::{Machine, PostgresKind, SqliteKind};

fn config() -> Config {
    let asked = Config::default();
    Config {
        // 256 is the default.
        cases: if asked.cases == 256 { 64 } else { asked.cases },
        failure_persistence: None,
        ..asked
    }
}

prop_state_machine! {
    #![proptest_config(config())]

    #[test]
    fn the_rows_follow_the_model_on_sqlite(sequential 1..60 => Machine<SqliteKind>);

    #[test]
    fn the_rows_follow_the_model_on_postgres(sequential 1..60 => Machine<PostgresKind>);
}
