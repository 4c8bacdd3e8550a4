//! A file's length and checksum, found while it is read or written.

use std::io::{self, Read, Write};

/// What a file's bytes add up to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Digest {
    pub(super) length: u64,
    /// The BLAKE3 of them.
    pub(super) checksum: [u8; 32],
}

/// Counts and hashes what passes through it.
pub(super) struct Hashing<F> {
    file: F,
    hasher: blake3::Hasher,
    length: u64,
}

impl<F> Hashing<F> {
    pub(super) fn new(file: F) -> Self {
        Self {
            file,
            hasher: blake3::Hasher::new(),
            length: 0,
        }
    }

    /// Of what has passed so far.
    pub(super) fn digest(&self) -> Digest {
        Digest {
            length: self.length,
            checksum: self.hasher.finalize().into(),
        }
    }

    fn count(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.length += bytes.len() as u64;
    }
}

impl<F: Write> Write for Hashing<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.count(bytes.get(..written).unwrap_or(bytes));
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl<F: Read> Read for Hashing<F> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(bytes)?;
        let passed = bytes.get(..read).unwrap_or_default();
        self.hasher.update(passed);
        self.length += passed.len() as u64;
        Ok(read)
    }
}
