//! What the machine can do at best: the disk's sync, the way over loopback, and a handler that keeps nothing.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::routing::post;
use serde_json::json;

use crate::error::BenchError;
use crate::measured::Latencies;
use crate::report::data::{Limit, LimitKind};

/// What one write appends or overwrites.
const WRITE_BYTES: usize = 4096;
/// What is written to before it is overwritten.
const OVERWRITTEN_BYTES: usize = 16 << 20;

/// Measures one limit for so long, with files in this directory.
///
/// # Errors
/// The system's.
pub(crate) fn measure(
    limit: LimitKind,
    directory: &Path,
    time: Duration,
    round: u32,
) -> Result<Limit, BenchError> {
    let path = directory.join("synced");
    let measured = match limit {
        LimitKind::SyncAppend => sync(&path, Place::End, time),
        LimitKind::SyncOverwrite => sync(&path, Place::Within, time),
        LimitKind::Loopback => loopback(time),
    };
    let latencies = measured.map_err(BenchError::file(path, "written and synced"))?;
    Ok(Limit {
        round,
        limit,
        per_second: latencies.per_second(time),
        p50_us: latencies.percentile_us(50),
        p99_us: latencies.percentile_us(99),
    })
}

#[derive(Clone, Copy, PartialEq)]
enum Place {
    End,
    Within,
}

fn sync(path: &Path, place: Place, time: Duration) -> std::io::Result<Latencies> {
    let mut file = File::create(path)?;
    if place == Place::Within {
        file.write_all(&vec![1; OVERWRITTEN_BYTES])?;
        file.sync_all()?;
        file.rewind()?;
    }
    let bytes = [7; WRITE_BYTES];
    let mut written = 0;
    repeat(time, || {
        if place == Place::Within && OVERWRITTEN_BYTES <= written {
            file.seek(SeekFrom::Start(0))?;
            written = 0;
        }
        written += WRITE_BYTES;
        file.write_all(&bytes)?;
        file.sync_data()
    })
}

fn loopback(time: Duration) -> std::io::Result<Latencies> {
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    let address = listener.local_addr()?;
    std::thread::scope(|scope| {
        let echo = scope.spawn(move || -> std::io::Result<()> {
            let (mut stream, _) = listener.accept()?;
            stream.set_nodelay(true)?;
            let mut byte = [0];
            while stream.read(&mut byte)? == 1 {
                stream.write_all(&byte)?;
            }
            Ok(())
        });
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let mut byte = [0];
        let latencies = repeat(time, || {
            stream.write_all(&byte)?;
            stream.read_exact(&mut byte)
        })?;
        // Its end is the other's.
        drop(stream);
        match echo.join() {
            Ok(ended) => ended.map(|()| latencies),
            Err(_panic) => Err(std::io::ErrorKind::BrokenPipe.into()),
        }
    })
}

fn repeat(
    time: Duration,
    mut one: impl FnMut() -> std::io::Result<()>,
) -> std::io::Result<Latencies> {
    let mut latencies = Latencies::default();
    let begun = Instant::now();
    while begun.elapsed() < time {
        let sent = Instant::now();
        one()?;
        latencies.add(sent.elapsed());
    }
    Ok(latencies)
}

/// Answers each request with the next number, which is nowhere but in memory. It begins above all that an earlier process
/// gave, so that one check fits all.
///
/// # Errors
/// Where it cannot listen.
pub(crate) async fn serve_counter(listen: SocketAddr) -> std::io::Result<()> {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let begin = u64::try_from(since_epoch.as_nanos()).unwrap_or_default();
    let counter = Arc::new(AtomicU64::new(begin));
    let count = move || {
        let value = counter.fetch_add(1, Ordering::Relaxed) + 1;
        async move { Json(json!({"first": value, "last": value})) }
    };
    let app = axum::Router::new().route("/", post(count));
    let listener = tokio::net::TcpListener::bind(listen).await?;
    let listener = axum::serve::ListenerExt::tap_io(listener, |stream| {
        // Without it the answer is as right, and later.
        let _set = stream.set_nodelay(true);
    });
    axum::serve(listener, app).await
}
