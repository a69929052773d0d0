//! Errors of the database, by what a caller has to decide.

use towpath_domain::Rejection;

/// Result of a store call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed store call. Nothing of its transaction was written, unless a closure of
/// [`Store::write_one`](crate::Store::write_one) returned an error after its statement.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such row for this tenant.
    #[error("not found")]
    NotFound,
    /// A unique value is taken.
    #[error("{column} already exists")]
    Conflict {
        /// `table.column` of the value that is taken; several are joined by a comma.
        column: String,
    },
    /// The row was changed concurrently: its fence or state is not what was expected.
    #[error("the row was changed concurrently")]
    Stale,
    /// A domain rule was violated.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// A stored value cannot be read. This needs an operator.
    #[error("{table}.{column} of row {row} cannot be read")]
    Corrupt {
        table: &'static str,
        column: &'static str,
        /// The row's key.
        row: String,
    },
    /// The database did not answer, was busy too long, or the connection was lost; retrying may help.
    #[error("the database is unavailable")]
    Unavailable(#[source] std::sync::Arc<sqlx::Error>),
    /// The database has no disk space left.
    #[error("the database has no disk space left")]
    Full,
    /// The database refused the statement: a bug.
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
    /// Whether the same call may succeed later without any intervention.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Full)
    }

    /// Whether a lock was not available in time. Another row may be free.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        // Not free in time; a deadlock.
        matches!(self.refusal().as_deref(), Some("55P03" | "40P01"))
    }

    /// Whether the statement failed because of contention on its rows: a lock, or a timeout. Another row may be free.
    #[must_use]
    pub fn is_contended(&self) -> bool {
        self.is_locked() || self.refusal().as_deref() == Some("57014")
    }

    /// The database's error code for an `Unavailable`.
    fn refusal(&self) -> Option<std::borrow::Cow<'_, str>> {
        let Self::Unavailable(source) = self else {
            return None;
        };
        source.as_database_error()?.code()
    }

    /// The cause without addresses, users or statements, for readiness checks.
    #[must_use]
    pub fn user_message(&self) -> &'static str {
        use std::io::ErrorKind;
        match self {
            Self::Full => "no disk space left",
            Self::Unavailable(source) => match source.as_ref() {
                sqlx::Error::Io(error) => match error.kind() {
                    ErrorKind::ConnectionRefused => "the connection was refused",
                    ErrorKind::TimedOut => "no answer in time",
                    _ => "the connection was lost",
                },
                sqlx::Error::Protocol(_) => "the connection was lost",
                sqlx::Error::PoolTimedOut => "no connection is available",
                sqlx::Error::PoolClosed => "closed",
                sqlx::Error::Database(refusal) => match refusal.code().as_deref() {
                    Some("57P01" | "57P02") => "it is shutting down",
                    Some("57P03") => "it is starting",
                    Some("57014") => "no answer in time",
                    Some("55P03") => "it timed out waiting for a lock",
                    Some("53300") => "it has too many connections",
                    Some("25006") => "it is read-only",
                    _ => "it refused the request",
                },
                _ => "an unexpected error",
            },
            _ => "it refused the request",
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
                    column: conflict_of(refusal.as_ref()),
                },
                _ => match refusal.code().as_deref() {
                    // SQLite: SQLITE_FULL. PostgreSQL: disk_full.
                    Some("13" | "53100") => Self::Full,
                    // SQLite: busy, locked, busy_snapshot, cannot open. PostgreSQL: deadlock, serialization failure,
                    // connection and operator-intervention classes, too many connections, read-only standby; a timeout
                    // of a statement, a lock or an idle transaction.
                    Some(
                        "5" | "6" | "14" | "261" | "517" | "40P01" | "40001" | "53300" | "25006" | "57014" | "55P03"
                        | "25P03",
                    ) => Self::Unavailable(error.into()),
                    Some("0A000") if is_outdated(refusal.as_ref()) => Self::Unavailable(error.into()),
                    // SQLite's I/O errors: 10 in the lowest byte. A disk error may be temporary.
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

/// Whether PostgreSQL rejected a cached statement because a migration changed its result columns. A new connection
/// prepares it again.
fn is_outdated(refusal: &(dyn sqlx::error::DatabaseError + 'static)) -> bool {
    let routine = refusal
        .try_downcast_ref::<sqlx::postgres::PgDatabaseError>()
        .and_then(|refusal| refusal.routine());
    // The text depends on the server's language, the routine on its version.
    refusal.code().as_deref() == Some("0A000")
        && (routine == Some("RevalidateCachedQuery") || refusal.message().contains("cached plan"))
}

/// The conflicting columns. SQLite names the columns in its message, PostgreSQL the constraint (`table_column_key`).
fn conflict_of(refusal: &dyn sqlx::error::DatabaseError) -> String {
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
