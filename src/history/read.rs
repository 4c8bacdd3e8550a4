//! Reads a history from whatever holds it, line by line, each with its number.

use std::io::{self, BufRead, Read};

use super::{Line, LineError};

/// The longest line. Ours are a quarter of a kilobyte, and a request key is bounded.
pub const LINE_BYTES_MAX: u64 = 64 * 1024;

/// The lines of a history, each with its number from 1 on.
///
/// The first error is the last item: a history is judged whole or not at all.
pub fn read_history(source: impl BufRead) -> impl Iterator<Item = Result<(u64, Line), ReadError>> {
    let mut texts = Texts::new(source);
    let mut ended = false;
    std::iter::from_fn(move || {
        if ended {
            return None;
        }
        let line = texts.next_line();
        ended = line.is_err();
        line.transpose()
    })
}

/// The lines of a history as they stand there.
pub(super) struct Texts<R> {
    source: R,
    text: String,
    number: u64,
}

impl<R: BufRead> Texts<R> {
    pub(super) fn new(source: R) -> Self {
        Self {
            source,
            text: String::new(),
            number: 0,
        }
    }

    /// The next line, read and understood.
    pub(super) fn next_line(&mut self) -> Result<Option<(u64, Line)>, ReadError> {
        let Some((number, text)) = self.next_text()? else {
            return Ok(None);
        };
        let line = Line::parse(text).map_err(|source| ReadError::Line { number, source })?;
        Ok(Some((number, line)))
    }

    /// The line of this number, which was read before. What lies between is not looked at.
    pub(super) fn line(&mut self, number: u64) -> Result<Line, ReadError> {
        while self.number + 1 < number && self.next_text()?.is_some() {}
        match self.next_line()? {
            Some((_, line)) => Ok(line),
            None => Err(ReadError::Changed { number }),
        }
    }

    /// The next line without its line break, as it stands there.
    pub(super) fn next_text(&mut self) -> Result<Option<(u64, &str)>, ReadError> {
        let number = self.number.saturating_add(1);
        self.number = number;
        self.text.clear();
        let read = self
            .source
            .by_ref()
            .take(LINE_BYTES_MAX + 1)
            .read_line(&mut self.text)
            .map_err(|source| ReadError::Io { number, source })?;
        if read == 0 {
            return Ok(None);
        }
        if LINE_BYTES_MAX < u64::try_from(read).unwrap_or(u64::MAX) {
            return Err(ReadError::TooLong { number });
        }
        Ok(Some((number, self.text.trim_end_matches(['\n', '\r']))))
    }
}

/// Why a history cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The medium failed, or the bytes are not UTF-8.
    #[error("line {number} cannot be read")]
    Io {
        /// The line's number.
        number: u64,
        /// What the system says.
        source: io::Error,
    },
    /// No worker of ours writes such a line.
    #[error("line {number} is longer than {LINE_BYTES_MAX} bytes: this is not a history")]
    TooLong {
        /// The line's number.
        number: u64,
    },
    /// It was there when the history was read first.
    #[error("line {number} is gone: the history was changed while it was read")]
    Changed {
        /// The line's number.
        number: u64,
    },
    /// The line is there, and is not a line of a history.
    #[error("line {number}")]
    Line {
        /// The line's number.
        number: u64,
        /// What is wrong with it.
        source: LineError,
    },
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    const LINE: &str = "{\"v\":1,\"worker\":\"w\",\"node\":1,\"sequence\":\"s\",\"count\":1,\"key\":null,\"sent_ns\":1,\"received_ns\":2,\"outcome\":\"unknown\"}";

    fn read(text: &str) -> Result<Vec<u64>, ReadError> {
        read_history(text.as_bytes())
            .map(|read| read.map(|(number, _)| number))
            .collect()
    }

    #[test]
    fn every_line_is_read_with_or_without_a_last_line_break() {
        assert_eq!(read("").unwrap(), [0; 0]);
        assert_eq!(read(&format!("{LINE}\n{LINE}")).unwrap(), [1, 2]);
        assert_eq!(read(&format!("{LINE}\r\n{LINE}\n")).unwrap(), [1, 2]);
    }

    #[test]
    fn a_damaged_line_is_named_by_its_number() {
        let cut = LINE.get(..20).unwrap();

        let error = read(&format!("{LINE}\n{cut}")).unwrap_err();

        assert!(matches!(error, ReadError::Line { number: 2, .. }));
        assert_eq!(error.to_string(), "line 2");
        assert_eq!(
            error.source().map(ToString::to_string).as_deref(),
            Some("this is not a history line of version 1 or 2")
        );
        assert!(matches!(
            read(&format!("{LINE}\n\n{LINE}")).unwrap_err(),
            ReadError::Line { number: 2, .. }
        ));
    }

    #[test]
    fn an_endless_line_is_not_collected() {
        let error = read_history(BufReaderOfSpaces).next().unwrap().unwrap_err();

        assert!(matches!(error, ReadError::TooLong { number: 1 }));
        assert_eq!(
            error.to_string(),
            "line 1 is longer than 65536 bytes: this is not a history"
        );
    }

    /// Never ends, never breaks a line.
    struct BufReaderOfSpaces;

    impl Read for BufReaderOfSpaces {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            into.fill(b' ');
            Ok(into.len())
        }
    }

    impl BufRead for BufReaderOfSpaces {
        fn fill_buf(&mut self) -> io::Result<&[u8]> {
            Ok(&[b' '; 512])
        }

        fn consume(&mut self, _read: usize) {}
    }
}
