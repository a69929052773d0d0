//! Recording the jobs of a day in bulk.

use std::ops::Range;

use towpath_domain::{JobId, TenantId};
use towpath_durable::{Lane, Start};
use towpath_store::{self as store, Store};

use super::workload::Job;

/// Jobs per transaction.
const BATCH: usize = 1000;
/// Size of a family: a parent and its children.
const FAMILY: u64 = 5;
/// Of the plain jobs, one in this many has a step.
const STEP_EVERY: u64 = 10;
/// Of the plain jobs, one in this many fails its first attempt.
const FAILURE_EVERY: u64 = 100;
/// Of all jobs, about one in this many belongs to a family.
const FAMILY_EVERY: u64 = 100;

/// The jobs of a day: plain ones, jobs in lanes, and families. Each kind has a range of job numbers.
#[derive(Clone, Copy, Debug)]
pub struct DayJobs {
    /// Start of the day, in microseconds; see [`Job::day`].
    pub day: i64,
    /// Number of the day, part of the lane keys.
    pub number: i64,
    /// Number of jobs, children included.
    pub count: u64,
    /// Number of lanes, each with one slot; half of the jobs are in them.
    pub lanes: u64,
}

impl DayJobs {
    fn plain(&self) -> Range<u64> {
        0..self.laned().start
    }

    fn laned(&self) -> Range<u64> {
        let end = self.families().start;
        end - self.count / 2..end
    }

    fn families(&self) -> Range<u64> {
        let members = (self.count / FAMILY_EVERY / FAMILY).max(1) * FAMILY;
        self.count - members..self.count
    }

    /// Records all jobs. Returns the id of a plain one.
    pub async fn record(&self, store: &Store, owners: &[TenantId]) -> store::Result<Option<JobId>> {
        let (first, (), ()) = tokio::try_join!(
            self.record_plain(store, owners),
            self.record_laned(store, owners),
            self.record_families(store, owners),
        )?;
        Ok(first)
    }

    async fn record_plain(&self, store: &Store, owners: &[TenantId]) -> store::Result<Option<JobId>> {
        let mut first = None;
        for (numbers, owner) in batches(self.plain(), BATCH).zip(in_turn(owners)) {
            let jobs: Vec<Job> = numbers
                .map(|number| Job {
                    steps: u32::from(number.is_multiple_of(STEP_EVERY)),
                    fails: (number + 1).is_multiple_of(FAILURE_EVERY),
                    ..Job::new(self.day, number)
                })
                .collect();
            let ids = store
                .write(async |tx| towpath_durable::start_all_apart(tx, &jobs, Start::new(owner)).await)
                .await?;
            first = first.or(ids.first().copied());
        }
        Ok(first)
    }

    async fn record_laned(&self, store: &Store, owners: &[TenantId]) -> store::Result<()> {
        for (numbers, owner) in batches(self.laned(), BATCH).zip(in_turn(owners)) {
            let jobs: Vec<(Job, Lane)> = numbers
                .map(|number| {
                    let key = format!("soak:{}:{}", self.number, number % self.lanes);
                    (Job::new(self.day, number), Lane::new(key, 1))
                })
                .collect();
            store
                .write(async |tx| towpath_durable::start_all(tx, &jobs, Start::new(owner)).await)
                .await?;
        }
        Ok(())
    }

    /// Records the parents only: each records its children when it runs.
    async fn record_families(&self, store: &Store, owners: &[TenantId]) -> store::Result<()> {
        let size = usize::try_from(FAMILY).unwrap_or(1);
        for (numbers, owner) in batches(self.families(), BATCH * size).zip(in_turn(owners)) {
            let jobs: Vec<Job> = numbers
                .step_by(size)
                .map(|number| Job {
                    children: FAMILY - 1,
                    ..Job::new(self.day, number)
                })
                .collect();
            store
                .write(async |tx| towpath_durable::start_all_apart(tx, &jobs, Start::new(owner)).await)
                .await?;
        }
        Ok(())
    }
}

fn batches(numbers: Range<u64>, size: usize) -> impl Iterator<Item = Range<u64>> {
    let end = numbers.end;
    numbers
        .step_by(size)
        .map(move |first| first..end.min(first + size as u64))
}

fn in_turn(owners: &[TenantId]) -> impl Iterator<Item = TenantId> {
    owners.iter().copied().cycle()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_job_is_of_one_kind() {
        for jobs in [100, 101, 499, 500, 1_234, 166_666] {
            let day = DayJobs {
                day: 0,
                number: 0,
                count: jobs,
                lanes: 7,
            };
            let (plain, laned, families) = (day.plain(), day.laned(), day.families());
            assert_eq!((plain.start, families.end), (0, jobs));
            assert_eq!((plain.end, laned.end), (laned.start, families.start));
            assert_eq!((families.end - families.start) % FAMILY, 0, "{jobs} jobs");
            assert!(
                !plain.is_empty() && !laned.is_empty() && !families.is_empty(),
                "{jobs} jobs"
            );
            let all: u64 = batches(plain, 7).map(|batch| batch.end - batch.start).sum();
            assert_eq!(all, laned.start);
        }
    }
}
