//! Selects index files to merge.

use towpath_store::run_index::IndexFile;

/// All files with fewer entries count as the same size.
const SMALLEST: i64 = 4096;
/// Size factor of a level, and number of files that are merged.
const FACTOR: i64 = 8;
/// Maximum number of files merged at once, because a part of each is in memory.
const MOST_FILES: usize = 16;
/// Maximum entries of a merged file. It is written in one piece, and from the start again if its writer dies.
const MOST_ENTRIES: i64 = 256 << 20;

/// Selects among the live index files of a workspace, sorted by size. `None` if there are few enough.
pub fn choose(live: &[IndexFile]) -> Option<Vec<IndexFile>> {
    let least = usize::try_from(FACTOR).unwrap_or(usize::MAX);
    let mut rest = live;
    while let Some(first) = rest.first() {
        let of_one_size = rest.iter().take_while(|file| size(file.entries) == size(first.entries));
        let (same, larger) = rest.split_at(of_one_size.count());
        rest = larger;
        if same.len() < least {
            continue;
        }
        let mut entries = 0;
        let fit = same.iter().take(MOST_FILES).take_while(|file| {
            entries += file.entries;
            entries <= MOST_ENTRIES
        });
        let fit = fit.count();
        if fit > 1 {
            return Some(same[..fit].to_vec());
        }
    }
    None
}

fn size(entries: i64) -> u32 {
    let mut size = 0;
    let mut limit = SMALLEST;
    while entries >= limit {
        size += 1;
        limit *= FACTOR;
    }
    size
}

#[cfg(test)]
mod tests {
    use towpath_domain::{RunIndexId, TenantId, Timestamp};
    use towpath_store::segments::SegmentState;

    use super::*;

    fn file(entries: i64) -> IndexFile {
        IndexFile {
            id: RunIndexId::new(),
            tenant_id: TenantId::nil(),
            path: String::new(),
            state: SegmentState::Live,
            job: None,
            entries,
            bytes: 1,
            first_run: None,
            last_run: None,
            created_at: Timestamp::from_micros(0),
            changed_at: Timestamp::from_micros(0),
        }
    }

    fn chosen(sizes: &[i64]) -> Option<Vec<i64>> {
        let files: Vec<IndexFile> = sizes.iter().copied().map(file).collect();
        let chosen = choose(&files)?;
        Some(chosen.iter().map(|file| file.entries).collect())
    }

    #[test]
    fn files_of_one_size_come_together_when_there_are_eight() {
        assert_eq!(chosen(&[]), None);
        assert_eq!(chosen(&[1, 2, 3, 4, 5, 6, 4095]), None);
        assert_eq!(chosen(&[1, 2, 3, 4, 5, 6, 7, 4096]), None, "the last is larger");
        let eight = [1, 2, 3, 4, 5, 6, 7, 4095];
        assert_eq!(chosen(&eight), Some(eight.to_vec()));
        let larger = [1, 5000, 5000, 5000, 5000, 6000, 6000, 6000, 32_767, 32_768];
        assert_eq!(
            chosen(&larger),
            Some(larger[1..9].to_vec()),
            "the smallest and the largest stay"
        );
        assert_eq!(chosen(&[7; 40]).map(|files| files.len()), Some(16));
    }

    #[test]
    fn nothing_grows_beyond_what_is_written_in_one_piece() {
        let large = 100 << 20;
        assert_eq!(chosen(&[large; 8]), Some(vec![large; 2]));
        assert_eq!(chosen(&[200 << 20; 8]), None);
    }

    /// However many trace runs there are, the number of files stays small and none is rewritten often.
    #[test]
    fn files_stay_few() {
        let mut files: Vec<i64> = Vec::new();
        let mut written = 0;
        let added = 20_000;
        for _ in 0..5000 {
            files.push(added);
            files.sort_unstable();
            while let Some(merged) = chosen(&files) {
                for old in &merged {
                    let at = files.iter().position(|file| file == old).unwrap();
                    files.remove(at);
                }
                let sum = merged.iter().sum();
                written += sum;
                files.push(sum);
                files.sort_unstable();
            }
        }
        assert_eq!(files.iter().sum::<i64>(), 5000 * added);
        assert!(files.len() <= 7 * 6, "{}", files.len());
        assert!(written <= 6 * 5000 * added, "{written}");
    }
}
