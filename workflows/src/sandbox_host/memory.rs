//! Memory of the machine, by which sandboxes are placed.

use std::fs;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MachineMemory {
    pub(super) total_bytes: i64,
    /// What programs can get without swapping.
    pub(super) free_bytes: i64,
}

/// Zero where the system does not tell.
pub(super) fn read() -> MachineMemory {
    fs::read_to_string("/proc/meminfo").map_or_else(|_| MachineMemory::default(), |text| parse(&text))
}

fn parse(text: &str) -> MachineMemory {
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kib = line.and_then(|value| value.trim().strip_suffix(" kB")?.parse::<i64>().ok());
        kib.and_then(|kib| kib.checked_mul(1024)).unwrap_or(0)
    };
    MachineMemory {
        total_bytes: field("MemTotal"),
        free_bytes: field("MemAvailable"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_the_kernels_text() {
        let text = "MemTotal:        8048584 kB\nMemFree:          123 kB\nMemAvailable:    5000000 kB\n";
        let expected = MachineMemory {
            total_bytes: 8_048_584 * 1024,
            free_bytes: 5_000_000 * 1024,
        };
        assert_eq!(parse(text), expected);
        assert_eq!(parse("MemTotal: many"), MachineMemory::default());
    }
}
