//! What a log entry asks of the table, and what the table answers.
//!
//! These types are stored and sent with a positional codec: a change of order or type is a change of format.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{
    EntryId, FeatureLevel, GrantParts, IdForm, ImportParts, Imported, NodeCard, Origin, Range,
    RangeCount, Reserved, Sequence, SequenceName, SessionId, Settings, WindowParts,
};

/// One change of the table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Command {
    /// Give the next `count` values.
    Grant {
        /// Of which sequence.
        sequence: SequenceName,
        /// How many.
        count: RangeCount,
    },
    /// Make a sequence, or find it there with the same settings.
    Create {
        /// Its name.
        sequence: SequenceName,
        /// Its settings for ever, but for those that can be altered.
        settings: Settings,
    },
    /// Raise the mark to at least `to`; never lower it.
    Advance {
        /// Of which sequence.
        sequence: SequenceName,
        /// No value up to this one is granted afterwards.
        to: u64,
    },
    /// Change settings, but never what was granted.
    Alter {
        /// Of which sequence.
        sequence: SequenceName,
        /// What is to be different.
        changes: Changes,
    },
    /// End the sequence: nothing is granted until it is created again, and then only above its mark.
    Retire {
        /// Which sequence.
        sequence: SequenceName,
    },
    /// Give several ranges at once, all of them or none.
    GrantAll {
        /// Which, in order. A later one sees what an earlier one took.
        parts: GrantParts,
        /// What a sequence that is not there is created with; `None`: it is refused.
        create: Option<Settings>,
    },
    /// [`Command::GrantAll`] under a request key.
    GrantAllKeyed {
        /// What makes a repetition the same request.
        key: RequestKey,
        /// Which, in order.
        parts: GrantParts,
        /// What a sequence that is not there is created with; `None`: it is refused.
        create: Option<Settings>,
    },
    /// [`Command::Advance`] under a request key.
    AdvanceKeyed {
        /// What makes a repetition the same request.
        key: RequestKey,
        /// Of which sequence.
        sequence: SequenceName,
        /// No value up to this one is granted afterwards.
        to: u64,
    },
    /// Open a session. For an origin that has one it changes nothing, so it can be sent again.
    OpenSession {
        /// Whose batches it will count.
        origin: Origin,
    },
    /// Give a node its id, before it becomes a member. One that has an id keeps it, so it can ask again.
    Admit {
        /// Who it is.
        node: NodeCard,
    },
    /// Make sequences that are not there, and raise the marks of all; each by itself. It is one command, because a value
    /// granted between a creation and its advance would be one that was granted before the import.
    Import {
        /// Which, in order.
        parts: ImportParts,
    },
    /// Let the log hold the commands of this feature level, for ever. Proposed where every member knows it.
    RaiseLevel {
        /// At least.
        to: FeatureLevel,
    },
    /// Raise the mark over a window of the sequence's `cache` values, or `count` where that is more: all that is left, where
    /// fewer are. Who proposed it grants from the window.
    Reserve {
        /// Of which sequence.
        sequence: SequenceName,
        /// Values of the lease that it is for.
        count: RangeCount,
    },
    /// Give several ranges at once, all of them or none, of which some were taken out of windows: those are given only where
    /// the window's reservation is the latest command on its sequence.
    GrantTaken {
        /// What makes a repetition the same request, where it has a key.
        key: Option<RequestKey>,
        /// Which, in order.
        parts: WindowParts,
        /// What a sequence that is not there is created with; `None`: it is refused.
        create: Option<Settings>,
    },
}

/// A request key, and which request it was first given to (I4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RequestKey {
    /// Names the key: 128 bits of BLAKE3 of who asks, for which operation on which names, and the key's text.
    pub(crate) id: u128,
    /// 128 bits of BLAKE3 of the whole request: another one may not use the key.
    pub(crate) request: u128,
}

/// What [`Command::Alter`] changes. What is `None` stays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Changes {
    /// Immutable: anything but the present value is refused.
    pub(crate) start: Option<u64>,
    /// Immutable: anything but the present value is refused.
    pub(crate) increment: Option<u64>,
    /// The new bound, at or above the mark, on the same side of 2^53 − 1.
    pub(crate) max_value: Option<u64>,
    /// Values reserved ahead.
    pub(crate) cache: Option<u64>,
    /// The most values of one lease.
    pub(crate) max_lease: Option<RangeCount>,
}

/// A range given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Grant {
    /// Its values.
    pub(crate) range: Range,
    /// How the sequence's values are written in JSON.
    pub(crate) id_form: IdForm,
}

