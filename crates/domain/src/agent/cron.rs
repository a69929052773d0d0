//! When a cron fires next: five to seven fields read in the wall time of a zone.
//!
//! ```text
//! minute 0-59 · hour 0-23 · day of month 1-31, L · month 1-12, JAN-DEC · day of week 0-7, SUN-SAT, n#1-5, Ln
//! · second 0-59 (0 if absent) · year 1970-2099 (any if absent)
//! each: * ? a  a-b  */s  a-b/s  a/s (to the end)  and lists of those; a range may wrap around (FRI-MON)
//! @hourly @daily @midnight @weekly @monthly @yearly @annually
//! ```
//!
//! Where both days are restricted, either may match. Where the clock is set forward, a time of a restricted hour that
//! does not exist fires when the clock has jumped; where it is set back, a time that comes twice fires the first
//! time. A cron of every hour (its hour field has a `*`) follows real time instead: it neither catches up nor skips.
//!
//! Seconds follow the other fields, as in croniter, whose schedules users bring along.

mod pattern;

use std::collections::BTreeSet;
use std::str::FromStr;

use chrono::{
    DateTime, Datelike as _, Days, LocalResult, NaiveDate, NaiveDateTime, TimeDelta, TimeZone as _, Timelike as _,
};
use chrono_tz::{TZ_VARIANTS, Tz};

use crate::{Rejection, Timestamp};
pub use pattern::pattern;

/// A date that does not come within so many years never comes (29 February on a given weekday comes within 40).
const YEARS: i32 = 50;
pub const LONGEST: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    seconds: u64,
    minutes: u64,
    hours: u64,
    every_hour: bool,
    months: u64,
    days: DaysOfMonth,
    weekdays: Weekdays,
    /// `None`: any.
    years: Option<BTreeSet<i32>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct DaysOfMonth {
    days: u64,
    last: bool,
    any: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Weekdays {
    days: u64,
    /// `nth[n - 1]`: these days of the week when they come the nth time in a month.
    nth: [u64; 5],
    last: u64,
    any: bool,
}

/// Reads the name of a time zone; `None` means UTC.
///
/// # Errors
/// `Invalid` naming `timezone`.
pub fn zone(name: Option<&str>) -> Result<Tz, Rejection> {
    let Some(name) = name else { return Ok(Tz::UTC) };
    name.parse()
        .map_err(|_| Rejection::invalid("timezone", "timezone: expected an IANA name such as Europe/Berlin"))
}

/// The names that [`zone`] reads.
pub fn zones() -> impl Iterator<Item = &'static str> {
    TZ_VARIANTS.iter().map(|zone| zone.name())
}

impl Schedule {
    /// The first time after `after` at which it fires in `zone`, or `None` when there is none within fifty years.
    #[must_use]
    pub fn next_after(&self, after: Timestamp, zone: Tz) -> Option<Timestamp> {
        let after: DateTime<Tz> = after.to_utc().with_timezone(&zone);
        // Where the clock was set back, wall times of the day before may come again: begin a day early.
        let mut day = after.date_naive().pred_opt()?;
        let end = day.year().checked_add(YEARS)?;
        // A day with a match may have none after `after`, so the best of two such days is taken: instants of one day
        // cannot pass those of the day after the next.
        let mut best: Option<DateTime<Tz>> = None;
        while day.year() <= end {
            if self.years.as_ref().is_some_and(|years| !years.contains(&day.year())) {
                day = NaiveDate::from_ymd_opt(day.year() + 1, 1, 1)?;
                if best.is_some() {
                    break;
                }
                continue;
            }
            if self.months >> day.month() & 1 == 0 {
                day = first_of_next_month(day)?;
                if best.is_some() {
                    break;
                }
                continue;
            }
            if self.day_matches(day) {
                let found = self.first_of_day(day, &after);
                best = [best, found].into_iter().flatten().min();
            }
            if best.as_ref().is_some_and(|best| best.date_naive() < day) {
                break;
            }
            day = day.checked_add_days(Days::new(1))?;
        }
        best.map(|time| time.to_utc().into())
    }

    fn first_of_day(&self, day: NaiveDate, after: &DateTime<Tz>) -> Option<DateTime<Tz>> {
        let zone = after.timezone();
        let mut best: Option<DateTime<Tz>> = None;
        for hour in bits(self.hours) {
            for minute in bits(self.minutes) {
                let wall = day.and_hms_opt(hour, minute, 0)?;
                let starts = match zone.from_local_datetime(&wall) {
                    LocalResult::Single(time) => [Some(time), None],
                    LocalResult::Ambiguous(first, again) if self.every_hour => [Some(first), Some(again)],
                    LocalResult::Ambiguous(first, _) => [Some(first), None],
                    LocalResult::None if self.every_hour => [None, None],
                    LocalResult::None => [after_gap(zone, wall), None],
                };
                let mut starts = starts.into_iter().flatten();
                let instant = starts.find_map(|start| self.first_of_minute(&start, after));
                best = [best, instant].into_iter().flatten().min();
            }
            // Wall times grow with the hour, instants too but for a clock that was set back, by two hours at most.
            if best.as_ref().is_some_and(|best| best.hour() + 3 < hour) {
                break;
            }
        }
        best
    }

