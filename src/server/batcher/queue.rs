//! What waits at this node, and how much of it one batch takes.

use std::collections::VecDeque;

use tokio::sync::mpsc;

use super::request::Pending;
use crate::sequence::Command;
use crate::server::types::{BATCH_BYTES_MAX, BATCH_COMMANDS_MAX};

/// What a batch costs besides its commands: session, number, ack, hash and length.
const ENVELOPE_BYTES: usize = 8 + 8 + 8 + 16 + 8;
/// What a grant costs besides its sequence's name: its kind, the name's length and the count. It is what batches are
/// full of.
const GRANT_BYTES: usize = 4 + 8 + 4;
/// What any other command costs at most besides the names in it.
const COMMAND_BYTES: usize = 64;
/// The same with a request key.
const KEYED_BYTES: usize = COMMAND_BYTES + 32;
/// What each lease of several costs besides its sequence's name: the name's length and the count.
const PART_BYTES: usize = 8 + 4;
/// The same where it was taken out of a window: whether it was, the reservation, first, last, increment.
const TAKEN_PART_BYTES: usize = PART_BYTES + 1 + 8 + 24;
/// What each sequence of an import costs besides its name: the name's length, settings, which are named, the mark.
const IMPORT_PART_BYTES: usize = 8 + 36 + 5 + 8;

/// Requests in the order of their coming.
#[derive(Debug)]
pub(super) struct Queue {
    arriving: mpsc::Receiver<Pending>,
    /// Requests that come before those: one that did not fit into the last batch, or those of a batch that came back.
    held: VecDeque<Pending>,
}

impl Queue {
    pub(super) fn new(arriving: mpsc::Receiver<Pending>) -> Self {
        Self {
            arriving,
            held: VecDeque::new(),
        }
    }

    /// Who has waited longest; `None` where nobody will come any more. Nobody is lost when it is dropped unfinished.
    pub(super) async fn next(&mut self) -> Option<Pending> {
        match self.held.pop_front() {
            Some(held) => Some(held),
            None => self.arriving.recv().await,
        }
    }

    /// A batch that begins with `first`: what has arrived by now and fits.
    pub(super) fn fill(&mut self, first: Pending) -> Vec<Pending> {
        let mut room = BATCH_BYTES_MAX - ENVELOPE_BYTES;
        let mut waiting = Vec::new();
        let mut next = Some(first);
        while let Some(pending) = next {
            let size = size(&pending.command);
            if room < size {
                self.held.push_front(pending);
                break;
            }
            room -= size;
            waiting.push(pending);
            if waiting.len() == BATCH_COMMANDS_MAX {
                break;
            }
            next = self.try_next();
        }
        waiting
    }

    /// Who has waited longest, of those that wait now.
    pub(super) fn try_next(&mut self) -> Option<Pending> {
        let held = self.held.pop_front();
        held.or_else(|| self.arriving.try_recv().ok())
    }

    /// Takes back the requests of a batch that was never applied.
    pub(super) fn put_back(&mut self, waiting: Vec<Pending>) {
        self.held.extend(waiting);
    }
}

