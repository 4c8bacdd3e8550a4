//! docs/scaling-out.md: two clusters that share names, and a sequence that moves from one to the other.

use std::path::Path;

use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::node::{Node, serve, wait_until, wait_until_ready};
use crate::pages::{assert_prints, printing};
use crate::world::send;

const PAGE: &str = include_str!("../../docs/scaling-out.md");

/// A cluster of one node, and where it serves.
async fn cluster(directory: &Path, name: &str) -> (Node, String) {
    let data_dir = directory.join(name);
    let node = Node::start(&directory.join(format!("{name}.log")), serve(&data_dir));
    (node, wait_until_ready(&data_dir).await)
}

/// First and last of a lease, as the command line prints it.
fn range(printed: &str) -> Option<(u64, u64)> {
    let (first, last) = printed.trim_end().split_once(' ')?;
    Some((first.parse().ok()?, last.parse().ok()?))
}

#[tokio::test]
async fn every_command_of_the_page_about_scaling_out_prints_what_it_says_and_no_value_comes_twice()
{
    let directory = tempfile::tempdir().unwrap();
    let (_one, one_url) = cluster(directory.path(), "one").await;
    let (_other, other_url) = cluster(directory.path(), "other").await;
    let here = |text: &str| {
        let text = text.replace("http://127.0.0.1:7101", &one_url);
        text.replace("http://127.0.0.1:7111", &other_url)
    };

    let printing = printing(PAGE);

    assert_eq!(printing.len(), 13, "the page has its commands");
    let mut highest = 0;
    for (command, output) in printing {
        assert_prints(directory.path(), "", &here(&command), &here(&output));
        if command.starts_with("highwater lease orders.id 3") {
            let (first, last) = range(&output).unwrap();
            assert!(highest < first, "I1, I2: {first} comes after {highest}");
            highest = last;
        }
    }
    assert_eq!(highest, 1_003, "from both clusters");
}

/// Leases one value after another from the cluster that the table names, until so many came from the second.
async fn lease_through(mut table: watch::Receiver<String>, second: String) -> Vec<u64> {
    let mut values = Vec::new();
    let mut of_second = 0;
    while of_second < 20 {
        let url = table.borrow_and_update().clone();
        let leased = send("POST", &format!("{url}/v1/sequences/p/leases"), "", &[]).await;
        if leased.status == 410 {
            table.changed().await.unwrap();
            continue;
        }
        assert_eq!(leased.status, 201, "{}", leased.text);
        values.push(leased.json()["first"].as_u64().unwrap());
        of_second += u32::from(url == second);
    }
    values
}

#[tokio::test]
async fn a_sequence_that_moves_under_load_is_granted_once_and_in_order() {
    for cache in [0, 50] {
        let directory = tempfile::tempdir().unwrap();
        let (_first, first_url) = cluster(directory.path(), "first").await;
        let (_second, second_url) = cluster(directory.path(), "second").await;
        let sequence = format!("{first_url}/v1/sequences/p");
        let settings = json!({ "cache": cache }).to_string();
        send("PUT", &sequence, &settings, &[]).await;
        let (table, seen) = watch::channel(first_url.clone());
        let mut workers = JoinSet::new();
        for _ in 0..4 {
            workers.spawn(lease_through(seen.clone(), second_url.clone()));
        }
        wait_until("it is leased from", async || {
            let shown = send("GET", &sequence, "", &[]).await;
            shown.json()["high"].as_u64() > Some(20)
        })
        .await;

        let retired = send("DELETE", &sequence, "", &[]).await.json();
        let mark = retired["high"].as_u64().unwrap();
        let list = json!([{"sequence": "p", "cache": cache, "at_least": mark}]).to_string();
        let imported = send("POST", &format!("{second_url}/v1/sequences"), &list, &[]).await;
        assert_eq!(imported.status, 200, "{}", imported.text);
        table.send_replace(second_url);

        let mut values = Vec::new();
        for of_worker in workers.join_all().await {
            assert!(of_worker.is_sorted(), "I2");
            values.extend(of_worker);
        }
        values.sort_unstable();
        assert!(
            values.is_sorted_by(|one, next| one < next),
            "I1: {values:?}"
        );
        let above = values.iter().filter(|value| mark < **value).count();
        assert_eq!(above, 80, "what the second cluster granted, and no more");
    }
}
