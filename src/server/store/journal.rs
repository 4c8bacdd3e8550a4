//! The groups since the last slot, in the superblock's file behind its slots: what makes a group durable before the database
//! has it.
//!
//! A write-ahead log. sled takes some hundred microseconds of processor time and two waits for the disk to make one small
//! record durable, and little more for a hundred; here a group is one write into a file that has its blocks already. The
//! database takes many groups at once and the slot follows it; from then on these groups count no more, and the journal
//! begins anew at its front.
//!
//! Each group stands in both halves, so that one that lost bits at rest is read from the other. It names the slot that it
//! follows and its number after that slot: what an earlier slot left is told from what counts, and a group is never written
//! before the one in front of it is durable, so a gap is damage and the first that is missing is the end (I7).

use std::ops::RangeInclusive;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::database::{CHANGES_BYTES_MAX, Changes, META_BYTES_MAX, MetaKey};
use super::frame::{self, CHECKSUM_LENGTH};
use super::superblock::{Promised, PromisedFormat};
use crate::server::codec;
use crate::server::types::RECORD_BYTES_MAX;

/// The last byte is the format's version.
const MAGIC: &[u8] = b"HWgroup\x01";
/// Of one half. Two hundred and fifty-six small groups, or four of the largest, between two slots.
pub(super) const HALF_BYTES: usize = 1024 * 1024;
pub(super) const JOURNAL_BYTES: usize = 2 * HALF_BYTES;
/// Groups begin at pages, so that writing one never touches another.
const PAGE_BYTES: usize = 4096;
/// A group's pages, and the bytes of its content, before the content.
const LENGTHS_BYTES: usize = 8;
/// What a group takes beside its changes, at most.
const ENVELOPE_BYTES: usize = 512;
/// The most bytes of a group's content.
const GROUP_BYTES_MAX: usize = 260 * 1024;
const _: () = assert!(ENVELOPE_BYTES + CHANGES_BYTES_MAX <= GROUP_BYTES_MAX);
const _: () = assert!(GROUP_BYTES_MAX < HALF_BYTES);
const _: () = assert!(RECORD_BYTES_MAX + META_BYTES_MAX < CHANGES_BYTES_MAX);

/// Where the next group goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// The counter of the slot that it follows.
    slot: u64,
    /// How many groups are between.
    number: u64,
    /// Where in each half.
    pub(super) offset: usize,
}

/// What is read of a journal.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// The slot that they follow; none where there is no group.
    pub(super) slot: Option<u64>,
    /// What was promised with the last.
    pub(super) promised: Option<Promised>,
    /// The changes of each, in their order.
    pub(super) changes: Vec<Changes>,
}

/// A group that must be there is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gap;

#[derive(Serialize, Deserialize)]
struct GroupFormat {
    slot: u64,
    number: u64,
    promised: PromisedFormat,
    records: Vec<(u64, Bytes)>,
    meta: Vec<(u8, Bytes)>,
}

impl Place {
    /// The first behind a slot.
    pub(super) fn first(slot: u64) -> Self {
        Self {
            slot,
            number: 0,
            offset: 0,
        }
    }

    /// Whether a group of these changes fits here.
    pub(super) fn has_room(self, changes: &Changes) -> bool {
        let bytes = (ENVELOPE_BYTES + changes.cost()).next_multiple_of(PAGE_BYTES);
        self.offset + bytes <= HALF_BYTES
    }

    /// The one behind a group of so many bytes.
    pub(super) fn after(self, bytes: usize) -> Self {
        Self {
            number: self.number + 1,
            offset: self.offset + bytes,
            ..self
        }
    }

    /// The group as it is written, whole pages.
    pub(super) fn group(self, promised: &Promised, changes: &Changes) -> Vec<u8> {
        let records = changes.log.iter();
        // Nothing is removed by way of the journal.
        let records = records.filter_map(|(index, record)| Some((*index, record.clone()?)));
        let meta = changes.meta.iter();
        let meta = meta.map(|(key, value)| (key.code(), value.clone()));
        let content = codec::encode(&GroupFormat {
            slot: self.slot,
            number: self.number,
            promised: (*promised).into(),
            records: records.collect(),
            meta: meta.collect(),
        });
        let mut body = Vec::with_capacity(content.len() + PAGE_BYTES);
        let framed = MAGIC.len() + CHECKSUM_LENGTH + LENGTHS_BYTES + content.len();
        let pages = framed.div_ceil(PAGE_BYTES);
        for length in [pages, content.len()] {
            body.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
        }
        body.extend_from_slice(&content);
        body.resize(body.len() + pages * PAGE_BYTES - framed, 0);
        frame::seal(MAGIC, &body)
    }
}

/// The groups behind the newest whole slot.
///
/// Where a slot was spoiled after it was relied on, what follows it is found behind the one before it: then the database has
/// what that slot promised, because no group is written before it does.
///
/// # Errors
/// [`Gap`] where a group follows one that is missing.
pub(super) fn read(journal: &[u8], newest: u64) -> Result<Groups, Gap> {
    let (first, second) = journal.split_at(HALF_BYTES.min(journal.len()));
    let halves = [first, second];
    let mut groups = Groups::default();
    let mut slots = newest..=newest.saturating_add(1);
    let (mut number, mut offset) = (0, 0);
    while let Some((group, bytes)) = at(halves, offset, &slots, |found| found == number) {
        slots = group.slot..=group.slot;
        groups.slot = Some(group.slot);
        groups
            .changes
            .push(changes(group.records, group.meta).ok_or(Gap)?);
        groups.promised = Some(group.promised.into());
        number += 1;
        offset += bytes;
    }
    let mut rest = (offset..HALF_BYTES).step_by(PAGE_BYTES);
    if rest.any(|offset| at(halves, offset, &slots, |found| number < found).is_some()) {
        return Err(Gap);
    }
    Ok(groups)
}

/// The whole group that begins here in either half, and its bytes.
fn at(
    halves: [&[u8]; 2],
    offset: usize,
    slots: &RangeInclusive<u64>,
    is_wanted: impl Fn(u64) -> bool,
) -> Option<(GroupFormat, usize)> {
    let whole = halves
        .into_iter()
        .filter_map(|half| decode(half.get(offset..)?));
    whole
        .filter(|(group, _)| slots.contains(&group.slot) && is_wanted(group.number))
        .max_by_key(|(group, _)| group.slot)
}

fn decode(bytes: &[u8]) -> Option<(GroupFormat, usize)> {
    let head = bytes.strip_prefix(MAGIC)?.get(CHECKSUM_LENGTH..)?;
    let (pages, head) = head.split_first_chunk::<4>()?;
    let (length, _) = head.split_first_chunk::<4>()?;
    let bytes_used = usize::try_from(u32::from_le_bytes(*pages))
        .ok()?
        .checked_mul(PAGE_BYTES)?;
    let body = frame::open(MAGIC, bytes.get(..bytes_used)?).ok()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let content = body.get(LENGTHS_BYTES..)?.get(..length)?;
    let group = codec::decode::<GroupFormat, GROUP_BYTES_MAX>(content).ok()?;
    Some((group, bytes_used))
}

/// `None` where it is not one that was written.
fn changes(records: Vec<(u64, Bytes)>, meta: Vec<(u8, Bytes)>) -> Option<Changes> {
    let mut changes = Changes::default();
    for (index, record) in records {
        changes.put_record(index, record);
    }
    for (key, value) in meta {
        changes.put_framed(MetaKey::of(key)?, value);
    }
    Changes::default().has_room_for(&changes).then_some(changes)
}
