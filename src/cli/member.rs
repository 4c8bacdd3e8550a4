//! `highwater member`: who the members are, and changes of them while the cluster serves.

use std::time::Duration;

use clap::Subcommand;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::args::{NodeUrls, block_on, parse_duration};
use super::cluster::members_table;
use super::error::{CliError, Exit, one_line};
use super::output::Output;
use crate::client::{Client, ClientError};
use crate::wire::{MemberRole, MembersBody};

/// How long one question is tried: then it is told what is waited for.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
/// The pause between two.
const PAUSE: Duration = Duration::from_millis(200);

const EXAMPLES: &str = "\
Examples:
  highwater member list
  highwater member add                 the new node that was started with serve --join votes
  highwater member replace 3           it votes instead of node 3, which may be dead
  highwater member remove 5

A new node is started with an empty data directory and the address of any node:
  highwater serve --join http://127.0.0.1:7101 --data-dir ./data/4 \\
    --listen 127.0.0.1:7104 --peer-listen 127.0.0.1:7204

Each names a state to reach: to repeat it is harmless. What it needs is waited for, 30s
unless told otherwise. Exit code 4 where too few voters would answer afterwards, 8 where
what it waited for did not come; nothing was changed then.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show the members
    List {
        #[command(flatten)]
        reach: Reach,
    },
    /// Have a new node vote: the one named, or the only learner there is
    Add {
        /// Which; the only learner, where none is named
        #[arg(value_name = "ID")]
        node: Option<u64>,
        #[command(flatten)]
        reach: Reach,
    },
    /// Have a learner vote
    Promote {
        /// Which
        #[arg(value_name = "ID")]
        node: u64,
        #[command(flatten)]
        reach: Reach,
    },
    /// Make a voter a learner
    Demote {
        /// Which
        #[arg(value_name = "ID")]
        node: u64,
        #[command(flatten)]
        reach: Reach,
    },
    /// Remove a node for good: its id is never used again, and its process ends
    Remove {
        /// Which
        #[arg(value_name = "ID")]
        node: u64,
        #[command(flatten)]
        reach: Reach,
    },
    /// Have a learner vote instead of a node, which is removed for good and may be dead
    Replace {
        /// Who goes
        #[arg(value_name = "OLD")]
        old: u64,
        /// Who comes; the only learner, where none is named
        #[arg(long, value_name = "ID")]
        with: Option<u64>,
        #[command(flatten)]
        reach: Reach,
    },
}

/// Which nodes to ask, and for how long.
#[derive(Debug, clap::Args)]
struct Reach {
    #[command(flatten)]
    nodes: NodeUrls,
    /// How long to wait for what is needed
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    timeout: Duration,
}

/// What was done.
#[derive(Debug, Serialize)]
struct Done {
    node: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    with: Option<u64>,
    changed: bool,
}

pub(super) fn run(args: &Args, output: &Output) -> Result<Exit, CliError> {
    let reach = match &args.verb {
        Verb::List { reach }
        | Verb::Add { reach, .. }
        | Verb::Promote { reach, .. }
        | Verb::Demote { reach, .. }
        | Verb::Remove { reach, .. }
        | Verb::Replace { reach, .. } => reach,
    };
    let asking = Asking {
        client: reach.nodes.client(ATTEMPT_TIMEOUT.min(reach.timeout))?,
        output,
        until: Instant::now() + reach.timeout,
    };
    block_on(asking.carry_out(&args.verb))??;
    Ok(Exit::Ok)
}

struct Asking<'a> {
    client: Client,
    output: &'a Output,
    until: Instant,
}

impl Asking<'_> {
    async fn carry_out(&self, verb: &Verb) -> Result<(), CliError> {
        let members = || self.client.members();
        match verb {
            Verb::List { .. } => {
                let members = self.until_done(async || members().list().await).await?;
                let table = members_table(&members);
                self.output.data(table, &MembersBody { members })
            }
            Verb::Add { node, .. } => {
                let node = self.chosen(*node, None).await?;
                self.promote(node).await
            }
            Verb::Promote { node, .. } => self.promote(*node).await,
            Verb::Demote { node, .. } => {
                let changed = self.until_done(async || members().demote(*node).await);
                let changed = changed.await?;
                self.tell(
                    "does not vote",
                    &Done {
                        node: *node,
                        with: None,
                        changed,
                    },
                )
            }
            Verb::Remove { node, .. } => {
                let changed = self.until_done(async || members().remove(*node).await);
                let changed = changed.await?;
                self.tell(
                    "is no member",
                    &Done {
                        node: *node,
                        with: None,
                        changed,
                    },
                )
            }
            Verb::Replace { old, with, .. } => {
                let new = self.chosen(*with, Some(*old)).await?;
                let changed = self.until_done(async || members().replace(*old, new).await);
                let what = format!("is no member, and node {new} votes");
                let done = Done {
                    node: *old,
                    with: Some(new),
                    changed: changed.await?,
                };
                self.tell(&what, &done)
            }
        }
    }

    async fn promote(&self, node: u64) -> Result<(), CliError> {
        let changed = self.until_done(async || self.client.members().promote(node).await);
        let changed = changed.await?;
        self.tell(
            "votes",
            &Done {
                node,
                with: None,
                changed,
            },
        )
    }

    fn tell(&self, what: &str, done: &Done) -> Result<(), CliError> {
        let before = if done.changed { "" } else { ", as before" };
        let text = format_args!("node {} {what}{before}", done.node);
        self.output.data(text, done)
    }

    /// The learner that is named, or the only one; one is waited for.
    async fn chosen(&self, named: Option<u64>, but: Option<u64>) -> Result<u64, CliError> {
        if let Some(node) = named {
            return Ok(node);
        }
        let mut waits = false;
        loop {
            let members = self.until_done(async || self.client.members().list().await);
            let members = members.await?;
            let learners = members
                .iter()
                .filter(|member| member.role == MemberRole::Learner && Some(member.id) != but);
            let learners: Vec<u64> = learners.map(|member| member.id).collect();
            match learners[..] {
                [one] => return Ok(one),
                [] if self.until <= Instant::now() => return Err(CliError::NoLearner),
                [] => {
                    if !waits {
                        self.output
                            .note("waiting for a new node: start one with highwater serve --join");
                        waits = true;
                    }
                }
                _ => return Err(CliError::SeveralLearners { learners }),
            }
            sleep(PAUSE).await;
        }
    }

    /// Asks until it is done, refused, or too late, and tells what is waited for.
    async fn until_done<T>(
        &self,
        ask: impl AsyncFn() -> Result<T, ClientError>,
    ) -> Result<T, CliError> {
        let mut told = None;
        loop {
            let error = match ask().await {
                Err(error @ (ClientError::Unavailable { .. } | ClientError::Unknown { .. })) => {
                    error
                }
                done => return Ok(done?),
            };
            if self.until <= Instant::now() {
                return Err(error.into());
            }
            let line = one_line(&error);
            if told.as_ref() != Some(&line) {
                self.output.note(format_args!("waiting: {line}"));
                told = Some(line);
            }
            sleep(PAUSE).await;
        }
    }
}
