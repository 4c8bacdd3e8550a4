//! What holds a history. It is read twice: once to judge it, and once more for the lines that show a violation.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek as _, Write};
use std::path::{Path, PathBuf};

use super::sorter::scratch_file;

const BUFFER_BYTES: usize = 256 * 1024;

/// What holds a history.
pub struct Source {
    name: String,
    text: Text,
}

enum Text {
    Path(PathBuf),
    Memory(Vec<u8>),
    /// Can be read once, so what is read of it is copied.
    Stream(Box<dyn Read>),
    Copied(File),
}

impl Source {
    /// A file. Where it is none that can be read twice, such as a pipe, it is copied into a temporary file meanwhile.
    #[must_use]
    pub fn file(path: &Path) -> Self {
        Self {
            name: path.display().to_string(),
            text: Text::Path(path.to_owned()),
        }
    }

    /// What comes from somewhere, and is copied into a temporary file meanwhile.
    pub fn stream(name: impl Into<String>, stream: impl Read + 'static) -> Self {
        Self {
            name: name.into(),
            text: Text::Stream(Box::new(stream)),
        }
    }

    /// A text in memory.
    pub fn text(name: impl Into<String>, text: impl Into<Vec<u8>>) -> Self {
        Self {
            name: name.into(),
            text: Text::Memory(text.into()),
        }
    }

    /// What it is called where its lines are named.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its bytes from the first on, for the first or the second time.
    pub(super) fn open(&mut self) -> io::Result<Box<dyn BufRead + '_>> {
        if let Text::Path(path) = &self.text {
            let file = File::open(path)?;
            if file.metadata()?.is_file() {
                return Ok(Box::new(BufReader::with_capacity(BUFFER_BYTES, file)));
            }
            self.text = Text::Stream(Box::new(file));
        }
        if let Text::Stream(_) = &self.text {
            let copy = scratch_file()?;
            let copied = Text::Copied(copy.try_clone()?);
            if let Text::Stream(stream) = std::mem::replace(&mut self.text, copied) {
                let copy = BufWriter::with_capacity(BUFFER_BYTES, copy);
                return Ok(Box::new(BufReader::new(Copying { stream, copy })));
            }
        }
        match &mut self.text {
            Text::Memory(text) => Ok(Box::new(text.as_slice())),
            Text::Copied(file) => {
                file.rewind()?;
                Ok(Box::new(BufReader::with_capacity(BUFFER_BYTES, file)))
            }
            Text::Path(_) | Text::Stream(_) => Ok(Box::new(io::empty())),
        }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Copies what is read of it.
struct Copying {
    stream: Box<dyn Read>,
    copy: BufWriter<File>,
}

impl Read for Copying {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(into)?;
        let copied = into.get(..read).unwrap_or_default();
        self.copy.write_all(copied)?;
        if read == 0 {
            self.copy.flush()?;
        }
        Ok(read)
    }
}
