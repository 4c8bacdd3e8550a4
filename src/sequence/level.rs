//! The feature level: which commands the log of a cluster may hold.
//!
//! A node that applies a command it does not know cannot go on, and one that leaves it out holds another state (I8). So a command that
//! came later is only proposed once the log itself says so: [`Command::RaiseLevel`] is a command that every program
//! knows, and stops those that do not know the level that it names.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Command;

/// A number that rises by one whenever the log may hold something new.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct FeatureLevel(u32);

impl FeatureLevel {
    /// Every command up to [`Command::Admit`], and the one that raises the level.
    pub(crate) const FIRST: Self = Self(1);
    /// [`Command::Import`].
    pub(crate) const IMPORTS: Self = Self(2);
    /// [`Command::Reserve`], [`Command::GrantTaken`], and sequences with a cache. They are in the same release as imports.
    pub(crate) const CACHES: Self = Self::IMPORTS;
    /// The latest that this program knows.
    pub(crate) const LATEST: Self = Self::CACHES;

    /// The level of this number; there is no level 0.
    pub(crate) fn from_number(number: u32) -> Option<Self> {
        Some(Self(number)).filter(|level| Self::FIRST <= *level)
    }

    /// The same, if this program knows it.
    #[cfg(feature = "cli")]
    pub(crate) fn known(number: u32) -> Option<Self> {
        Self::from_number(number).filter(|level| *level <= Self::LATEST)
    }

    /// As a number.
    pub(crate) const fn get(self) -> u32 {
        self.0
    }

    /// Whether a node that knows levels up to this one can be part of a cluster at that one.
    ///
    /// # Errors
    /// [`LaterLevel`] where it cannot.
    pub(crate) fn check(self, found: Self) -> Result<(), LaterLevel> {
        if found <= self {
            return Ok(());
        }
        Err(LaterLevel { found, known: self })
    }
}

impl Command {
    /// The feature level from which on the log may hold it. Whoever adds a command adds a level, unless the latest one was in
    /// no release yet.
    pub(crate) fn needs(&self) -> FeatureLevel {
        match self {
            Self::Reserve { .. } | Self::GrantTaken { .. } => FeatureLevel::CACHES,
            Self::Create { settings, .. } if 0 < settings.cache() => FeatureLevel::CACHES,
            Self::Alter { changes, .. } if Some(0) < changes.cache => FeatureLevel::CACHES,
            Self::Import { parts } if parts.iter().any(|part| 0 < part.settings.cache()) => {
                FeatureLevel::CACHES
            }
            Self::Grant { .. }
            | Self::Create { .. }
            | Self::Advance { .. }
            | Self::Alter { .. }
            | Self::Retire { .. }
            | Self::GrantAll { .. }
            | Self::GrantAllKeyed { .. }
            | Self::AdvanceKeyed { .. }
            | Self::OpenSession { .. }
            | Self::Admit { .. }
            | Self::RaiseLevel { .. } => FeatureLevel::FIRST,
            Self::Import { .. } => FeatureLevel::IMPORTS,
        }
    }
}

impl fmt::Display for FeatureLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A cluster's log holds, or may hold, what a node does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the cluster is at feature level {found}, and this node knows levels up to {known}: start the version that the other nodes \
     run, without --feature-level-max"
)]
pub(crate) struct LaterLevel {
    /// The cluster's.
    pub(crate) found: FeatureLevel,
    /// The latest that the node knows, or is told to know.
    pub(crate) known: FeatureLevel,
}
