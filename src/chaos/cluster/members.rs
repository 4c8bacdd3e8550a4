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
        let number = self.begin_to_join()?;
        loop {
            if let Some(id) = self.joined(number).await? {
                return Ok(id);
            }
            if wait.is_over()
                && let Some(node) = self.joining.pop()
            {
                return Err(node.not_ready(within));
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Starts one more node, which asks the others to be admitted. It has a number until it has an id.
    pub(in crate::chaos) fn begin_to_join(&mut self) -> Result<u64, HarnessError> {
        // Each node that there ever was has a directory of its own.
        let before = self.gone.iter().chain(&self.nodes).chain(&self.joining);
        let number = before.fold(1, |number, _| number + 1);
        let origin = NodeOrigin::Join(self.urls());
        let ports = ClaimedPort::claim_two()?;
        let mut node = NodeProcess::new(&self.directory, number, origin, ports);
        let environment = (self.environment)(node.name());
        node.start(&self.program, &self.settings, &environment)?;
        self.joining.push(node);
        Ok(number)
    }

    /// The id of the node that began to join under this number, as soon as it has one: from then on it is one of all.
    ///
    /// # Errors
    /// [`HarnessError`] where it ended, or cannot be given its place in the network.
    pub(in crate::chaos) async fn joined(
        &mut self,
        number: u64,
    ) -> Result<Option<u64>, HarnessError> {
        let mut joining = self.joining.iter_mut().enumerate();
        let Some((at, node)) = joining.find(|(_, node)| node.id == number) else {
            return Ok(None);
        };
        node.check_alive()?;
        let ready = fs::read(node.data_dir.join("ready.json"));
        let Some(id) = ready.ok().and_then(|bytes| node_of(&bytes)) else {
            return Ok(None);
        };
        let mut node = self.joining.swap_remove(at);
        node.id = id;
        self.nodes.push(node);
        self.move_behind_proxy(id).await?;
        Ok(Some(id))
    }

    /// Where the network can be made to fail: starts the node again, by the cluster file, which says where its proxy is.
    /// From there the others are told that it moved.
    async fn move_behind_proxy(&mut self, id: u64) -> Result<(), HarnessError> {
        if self.network.is_none() {
            return Ok(());
        }
        self.kill(&[id]).await?;
        let proxy = ClaimedPort::claim(1)?.pop();
        if let (Some(node), Some(network)) = (
            self.nodes.iter_mut().find(|node| node.id == id),
            &mut self.network,
        ) {
            node.peer_proxy = proxy;
            node.origin = NodeOrigin::Formation(self.file.clone());
            network.add(node.peer_port()).await?;
        }
        write_cluster_file(&self.file, &self.nodes)?;
        self.start(&[id])
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
        let Some(node) = self.nodes.iter_mut().find(|node| node.id == id) else {
            return Ok(None);
        };
        let status = node.exit_status(wait).await?;
        let ended = status.map(|status| (status, node.last_line()));
        self.forget(id);
        Ok(ended)
    }

    /// Counts a node no more that has ended.
    pub(in crate::chaos) fn forget(&mut self, id: u64) {
        if let Some(at) = self.nodes.iter().position(|node| node.id == id) {
            let node = self.nodes.remove(at);
            self.gone.push(node);
        }
    }

    /// How a node's process ended, if it has, and the last line of its log.
    ///
    /// # Errors
    /// [`HarnessError`] where the system does not tell.
    pub(in crate::chaos) fn ended(
        &mut self,
        id: u64,
    ) -> Result<Option<(ExitStatus, String)>, HarnessError> {
        let Some(node) = self.nodes.iter_mut().find(|node| node.id == id) else {
            return Ok(None);
        };
        let ended = node.has_ended()?;
        Ok(ended.map(|status| (status, node.last_line())))
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
