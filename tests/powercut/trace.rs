//! What `tests/preload/recorder.c` wrote: everything that a process did to the files below one directory, in order.

use std::ops::Range;
use std::path::Path;

/// The inode that the recorder saw. It may be used again once its file is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Inode(pub(crate) u64);

/// Numbers the syncs of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SyncNumber(pub(crate) u64);

/// A path below the root; the root itself is empty.
pub(crate) type Name = String;

/// What a sync promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SyncKind {
    /// fsync: the file's bytes and all that describes them.
    Full,
    /// fdatasync: the file's bytes and its length.
    Data,
}

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// A process began. Nothing of an earlier one goes on.
    Start,
    /// An existing file or directory was opened.
    Open {
        inode: Inode,
        name: Name,
    },
    /// A file was created and opened.
    Create {
        inode: Inode,
        name: Name,
    },
    MakeDirectory {
        name: Name,
    },
    /// Bytes were written; they stand in the trace.
    Write {
        inode: Inode,
        offset: u64,
        bytes: Range<usize>,
    },
    Truncate {
        inode: Inode,
        length: u64,
    },
    Rename {
        from: Name,
        to: Name,
    },
    Remove {
        name: Name,
    },
    RemoveDirectory {
        name: Name,
    },
    SyncBegin {
        inode: Inode,
        sync: SyncNumber,
        kind: SyncKind,
    },
    /// The sync succeeded: what was written before it began is durable.
    SyncEnd {
        sync: SyncNumber,
    },
}

/// An event and the time before it happened, in nanoseconds of CLOCK_MONOTONIC.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(crate) at_ns: u64,
    pub(crate) event: Event,
}

/// All records of a recording, of one process after another.
#[derive(Debug)]
pub(crate) struct Trace {
    bytes: Vec<u8>,
    pub(crate) records: Vec<Record>,
}

const HEADER_BYTES: usize = 32;

impl Trace {
    /// Reads a trace of what happened below `root`.
    pub(crate) fn read(path: &Path, root: &Path) -> Self {
        Self::parse(std::fs::read(path).unwrap(), root.to_str().unwrap())
    }

    fn parse(bytes: Vec<u8>, root: &str) -> Self {
        let mut records = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let header = Header::parse(&bytes[at..]);
            let start = at + HEADER_BYTES;
            at = start + header.payload;
            records.push(Record {
                at_ns: header.at_ns,
                event: header.event(&bytes, start..at, root),
            });
        }
        Self { bytes, records }
    }

    /// Bytes that an event names.
    pub(crate) fn bytes(&self, range: &Range<usize>) -> &[u8] {
        &self.bytes[range.clone()]
    }

    /// The time at which everything before the record at `index` had happened, and nothing from there on.
    pub(crate) fn time_before(&self, index: usize) -> u64 {
        self.records
            .get(index)
            .map_or(u64::MAX, |record| record.at_ns)
    }
}

struct Header {
    kind: u32,
    payload: usize,
    at_ns: u64,
    file: Inode,
    number: u64,
}

impl Header {
    fn parse(bytes: &[u8]) -> Self {
        let short = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        Self {
            kind: short(0),
            payload: usize::try_from(short(4)).unwrap(),
            at_ns: long(8),
            file: Inode(long(16)),
            number: long(24),
        }
    }

    /// The kinds are numbered as in the recorder.
    fn event(&self, trace: &[u8], payload: Range<usize>, root: &str) -> Event {
        let (inode, number) = (self.file, self.number);
        let text = str::from_utf8(&trace[payload.clone()]);
        let name = || name_below(text.unwrap(), root);
        let sync_begin = |kind| Event::SyncBegin {
            inode,
            sync: SyncNumber(number),
            kind,
        };
        match self.kind {
            1 => Event::Start,
            2 => Event::Open {
                inode,
                name: name(),
            },
            3 => Event::Create {
                inode,
                name: name(),
            },
            4 => Event::MakeDirectory { name: name() },
            5 => Event::Write {
                inode,
                offset: number,
                bytes: payload,
            },
            6 => Event::Truncate {
                inode,
                length: number,
            },
            7 => {
                let (from, to) = text.unwrap().split_once('\0').unwrap();
                Event::Rename {
                    from: name_below(from, root),
                    to: name_below(to, root),
                }
            }
            8 => Event::Remove { name: name() },
            9 => Event::RemoveDirectory { name: name() },
            10 => sync_begin(SyncKind::Full),
            11 => sync_begin(SyncKind::Data),
            12 => Event::SyncEnd {
                sync: SyncNumber(number),
            },
            other => panic!("the trace has a record of kind {other}"),
        }
    }
}

fn name_below(path: &str, root: &str) -> Name {
    let below = path.strip_prefix(root).expect("a path below the root");
    below.trim_start_matches('/').to_owned()
}

/// Traces written by hand.
pub(crate) mod testing {
    use super::*;

    /// A trace of these events; the first is at 1 ns, the next at 2 ns, and so on. What is written are the bytes
    /// of `data`, to which the events' ranges refer.
    pub(crate) fn trace(data: &[u8], events: Vec<Event>) -> Trace {
        let records = (1..)
            .zip(events)
            .map(|(at_ns, event)| Record { at_ns, event });
        Trace {
            bytes: data.to_vec(),
            records: records.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u32, number: u64, payload: &[u8]) -> Vec<u8> {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend(u32::try_from(payload.len()).unwrap().to_le_bytes());
        for field in [77, 5, number] {
            bytes.extend(u64::to_le_bytes(field));
        }
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn records_are_read_in_order_with_names_below_the_root() {
        let bytes = [
            record(2, 0, b"/r"),
            record(5, 4096, b"data"),
            record(7, 0, b"/r/a.new\0/r/a"),
            record(11, 3, b""),
        ]
        .concat();

        let trace = Trace::parse(bytes, "/r");

        let events: Vec<_> = trace.records.iter().map(|record| &record.event).collect();
        assert_eq!(trace.records[1].at_ns, 77);
        assert_eq!(
            events[0],
            &Event::Open {
                inode: Inode(5),
                name: Name::new()
            }
        );
        let Event::Write { offset, bytes, .. } = events[1] else {
            panic!("{:?}", events[1])
        };
        assert_eq!((*offset, trace.bytes(bytes)), (4096, b"data".as_slice()));
        assert_eq!(
            events[2],
            &Event::Rename {
                from: "a.new".to_owned(),
                to: "a".to_owned()
            }
        );
        assert_eq!(
            events[3],
            &Event::SyncBegin {
                inode: Inode(5),
                sync: SyncNumber(3),
                kind: SyncKind::Data
            }
        );
    }
}
