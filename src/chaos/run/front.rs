//! Those who lease: workers at every node, each behind a proxy that can lose answers.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::chaos::proxy::Proxy;
use crate::chaos::worker::Worker;
use crate::chaos::{FlowFault, HarnessError};
use crate::history::Line;
use crate::sequence::SequenceName;

/// All workers. What makes one of them end its run is told.
#[derive(Debug)]
pub(super) struct Front {
    sequences: Vec<SequenceName>,
    places: RefCell<BTreeMap<u64, Place>>,
    tasks: RefCell<JoinSet<()>>,
    failures: mpsc::Sender<HarnessError>,
    lines: mpsc::Sender<Line>,
}

/// Those at one node.
#[derive(Debug)]
struct Place {
    proxy: Proxy,
    stop: CancellationToken,
}

impl Front {
    /// Nobody yet, for these sequences; and what makes the run fail.
    pub(super) fn new(
        sequences: &[SequenceName],
        lines: &mpsc::Sender<Line>,
    ) -> (Self, mpsc::Receiver<HarnessError>) {
        let (failures, failed) = mpsc::channel(1);
        let front = Self {
            sequences: sequences.to_vec(),
            places: RefCell::default(),
            tasks: RefCell::default(),
            failures,
            lines: lines.clone(),
        };
        (front, failed)
    }

    /// From which sequences is leased.
    pub(super) fn sequences(&self) -> &[SequenceName] {
        &self.sequences
    }

    /// Has workers lease at this node, one from each sequence.
    pub(super) async fn serve(&self, node: u64, api: SocketAddr) -> Result<(), HarnessError> {
        let proxy = Proxy::start(api).await?;
        let stop = CancellationToken::new();
        let urls = [proxy.url()];
        for (number, sequence) in self.sequences.iter().enumerate() {
            let name = format!("{node}.{number}");
            let worker = Worker::new(name, (node, &urls), sequence, &self.lines)?;
            let (stop, failures) = (stop.clone(), self.failures.clone());
            self.tasks.borrow_mut().spawn(async move {
                if let Err(error) = worker.run(stop).await {
                    // One is enough to end the run.
                    failures.try_send(error).ok();
                }
            });
        }
        let place = Place { proxy, stop };
        self.places.borrow_mut().insert(node, place);
        Ok(())
    }

    /// The node leaves: what is under way at it comes to its end.
    pub(super) fn leave(&self, node: u64) {
        if let Some(place) = self.places.borrow_mut().remove(&node) {
            place.stop.cancel();
        }
    }

    /// From now on answers to workers arrive like this.
    pub(super) fn set_answers(&self, fault: FlowFault) {
        for place in self.places.borrow().values() {
            place.proxy.link().answers.set(fault);
        }
    }

    /// How many answers were lost, of the nodes that there are.
    pub(super) fn lost(&self) -> u64 {
        let places = self.places.borrow();
        places
            .values()
            .map(|place| place.proxy.link().answers.lost())
            .sum()
    }

    /// Has all workers end what they do, and waits for that.
    pub(super) async fn close(&self) {
        for place in self.places.borrow().values() {
            place.stop.cancel();
        }
        // Those that end the process by their panic are not waited for.
        let mut tasks = self.tasks.take();
        while tasks.join_next().await.is_some() {}
    }
}
