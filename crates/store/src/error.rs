//! What can go wrong with the database, in the words the rooms above decide by.

use towpath_domain::Rejection;

/// Result of a store call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A store call that did not succeed. Nothing of its transaction was written, unless the caller of
/// [`Store::write_one`](crate::Store::write_one) made the error up after its statement.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such row for this tenant.
    #[error("not found")]
    NotFound,
    /// A unique value is taken.
    #[error("{column} exists already")]
    Conflict {
        /// `table.column` of the value that is taken; several are joined by a comma.
        column: String,
    },
    /// The row moved on since the caller looked: its fence or state is not what was expected.
    #[error("the row has moved on")]
    Stale,
    /// A rule of the domain said no.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// A stored value cannot be read. Somebody should look.
    #[error("{table}.{column} of row {row} cannot be read")]
    Corrupt {
        /// Table.
        table: &'static str,
        /// Column.
        column: &'static str,
        /// The row's key.
        row: String,
    },
    /// The database did not answer, was busy too long, or broke off; trying again may help.
    #[error("the database is not available")]
    Unavailable(#[source] std::sync::Arc<sqlx::Error>),
    /// The database has no room left.
    #[error("the database has no disk space left")]
    Full,
    /// The database refused the statement: a defect of ours.
    #[error("the database refused a statement")]
    Driver(#[source] sqlx::Error),
    /// The database could not be opened or migrated; the text says why and what to do.
    #[error("{0}")]
    Open(String),
    /// The schema is that of a build from before the first release.
    #[error(
        "{database} was made by an older build of towpath, from before the first release, and its data cannot be carried \
         over: start with a new data folder or an empty database, and keep this one, with the build that made it, until \
         nothing in it is needed; that build can still export its traces"
    )]
    OlderBuild {
        /// Without user and password.
        database: String,
    },
    /// The schema is that of a newer build.
    #[error(
        "{database} was made by a newer build of towpath: this one does not know its migration {version}; use that build \
         or a newer one"
    )]
    NewerBuild {
        /// Without user and password.
        database: String,
        /// The newest migration of the database.
        version: i64,
    },
}

impl Error {
    /// Whether the same call may succeed later without anybody changing anything.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Full)
    }

    /// Whether the database gave up waiting for a lock that others hold. Another row may be free.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        // Not free in time; a deadlock.
        matches!(self.refusal().as_deref(), Some("55P03" | "40P01"))
    }

    /// Whether the database gave up on this statement because of what others do to its rows: a lock, or too much time. Another row
    /// may be free.
    #[must_use]
    pub fn is_contended(&self) -> bool {
        self.is_locked() || self.refusal().as_deref() == Some("57014")
    }

    /// The code of the database for why it is not available for this.
    fn refusal(&self) -> Option<std::borrow::Cow<'_, str>> {
        let Self::Unavailable(source) = self else {
            return None;
        };
        source.as_database_error()?.code()
    }

    /// What is wrong, in words that say nothing of addresses, users or statements: for whoever asks how the process
    /// is.
    #[must_use]
    pub fn told(&self) -> &'static str {
        use std::io::ErrorKind;
        match self {
            Self::Full => "no disk space left",
            Self::Unavailable(source) => match source.as_ref() {
                sqlx::Error::Io(error) => match error.kind() {
                    ErrorKind::ConnectionRefused => "the connection is refused",
                    ErrorKind::TimedOut => "no answer in time",
                    _ => "the connection breaks off",
                },
                sqlx::Error::Protocol(_) => "the connection breaks off",
                sqlx::Error::PoolTimedOut => "no connection is free",
                sqlx::Error::PoolClosed => "closed",
                sqlx::Error::Database(refusal) => match refusal.code().as_deref() {
                    Some("57P01" | "57P02") => "it is being shut down",
                    Some("57P03") => "it is starting",
                    Some("57014") => "no answer in time",
                    Some("55P03") => "a lock is not free in time",
                    Some("53300") => "it has too many connections",
                    Some("25006") => "it takes no writes",
                    _ => "it refuses",
                },
                _ => "it does not do its part",
            },
            _ => "it refuses",
        }
    }

    /// A stored value that cannot be read.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "ids are small, and read better without a reference"
    )]
    pub fn corrupt(table: &'static str, column: &'static str, row: impl ToString) -> Self {
        Self::Corrupt {
            table,
            column,
            row: row.to_string(),
        }
    }
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        use sqlx::Error as E;
        match &error {
            E::RowNotFound => Self::NotFound,
            E::Io(_) | E::Tls(_) | E::PoolTimedOut | E::PoolClosed | E::WorkerCrashed | E::Protocol(_) => {
                Self::Unavailable(error.into())
            }
            E::Database(refusal) => match refusal.kind() {
                sqlx::error::ErrorKind::UniqueViolation => Self::Conflict {
                    column: taken(refusal.as_ref()),
                },
                _ => match refusal.code().as_deref() {
                    // SQLite: SQLITE_FULL. PostgreSQL: disk_full.
                    Some("13" | "53100") => Self::Full,
                    // SQLite: busy, locked, busy_snapshot, cannot open. PostgreSQL: deadlock, serialization failure,
                    // connection and operator-intervention classes, too many connections, read-only standby; a statement, a
                    // lock or a silent transaction that took too long.
                    Some(
                        "5" | "6" | "14" | "261" | "517" | "40P01" | "40001" | "53300" | "25006" | "57014" | "55P03"
                        | "25P03",
                    ) => Self::Unavailable(error.into()),
                    Some("0A000") if is_outdated(refusal.as_ref()) => Self::Unavailable(error.into()),
                    // SQLite's I/O errors: 10 and whatever has it in its lowest byte. A disk that refuses now may
                    // take it later.
                    Some(code)
                        if code
                            .parse::<u32>()
                            .is_ok_and(|code| code < 0x10000 && code & 0xff == 10) =>
                    {
                        Self::Unavailable(error.into())
                    }
                    Some(code) if code.starts_with("08") || code.starts_with("57P") => Self::Unavailable(error.into()),
                    _ => Self::Driver(error),
                },
            },
            _ => Self::Driver(error),
        }
    }
}

/// Whether PostgreSQL refused a statement that this connection has cached, because a migration changed what it returns. A new
/// connection has it prepared anew.
fn is_outdated(refusal: &(dyn sqlx::error::DatabaseError + 'static)) -> bool {
    let routine = refusal
        .try_downcast_ref::<sqlx::postgres::PgDatabaseError>()
        .and_then(|refusal| refusal.routine());
    // The text depends on the server's language, the routine on its version.
    refusal.code().as_deref() == Some("0A000")
        && (routine == Some("RevalidateCachedQuery") || refusal.message().contains("cached plan"))
}

/// Which column was taken. SQLite names the columns in its text, PostgreSQL the constraint (`table_column_key`).
fn taken(refusal: &dyn sqlx::error::DatabaseError) -> String {
    if let Some(constraint) = refusal.constraint() {
        let table = refusal.table().unwrap_or_default();
        let column = constraint
            .strip_prefix(table)
            .unwrap_or(constraint)
            .trim_start_matches('_');
        let column = column.strip_suffix("_key").unwrap_or(column);
        return format!("{table}.{column}");
    }
    refusal
        .message()
        .rsplit_once(": ")
        .map_or_else(|| refusal.message().to_owned(), |(_, columns)| columns.to_owned())
}
