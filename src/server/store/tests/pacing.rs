//! Rates are those of the last minutes, and of nothing before the node was itself again.

use std::time::Duration;

use tokio::sync::watch;

use super::fixture::*;
use crate::sequence::{Command, Settings};
use crate::server::store::Store;
use crate::server::store::backup::Rises;
use crate::server::store::pace::{INTERVAL, Pace};

/// Applies an advance, and lets whoever waits for the clock run.
async fn advance(store: &mut Store, index: u64, to: u64) {
    let sequence = name("s");
    let command = Command::Advance { sequence, to };
    apply(store, [entry_of(1, index, vec![command])]).await;
}

async fn create(store: &mut Store, index: u64, text: &str, start: u64) {
    let settings = Settings::new(start, 1, 1_000_000, Settings::MAX_LEASE_DEFAULT).unwrap();
    let sequence = name(text);
    let command = Command::Create { sequence, settings };
    apply(store, [entry_of(1, index, vec![command])]).await;
}

#[tokio::test(start_paused = true)]
async fn marks_are_compared_with_those_of_5_to_10_minutes_ago() {
    let (_guard, mut store) = new_store();
    create(&mut store, 1, "s", 1).await;
    advance(&mut store, 2, 100).await;
    let pace = Pace::new(store.tables.clone());
    assert_eq!(
        pace.rises(&store.tables.table()),
        Rises::default(),
        "nothing is known yet"
    );
    let (recovered, seen) = watch::channel(false);
    let mut looking = tokio::task::JoinSet::new();
    looking.spawn(pace.clone().run(seen));
    tokio::time::sleep(INTERVAL * 3).await;
    assert_eq!(
        pace.rises(&store.tables.table()),
        Rises::default(),
        "not recovered"
    );

    recovered.send_replace(true);
    tokio::time::sleep(Duration::from_millis(999)).await;
    assert_eq!(
        pace.rises(&store.tables.table()),
        Rises::default(),
        "no time to measure in"
    );
    tokio::time::sleep(Duration::from_millis(59_001)).await;
    advance(&mut store, 3, 400).await;
    create(&mut store, 4, "new", 50).await;
    create(&mut store, 5, "idle", 50).await;
    let command = Command::Advance {
        sequence: name("new"),
        to: 51,
    };
    apply(&mut store, [entry_of(1, 6, vec![command])]).await;

    let rises = pace.rises(&store.tables.table());
    assert_eq!(rises.window_ms, 60_000);
    let expected = [(name("s"), 300), (name("new"), 2)];
    assert_eq!(rises.by_name, expected.into());

    // At the third look the first is forgotten.
    tokio::time::sleep(INTERVAL * 2).await;
    advance(&mut store, 7, 401).await;
    let rises = pace.rises(&store.tables.table());
    assert_eq!(rises.window_ms, 60_000 + 300_000);
    assert_eq!(rises.by_name, [(name("s"), 1)].into());
}
