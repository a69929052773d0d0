//! The rows of the engine against a model of it: random sequences of everything that can happen to jobs, on real SQL,
//! compared after each. Time stands still and is moved by the sequence. `PROPTEST_CASES` raises the number of cases.

mod puppet;
mod reference;
mod system;

use proptest::test_runner::Config;
use proptest_state_machine::prop_state_machine;

use self::system::{Machine, OnPostgres, OnSqlite};

fn config() -> Config {
    let asked = Config::default();
    Config {
        // 256 is what nobody asked for.
        cases: if asked.cases == 256 { 64 } else { asked.cases },
        failure_persistence: None,
        ..asked
    }
}

prop_state_machine! {
    #![proptest_config(config())]

    #[test]
    fn the_rows_follow_the_model_on_sqlite(sequential 1..60 => Machine<OnSqlite>);

    #[test]
    fn the_rows_follow_the_model_on_postgres(sequential 1..60 => Machine<OnPostgres>);
}
