//! Nodes that come and go while the cluster serves.

use std::fs;
use std::process::ExitStatus;
use std::time::Duration;

use tokio::time::sleep;

use super::{LocalCluster, NodeOrigin, NodeProcess, POLL_INTERVAL, Wait};
use crate::chaos::HarnessError;
use crate::chaos::ports::ClaimedPort;

impl LocalCluster {
    /// Starts one more node, which asks the others to be admitted, and waits until it has its id: that is told.
    ///
    /// # Errors
    /// [`HarnessError`] where its process cannot be started, or has no id within the limit.
    pub async fn join(&mut self, within: Duration) -> Result<u64, HarnessError> {
        let wait = Wait::at_most(within);
        self.count += 1;
        let mut ports = ClaimedPort::claim(2)?.into_iter();
        let (Some(api), Some(peer)) = (ports.next(), ports.next()) else {
            return Err(HarnessError::NoNetwork);
        };
        let origin = NodeOrigin::Join(self.urls());
        let mut node = NodeProcess::new(&self.directory, self.count, origin, (api, peer));
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
        let mut ports = ClaimedPort::claim(2)?.into_iter();
        if let Some(node) = self.nodes.iter_mut().find(|node| node.id == id)
            && let (Some(api), Some(peer)) = (ports.next(), ports.next())
        {
            (node.api, node.peer) = (api, peer);
        }
        self.start(&[id])
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
        Ok(status.map(|status| (status, node.last_line())))
    }
}

/// The node that a `ready.json` is of.
fn node_of(ready: &[u8]) -> Option<u64> {
    let ready: serde_json::Value = serde_json::from_slice(ready).ok()?;
    ready.get("node")?.as_u64()
}