/// An upper bound of a command's encoded size.
pub(super) fn size(command: &Command) -> usize {
    match command {
        Command::Grant { sequence, .. } => GRANT_BYTES + sequence.as_str().len(),
        Command::Create { sequence, .. }
        | Command::Advance { sequence, .. }
        | Command::Alter { sequence, .. }
        | Command::Retire { sequence }
        | Command::Reserve { sequence, .. } => COMMAND_BYTES + sequence.as_str().len(),
        Command::AdvanceKeyed { sequence, .. } => KEYED_BYTES + sequence.as_str().len(),
        Command::OpenSession { .. } | Command::RaiseLevel { .. } => COMMAND_BYTES,
        Command::Admit { node } => COMMAND_BYTES + node.api.len() + node.peer.len(),
        Command::GrantAll { parts, .. } | Command::GrantAllKeyed { parts, .. } => {
            let sizes = parts.iter().map(|part| part.sequence.as_str().len());
            KEYED_BYTES + sizes.map(|length| PART_BYTES + length).sum::<usize>()
        }
        Command::GrantTaken { parts, .. } => {
            let sizes = parts.iter().map(|part| part.part.sequence.as_str().len());
            KEYED_BYTES + sizes.map(|length| TAKEN_PART_BYTES + length).sum::<usize>()
        }
        Command::Import { parts } => {
            let sizes = parts.iter().map(|part| part.sequence.as_str().len());
            COMMAND_BYTES
                + sizes
                    .map(|length| IMPORT_PART_BYTES + length)
                    .sum::<usize>()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::sync::Arc;

    use futures::FutureExt as _;
    use tokio::sync::{Semaphore, oneshot};

    use super::super::courier::{Place, encode};
    use super::*;
    use crate::sequence::{
        Batch, BatchHash, Changes, GRANT_PARTS_MAX, GrantPart, IMPORT_PARTS_MAX, ImportPart,
        NAME_LENGTH_MAX, NamedSettings, NodeCard, Origin, Range, RangeCount, RequestKey,
        SequenceName, SessionId, Settings, Taken, WindowPart,
    };
    use crate::server::codec;
    use crate::server::types::ADDRESS_BYTES_MAX;

    /// As many leases as one command holds, of the longest names.
    fn largest_lease() -> Command {
        let part = GrantPart {
            sequence: "x".repeat(NAME_LENGTH_MAX).parse().unwrap(),
            count: RangeCount::ONE,
        };
        Command::GrantAllKeyed {
            key: KEY,
            parts: vec![part; GRANT_PARTS_MAX].try_into().unwrap(),
            create: Some(Settings::default()),
        }
    }

    /// The same with what it takes out of windows.
    fn largest_taken() -> Command {
        let part = WindowPart {
            part: GrantPart {
                sequence: "x".repeat(NAME_LENGTH_MAX).parse().unwrap(),
                count: RangeCount::ONE,
            },
            taken: Some(Taken {
                index: u64::MAX,
                range: Range::starting_at(1, RangeCount::ONE, NonZeroU64::MIN).unwrap(),
            }),
        };
        Command::GrantTaken {
            key: Some(KEY),
            parts: vec![part; GRANT_PARTS_MAX].try_into().unwrap(),
            create: Some(Settings::default()),
        }
    }

    /// As many sequences as one import holds, of the longest names.
    fn largest_import() -> Command {
        let part = ImportPart {
            sequence: "x".repeat(NAME_LENGTH_MAX).parse().unwrap(),
            settings: Settings::default(),
            named: NamedSettings([true; 5]),
            at_least: u64::MAX,
        };
        Command::Import {
            parts: vec![part; IMPORT_PARTS_MAX].try_into().unwrap(),
        }
    }

    const KEY: RequestKey = RequestKey {
        id: u128::MAX,
        request: u128::MAX,
    };

    #[test]
    fn no_command_is_larger_than_its_bound() {
        let sequence: SequenceName = "x".repeat(NAME_LENGTH_MAX).parse().unwrap();
        let commands = [
            Command::Grant {
                sequence: sequence.clone(),
                count: RangeCount::ONE,
            },
            Command::Create {
                sequence: sequence.clone(),
                settings: Settings::default(),
            },
            Command::Advance {
                sequence: sequence.clone(),
                to: u64::MAX,
            },
            Command::Alter {
                sequence: sequence.clone(),
                changes: Changes {
                    start: Some(u64::MAX),
                    increment: Some(u64::MAX),
                    max_value: Some(u64::MAX),
                    cache: Some(u64::MAX),
                    max_lease: Some(RangeCount::ONE),
                },
            },
            Command::Retire {
                sequence: sequence.clone(),
            },
            Command::Reserve {
                sequence: sequence.clone(),
                count: RangeCount::ONE,
            },
            Command::OpenSession {
                origin: Origin {
                    node: u64::MAX,
                    nonce: u128::MAX,
                },
            },
            Command::Admit {
                node: NodeCard {
                    incarnation: u128::MAX,
                    api: "x".repeat(ADDRESS_BYTES_MAX),
                    peer: "x".repeat(ADDRESS_BYTES_MAX),
                },
            },
            Command::AdvanceKeyed {
                key: KEY,
                sequence,
                to: u64::MAX,
            },
            largest_lease(),
            largest_taken(),
            largest_import(),
        ];
        for command in commands {
            assert!(
                codec::encode(&command).len() <= size(&command),
                "{command:?}"
            );
        }
        for largest in [largest_lease(), largest_taken(), largest_import()] {
            assert!(ENVELOPE_BYTES + size(&largest) <= BATCH_BYTES_MAX);
        }
    }

    fn grant() -> Command {
        Command::Grant {
            sequence: "p".parse().unwrap(),
            count: RangeCount::ONE,
        }
    }

    fn pending(command: Command) -> Pending {
        let room = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        Pending {
            command,
            _room: room,
            deadline: tokio::time::Instant::now(),
            ticket: Arc::default(),
            reply: oneshot::channel().0,
        }
    }

    /// The batches that these requests become, when all of them are there before the first batch is made.
    async fn batches(commands: &[Command]) -> Vec<Vec<Pending>> {
        let (arrive, arriving) = mpsc::channel(commands.len());
        for command in commands {
            arrive.try_send(pending(command.clone())).unwrap();
        }
        drop(arrive);
        let mut queue = Queue::new(arriving);
        let mut batches = Vec::new();
        while let Some(first) = queue.next().await {
            batches.push(queue.fill(first));
        }
        batches
    }

    #[tokio::test]
    async fn what_does_not_fit_into_a_batch_is_the_first_of_the_next() {
        let crowd = [grant(), largest_lease(), grant(), largest_lease(), grant()];
        let commands: Vec<Command> = crowd.iter().cycle().take(500).cloned().collect();

        let batches = batches(&commands).await;

        for batch in &batches {
            let commands = batch.iter().map(|pending| pending.command.clone());
            let place = Place {
                session: SessionId::NONE,
                number: 1,
                ack: 0,
            };
            assert!(encode(commands.collect(), place).len() <= BATCH_BYTES_MAX);
            let large = batch
                .iter()
                .filter(|pending| matches!(pending.command, Command::GrantAllKeyed { .. }));
            assert!(large.count() <= 1);
        }
        let sent: Vec<Command> = batches
            .into_iter()
            .flatten()
            .map(|pending| pending.command)
            .collect();
        assert!(sent == commands, "nobody is lost, and nobody overtakes");
    }

    // The batcher waits for its queue and for other things at once, and drops the wait where another is ready first.
    #[tokio::test]
    async fn who_did_not_fit_is_not_lost_with_a_wait_that_is_dropped() {
        let (arrive, arriving) = mpsc::channel(2);
        for _ in 0..2 {
            arrive.try_send(pending(largest_lease())).unwrap();
        }
        let mut queue = Queue::new(arriving);
        let first = queue.next().await.unwrap();
        assert_eq!(queue.fill(first).len(), 1, "the second does not fit");

        let mut waits = std::iter::repeat_with(|| queue.next().now_or_never().flatten());

        let found = waits.by_ref().take(10).flatten().count();
        assert_eq!(found, 1, "a request is lost, and nobody answers it");
    }

    #[tokio::test]
    async fn a_batch_has_so_many_commands_and_no_more() {
        let batches = batches(&vec![grant(); 2 * BATCH_COMMANDS_MAX + 1]).await;

        let sizes: Vec<usize> = batches.iter().map(Vec::len).collect();
        assert_eq!(sizes, [BATCH_COMMANDS_MAX, BATCH_COMMANDS_MAX, 1]);
    }

    #[test]
    fn the_envelope_is_as_large_as_it_is_counted() {
        let batch = Batch {
            session: SessionId::NONE,
            number: u64::MAX,
            ack: u64::MAX,
            hash: BatchHash([0; 16]),
            commands: Vec::new(),
        };

        assert_eq!(codec::encode(&batch).len(), ENVELOPE_BYTES);
    }
}
