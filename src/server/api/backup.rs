//! `GET /v1/backup`: the sequences of one moment, as a file that another cluster can be made of.
//!
//! It is written while it is sent, by a thread that waits for its reader, so it takes a few pieces of memory however many
//! sequences there are. What it is written from is a table that shares structure with the one that goes on.

use std::io::{self, BufWriter, Write};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Deserialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::Api;
use super::error::ApiError;
use super::extract::{Consistency, Options, Timeout};
use crate::server::store::{Backup, Pace};

/// Backups that a node sends at once: each has a thread, and reads the whole table.
pub(super) const BACKUPS_MAX: usize = 2;
/// What is handed to the connection at once.
const PIECE_BYTES: usize = 64 * 1024;
/// How many of these may wait for it.
const PIECES_MAX: usize = 4;

/// What backups need beside the table.
#[derive(Debug)]
pub(crate) struct Backups {
    pace: Pace,
    places: Arc<Semaphore>,
}

impl Backups {
    /// Backups with rates of this pace.
    pub(crate) fn new(pace: Pace) -> Self {
        Self {
            pace,
            places: Arc::new(Semaphore::new(BACKUPS_MAX)),
        }
    }
}

fn begin(places: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, ApiError> {
    let place = Arc::clone(places).try_acquire_owned();
    place.map_err(|_full| ApiError::BackupsFull)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BackupOptions {
    #[serde(default)]
    timeout: Timeout,
}

pub(super) async fn download(
    State(api): State<Api>,
    Options(options): Options<BackupOptions>,
) -> Result<Response, ApiError> {
    let deadline = options.timeout.deadline();
    let service = api.service()?;
    let place = begin(&service.backups.places)?;
    service.read(Consistency::Linearizable, deadline).await?;
    let (table, last) = service.consensus.tables().table_at();
    let taken = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let taken_ms = u64::try_from(taken.unwrap_or(Duration::ZERO).as_millis());

    // Not the service itself: a slow reader must not keep a node that ends.
    let (cluster, pace) = (service.cluster, service.backups.pace.clone());
    let (pieces, sent) = mpsc::channel(PIECES_MAX);
    tokio::task::spawn_blocking(move || {
        let backup = Backup {
            cluster,
            taken_ms: taken_ms.unwrap_or(u64::MAX),
            rises: pace.rises(&table),
            last,
            table: table.restored(table.header().epoch),
        };
        let file = BufWriter::with_capacity(PIECE_BYTES, Pieces(pieces));
        // An error is a client that went away.
        if let Err(error) = backup.write(file) {
            tracing::debug!(%error, "backup not sent");
        }
        drop(place);
    });
    let body = futures::stream::unfold(sent, async |mut sent| {
        let piece = sent.recv().await?;
        Some((io::Result::Ok(piece), sent))
    });
    let kind = [(CONTENT_TYPE, "application/octet-stream")];
    Ok((kind, Body::from_stream(body)).into_response())
}

/// Hands what is written to the connection, and waits where that is slow.
struct Pieces(mpsc::Sender<Bytes>);

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = Bytes::copy_from_slice(bytes);
        let sent = self.0.blocking_send(piece);
        sent.map_err(|_gone| io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_sends_two_backups_at_once_and_refuses_a_third() {
        let places = Arc::new(Semaphore::new(BACKUPS_MAX));
        let held: Vec<_> = (0..BACKUPS_MAX).map(|_| begin(&places).unwrap()).collect();

        assert_eq!(begin(&places).unwrap_err(), ApiError::BackupsFull);
        drop(held);
        drop(begin(&places).unwrap());
    }

    // I9: what is sent slowly waits where it is made.
    #[tokio::test]
    async fn a_backup_that_nobody_reads_takes_a_few_pieces_of_memory() {
        let (pieces, mut sent) = mpsc::channel(PIECES_MAX);
        let writer = tokio::task::spawn_blocking(move || {
            let mut pieces = Pieces(pieces);
            let mut written = 0;
            while pieces.write(&[0; 1024]).is_ok() {
                written += 1;
            }
            written
        });
        while sent.len() < PIECES_MAX {
            tokio::task::yield_now().await;
        }

        // It has no room for more, and ends when the reader goes.
        sent.close();
        assert_eq!(writer.await.unwrap(), PIECES_MAX);
        assert_eq!(sent.recv().await.unwrap().len(), 1024);
    }
}
