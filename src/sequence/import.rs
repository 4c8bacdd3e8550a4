//! What an import asks of the table for each of its sequences, and what it is answered.
//!
//! These types are stored and sent with a positional codec: a change of order or type is a change of format.

use serde::{Deserialize, Serialize};

use super::{IMPORT_PARTS_MAX, IdForm, Refusal, SequenceName, Settings};

/// One sequence of an import.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImportPart {
    /// Its name.
    pub(crate) sequence: SequenceName,
    /// What it is created with where it is not there.
    pub(crate) settings: Settings,
    /// Which of these it must have where it is there.
    pub(crate) named: NamedSettings,
    /// No value up to this one is granted afterwards.
    pub(crate) at_least: u64,
}

impl ImportPart {
    /// Whether a sequence with these settings is the one that is meant.
    pub(super) fn means(&self, settings: &Settings) -> bool {
        let NamedSettings(named) = self.named;
        let pairs = self.settings.numbers().into_iter().zip(settings.numbers());
        named
            .into_iter()
            .zip(pairs)
            .all(|(named, (asked, found))| !named || asked == found)
    }
}

/// Which settings a request names: start, increment, `max_value`, cache, `max_lease`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct NamedSettings(pub(crate) [bool; 5]);

/// The sequences of one import: 1 to [`IMPORT_PARTS_MAX`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<ImportPart>", into = "Vec<ImportPart>")]
pub(crate) struct ImportParts(Vec<ImportPart>);

impl ImportParts {
    /// The sequences in their order.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &ImportPart> {
        self.0.iter()
    }
}

impl TryFrom<Vec<ImportPart>> for ImportParts {
    type Error = ImportPartsError;

    fn try_from(parts: Vec<ImportPart>) -> Result<Self, ImportPartsError> {
        if (1..=IMPORT_PARTS_MAX).contains(&parts.len()) {
            Ok(Self(parts))
        } else {
            Err(ImportPartsError { found: parts.len() })
        }
    }
}

impl From<ImportParts> for Vec<ImportPart> {
    fn from(parts: ImportParts) -> Self {
        parts.0
    }
}

/// No sequences, or too many for one import.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found} sequences are not 1 to {IMPORT_PARTS_MAX}")]
pub(crate) struct ImportPartsError {
    found: usize,
}

