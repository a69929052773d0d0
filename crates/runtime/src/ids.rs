//! Ids in the format of langgraph: checkpoints, tasks, interrupts, versions of channels.

use std::sync::atomic::{AtomicU64, Ordering};

use rand::Rng;
use towpath_domain::Timestamp;
use uuid::Uuid;
use xxhash_rust::xxh3::Xxh3;

/// Intervals of 100 ns between the epochs of UUIDs (1582-10-15) and Unix.
const GREGORIAN: u64 = 0x01B2_1DD2_1381_4000;

/// The last timestamp used in this process, so that two checkpoints of one microsecond differ.
static LAST: AtomicU64 = AtomicU64::new(0);

/// A new checkpoint id: a version 6 UUID that sorts after every earlier one of this process, and after `above` (an id
/// of the same thread from a process whose clock may be ahead). The clock sequence carries the step, as in langgraph.
pub(crate) fn checkpoint(now: Timestamp, step: i64, above: Option<&str>) -> String {
    let wall = u64::try_from(now.micros()).unwrap_or(0) * 10 + GREGORIAN;
    let floor = above.and_then(time_part).unwrap_or(0);
    let wall = wall.max(floor + 1);
    let mut last = LAST.load(Ordering::Relaxed);
    let time = loop {
        let time = wall.max(last + 1);
        match LAST.compare_exchange_weak(last, time, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => break time,
            Err(seen) => last = seen,
        }
    };
    let node = u128::from(rand::rng().random::<u64>() & 0xFFFF_FFFF_FFFF);
    // Two's complement on purpose: step -1 is 0x3fff, as in the ids of langgraph's input checkpoints.
    let sequence = u128::from(step.cast_unsigned() & 0x3FFF);
    let bits = (u128::from(time >> 12) << 80) | (u128::from(time & 0x0FFF) << 64) | (sequence << 48) | node;
    let bits = bits & !(0xC000 << 48) | (0x8000 << 48);
    let bits = bits & !(0xF000 << 64) | (6 << 76);
    Uuid::from_u128(bits).to_string()
}

/// A bound that sorts before all checkpoints created at `time` or later, and after earlier ones.
#[must_use]
pub fn first_checkpoint_at(time: Timestamp) -> String {
    let time = u64::try_from(time.micros()).unwrap_or(0) * 10 + GREGORIAN;
    let bits = (u128::from(time >> 12) << 80) | (6 << 76) | (u128::from(time & 0x0FFF) << 64);
    Uuid::from_u128(bits).to_string()
}

/// The time of a version 6 UUID.
fn time_part(id: &str) -> Option<u64> {
    let id: Uuid = id.parse().ok()?;
    if id.get_version_num() != 6 {
        return None;
    }
    let bits = id.as_u128();
    let high = u64::try_from(bits >> 80).ok()?;
    Some((high << 12) | (u64::try_from(bits >> 64).unwrap_or(0) & 0x0FFF))
}

/// A task's id, stable across attempts on the same checkpoint.
pub(crate) fn task(checkpoint_id: &str, parts: &[&str]) -> String {
    let mut hash = Xxh3::new();
    match checkpoint_id.parse::<Uuid>() {
        Ok(id) => hash.update(id.as_bytes()),
        Err(_) => hash.update(checkpoint_id.as_bytes()),
    }
    for part in parts {
        hash.update(part.as_bytes());
    }
    Uuid::from_u128(hash.digest128()).to_string()
}

/// An interrupt's id: from the namespace of the task that asks.
pub(crate) fn interrupt(task_ns: &str) -> String {
    format!("{:032x}", xxhash_rust::xxh3::xxh3_128(task_ns.as_bytes()))
}

/// Whether a key of a resume map is an interrupt id.
pub(crate) fn is_interrupt(text: &str) -> bool {
    text.len() == 32
        && text
            .bytes()
            .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// The version after `current`.
pub(crate) fn next_version(current: Option<&str>) -> String {
    let number = current
        .and_then(|version| version.split('.').next())
        .and_then(|digits| digits.parse::<u64>().ok())
        .unwrap_or(0);
    // The format of langgraph: an integer of 32 digits, then a fraction of at least 16 characters.
    let fraction = rand::rng().random_range(0..10_000_000_000_000_000_u64);
    format!("{:032}.0.{fraction:016}", number + 1)
}

/// A random UUID, as langgraph gives to messages without an id.
pub(crate) fn message() -> String {
    uuid::Builder::from_random_bytes(rand::random()).into_uuid().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoint_ids_grow_and_carry_their_step() {
        let now = Timestamp::parse("2026-03-01T12:00:00Z").unwrap();
        let first = checkpoint(now, -1, None);
        let second = checkpoint(now, 0, None);
        assert!(first < second, "{first} {second}");
        assert_eq!(&first[14..15], "6");
        assert_eq!(&first[19..23], "bfff");
        assert_eq!(&second[19..23], "8000");
        let later = checkpoint(now.plus(std::time::Duration::from_secs(3600)), 1, None);
        assert!(checkpoint(now, 2, Some(&later)) > later);

        let second = std::time::Duration::from_secs(1);
        assert!(first_checkpoint_at(now.minus(second)) < first);
        assert!(first_checkpoint_at(now) <= first, "{first}");
        assert!(first_checkpoint_at(now.plus(second)) > first);
    }

    #[test]
    fn tasks_and_interrupts_hash_like_langgraph() {
        // Printed by langgraph 1.2.22 for these arguments.
        assert_eq!(
            task(
                "1f0f9b34-0f5c-6b1c-8000-0123456789ab",
                &["a", "1", "a", "__pregel_pull", "branch:to:a"]
            ),
            TASK
        );
        assert_eq!(interrupt("ask:00000000-0000-0000-0000-000000000000"), INTERRUPT);
        assert!(is_interrupt(INTERRUPT));
        assert!(!is_interrupt("yes"));
    }

    #[test]
    fn versions_sort_as_texts() {
        let first = next_version(None);
        let second = next_version(Some(&first));
        assert!(first < second);
        assert!(first.starts_with("00000000000000000000000000000001.0."), "{first}");
    }

    const TASK: &str = "def545e2-962b-2273-cbaf-26068a03f3fa";
    const INTERRUPT: &str = "53cee875f6b90a069891c0ee03299a24";
}
