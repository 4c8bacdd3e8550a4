//! Bugs that tests plant, to see that they find them. No build but the tests' has this module, or any of them.

use std::sync::LazyLock;

/// Names the bug that this process has.
pub(crate) const PLANTED: &str = "HIGHWATER_TEST_PLANTED";

static HERE: LazyLock<Option<Bug>> = LazyLock::new(|| {
    let name = std::env::var(PLANTED).ok()?;
    let found = Bug::ALL.into_iter().find(|bug| bug.name() == name);
    Some(found.unwrap_or_else(|| panic!("no bug is called {name:?}")))
});

/// Something that is done wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bug {
    /// A grant's mark is one value too low.
    RangeEnd,
    /// The leader answers what it has only proposed.
    ReplyBeforeCommit,
    /// A batch whose answer was lost is sent again under a new number.
    BatchRenumbered,
    /// A snapshot holds no sessions.
    SessionsNotInSnapshot,
    /// A request key is forgotten after half a second.
    KeyForgotten,
    /// A vote is given before it is on disk.
    VoteNotSynced,
    /// A truncation is not written to the superblock before it begins.
    TruncateNotSynced,
    /// A node that has lost its store makes another one, and its peers do not mind what it has forgotten.
    WipedNodeVotes,
    /// State time is what the clock of the node says.
    StateTimeFromClock,
    /// Batches are applied in the order of a hash map.
    HashOrder,
    /// A read is answered without asking whether somebody else leads.
    ReadUnproved,
    /// A request that was sent is told not to have been applied.
    UnknownToldAsRefused,
    /// A connection to a peer that was lost is not opened again.
    LinkNotReopened,
    /// What waits at a node is not counted.
    QueueUnbounded,
    /// Who asks for a proof of leadership shares the one that is under way.
    ProofTooEarly,
    /// A node that leads again goes on with the windows of its leadership before, and any proof that it leads is enough.
    WindowsKept,
    /// A reservation that is answered late opens a window of the present leadership.
    LateReservation,
    /// An advance ends no window.
    WindowOpenAfterAdvance,
    /// Values that were taken without a proof of leadership are given again.
    UnprovedGivenAgain,
}

impl Bug {
    /// All of them.
    pub(crate) const ALL: [Self; 19] = [
        Self::RangeEnd,
        Self::ReplyBeforeCommit,
        Self::BatchRenumbered,
        Self::SessionsNotInSnapshot,
        Self::KeyForgotten,
        Self::VoteNotSynced,
        Self::TruncateNotSynced,
        Self::WipedNodeVotes,
        Self::StateTimeFromClock,
        Self::HashOrder,
        Self::ReadUnproved,
        Self::UnknownToldAsRefused,
        Self::LinkNotReopened,
        Self::QueueUnbounded,
        Self::ProofTooEarly,
        Self::WindowsKept,
        Self::LateReservation,
        Self::WindowOpenAfterAdvance,
        Self::UnprovedGivenAgain,
    ];

    /// How it is asked for.
    pub(crate) fn name(self) -> String {
        format!("{self:?}")
    }

    /// Whether this process has it.
    pub(crate) fn is_planted(self) -> bool {
        *HERE == Some(self)
    }
}
