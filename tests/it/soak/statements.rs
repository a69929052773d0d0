//! What each statement of the product reads on PostgreSQL, round by round, as `pg_stat_statements` counts it.

use std::collections::BTreeMap;

use sqlx::{Connection, Executor, PgConnection};
use towpath_tests::World;

use super::stores::Store;

/// Calls in each third that make an average.
const CALLS: i64 = 20;
/// How much more blocks a call may read in the last third…
const FACTOR: f64 = 2.0;
/// … and what beyond that: the few pages of a small table that a plan reads from end to end, with the versions of rows
/// that no vacuum has removed yet.
const BLOCKS: f64 = 50.0;
/// Statements of the closing table.
const SHOWN: usize = 10;
/// Characters of a statement.
const TEXT: usize = 100;

const READ: &str = "SELECT s.queryid, coalesce(min(s.query), ''), sum(s.calls)::bigint, sum(s.rows)::bigint,
        sum(s.shared_blks_hit + s.shared_blks_read)::bigint
    FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
    WHERE d.datname = $1 AND s.queryid IS NOT NULL GROUP BY 1";

/// What the calls of one round came to.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    calls: i64,
    rows: i64,
    blocks: i64,
}

impl Cost {
    fn add(&mut self, other: Self) {
        self.calls += other.calls;
        self.rows += other.rows;
        self.blocks += other.blocks;
    }

    fn blocks_per_call(self) -> f64 {
        self.blocks as f64 / self.calls as f64
    }

    fn rows_per_call(self) -> f64 {
        self.rows as f64 / self.calls as f64
    }
}

/// The statements of one database.
pub struct Statements {
    name: &'static str,
    /// To the maintenance database: the product's schema has no extension.
    connection: PgConnection,
    database: String,
    texts: BTreeMap<i64, String>,
    rounds: Vec<BTreeMap<i64, Cost>>,
}

impl Statements {
    /// Begins to count; why that cannot be, where it cannot.
    pub async fn start(world: &World, store: &mut Store) -> Result<Self, String> {
        let server = world.postgres.as_ref().ok_or("SQLite does not count")?;
        let connected = PgConnection::connect(&server.admin_uri()).await;
        let mut connection = connected.map_err(|error| error.to_string())?;
        let made = connection
            .execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
            .await;
        made.map_err(|error| error.to_string())?;
        // It can be made in a server that has not loaded its library, and refuses then to be read.
        let begun = connection.execute("SELECT pg_stat_statements_reset()").await;
        begun.map_err(|error| error.to_string())?;
        Ok(Self {
            name: store.name,
            connection,
            database: store.database().await,
            texts: BTreeMap::new(),
            rounds: Vec::new(),
        })
    }

    /// Ends a round.
    pub async fn take(&mut self) {
        let read = sqlx::query_as(READ)
            .bind(&self.database)
            .fetch_all(&mut self.connection)
            .await;
        let found: Vec<(i64, String, i64, i64, i64)> = read.expect("the extension has been read before");
        let reset = self.connection.execute("SELECT pg_stat_statements_reset()").await;
        reset.expect("the extension has been reset before");
        let mut round = BTreeMap::new();
        for (id, text, calls, rows, blocks) in found {
            round.insert(id, Cost { calls, rows, blocks });
            self.texts.entry(id).or_insert(text);
        }
        self.rounds.push(round);
    }

    /// Statements that are called often enough in both thirds, with what they cost there.
    fn compared(&self) -> Vec<(&str, Cost, Cost)> {
        let third = self.rounds.len() / 3;
        let (rest, last) = self.rounds.split_at(self.rounds.len() - third);
        let middle = &rest[rest.len() - third..];
        let cost = |part: &[BTreeMap<i64, Cost>], id: &i64| {
            let mut sum = Cost::default();
            part.iter()
                .filter_map(|round| round.get(id))
                .for_each(|cost| sum.add(*cost));
            sum
        };
        let compared = self
            .texts
            .iter()
            .map(|(id, text)| (text.as_str(), cost(middle, id), cost(last, id)));
        compared
            .filter(|(_, middle, last)| middle.calls >= CALLS && last.calls >= CALLS)
            .collect()
    }

    /// Statements that read more and more, one line each.
    pub fn grown(&self) -> Vec<String> {
        let too_much = self
            .compared()
            .into_iter()
            .filter(|(_, middle, last)| last.blocks_per_call() > middle.blocks_per_call() * FACTOR + BLOCKS);
        let lines = too_much.map(|(text, middle, last)| {
            format!(
                "a call on the database of the {} reads {:.1} blocks in the middle third of the rounds, {:.1} in the last: {text}",
                self.name,
                middle.blocks_per_call(),
                last.blocks_per_call()
            )
        });
        lines.collect()
    }

    /// The statements that read the most in a call.
    pub fn table(&self) -> String {
        let mut all = self.compared();
        all.sort_by(|(_, _, one), (_, _, other)| other.blocks_per_call().total_cmp(&one.blocks_per_call()));
        let mut table = format!(
            "| statement of the {} | calls | rows a call | blocks a call, middle third | last third |\n|---|---|---|---|---|",
            self.name
        );
        for (text, middle, last) in all.into_iter().take(SHOWN) {
            // In one line, and without what would end a cell.
            let words: Vec<&str> = text.split_whitespace().collect();
            let text: String = words.join(" ").replace('|', "/").chars().take(TEXT).collect();
            table += &format!(
                "\n| {text} | {} | {:.1} | {:.1} | {:.1} |",
                last.calls,
                last.rows_per_call(),
                middle.blocks_per_call(),
                last.blocks_per_call()
            );
        }
        table
    }
}