/// What became of one sequence of an import.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Imported {
    /// Its mark is at least where it was asked to be.
    Done {
        /// False where it was there before.
        fresh: bool,
        /// The mark before.
        previous: Option<u64>,
        /// The mark now.
        high: Option<u64>,
        /// How its values are written in JSON.
        id_form: IdForm,
    },
    /// Nothing of it changed (I5).
    Refused(Refusal),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sequence::testing::{at, batch, outcomes};
    use crate::sequence::{Command, Outcome, RangeCount, Table};

    const NOTHING: NamedSettings = NamedSettings([false; 5]);
    const EVERYTHING: NamedSettings = NamedSettings([true; 5]);

    fn settings(start: u64, increment: u64, max_value: u64) -> Settings {
        Settings::new(start, increment, max_value, RangeCount::constant(50)).unwrap()
    }

    fn part(sequence: &str, settings: Settings, named: NamedSettings, at_least: u64) -> ImportPart {
        ImportPart {
            sequence: sequence.parse().unwrap(),
            settings,
            named,
            at_least,
        }
    }

    fn mark(sequence: &str, at_least: u64) -> ImportPart {
        part(sequence, Settings::default(), NOTHING, at_least)
    }

    fn import(parts: impl Into<Vec<ImportPart>>) -> Command {
        Command::Import {
            parts: parts.into().try_into().unwrap(),
        }
    }

    fn run(table: &mut Table, command: Command) -> Outcome {
        outcomes(table.apply(at(7), &[batch(vec![command])]))
            .remove(0)
            .remove(0)
    }

    fn imported(table: &mut Table, parts: impl Into<Vec<ImportPart>>) -> Vec<Imported> {
        match run(table, import(parts)) {
            Outcome::Imported { parts } => parts,
            other => panic!("{other:?}"),
        }
    }

    fn created(high: u64) -> Imported {
        Imported::Done {
            fresh: true,
            previous: None,
            high: Some(high),
            id_form: IdForm::Number,
        }
    }

    fn found(previous: u64, high: u64) -> Imported {
        Imported::Done {
            fresh: false,
            previous: Some(previous),
            high: Some(high),
            id_form: IdForm::Number,
        }
    }

    fn grant(table: &mut Table, sequence: &str) -> u64 {
        let command = Command::Grant {
            sequence: sequence.parse().unwrap(),
            count: RangeCount::ONE,
        };
        match run(table, command) {
            Outcome::Granted(grant) => grant.range.first(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_sequence_that_is_not_there_is_created_and_grants_nothing_up_to_its_mark() {
        let mut table = Table::default();
        let odd = part("odd", settings(1, 2, 1_000), EVERYTHING, 500);

        let answer = imported(&mut table, [mark("p", 41), odd, mark("empty", 0)]);

        assert_eq!(answer, [created(41), created(500), created(0)]);
        assert_eq!(grant(&mut table, "p"), 42);
        assert_eq!(grant(&mut table, "odd"), 501);
        assert_eq!(grant(&mut table, "empty"), 1);
    }

    #[test]
    fn a_mark_is_raised_and_never_falls_and_the_same_import_again_changes_nothing() {
        let mut table = Table::default();
        imported(&mut table, [mark("p", 41)]);

        let raised = imported(&mut table, [mark("p", 50), mark("p", 45), mark("p", 60)]);
        let before = table.clone();
        let again = imported(&mut table, [mark("p", 60), mark("p", 50)]);

        assert_eq!(raised, [found(41, 50), found(50, 50), found(50, 60)]);
        assert_eq!(again, vec![found(60, 60); 2]);
        assert!(before.iter().eq(table.iter()));
    }

    // I5: each is answered by itself, and what is refused is as it was.
    #[test]
    fn what_is_refused_changes_nothing_and_the_others_are_imported() {
        let mut table = Table::default();
        imported(&mut table, [part("p", settings(1, 2, 100), EVERYTHING, 5)]);
        imported(&mut table, [mark("gone", 5)]);
        let gone = "gone".parse().unwrap();
        run(&mut table, Command::Retire { sequence: gone });
        let before = table.clone();

        let answer = imported(
            &mut table,
            [
                part("p", settings(2, 2, 100), EVERYTHING, 9),
                mark("p", 101),
                mark("gone", 9),
                part("new", settings(1, 1, 100), NOTHING, 101),
                mark("other", 7),
            ],
        );

        let above = Refusal::AboveMaximum {
            to: 101,
            max_value: 100,
        };
        let refusals = [
            Refusal::SequenceExists,
            above.clone(),
            Refusal::Retired,
            above,
        ];
        assert_eq!(answer[..4], refusals.map(Imported::Refused));
        assert_eq!(answer[4], created(7));
        for name in ["p", "gone", "new"] {
            let name = name.parse().unwrap();
            assert_eq!(table.get(&name), before.get(&name), "{name}");
        }
    }

    #[test]
    fn only_settings_that_are_named_must_be_the_sequences() {
        let mut table = Table::default();
        imported(&mut table, [part("p", settings(1, 2, 100), EVERYTHING, 5)]);
        let start = NamedSettings([true, false, false, false, false]);

        let answer = imported(
            &mut table,
            [
                mark("p", 6),
                part("p", settings(1, 7, 100), start, 7),
                part("p", settings(2, 2, 100), start, 8),
            ],
        );

        assert_eq!(answer[..2], [found(5, 6), found(6, 7)]);
        assert_eq!(answer[2], Imported::Refused(Refusal::SequenceExists));
        for (at, differs) in [true, true, true, false, true].into_iter().enumerate() {
            let mut named = [false; 5];
            named[at] = true;
            let asked = Settings::new(2, 3, 200, RangeCount::ONE).unwrap();
            let other = part("p", asked, NamedSettings(named), 0);
            assert_eq!(other.means(&settings(1, 2, 100)), !differs, "{at}");
        }
    }

    #[test]
    fn an_import_has_one_to_128_sequences() {
        for (length, fits) in [(0, false), (1, true), (128, true), (129, false)] {
            let parts = ImportParts::try_from(vec![mark("p", 1); length]);

            assert_eq!(parts.is_ok(), fits, "{length}");
        }
        let error = ImportParts::try_from(Vec::new()).unwrap_err();
        assert_eq!(error.to_string(), "0 sequences are not 1 to 128");
    }

    #[test]
    fn a_dry_run_of_an_import_sees_its_earlier_parts_and_changes_nothing() {
        let mut table = Table::default();
        let command = import([mark("p", 5), mark("p", 9)]);

        let dry = table.dry_run(&command);

        assert_eq!(table, Table::default());
        assert_eq!(run(&mut table, command), dry);
    }
}
