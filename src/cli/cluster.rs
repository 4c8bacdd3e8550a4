//! `highwater cluster`: what the cluster knows of itself.

use clap::Subcommand;

use super::args::{Connect, block_on};
use super::can_stop::CanStop;
use super::error::{CliError, Exit};
use super::output::{Output, Table, or_dash};
use crate::wire::{ClusterBody, MemberBody, MemberRole};

const STATUS_EXAMPLES: &str = "\
Examples:
  highwater cluster status
  highwater cluster status --url http://127.0.0.1:7102
  highwater cluster status --json
  highwater cluster status --can-stop 2 && systemctl stop highwater

With --can-stop: exit code 0 where the others would serve on without that node, 8 where they
would not, 3 where there is no such node.";

const TRANSFER_EXAMPLES: &str = "\
Examples:
  highwater cluster transfer-leader            to whichever voter is fit
  highwater cluster transfer-leader --to 2

Requests wait for the new leader, and none fails. Before a node is stopped this is
not needed: on SIGTERM it hands over by itself.";

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show leader, term and members
    #[command(after_help = STATUS_EXAMPLES)]
    Status {
        /// Instead, whether this node may be stopped now
        #[arg(long, value_name = "N")]
        can_stop: Option<u64>,
        #[command(flatten)]
        connect: Connect,
    },
    /// Have another node lead
    #[command(after_help = TRANSFER_EXAMPLES)]
    TransferLeader {
        /// The voter that is to lead; whichever is fit, where none is named
        #[arg(long, value_name = "N")]
        to: Option<u64>,
        #[command(flatten)]
        connect: Connect,
    },
}

pub(super) fn run(args: &Args, output: &Output) -> Result<Exit, CliError> {
    match &args.verb {
        Verb::Status { can_stop, connect } => {
            let cluster = block_on(connect.client()?.cluster())??;
            let Some(node) = *can_stop else {
                output.data(text(&cluster), &cluster)?;
                return Ok(Exit::Ok);
            };
            let answer = CanStop::of(node, &cluster).ok_or(CliError::NoMember { node })?;
            output.data(answer.text(), &answer)?;
            return Ok(answer.exit());
        }
        Verb::TransferLeader { to, connect } => {
            let transferred = block_on(connect.client()?.transfer_leader(*to))??;
            let text = format!("node {} leads", transferred.leader);
            output.data(text, &transferred)?;
        }
    }
    Ok(Exit::Ok)
}

fn text(cluster: &ClusterBody) -> String {
    let ClusterBody {
        cluster: id,
        epoch,
        node,
        leader,
        term,
        members,
        tolerates_loss_of,
        feature_level,
    } = cluster;
    let leader = leader.map_or_else(|| "no leader".to_owned(), |id| format!("leader {id}"));
    let mut text =
        format!("cluster {id}, epoch {epoch}, {leader}, term {term}, seen by node {node}\n");
    if let Some(losses) = tolerates_loss_of {
        text.push_str(&format!("tolerates the loss of {losses} more\n"));
    }
    if let Some(levels) = levels(*feature_level, members) {
        text.push_str(&levels);
    }
    text.push_str(&members_table(members).to_string());
    text
}

/// Who knows which feature level, where that is not just the one in use.
fn levels(in_use: u32, members: &[MemberBody]) -> Option<String> {
    let (first, others) = members.split_first()?;
    let first = first.feature_level_max;
    let alike = others.iter().all(|other| other.feature_level_max == first);
    let known = match first {
        Some(known) if alike && known == in_use => return None,
        Some(known) if alike => format!("every member knows {known}"),
        _ => {
            let known = members.iter().map(|member| match member.feature_level_max {
                Some(known) => format!("node {} knows {known}", member.id),
                None => format!("node {} does not say", member.id),
            });
            known.collect::<Vec<_>>().join(", ")
        }
    };
    Some(format!("feature level {in_use} in use; {known}\n"))
}

/// One row a member.
pub(super) fn members_table(members: &[MemberBody]) -> Table {
    let heading = [
        "ID",
        "ROLE",
        "API",
        "PEER",
        "REACHABLE",
        "MATCH",
        "LAG",
        "VERSION",
    ];
    members
        .iter()
        .fold(Table::new().row(heading), |table, member| {
            table.row(row(member))
        })
}

fn row(member: &MemberBody) -> [String; 8] {
    let role = match member.role {
        MemberRole::Leader => "leader",
        MemberRole::Follower => "follower",
        MemberRole::Learner => "learner",
    };
    let reachable = member
        .reachable
        .map(|reachable| if reachable { "yes" } else { "no" });
    [
        member.id.to_string(),
        role.to_owned(),
        member.api.clone(),
        member.peer.clone(),
        or_dash(reachable),
        or_dash(member.match_index),
        or_dash(member.lag),
        or_dash(member.version.as_ref()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unknown_of_a_member_is_a_dash() {
        let cluster = ClusterBody {
            cluster: "c".to_owned(),
            epoch: 1,
            node: 2,
            leader: None,
            term: 3,
            members: vec![MemberBody {
                match_index: Some(17),
                ..MemberBody::unknown(1, MemberRole::Follower)
            }],
            tolerates_loss_of: None,
            feature_level: 1,
        };

        assert_eq!(
            text(&cluster),
            "cluster c, epoch 1, no leader, term 3, seen by node 2\n\
             feature level 1 in use; node 1 does not say\n\
             ID  ROLE      API             PEER            REACHABLE  MATCH  LAG  VERSION\n\
             1   follower  127.0.0.1:7101  127.0.0.1:7201  -          17     -    -\n"
        );
    }

    #[test]
    fn feature_levels_are_told_where_something_is_to_be_known_of_them() {
        let told = |levels: &[Option<u32>]| {
            let members = (1..).zip(levels);
            let members = members.map(|(id, level)| MemberBody {
                feature_level_max: *level,
                ..MemberBody::unknown(id, MemberRole::Follower)
            });
            super::levels(1, &members.collect::<Vec<_>>())
        };
        let line = |text: &str| Some(format!("feature level 1 in use; {text}\n"));

        assert_eq!(told(&[Some(1), Some(1)]), None);
        assert_eq!(told(&[Some(2), Some(2)]), line("every member knows 2"));
        assert_eq!(
            told(&[Some(2), Some(1), None]),
            line("node 1 knows 2, node 2 knows 1, node 3 does not say")
        );
    }
}