/// The table's answer to one command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Outcome {
    /// The range given.
    Granted(Grant),
    /// The sequence is there, with the settings asked for.
    Created {
        /// False where it was there before.
        fresh: bool,
        /// What it is now.
        sequence: Sequence,
    },
    /// The mark is at least where it was asked to be.
    Advanced {
        /// The mark before.
        previous: Option<u64>,
        /// The mark now.
        high: Option<u64>,
        /// How the sequence's values are written in JSON.
        id_form: IdForm,
    },
    /// Nothing changed (I5).
    Refused(Refusal),
    /// The settings are what they were asked to be.
    Altered {
        /// What the sequence is now.
        sequence: Sequence,
    },
    /// The sequence is retired.
    Retired {
        /// What it is now.
        sequence: Sequence,
    },
    /// All the ranges asked for, in their order.
    GrantedAll {
        /// One for each part.
        grants: Vec<Grant>,
    },
    /// One part was refused, so nothing changed (I5).
    RefusedAt {
        /// Which part, counted from 0.
        position: u32,
        /// Why.
        refusal: Refusal,
    },
    /// The request was answered before, under the same key. Nothing changed.
    Replayed {
        /// The entry that applied it.
        entry: EntryId,
        /// What it was answered.
        answer: KeyedAnswer,
    },
    /// The origin's session is open.
    Opened {
        /// The session; `None`: the entry has opened another origin's, and an entry can open one.
        session: Option<SessionId>,
    },
    /// The node is known.
    Admitted {
        /// Under this id, for ever.
        id: u64,
    },
    /// What became of each sequence of an import.
    Imported {
        /// One for each part, in order.
        parts: Vec<Imported>,
    },
    /// The log may hold the commands of this feature level.
    LevelRaised {
        /// The one in use, which may be later than the one asked for.
        level: FeatureLevel,
    },
    /// A window is reserved.
    Reserved(Reserved),
}

/// What a request under a key was answered; refusals are not kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum KeyedAnswer {
    /// The ranges given, in the order of the leases.
    Granted(Vec<Grant>),
    /// Where the mark was, and where it is.
    Advanced {
        /// The mark before.
        previous: Option<u64>,
        /// The mark then.
        high: Option<u64>,
        /// How the sequence's values are written in JSON.
        id_form: IdForm,
    },
}

/// Why the table did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub(crate) enum Refusal {
    /// A name that was never created: a typing error must not start a second number space.
    #[error("no such sequence: create it first")]
    UnknownSequence,
    /// The name is there with other settings.
    #[error("the sequence exists with other settings")]
    SequenceExists,
    /// The count is above the sequence's `max_lease`.
    #[error("a lease of {asked} values is too large: lease at most {limit} at once")]
    LeaseTooLarge {
        /// The count asked for.
        asked: RangeCount,
        /// The sequence's `max_lease`.
        limit: RangeCount,
    },
    /// The whole range does not fit below `max_value`.
    #[error("{asked} values do not fit: {left} are left up to max_value")]
    Exhausted {
        /// The count asked for.
        asked: RangeCount,
        /// How many could still be granted.
        left: u32,
    },
    /// The mark asked for is above `max_value`.
    #[error("cannot advance to {to}: max_value is {max_value}")]
    AboveMaximum {
        /// The mark asked for.
        to: u64,
        /// The sequence's bound.
        max_value: u64,
    },
    /// The name is retired: it keeps its mark and gives nothing.
    #[error("the sequence is retired: create it again, and it continues above its mark")]
    Retired,
    /// `start` and `increment` are the lattice that all grants lie on.
    #[error("{setting} is {fixed} for the sequence's whole life: it cannot become {asked}")]
    ImmutableSetting {
        /// Which one.
        setting: FixedSetting,
        /// What it is.
        fixed: u64,
        /// What it was to be.
        asked: u64,
    },
    /// The bound asked for is on the other side of 2^53 − 1: readers would find ids of another JSON type.
    #[error("max_value cannot become {max_value}: {}", stays(*id_form))]
    FormFixed {
        /// The bound asked for.
        max_value: u64,
        /// How the sequence's values are written, and stay.
        id_form: IdForm,
    },
    /// The bound asked for is below what is granted.
    #[error("max_value {max_value} is below the high-water mark: use {high} or more")]
    BelowGranted {
        /// The bound asked for.
        max_value: u64,
        /// The mark.
        high: u64,
    },
    /// The bound asked for leaves no value at all.
    #[error("max_value {max_value} is below start {start}: no value could be granted")]
    BelowStart {
        /// The bound asked for.
        max_value: u64,
        /// The sequence's first value.
        start: u64,
    },
    /// The table is full. Retired names count: their marks are kept for ever.
    #[error("the cluster holds {limit} sequences, retired ones among them: use one that is there")]
    TooManySequences {
        /// How many fit.
        limit: u64,
    },
    /// The key was given to another request.
    #[error("the request key was used for another request: use a new key for each")]
    KeyReused,
    /// All keys that fit are so young that their requests may be on their way.
    #[error("{limit} keyed grants of the last {seconds} s are kept already")]
    TooManyKeys {
        /// How many fit.
        limit: u64,
        /// How long none is forgotten.
        seconds: u64,
    },
    /// No further node has room.
    #[error("the cluster knows {limit} nodes, and no more fit: remove one that is not needed")]
    TooManyNodes {
        /// How many do.
        limit: u64,
    },
    /// The range was taken out of a window that is no more.
    #[error("the sequence was changed since the values were taken for this lease")]
    WindowClosed,
}

/// A setting that never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FixedSetting {
    /// The first value.
    Start,
    /// The distance between neighbours.
    Increment,
}

impl fmt::Display for FixedSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Start => "start",
            Self::Increment => "increment",
        })
    }
}

fn stays(id_form: IdForm) -> &'static str {
    match id_form {
        IdForm::Number => "the sequence's ids are JSON numbers, so stay at 2^53 - 1 or below",
        IdForm::Text => "the sequence's ids are JSON strings, so stay above 2^53 - 1",
    }
}
