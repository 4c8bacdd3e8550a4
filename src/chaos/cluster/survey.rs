//! What a run asks of a cluster beside what tests do, and what running nodes say of themselves, asked without holding up
//! whoever starts and ends them.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::time::Duration;

use futures::future::join_all;

use super::{LocalCluster, NodeProcess, Program};
use crate::chaos::HarnessError;
use crate::client::BuildError;
use crate::wire::ClusterBody;

/// How long one question to one node may take.
const QUESTION_TIMEOUT: Duration = Duration::from_millis(500);

/// Nodes that can be asked: those that there were when it was made.
#[derive(Debug, Clone)]
pub(in crate::chaos) struct Survey {
    http: reqwest::Client,
    nodes: Vec<(u64, String)>,
}

/// What questions are asked with: each on a connection of its own, since a kept one may lead to a process that is gone.
pub(super) fn http() -> Result<reqwest::Client, HarnessError> {
    let http = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .pool_max_idle_per_host(0)
        .timeout(QUESTION_TIMEOUT)
        .build();
    Ok(http.map_err(|source| BuildError::Http { source })?)
}

impl LocalCluster {
    /// Gives the process of each node what this says, by the name of its directory, into its environment from now on.
    pub(in crate::chaos) fn set_environment(
        &mut self,
        environment: impl Fn(&str) -> Vec<(OsString, OsString)> + Send + Sync + 'static,
    ) {
        self.environment = Box::new(environment);
    }

    /// What every node is started by.
    pub(in crate::chaos) fn program(&self) -> Program {
        self.program.clone()
    }

    /// Where a node listens for workers.
    pub(in crate::chaos) fn api_address(&self, id: u64) -> Option<SocketAddr> {
        self.node(id).map(|node| node.api.address())
    }

    /// The ids of those that run, as far as is known.
    pub(in crate::chaos) fn running(&self) -> Vec<u64> {
        let running = self.nodes.iter().filter(|node| node.runs());
        running.map(|node| node.id).collect()
    }

    /// What its directory and its log are called.
    pub(in crate::chaos) fn name(&self, id: u64) -> Option<&str> {
        self.node(id).map(NodeProcess::name)
    }

    /// The last line that it logged.
    pub(in crate::chaos) fn last_line(&self, id: u64) -> Option<String> {
        self.node(id).map(NodeProcess::last_line)
    }

    /// The nodes as they are now.
    pub(in crate::chaos) fn survey(&self) -> Survey {
        let url = |id| Some((id, self.url(id)?));
        Survey {
            http: self.http.clone(),
            nodes: self.ids().into_iter().filter_map(url).collect(),
        }
    }
}

impl Survey {
    /// Which node leads. Of several the newest: one that was deposed may not know it yet.
    pub(in crate::chaos) async fn leader(&self) -> Option<u64> {
        let led = join_all(self.nodes.iter().map(|node| self.term_led_by(node))).await;
        led.into_iter().flatten().max().map(|(_, leader)| leader)
    }

    /// The term in which the node leads, by its own word: what others say of it may be old.
    async fn term_led_by(&self, (id, url): &(u64, String)) -> Option<(u64, u64)> {
        let answer = self.http.get(format!("{url}/v1/cluster")).send().await;
        let cluster: ClusterBody = answer.ok()?.error_for_status().ok()?.json().await.ok()?;
        (cluster.leader == Some(*id)).then_some((cluster.term, *id))
    }

    /// The first that does not say that it is ready.
    pub(in crate::chaos) async fn first_unready(&self) -> Option<u64> {
        let asked = self
            .nodes
            .iter()
            .map(async |(id, url)| (!self.says_ready(url).await).then_some(*id));
        join_all(asked).await.into_iter().flatten().next()
    }

    /// Whether this node says that it is ready.
    pub(in crate::chaos) async fn is_ready(&self, node: u64) -> bool {
        match self.nodes.iter().find(|(id, _)| *id == node) {
            Some((_, url)) => self.says_ready(url).await,
            None => false,
        }
    }

    async fn says_ready(&self, url: &str) -> bool {
        let answer = self.http.get(format!("{url}/readyz")).send().await;
        answer.is_ok_and(|answer| answer.status().is_success())
    }
}