    /// The first time after `after` in the minute that begins at `start`.
    fn first_of_minute(&self, start: &DateTime<Tz>, after: &DateTime<Tz>) -> Option<DateTime<Tz>> {
        let passed = after.to_utc() - start.to_utc();
        let mut offsets = bits(self.seconds).map(|second| TimeDelta::seconds(second.into()));
        let offset = offsets.find(|offset| *offset > passed)?;
        let time = start.to_utc().checked_add_signed(offset)?;
        Some(time.with_timezone(&start.timezone()))
    }

    fn day_matches(&self, day: NaiveDate) -> bool {
        let of_month = self.days.any || self.days.matches(day);
        let of_week = self.weekdays.any || self.weekdays.matches(day);
        if self.days.any || self.weekdays.any {
            of_month && of_week
        } else {
            of_month || of_week
        }
    }
}

impl DaysOfMonth {
    fn matches(&self, day: NaiveDate) -> bool {
        self.days >> day.day() & 1 == 1 || (self.last && is_in_last_days(day, 1))
    }
}

impl Weekdays {
    fn matches(&self, day: NaiveDate) -> bool {
        let weekday = day.weekday().num_days_from_sunday();
        let nth = (day.day0() / 7) as usize;
        self.days >> weekday & 1 == 1
            || self.nth[nth] >> weekday & 1 == 1
            || (self.last >> weekday & 1 == 1 && is_in_last_days(day, 7))
    }
}

/// Whether `day` is one of the last `days` days of its month.
fn is_in_last_days(day: NaiveDate, days: u64) -> bool {
    day.checked_add_days(Days::new(days))
        .is_none_or(|later| later.month() != day.month())
}

fn first_of_next_month(day: NaiveDate) -> Option<NaiveDate> {
    let (year, month) = if day.month() == 12 {
        (day.year() + 1, 1)
    } else {
        (day.year(), day.month() + 1)
    };
    NaiveDate::from_ymd_opt(year, month, 1)
}

/// The first instant after the gap that contains `wall`. Gaps last whole minutes, at most a day.
fn after_gap(zone: Tz, wall: NaiveDateTime) -> Option<DateTime<Tz>> {
    (1..=24 * 60).find_map(|minutes| {
        let later = wall.checked_add_signed(TimeDelta::minutes(minutes))?;
        zone.from_local_datetime(&later).earliest()
    })
}

fn bits(mask: u64) -> impl Iterator<Item = u32> {
    (0..64).filter(move |bit| mask >> bit & 1 == 1)
}

impl FromStr for Schedule {
    type Err = Rejection;

    fn from_str(text: &str) -> Result<Self, Rejection> {
        let refuse = |message: String| Rejection::invalid("schedule", format!("Invalid cron schedule: {message}"));
        if text.len() > LONGEST {
            return Err(refuse("it is too long".to_owned()));
        }
        let text = text.trim().to_ascii_uppercase();
        let text = match text.as_str() {
            "@HOURLY" => "0 * * * *",
            "@DAILY" | "@MIDNIGHT" => "0 0 * * *",
            "@WEEKLY" => "0 0 * * 0",
            "@MONTHLY" => "0 0 1 * *",
            "@YEARLY" | "@ANNUALLY" => "0 0 1 1 *",
            text => text,
        };
        let fields: Vec<&str> = text.split_ascii_whitespace().collect();
        let &[minute, hour, day, month, weekday, ref rest @ ..] = fields.as_slice() else {
            return Err(refuse(field_count(fields.len())));
        };
        let (second, year) = match rest {
            [] => (None, None),
            [second] => (Some(second), None),
            [second, year] => (Some(second), Some(year)),
            _ => return Err(refuse(field_count(fields.len()))),
        };
        let seconds = second.map_or(Ok(1), |second| SECOND.read(second)).map_err(refuse)?;
        let years = match year {
            Some(year) if !is_star(year) => Some(years(year).map_err(refuse)?),
            _ => None,
        };
        let minutes = MINUTE.read(minute).map_err(refuse)?;
        let hours = HOUR.read(hour).map_err(refuse)?;
        let months = MONTH.read(month).map_err(refuse)?;
        let mut days = days_of_month(day).map_err(refuse)?;
        let mut weekdays = weekdays(weekday).map_err(refuse)?;
        // A range that names every day restricts nothing, unless the other field must be able to add days to it.
        days.any = is_star(day) || (days.days == DAY.all() && weekday.contains(['*', '?']));
        weekdays.any = is_star(weekday) || (weekdays.days == WEEKDAY.all() >> 1 && day.contains(['*', '?']));
        Ok(Self {
            seconds,
            minutes,
            hours,
            every_hour: hour.contains('*'),
            months,
            days,
            weekdays,
            years,
        })
    }
}

