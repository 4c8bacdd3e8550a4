//! Nodes that come, go and become others while the cluster serves.

use std::fs;
use std::mem;
use std::process::ExitStatus;
use std::time::Duration;

use tokio::time::sleep;

use super::{
    LocalCluster, NodeOrigin, NodeProcess, POLL_INTERVAL, Program, Wait, write_cluster_file,
};
use crate::chaos::HarnessError;
use crate::chaos::ports::ClaimedPort;

impl LocalCluster {
    /// Starts every node by this program from now on.
    pub fn start_by(&mut self, program: Program) {
        self.program = program;
    }

    /// Starts one more node, which asks the others to be admitted, and waits until it has its id: that is told.
    ///
    /// # Errors
    /// [`HarnessError`] where its process cannot be started, or has no id within the limit.
    pub async fn join(&mut self, within: Duration) -> Result<u64, HarnessError> {
        let wait = Wait::at_most(within);
        // Each node that there ever was has a directory of its own.
        let before = self.gone.iter().chain(&self.nodes);
        let number = before.fold(1, |number, _| number + 1);
        let origin = NodeOrigin::Join(self.urls());
        let ports = ClaimedPort::claim_two()?;
        let mut node = NodeProcess::new(&self.directory, number, origin, ports);
        node.start(&self.program, &self.settings)?;
        let ready = node.data_dir.join("ready.json");
        loop {
            node.check_alive()?;
            let id = fs::read(&ready).ok().and_then(|bytes| node_of(&bytes));
            if let Some(id) = id {
                node.id = id;
                self.nodes.push(node);
                return Ok(id);
            }
            if wait.is_over() {
                return Err(node.not_ready(within));
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Ends a node that joined, as by kill -9, and starts it again at other addresses.
    ///
    /// # Errors
    /// [`HarnessError`] where there are no ports, or its process cannot be signalled or started.
    pub async fn relocate(&mut self, id: u64) -> Result<(), HarnessError> {
        self.kill(&[id]).await?;
        if let Some(node) = self.nodes.iter_mut().find(|node| node.id == id) {
            (node.api, node.peer) = ClaimedPort::claim_two()?;
        }
        self.start(&[id])
    }

    /// Ends two nodes that the cluster file names, as by kill -9, and starts each where the other one was.
    ///
    /// # Errors
    /// [`HarnessError`] where a process cannot be signalled or started, or the file cannot be written.
    pub async fn swap_addresses(&mut self, one: u64, other: u64) -> Result<(), HarnessError> {
        self.kill(&[one, other]).await?;
        let swapped = |node: &&mut NodeProcess| [one, other].contains(&node.id);
        let mut swapped = self.nodes.iter_mut().filter(swapped);
        if let (Some(one), Some(other)) = (swapped.next(), swapped.next()) {
            mem::swap(&mut one.api, &mut other.api);
            mem::swap(&mut one.peer, &mut other.peer);
        }
        write_cluster_file(&self.file, &self.nodes)?;
        self.start(&[one, other])
    }

    /// Waits until a node has ended that was removed from the cluster, and counts it no more. Tells how it ended, and the
    /// last line of its log.
    ///
    /// # Errors
    /// [`HarnessError`] where it has not ended within the limit.
    pub async fn left(
        &mut self,
        id: u64,
        within: Duration,
    ) -> Result<Option<(ExitStatus, String)>, HarnessError> {
        let wait = Wait::at_most(within);
        let Some(at) = self.nodes.iter().position(|node| node.id == id) else {
            return Ok(None);
        };
        let mut node = self.nodes.remove(at);
        let status = node.exit_status(wait).await?;
        let ended = status.map(|status| (status, node.last_line()));
        self.gone.push(node);
        Ok(ended)
    }
}

/// The node that a `ready.json` is of.
fn node_of(ready: &[u8]) -> Option<u64> {
    let ready: serde_json::Value = serde_json::from_slice(ready).ok()?;
    ready.get("node")?.as_u64()
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use crate::chaos::ClusterSize;

    // Workers of a test go on calling: another test's node there once answered them.
    #[tokio::test]
    async fn the_ports_of_a_node_that_left_become_no_other_nodes() {
        let directory = tempfile::tempdir().unwrap();
        let program = Program {
            path: "highwater".into(),
            arguments: Vec::new(),
        };
        let cluster = LocalCluster::create(directory.path(), ClusterSize::Three, program);
        let mut cluster = cluster.unwrap();
        let port = cluster.peer_address(3).unwrap();

        cluster.left(3, Duration::ZERO).await.unwrap();

        assert_eq!(cluster.ids(), [1, 2]);
        assert!(UdpSocket::bind(port).is_err());
    }
}
