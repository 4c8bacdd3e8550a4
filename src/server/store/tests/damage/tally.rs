//! Random damage, many times: what was acknowledged is there, or the store is refused. The tally with the superblock
//! unheard shows that it would not be so without it.

use std::collections::BTreeMap;
use std::path::Path;

use tempfile::TempDir;
use tokio::task::JoinSet;

use super::super::fixture::*;
use super::harm::{Harm, HarmKind, damages, seeded};
use super::{Acknowledged, Fate, fate_of, template, template_in_database};
use crate::server::store::probe::{Probe, Witness};

/// How many damages where nobody asks for more.
const DAMAGES: usize = 60;

/// What came of some damages.
#[derive(Debug, Default)]
struct Tally {
    /// By kind and by what became of the store.
    counts: BTreeMap<(HarmKind, String), usize>,
    losses: Vec<String>,
}

/// A directory as a killed process leaves it, and one as a process that ended leaves it. What the journal has the database
/// can lose without harm, so that the superblock is heard or not makes a difference where it has nothing.
async fn templates(witness: Witness) -> [(TempDir, Acknowledged); 2] {
    let (killed, acknowledged) = match witness {
        Witness::Heard => template().await,
        Witness::Unheard => template_in_database().await,
    };
    let ended = settled(killed.path()).await;
    [(killed, acknowledged.clone()), (ended, acknowledged)]
}

/// Opens the store after each of so many damages.
async fn tally(witness: Witness) -> Tally {
    let mut random = seeded();
    let templates = templates(witness).await;
    let mut tally = Tally::default();
    for number in 0..damages(DAMAGES) {
        let (template, acknowledged) = &templates[number % templates.len()];
        let copy = copy_of(template.path());
        let harm = Harm::any(copy.path(), &mut random);
        harm.inflict(copy.path());
        let became = became(copy.path(), acknowledged, witness, &harm).await;
        if became.starts_with("lost") {
            tally.losses.push(format!("{harm:?}: {became}"));
        }
        *tally.counts.entry((harm.kind, became)).or_default() += 1;
    }
    for ((kind, became), count) in &tally.counts {
        println!("{count:5} {kind:?}: {became}");
    }
    tally
}

/// Right, refused and by what, or lost.
async fn became(path: &Path, acknowledged: &Acknowledged, witness: Witness, harm: &Harm) -> String {
    let (path, acknowledged) = (path.to_owned(), acknowledged.clone());
    let damage = format!("{harm:?}");
    // On a task of its own: what is not right is a panic.
    let mut opening = JoinSet::new();
    opening.spawn(async move {
        let opened = open_with(&path, Probe::hearing(witness));
        fate_of(opened, &acknowledged, &damage).await
    });
    match opening.join_next().await.unwrap() {
        Ok(Fate::Right) => "right".to_owned(),
        Ok(Fate::Refused(error)) => {
            let debug = format!("{error:?}");
            let variant = debug.split(|end: char| !end.is_alphanumeric()).next();
            format!("refused: {}", variant.unwrap())
        }
        Err(_panicked) => "lost".to_owned(),
    }
}

// spacejam/sled#1387, spacejam/sled#1189, spacejam/sled#1039, spacejam/sled#1211, spacejam/sled#954: damaged files
// made sled panic, hang, or forget.
#[tokio::test]
async fn no_random_damage_takes_what_was_acknowledged_unnoticed() {
    let tally = tally(Witness::Heard).await;

    assert!(tally.losses.is_empty(), "{:#?}", tally.losses);
}

#[tokio::test]
async fn without_the_superblock_random_damage_takes_what_was_acknowledged_unnoticed() {
    let tally = tally(Witness::Unheard).await;

    assert!(!tally.losses.is_empty(), "{tally:?}");
}