fn field_count(found: usize) -> String {
    format!(
        "expected five to seven fields (minute, hour, day of month, month, day of week, second, year), found {found}"
    )
}

fn is_star(field: &str) -> bool {
    matches!(field, "*" | "?")
}

struct Field {
    name: &'static str,
    least: u32,
    most: u32,
    /// The first one means `least`.
    words: &'static [&'static str],
}

const SECOND: Field = Field {
    name: "second",
    least: 0,
    most: 59,
    words: &[],
};
const YEAR: Field = Field {
    name: "year",
    least: 1970,
    most: 2099,
    words: &[],
};
const MINUTE: Field = Field {
    name: "minute",
    least: 0,
    most: 59,
    words: &[],
};
const HOUR: Field = Field {
    name: "hour",
    least: 0,
    most: 23,
    words: &[],
};
const DAY: Field = Field {
    name: "day of month",
    least: 1,
    most: 31,
    words: &[],
};
const MONTH: Field = Field {
    name: "month",
    least: 1,
    most: 12,
    words: &[
        "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
    ],
};
/// Both 0 and 7 are Sunday.
const WEEKDAY: Field = Field {
    name: "day of week",
    least: 0,
    most: 7,
    words: &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"],
};

impl Field {
    fn all(&self) -> u64 {
        (self.least..=self.most).fold(0, |mask, bit| mask | 1 << bit)
    }

    /// The largest value that is not an alias of another one.
    const fn top(&self) -> u32 {
        if self.most == 7 { 6 } else { self.most }
    }

    fn read(&self, field: &str) -> Result<u64, String> {
        field.split(',').try_fold(0, |mask, part| Ok(mask | self.part(part)?))
    }

    /// One part of a list, as a bit mask.
    fn part(&self, part: &str) -> Result<u64, String> {
        let values = self.values(part)?;
        Ok(self.without_second_name(values.into_iter().fold(0, |mask, bit| mask | 1 << bit)))
    }

    /// The values of one part of a list.
    fn values(&self, part: &str) -> Result<Vec<u32>, String> {
        let broken = || format!("{part:?} in field {}", self.name);
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => (range, Some(step.parse::<usize>().map_err(|_| broken())?)),
            None => (part, None),
        };
        if step == Some(0) {
            return Err(broken());
        }
        let (from, to) = if is_star(range) {
            (self.least, self.top())
        } else if let Some((from, to)) = range.split_once('-') {
            (self.value(from).ok_or_else(broken)?, self.value(to).ok_or_else(broken)?)
        } else {
            let from = self.value(range).ok_or_else(broken)?;
            (from, if step.is_some() { self.top().max(from) } else { from })
        };
        let step = step.unwrap_or(1);
        Ok(if from <= to {
            (from..=to).step_by(step).collect()
        } else {
            let around = (from..=self.top()).chain(self.least..=to);
            around.step_by(step).collect()
        })
    }

    fn without_second_name(&self, mask: u64) -> u64 {
        if self.most == 7 && mask >> 7 & 1 == 1 {
            mask & !(1 << 7) | 1
        } else {
            mask
        }
    }

    fn value(&self, text: &str) -> Option<u32> {
        if let Some(index) = self.words.iter().position(|word| *word == text) {
            return Some(self.least + u32::try_from(index).ok()?);
        }
        let length = if self.most > 99 { 4..=4 } else { 1..=2 };
        let digits = length.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
        let value = text.parse().ok().filter(|_| digits)?;
        (self.least..=self.most).contains(&value).then_some(value)
    }
}

fn years(field: &str) -> Result<BTreeSet<i32>, String> {
    let mut found = BTreeSet::new();
    for part in field.split(',') {
        found.extend(YEAR.values(part)?.into_iter().map(u32::cast_signed));
    }
    Ok(found)
}

fn days_of_month(field: &str) -> Result<DaysOfMonth, String> {
    let mut found = DaysOfMonth {
        days: 0,
        last: false,
        any: false,
    };
    for part in field.split(',') {
        if part == "L" {
            found.last = true;
        } else {
            found.days |= DAY.part(part)?;
        }
    }
    Ok(found)
}

fn weekdays(field: &str) -> Result<Weekdays, String> {
    let mut found = Weekdays {
        days: 0,
        nth: [0; 5],
        last: 0,
        any: false,
    };
    for part in field.split(',') {
        let broken = || format!("{part:?} in field {}", WEEKDAY.name);
        if let Some((day, nth)) = part.split_once('#') {
            let nth = nth.parse::<usize>().ok().filter(|nth| (1..=5).contains(nth));
            found.nth[nth.ok_or_else(broken)? - 1] |= WEEKDAY.part(day)?;
        } else if let Some(day) = part.strip_prefix('L').filter(|day| !day.is_empty()) {
            let day = WEEKDAY.value(day).ok_or_else(broken)?;
            found.last |= WEEKDAY.without_second_name(1 << day);
        } else {
            found.days |= WEEKDAY.part(part)?;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
