//! What a file holds, as blocks: most of a database file is never written, and copies share what they do not change.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

const BLOCK_BYTES: usize = 4096;
const BLOCK: u64 = BLOCK_BYTES as u64;

/// The bytes of a file. Blocks of zeros are not there, so equal files are equal values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Content {
    length: u64,
    blocks: BTreeMap<u64, Arc<[u8; BLOCK_BYTES]>>,
}

impl Content {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut content = Self::default();
        content.write(0, bytes);
        content
    }

    pub(crate) fn read_file(path: &Path) -> Self {
        Self::of(&std::fs::read(path).unwrap())
    }

    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Whether all its bytes are zeros.
    pub(crate) fn is_blank(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Writes bytes, and lengthens the file where they go beyond its end.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut rest = bytes;
        let mut at = offset;
        while !rest.is_empty() {
            let within = usize::try_from(at % BLOCK).unwrap();
            let (now, later) = rest.split_at(rest.len().min(BLOCK_BYTES - within));
            self.write_block(at / BLOCK, within, now);
            at += now.len() as u64;
            rest = later;
        }
        self.length = self.length.max(at);
    }

    fn write_block(&mut self, index: u64, within: usize, bytes: &[u8]) {
        let is_zero = bytes.iter().all(|byte| *byte == 0);
        if is_zero && !self.blocks.contains_key(&index) {
            return;
        }
        let block = self.blocks.entry(index).or_insert_with(zeros);
        Arc::make_mut(block)[within..within + bytes.len()].copy_from_slice(bytes);
        if is_zero && block.iter().all(|byte| *byte == 0) {
            self.blocks.remove(&index);
        }
    }

    /// Cuts the file, or lengthens it by zeros.
    pub(crate) fn truncate(&mut self, length: u64) {
        if length < self.length {
            self.blocks.split_off(&length.div_ceil(BLOCK));
            // What was behind the end must not come back when the file grows again.
            let within = usize::try_from(length % BLOCK).unwrap();
            self.write_block(length / BLOCK, within, &zeros()[within..]);
        }
        self.length = length;
    }

    /// The bytes of a range, zeros beyond the end.
    pub(crate) fn read(&self, range: Range<u64>) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let within = at % BLOCK;
            let end = range.end.min(at - within + BLOCK);
            let part =
                usize::try_from(within).unwrap()..usize::try_from(within + end - at).unwrap();
            match self.blocks.get(&(at / BLOCK)) {
                Some(block) => bytes.extend(&block[part]),
                None => bytes.resize(bytes.len() + part.len(), 0),
            }
            at = end;
        }
        bytes
    }

    /// Takes a range of another file, and lengthens this one where that goes beyond its end.
    pub(crate) fn copy(&mut self, other: &Self, range: Range<u64>) {
        if range.start.is_multiple_of(BLOCK)
            && range.end - range.start == BLOCK
            && let Some(block) = other.blocks.get(&(range.start / BLOCK))
        {
            self.blocks.insert(range.start / BLOCK, Arc::clone(block));
            self.length = self.length.max(range.end);
            return;
        }
        self.write(range.start, &other.read(range));
    }

    /// Makes a file of it, with holes where there is nothing.
    pub(crate) fn write_file(&self, path: &Path) {
        let file = File::create(path).unwrap();
        file.set_len(self.length).unwrap();
        let mut run = Vec::new();
        let mut run_start = 0;
        for (index, block) in &self.blocks {
            let at = index * BLOCK;
            if run_start + run.len() as u64 != at {
                file.write_all_at(&run, run_start).unwrap();
                run.clear();
                run_start = at;
            }
            let end = BLOCK.min(self.length.saturating_sub(at));
            run.extend(&block[..usize::try_from(end).unwrap()]);
        }
        file.write_all_at(&run, run_start).unwrap();
    }
}

fn zeros() -> Arc<[u8; BLOCK_BYTES]> {
    Arc::new([0; BLOCK_BYTES])
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn a_content_is_what_a_vector_of_bytes_would_be() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let mut random = StdRng::seed_from_u64(7);
        let mut content = Content::default();
        let mut bytes: Vec<u8> = Vec::new();
        for step in 0..300 {
            let at = random.random_range(0..40_000);
            if random.random_bool(0.2) {
                content.truncate(at as u64);
                bytes.resize(at, 0);
            } else {
                let part = vec![u8::try_from(step % 256).unwrap(); at % 9000];
                content.write(at as u64, &part);
                bytes.resize(bytes.len().max(at + part.len()), 0);
                bytes[at..at + part.len()].copy_from_slice(&part);
            }
            // An empty write behind the end changes nothing in a file.
            content.truncate(bytes.len() as u64);

            assert_eq!(content.read(0..bytes.len() as u64), bytes, "step {step}");
        }

        content.write_file(&path);
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
        assert_eq!(
            Content::read_file(&path).read(0..50_000)[..bytes.len()],
            bytes
        );
    }

    #[test]
    fn a_copy_takes_whole_blocks_and_parts() {
        let source = Content::of(&[9; 10_000]);
        let mut target = Content::of(&[1; 100]);

        target.copy(&source, 4096..8192);
        target.copy(&source, 8192..8300);

        assert_eq!(target.length(), 8300);
        assert_eq!(target.read(0..101), [vec![1; 100], vec![0]].concat());
        assert_eq!(target.read(4096..8300), vec![9; 4204]);
    }
}
