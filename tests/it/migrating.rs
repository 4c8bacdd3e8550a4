//! docs/migrating.md: every command of it, against the counters that it takes over from.

use std::collections::BTreeMap;
use std::path::Path;

use tokio::process::Command;

use crate::databases::{Database, maria_db, postgres};
use crate::node::{Node, ended, serve, wait_until_ready};
use crate::pages::printing;

const PAGE: &str = include_str!("../../docs/migrating.md");

const TICKETS: &str = "A MySQL ticket table";
const LEAF: &str = "Meituan's Leaf";
const TINY_ID: &str = "TinyId";
const SEQUENCE: &str = "A PostgreSQL sequence";
const TABLES: &str = "The ids' own tables";

/// The sections of the page that have commands.
fn recipes() -> BTreeMap<&'static str, Vec<(String, String)>> {
    let sections = PAGE.split("\n## ").filter_map(|section| {
        let (heading, text) = section.split_once('\n')?;
        let examples = printing(text);
        (!examples.is_empty()).then_some((heading, examples))
    });
    sections.collect()
}

/// Runs a recipe's commands in a directory with a node of its own. The shell finds the databases by `clients`.
async fn run(recipe: &str, directory: &Path, clients: &str) {
    let node = Node::start(&directory.join("node.log"), serve(&directory.join("data")));
    let url = wait_until_ready(&directory.join("data")).await;
    let binary = env!("CARGO_BIN_EXE_highwater");
    for (command, output) in &recipes()[recipe] {
        let script = format!("highwater() {{ {binary} \"$@\"; }}\n{clients}\n{command}");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).env("HIGHWATER_URL", &url);
        shell.current_dir(directory).kill_on_drop(true);
        let said = ended(shell).await;

        let printed = String::from_utf8_lossy(&said.stdout);
        let errors = String::from_utf8_lossy(&said.stderr);
        assert_eq!(printed, *output, "{command}: {errors}");
    }
    assert!(node.terminate().await.success());
}

/// `mysql -h NAME` for these servers, and `mysql` for the first.
fn mysql(servers: &[(&str, &Database)]) -> String {
    let client = "command mariadb --no-defaults --user=root --socket";
    let first = servers[0].1.socket.display();
    let mut script = "mysql() { case \"$1 $2\" in\n".to_owned();
    for (name, server) in servers {
        let socket = server.socket.display();
        script.push_str(&format!(
            "'-h {name}') shift 2; {client}={socket} \"$@\";;\n"
        ));
    }
    script.push_str(&format!("*) {client}={first} \"$@\";;\nesac; }}"));
    script
}

#[test]
fn every_recipe_of_the_page_is_run_here() {
    let found: Vec<&str> = recipes().into_keys().collect();

    assert_eq!(found, [TICKETS, SEQUENCE, LEAF, TABLES, TINY_ID]);
}

#[tokio::test]
async fn a_pair_of_ticket_servers_is_taken_over() {
    let directory = tempfile::tempdir().unwrap();
    let odd = maria_db(directory.path(), "odd").await;
    let even = maria_db(directory.path(), "even").await;
    // As Flickr has it, with the ids that its pages show.
    for (server, next) in [(&odd, "72157623227190423"), (&even, "72157623227190424")] {
        let offset = if next.ends_with('3') { 1 } else { 2 };
        let table = format!(
            "SET GLOBAL auto_increment_increment = 2, auto_increment_offset = {offset};
             SET auto_increment_increment = 2, auto_increment_offset = {offset};
             CREATE DATABASE tickets; USE tickets;
             CREATE TABLE Tickets64 (id bigint(20) unsigned NOT NULL auto_increment,
               stub char(1) NOT NULL default '', PRIMARY KEY (id), UNIQUE KEY stub (stub)
             ) ENGINE=MyISAM AUTO_INCREMENT={next};
             REPLACE INTO Tickets64 (stub) VALUES ('a')"
        );
        server.maria_db_runs(&table).await;
    }

    let clients = mysql(&[("tickets1", &odd), ("tickets2", &even)]);
    run(TICKETS, directory.path(), &clients).await;
}

