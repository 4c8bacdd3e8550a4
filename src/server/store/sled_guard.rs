//! Bounds around the opening of sled, which panics and hangs on some damage.

use std::fs::{self, File};
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::error::StoreError;
use crate::panic_guard::catch_panics;
use crate::server::host;

/// How long sled may take to open before it counts as hanging.
pub(super) const OPEN_TIME_MAX: Duration = Duration::from_secs(5);
/// How long the syncs and reads after it may take: a slow disk is no damage.
pub(super) const CHECK_TIME_MAX: Duration = Duration::from_secs(30);
/// How often sled's lock is looked at again.
const LOCK_RETRY: Duration = Duration::from_millis(5);
/// How much longer either may take for each gigabyte.
const TIME_MAX_PER_GIB: Duration = Duration::from_secs(1);
/// Into how many parts either is divided.
const SLICES: u32 = 50;
/// The thread on which sled opens. Its panics, and those of sled's own threads meanwhile, are errors.
const OPEN_THREAD: &str = "store-open";

/// Runs what may panic or hang on damaged files on a thread of its own. One that hangs is left behind: the
/// process is about to end.
pub(super) fn guarded<T: Send + 'static>(
    path: &Path,
    time_max: Duration,
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    if host::is_simulated() {
        return work();
    }
    let bytes = fs::metadata(path.join("db")).map_or(0, |db| db.len());
    let gib = u32::try_from(bytes >> 30).unwrap_or(u32::MAX);
    let limit = time_max + TIME_MAX_PER_GIB.saturating_mul(gib);
    let (answer, answered) = mpsc::sync_channel(1);
    let thread = move || {
        // Nobody listens any more once the limit has passed.
        answer.send(catch_panics(work)).ok();
    };
    std::thread::Builder::new()
        .name(OPEN_THREAD.to_owned())
        .spawn(thread)
        .map_err(StoreError::io("start a thread for", path))?;
    match in_slices(limit, |slice| answered.recv_timeout(slice)) {
        Ok(Ok(result)) => result,
        Ok(Err(panicked)) => Err(StoreError::DatabaseDamaged {
            path: path.to_path_buf(),
            reason: panicked.to_string(),
        }),
        Err(mpsc::RecvTimeoutError::Disconnected) => Err(StoreError::DatabaseDamaged {
            path: path.to_path_buf(),
            reason: "it ended without an answer".to_owned(),
        }),
        Err(mpsc::RecvTimeoutError::Timeout) => Err(StoreError::DatabaseHangs {
            path: path.to_path_buf(),
            limit,
        }),
    }
}

/// Waits for this long. What a process stands still meanwhile (it is stopped, or its machine is suspended) is no time that
/// sled had, and counts as one slice however long it is.
fn in_slices<T>(
    limit: Duration,
    mut wait: impl FnMut(Duration) -> Result<T, mpsc::RecvTimeoutError>,
) -> Result<T, mpsc::RecvTimeoutError> {
    for _ in 0..SLICES {
        match wait(limit / SLICES) {
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            answered => return answered,
        }
    }
    Err(mpsc::RecvTimeoutError::Timeout)
}

/// sled's own threads hold its lock for a moment after the last handle of an earlier store in this process is gone.
/// Nobody else can hold it, because the directory is locked; so where it is not given back, sled says what is wrong.
pub(super) fn wait_until_unlocked(file: &Path) {
    let Ok(file) = File::open(file) else {
        return;
    };
    let until = Instant::now() + OPEN_TIME_MAX / 2;
    while let Err(fs::TryLockError::WouldBlock) = file.try_lock() {
        if until <= Instant::now() {
            return;
        }
        std::thread::sleep(LOCK_RETRY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A node that was stopped while it started, for longer than that may take, did not come back by itself.
    #[test]
    fn a_standstill_counts_as_one_part_of_the_time_however_long_it_is() {
        let limit = Duration::from_secs(5);
        let mut waited = Vec::new();

        let answer = in_slices(limit, |slice| {
            waited.push(slice);
            // Each may have lasted for hours.
            match waited.len() {
                3 => Ok("it is open"),
                _ => Err(mpsc::RecvTimeoutError::Timeout),
            }
        });

        assert_eq!(answer, Ok("it is open"));
        assert_eq!(waited, [limit / SLICES; 3]);
        let never = in_slices(limit, |_| Err::<(), _>(mpsc::RecvTimeoutError::Timeout));
        assert_eq!(never, Err(mpsc::RecvTimeoutError::Timeout));
    }

    #[test]
    fn what_hangs_is_given_up_at_its_limit_and_more_data_has_more_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let (release, released) = mpsc::channel::<()>();
        let (release_later, released_later) = mpsc::channel::<()>();
        let limit = Duration::from_millis(20);

        // Released in the end, so that a limit that is missing is a failure and no hanging test.
        let hung = guarded(path, limit, move || {
            released.recv_timeout(Duration::from_secs(10)).ok();
            Ok(())
        });
        let file = File::create(path.join("db")).unwrap();
        // A hole: it takes no disk.
        file.set_len(1 << 30).unwrap();
        let large = guarded(path, limit, move || {
            released_later.recv_timeout(Duration::from_secs(10)).ok();
            Ok(())
        });

        let error = hung.unwrap_err().to_string();
        assert!(error.contains(" did not open within 20ms: "), "{error}");
        let error = large.unwrap_err().to_string();
        assert!(error.contains(" did not open within 1.02s: "), "{error}");
        drop((release, release_later));
    }
}
