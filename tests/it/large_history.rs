//! A history that is larger than memory: it is judged within a bound, which `scripts/verify` asks of 100 million grants.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use highwater::chaos::ProcessUse;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use crate::world::{PATIENCE, POLL_INTERVAL, program, rounds};

/// How many grants a history has; `HIGHWATER_TEST_VERIFY_GRANTS` asks for more.
const GRANTS: u64 = 100_000;
/// However many grants there are.
const MEMORY_BYTES_MAX: u64 = 1024 * 1024 * 1024;
const WORKERS: u64 = 64;

/// Writes what so many workers see of a sequence: leases of 1 to 20 values, one in eight under a key, one read in sixteen
/// requests, and one answer in ten thousand lost.
fn write_history(path: &Path, grants: u64) -> std::io::Result<()> {
    let mut file = BufWriter::with_capacity(1024 * 1024, File::create(path)?);
    let mark = |op, times: (u64, u64), high: &str| {
        let (sent, received) = times;
        format!(
            "{{\"v\":2,\"op\":\"{op}\",\"worker\":\"w0\",\"node\":1,\"sequence\":\"photos\",\"sent_ns\":{sent},\
             \"received_ns\":{received},\"high\":{high}}}"
        )
    };
    writeln!(file, "{}", mark("read", (1, 2), "null,\"start\":1"))?;
    let mut high = 0;
    let mut random: u64 = 1;
    let mut now = 10_000_000;
    for number in 0..grants {
        // Knuth's MMIX: the upper bits are random enough.
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let dice = random >> 40;
        now += 10_000;
        let (sent, received) = (now - dice % 2_000_000, now + dice % 1_000_000);
        let (worker, node) = (dice % WORKERS, dice % 3 + 1);
        let count = dice % 20 + 1;
        let (first, last) = (high + 1, high + count);
        high = last;
        write!(
            file,
            "{{\"v\":1,\"worker\":\"w{worker}\",\"node\":{node},\"sequence\":\"photos\",\"count\":{count},\"key\":"
        )?;
        if dice.is_multiple_of(8) {
            write!(file, "\"order-{number}\"")?;
        } else {
            write!(file, "null")?;
        }
        write!(
            file,
            ",\"sent_ns\":{sent},\"received_ns\":{received},\"outcome\":"
        )?;
        if dice % 10_000 == 1 {
            writeln!(file, "\"unknown\"}}")?;
        } else {
            writeln!(
                file,
                "\"granted\",\"first\":{first},\"last\":{last},\"increment\":1}}"
            )?;
        }
        if dice % 16 == 2 {
            writeln!(
                file,
                "{}",
                mark("read", (sent, received), &high.to_string())
            )?;
        }
    }
    let end = now + 10_000_000;
    writeln!(
        file,
        "{}",
        mark("final_read", (end, end), &high.to_string())
    )?;
    file.flush()
}

/// Waits until it has ended. Gives its peak of memory as it was seen last.
async fn wait_until_ended(child: &mut Child, patience: Duration) -> u64 {
    let pid = child.id().unwrap();
    let mut peak = 0;
    let ended = async {
        while child.try_wait().unwrap().is_none() {
            // One that has ended uses nothing any more.
            if let Ok(used) = ProcessUse::of(pid) {
                peak = used.memory_peak;
            }
            sleep(POLL_INTERVAL).await;
        }
    };
    timeout(patience, ended).await.expect("it ends");
    peak
}

#[tokio::test]
async fn a_history_is_judged_within_a_bound_of_memory_however_long_it_is() {
    let grants = rounds("HIGHWATER_TEST_VERIFY_GRANTS", GRANTS);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("history.ndjson");
    write_history(&path, grants).unwrap();
    let started = Instant::now();
    let mut verify = Command::new(program().path)
        .arg("verify")
        .arg(&path)
        .env("TMPDIR", directory.path())
        .spawn()
        .unwrap();

    // A minute, and a millisecond for each grant.
    let patience = PATIENCE + Duration::from_millis(grants);
    let peak = wait_until_ended(&mut verify, patience).await;

    let status = verify.wait().await.unwrap();
    println!(
        "{grants} grants, {} MiB: {:.0} s, {} MiB of memory at most",
        path.metadata().unwrap().len() >> 20,
        started.elapsed().as_secs_f64(),
        peak >> 20
    );
    assert!(status.success());
    assert!(peak < MEMORY_BYTES_MAX);
}
