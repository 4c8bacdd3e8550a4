//! What a node is told when it starts: addresses, directory, timing.

use std::time::Duration;

/// Raft's time limits. One setting, the heartbeat, scales them all.
///
/// The ratios are those measured not to elect without need: an election time-out of 3 to 6 heartbeats, a leader
/// that checks its quorum every 12 (openraft asks for at least twice the longest election time-out).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    heartbeat: Duration,
}

impl Timing {
    /// The heartbeat unless told otherwise.
    pub const HEARTBEAT_DEFAULT: Duration = Duration::from_millis(40);

    /// Limits for this heartbeat interval.
    #[must_use]
    pub const fn with_heartbeat(heartbeat: Duration) -> Self {
        Self { heartbeat }
    }

    /// How often a leader shows that it is there.
    #[must_use]
    pub const fn heartbeat(self) -> Duration {
        self.heartbeat
    }

    /// The shortest silence after which a follower stands for election.
    #[must_use]
    pub fn election_min(self) -> Duration {
        self.heartbeat * 3
    }

    /// The longest silence after which a follower stands for election.
    #[must_use]
    pub fn election_max(self) -> Duration {
        self.heartbeat * 6
    }

    /// How often a leader checks that a quorum still answers (CheckQuorum).
    #[must_use]
    pub fn quorum_check(self) -> Duration {
        self.heartbeat * 12
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self::with_heartbeat(Self::HEARTBEAT_DEFAULT)
    }
}
