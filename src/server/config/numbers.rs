//! Settings that are numbers within bounds.

use std::num::NonZeroUsize;

use super::ConfigError;

/// The floor unless told otherwise: what a node writes at full speed in some seconds, until its leadership is handed over.
const DISK_FREE_MIB_DEFAULT: u64 = 64;
/// The highest floor that can be asked for.
pub(super) const DISK_FREE_MIB_MAX: u64 = 1024 * 1024;
/// The intervals of snapshots that can be asked for, in entries.
pub(super) const SNAPSHOT_ENTRIES: std::ops::RangeInclusive<u64> = 100..=100_000;
/// The numbers of threads that can be asked for.
pub(super) const THREADS: std::ops::RangeInclusive<usize> = 1..=64;

/// Free space on the data directory's disk below which nothing is proposed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DiskFloor {
    bytes: u64,
}

impl DiskFloor {
    /// The floor of this many MiB; 0 is none.
    ///
    /// # Errors
    /// [`ConfigError`] where no disk is that large.
    pub(crate) fn from_mib(mib: u64) -> Result<Self, ConfigError> {
        if DISK_FREE_MIB_MAX < mib {
            return Err(ConfigError::DiskFloor { mib });
        }
        Ok(Self { bytes: mib << 20 })
    }

    /// The floor in bytes.
    #[must_use]
    pub(crate) const fn bytes(self) -> u64 {
        self.bytes
    }
}

impl Default for DiskFloor {
    fn default() -> Self {
        Self {
            bytes: DISK_FREE_MIB_DEFAULT << 20,
        }
    }
}

/// After how many entries a snapshot takes the place of the log, if its bytes ask for none before that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SnapshotInterval {
    entries: u64,
}

impl SnapshotInterval {
    /// As many entries are replayed at most after a restart.
    const DEFAULT: Self = Self { entries: 10_000 };

    /// A snapshot after so many entries.
    ///
    /// # Errors
    /// [`ConfigError`] below 100, where a node writes little else, and above 100,000, where a restart takes long.
    pub(crate) fn from_entries(entries: u64) -> Result<Self, ConfigError> {
        if !SNAPSHOT_ENTRIES.contains(&entries) {
            return Err(ConfigError::SnapshotInterval { entries });
        }
        Ok(Self { entries })
    }

    /// The entries between two snapshots.
    #[must_use]
    pub(crate) const fn entries(self) -> u64 {
        self.entries
    }
}

impl Default for SnapshotInterval {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// How many threads serve requests and peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Threads {
    count: usize,
}

impl Threads {
    /// So many.
    ///
    /// # Errors
    /// [`ConfigError`] where it is none, or more than any machine makes use of.
    pub(crate) fn from_count(count: usize) -> Result<Self, ConfigError> {
        if !THREADS.contains(&count) {
            return Err(ConfigError::Threads { threads: count });
        }
        Ok(Self { count })
    }

    /// How many.
    #[must_use]
    pub(crate) const fn count(self) -> usize {
        self.count
    }
}

impl Default for Threads {
    /// Half of the cores, the rest is the disk's and the kernel's: what one thread does it need not wake another for. Beyond
    /// four nothing was gained.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Self {
            count: (cores / 2).clamp(1, 4),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threads_are_bounded() {
        assert!((1..=4).contains(&Threads::default().count()));
        let fits = [1, 64].map(|count| Threads::from_count(count).is_ok());
        assert_eq!(fits, [true, true]);

        let errors = [0, 65].map(|count| Threads::from_count(count).unwrap_err().to_string());

        let expected = |count| format!("{count} threads are out of bounds: use 1 to 64");
        assert_eq!(errors, [0, 65].map(expected));
    }

    #[test]
    fn an_interval_of_snapshots_is_bounded() {
        assert_eq!(SnapshotInterval::default().entries(), 10_000);
        let fits = [100, 100_000].map(|entries| SnapshotInterval::from_entries(entries).is_ok());
        assert_eq!(fits, [true, true]);

        let errors = [99, 100_001].map(|entries| {
            SnapshotInterval::from_entries(entries)
                .unwrap_err()
                .to_string()
        });

        assert_eq!(
            errors,
            [99, 100_001].map(|entries| format!(
                "a snapshot every {entries} entries is out of bounds: use 100 to 100000"
            ))
        );
    }
}
