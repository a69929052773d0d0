//! Whether every stored secret can be opened, and which encryption keys seal them.

use std::collections::BTreeMap;

use towpath_store::Store;
use towpath_store::sealed::{self, Count, KeyStatus};
use towpath_store::sealing::{Keys, Sealer};

use super::findings::{Findings, Verdict};
use crate::config::Settings;
use crate::storage;

const CHECK: &str = "secrets";

pub(super) async fn check(settings: &Settings, store: &Store, findings: &mut Findings) {
    let read = store.read(async |tx| Ok((sealed::canary(tx).await?, sealed::counts(tx).await?)));
    let (canary, counts) = match read.await {
        Ok(read) => read,
        Err(error) => return findings.add(CHECK, Verdict::Failed, error.to_string()),
    };
    let keys = match &settings.encryption_key {
        Some(keys) => Keys::parse(keys.reveal()).map(Some),
        None => Keys::open(&settings.data_dir.join("encryption.key")),
    };
    let sealer = match keys {
        Ok(keys) => keys.map(Sealer::new),
        Err(error) => return findings.add(CHECK, Verdict::Failed, error.to_string()),
    };
    if let (Some(canary), Some(sealer)) = (&canary, &sealer)
        && let KeyStatus::Unknown { key } = sealed::key_status(sealer, canary)
    {
        return findings.add(
            CHECK,
            Verdict::Failed,
            storage::unknown_key_message(&key, sealer, settings),
        );
    }
    let given = sealer.map_or_else(Vec::new, |sealer| sealer.key_ids());
    for (verdict, text) in judge(&counts, &given) {
        findings.add(CHECK, verdict, text);
    }
}

/// Findings for the counts, with these keys configured.
fn judge(counts: &[Count], given: &[String]) -> Vec<(Verdict, String)> {
    let mut keys: BTreeMap<&str, (i64, Vec<String>)> = BTreeMap::new();
    for count in counts {
        let (rows, places) = keys.entry(&count.key).or_default();
        *rows += count.rows;
        places.push(format!("{}.{} {}", count.table, count.column, count.rows));
    }
    let judged = keys.into_iter().map(|(key, (rows, places))| {
        let places = places.join(", ");
        match given.iter().position(|id| id == key) {
            Some(0) => (
                Verdict::Ok,
                format!("{rows} sealed under the encryption key {key}: {places}"),
            ),
            Some(_) => (
                Verdict::Warning,
                format!("{rows} sealed under the former encryption key {key}: {places}; run towpath keys reseal"),
            ),
            None => (
                Verdict::Failed,
                format!(
                    "{rows} sealed under the encryption key {key}, which is not configured; they cannot be \
                     opened: {places}"
                ),
            ),
        }
    });
    let mut judged: Vec<_> = judged.collect();
    if judged.is_empty() {
        judged.push((Verdict::Ok, "none are stored".to_owned()));
    }
    judged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_counted_and_judged() {
        let count = |key: &str, column, rows| Count {
            table: "integration",
            column,
            key: key.to_owned(),
            rows,
        };
        let counts = [
            count("aa", "token", 1),
            count("bb", "token", 2),
            count("aa", "webhook_secret", 3),
            count("cc", "token", 4),
        ];
        let judged = judge(&counts, &["aa".to_owned(), "bb".to_owned()]);
        let verdicts: Vec<Verdict> = judged.iter().map(|(verdict, _)| *verdict).collect();
        assert_eq!(verdicts, [Verdict::Ok, Verdict::Warning, Verdict::Failed]);
        assert!(judged[0].1.starts_with("4 sealed"), "{}", judged[0].1);
        assert!(judged[1].1.contains("towpath keys reseal"), "{}", judged[1].1);
        assert!(judged[2].1.contains("cannot be opened"), "{}", judged[2].1);
        assert_eq!(judge(&[], &[]), [(Verdict::Ok, "none are stored".to_owned())]);
    }
}