#[tokio::test]
async fn leaf_is_taken_over() {
    let directory = tempfile::tempdir().unwrap();
    let server = maria_db(directory.path(), "leaf").await;
    let table = "
        CREATE DATABASE leaf; USE leaf;
        CREATE TABLE leaf_alloc (biz_tag varchar(128) NOT NULL DEFAULT '', max_id bigint(20) NOT NULL DEFAULT '1',
          step int(11) NOT NULL, description varchar(256) DEFAULT NULL,
          update_time timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP, PRIMARY KEY (biz_tag)
        ) ENGINE=InnoDB;
        INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('leaf-segment-test', 1, 2000), ('order', 120001, 2000)";
    server.maria_db_runs(table).await;

    run(LEAF, directory.path(), &mysql(&[("leaf", &server)])).await;
}

#[tokio::test]
async fn tiny_id_is_taken_over() {
    let directory = tempfile::tempdir().unwrap();
    let server = maria_db(directory.path(), "tinyid").await;
    let table = "
        CREATE DATABASE tinyid; USE tinyid;
        CREATE TABLE tiny_id_info (id bigint(20) unsigned NOT NULL AUTO_INCREMENT, biz_type varchar(63) NOT NULL DEFAULT '',
          begin_id bigint(20) NOT NULL DEFAULT '0', max_id bigint(20) NOT NULL DEFAULT '0', step int(11) DEFAULT '0',
          delta int(11) NOT NULL DEFAULT '1', remainder int(11) NOT NULL DEFAULT '0',
          create_time timestamp NOT NULL DEFAULT '2010-01-01 00:00:00',
          update_time timestamp NOT NULL DEFAULT '2010-01-01 00:00:00', version bigint(20) NOT NULL DEFAULT '0',
          PRIMARY KEY (id), UNIQUE KEY uniq_biz_type (biz_type)
        ) ENGINE=InnoDB AUTO_INCREMENT=1;
        INSERT INTO tiny_id_info (biz_type, begin_id, max_id, step, delta, remainder, version)
        VALUES ('test', 1, 200001, 100000, 1, 0, 2), ('test_odd', 1, 1, 100000, 2, 1, 1)";
    server.maria_db_runs(table).await;

    run(TINY_ID, directory.path(), &mysql(&[("tinyid", &server)])).await;
}

/// A PostgreSQL with a database `shop` and these tables, and how the shell finds it.
async fn shop(directory: &Path, statements: &[&str]) -> (Database, String) {
    let server = postgres(directory, "postgres").await;
    server
        .postgres_runs("postgres", &["CREATE DATABASE shop"])
        .await;
    server.postgres_runs("shop", statements).await;
    let socket = server.socket.display();
    let clients = format!("export PGHOST={socket} PGUSER=postgres PSQLRC=/dev/null");
    (server, clients)
}

#[tokio::test]
async fn postgres_sequences_are_taken_over() {
    let directory = tempfile::tempdir().unwrap();
    let (server, clients) = shop(
        directory.path(),
        &[
            "CREATE TABLE orders (id bigserial PRIMARY KEY)",
            "CREATE TABLE invoices (id bigserial PRIMARY KEY)",
            "CREATE SEQUENCE shards_id_seq START 1001 INCREMENT 10",
            "SELECT nextval('shards_id_seq') FROM generate_series(1, 3)",
            // Of the last block 20 values are the session's that ends here.
            "ALTER SEQUENCE orders_id_seq CACHE 50",
            "INSERT INTO orders SELECT FROM generate_series(1, 130)",
        ],
    )
    .await;

    run(SEQUENCE, directory.path(), &clients).await;
    server.stop_postgres().await;
}

#[tokio::test]
async fn ids_of_tables_are_taken_over() {
    let directory = tempfile::tempdir().unwrap();
    let (server, clients) = shop(
        directory.path(),
        &[
            "CREATE TABLE photos (id bigint PRIMARY KEY)",
            "CREATE TABLE albums (id bigint PRIMARY KEY)",
            "INSERT INTO photos VALUES (41999), (42000)",
        ],
    )
    .await;

    run(TABLES, directory.path(), &clients).await;
    server.stop_postgres().await;
}
