//! Points in time: whole microseconds since 1970-01-01 UTC.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use chrono::{DateTime, Days, NaiveDate, NaiveDateTime, SecondsFormat, Utc};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;

/// A point in time in whole microseconds UTC: `timestamptz` on PostgreSQL, INTEGER on SQLite, RFC 3339 in JSON.
///
/// Both databases store microseconds exactly, so a value compares equal after a round trip.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Timestamp(i64);

impl Timestamp {
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    #[must_use]
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// Midnight UTC at the start of `day`.
    #[must_use]
    pub fn start_of(day: NaiveDate) -> Self {
        day.and_time(chrono::NaiveTime::MIN).and_utc().into()
    }

    /// The UTC day this falls on.
    #[must_use]
    pub fn day(self) -> NaiveDate {
        self.to_utc().date_naive()
    }

    /// Midnight UTC that ends the day this falls on.
    #[must_use]
    pub fn next_midnight(self) -> Self {
        self.day().checked_add_days(Days::new(1)).map_or(self, Self::start_of)
    }

    /// A value outside chrono's range (year 262143) is clamped.
    #[must_use]
    pub fn to_utc(self) -> DateTime<Utc> {
        DateTime::from_timestamp_micros(self.0).unwrap_or(if self.0 < 0 {
            DateTime::<Utc>::MIN_UTC
        } else {
            DateTime::<Utc>::MAX_UTC
        })
    }

    /// Saturating.
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self(
            self.0
                .saturating_add(i64::try_from(span.as_micros()).unwrap_or(i64::MAX)),
        )
    }

    /// Saturating.
    #[must_use]
    pub fn minus(self, span: Duration) -> Self {
        Self(
            self.0
                .saturating_sub(i64::try_from(span.as_micros()).unwrap_or(i64::MAX)),
        )
    }

    /// The time since `earlier`; zero if this is not later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// Parses RFC 3339, and the variants of the official tracing clients: no zone (taken as UTC), a space instead of
    /// the `T`, or a bare date.
    pub fn parse(text: &str) -> Result<Self, ParseTimestamp> {
        if let Ok(time) = DateTime::parse_from_rfc3339(text) {
            return Ok(time.to_utc().into());
        }
        for format in ["%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M"] {
            if let Ok(time) = NaiveDateTime::parse_from_str(text, format) {
                return Ok(time.and_utc().into());
            }
        }
        for format in ["%Y-%m-%dT%H:%M:%S%.f%#z", "%Y-%m-%d %H:%M:%S%.f%#z"] {
            if let Ok(time) = DateTime::parse_from_str(text, format) {
                return Ok(time.to_utc().into());
            }
        }
        text.parse::<NaiveDate>()
            .map(Self::start_of)
            .map_err(|_| ParseTimestamp)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected an ISO 8601 date-time such as 2026-01-31T08:00:00Z")]
pub struct ParseTimestamp;

impl From<DateTime<Utc>> for Timestamp {
    fn from(time: DateTime<Utc>) -> Self {
        Self(time.timestamp_micros())
    }
}

impl FromStr for Timestamp {
    type Err = ParseTimestamp;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_utc().to_rfc3339_opts(SecondsFormat::Micros, true))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

impl sqlx::Type<sqlx::Postgres> for Timestamp {
    fn type_info() -> sqlx::postgres::PgTypeInfo {
        <DateTime<Utc> as sqlx::Type<sqlx::Postgres>>::type_info()
    }
}

impl sqlx::postgres::PgHasArrayType for Timestamp {
    fn array_type_info() -> sqlx::postgres::PgTypeInfo {
        <DateTime<Utc> as sqlx::postgres::PgHasArrayType>::array_type_info()
    }
}

impl sqlx::Encode<'_, sqlx::Postgres> for Timestamp {
    fn encode_by_ref(&self, buf: &mut sqlx::postgres::PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        <DateTime<Utc> as sqlx::Encode<'_, sqlx::Postgres>>::encode_by_ref(&self.to_utc(), buf)
    }
}

impl sqlx::Decode<'_, sqlx::Postgres> for Timestamp {
    fn decode(value: sqlx::postgres::PgValueRef<'_>) -> Result<Self, BoxDynError> {
        <DateTime<Utc> as sqlx::Decode<'_, sqlx::Postgres>>::decode(value).map(Self::from)
    }
}

impl sqlx::Type<sqlx::Sqlite> for Timestamp {
    fn type_info() -> sqlx::sqlite::SqliteTypeInfo {
        <i64 as sqlx::Type<sqlx::Sqlite>>::type_info()
    }
}

impl sqlx::Encode<'_, sqlx::Sqlite> for Timestamp {
    fn encode_by_ref(&self, buf: &mut <sqlx::Sqlite as sqlx::Database>::ArgumentBuffer) -> Result<IsNull, BoxDynError> {
        <i64 as sqlx::Encode<'_, sqlx::Sqlite>>::encode_by_ref(&self.0, buf)
    }
}

impl sqlx::Decode<'_, sqlx::Sqlite> for Timestamp {
    fn decode(value: sqlx::sqlite::SqliteValueRef<'_>) -> Result<Self, BoxDynError> {
        <i64 as sqlx::Decode<'_, sqlx::Sqlite>>::decode(value).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_form_the_clients_send() {
        let noon = Timestamp::parse("2026-03-01T12:00:00Z").unwrap();
        for text in [
            "2026-03-01T12:00:00+00:00",
            "2026-03-01T14:00:00.000000+02:00",
            "2026-03-01T12:00:00",
            "2026-03-01 12:00:00.0",
            "2026-03-01 12:00:00+00",
            "2026-03-01T12:00",
        ] {
            assert_eq!(Timestamp::parse(text), Ok(noon), "{text}");
        }
        assert_eq!(Timestamp::parse("2026-03-01"), Ok(Timestamp::start_of(noon.day())));
        assert_eq!(Timestamp::parse("yesterday"), Err(ParseTimestamp));
    }

    #[test]
    fn prints_what_it_reads() {
        let time = Timestamp::from_micros(1_772_366_400_000_001);
        assert_eq!(Timestamp::parse(&time.to_string()), Ok(time));
        assert_eq!(time.next_midnight().micros() % 86_400_000_000, 0);
    }
}
