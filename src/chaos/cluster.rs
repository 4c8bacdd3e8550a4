//! A whole cluster of node processes in one directory of this machine.

mod members;
mod survey;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use super::HarnessError;
use super::network::{Network, PeerPort};
use super::node::{NodeOrigin, NodeProcess, POLL_INTERVAL, Program, Wait};
use super::ports::ClaimedPort;

/// What is in the environment of a node's process, by the name of its directory.
type Environment = Box<dyn Fn(&str) -> Vec<(OsString, OsString)> + Send + Sync>;

/// How many nodes: an even number would tolerate no more losses than the odd one below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClusterSize {
    /// None may be lost.
    One,
    /// One may be lost.
    Three,
    /// Two may be lost.
    Five,
}

impl ClusterSize {
    /// How many nodes.
    pub const fn nodes(self) -> u64 {
        match self {
            Self::One => 1,
            Self::Three => 3,
            Self::Five => 5,
        }
    }

    /// How many may be lost at once while the rest serves.
    pub const fn losses(self) -> usize {
        match self {
            Self::One => 0,
            Self::Three => 1,
            Self::Five => 2,
        }
    }
}

/// Node processes, their cluster file and their directory. All are killed when it is dropped.
pub struct LocalCluster {
    directory: PathBuf,
    file: PathBuf,
    program: Program,
    settings: Vec<String>,
    nodes: Vec<NodeProcess>,
    network: Option<Network>,
    environment: Environment,
    http: reqwest::Client,
    /// Those that have no id yet.
    joining: Vec<NodeProcess>,
    /// Those that left keep their ports: whoever calls there still is to find no other cluster's node.
    gone: Vec<NodeProcess>,
}

impl LocalCluster {
    /// Finds ports and writes the cluster file into `directory`, which holds everything else as well.
    ///
    /// # Errors
    /// [`HarnessError`] where the file or the ports cannot be had.
    pub fn create(
        directory: &Path,
        size: ClusterSize,
        program: Program,
    ) -> Result<Self, HarnessError> {
        let wanted = usize::try_from(size.nodes()).unwrap_or(usize::MAX);
        let mut apis = ClaimedPort::claim(wanted.saturating_mul(2))?;
        let peers = apis.split_off(wanted);
        let file = directory.join("cluster.toml");
        let nodes: Vec<NodeProcess> = (1..)
            .zip(apis.into_iter().zip(peers))
            .map(|(id, (api, peer))| {
                let origin = NodeOrigin::Formation(file.clone());
                NodeProcess::new(directory, id, origin, (api, peer))
            })
            .collect();
        write_cluster_file(&file, &nodes)?;
        Ok(Self {
            directory: directory.to_owned(),
            file,
            program,
            settings: Vec::new(),
            nodes,
            network: None,
            environment: Box::new(|_| Vec::new()),
            http: survey::http()?,
            joining: Vec::new(),
            gone: Vec::new(),
        })
    }

    /// The same, with a network between the nodes that can be made to fail.
    ///
    /// # Errors
    /// [`HarnessError`] where the file or the ports cannot be had.
    pub async fn create_with_network(
        directory: &Path,
        size: ClusterSize,
        program: Program,
    ) -> Result<Self, HarnessError> {
        let mut cluster = Self::create(directory, size, program)?;
        let proxies = ClaimedPort::claim(cluster.nodes.len())?;
        for (node, proxy) in cluster.nodes.iter_mut().zip(proxies) {
            node.peer_proxy = Some(proxy);
        }
        write_cluster_file(&cluster.file, &cluster.nodes)?;
        let ports: Vec<PeerPort> = cluster.nodes.iter().map(NodeProcess::peer_port).collect();
        cluster.network = Some(Network::start(&ports).await?);
        Ok(cluster)
    }

    /// The network between the nodes, of a cluster that was created with one.
    pub fn network(&self) -> Option<&Network> {
        self.network.as_ref()
    }

    /// Gives these arguments to every `serve` from now on.
    pub fn serve_with(&mut self, settings: &[&str]) {
        self.settings = settings.iter().map(ToString::to_string).collect();
    }

    /// Where the logs are.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The API address of each node, by rising id from 1 on.
    pub fn urls(&self) -> Vec<String> {
        let url = |node: &NodeProcess| format!("http://{}", node.api.address());
        self.nodes.iter().map(url).collect()
    }

    /// The API address of one node.
    #[must_use]
    pub fn url(&self, id: u64) -> Option<String> {
        let node = self.node(id)?;
        Some(format!("http://{}", node.api.address()))
    }

    /// The same without one node's.
    pub fn urls_without(&self, id: u64) -> Vec<String> {
        let urls = self.ids().into_iter().zip(self.urls());
        urls.filter(|(node, _)| *node != id)
            .map(|(_, url)| url)
            .collect()
    }

    /// The ids of all nodes.
    pub fn ids(&self) -> Vec<u64> {
        self.nodes.iter().map(|node| node.id).collect()
    }

    /// The directory that a node is started with.
    #[must_use]
    pub fn data_dir(&self, id: u64) -> Option<&Path> {
        self.node(id).map(|node| node.data_dir.as_path())
    }

    /// Where a node listens for its peers.
    #[must_use]
    pub fn peer_address(&self, id: u64) -> Option<SocketAddr> {
        self.node(id).map(|node| node.peer.address())
    }

    /// The process of a node, while it runs.
    #[must_use]
    pub fn pid(&self, id: u64) -> Option<u32> {
        self.node(id)?.pid()
    }

    fn node(&self, id: u64) -> Option<&NodeProcess> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// Starts every node that does not run.
    ///
    /// # Errors
    /// [`HarnessError`] where a process cannot be started.
    pub fn start_all(&mut self) -> Result<(), HarnessError> {
        self.start(&self.ids())
    }

    /// Starts those of these nodes that do not run.
    ///
    /// # Errors
    /// [`HarnessError`] where a process cannot be started.
    pub fn start(&mut self, ids: &[u64]) -> Result<(), HarnessError> {
        for node in self.nodes.iter_mut().filter(|node| ids.contains(&node.id)) {
            let environment = (self.environment)(node.name());
            node.start(&self.program, &self.settings, &environment)?;
            if let (Some(network), Some(pid)) = (&self.network, node.pid()) {
                network.belongs_to(node.id, pid);
            }
        }
        Ok(())
    }

    /// Waits until every node says that it is ready.
    ///
    /// # Errors
    /// [`HarnessError`] where one ended, or is not ready within the limit.
    pub async fn all_ready(&mut self, within: Duration) -> Result<(), HarnessError> {
        let wait = Wait::at_most(within);
        loop {
            // Whichever it is: the others may wait for it for ever.
            self.check_alive()?;
            let Some(unready) = self.survey().first_unready().await else {
                return Ok(());
            };
            if let (true, Some(unready)) = (wait.is_over(), self.node(unready)) {
                return Err(unready.not_ready(within));
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Sends a signal to a node, if it runs.
    ///
    /// # Errors
    /// [`HarnessError`] where its process cannot be signalled.
    pub fn signal(&self, id: u64, signal: Signal) -> Result<(), HarnessError> {
        self.node(id).map_or(Ok(()), |node| node.signal(signal))
    }

    /// Stops a node where it is, as by SIGSTOP, and waits until all of it stands still.
    ///
    /// # Errors
    /// [`HarnessError`] where its process cannot be signalled, or does not stand still within the limit.
    pub async fn freeze(&self, id: u64, within: Duration) -> Result<(), HarnessError> {
        let wait = Wait::at_most(within);
        let Some(node) = self.node(id) else {
            return Ok(());
        };
        node.signal(Signal::STOP)?;
        while !node.stands_still()? {
            if wait.is_over() {
                let source = std::io::ErrorKind::TimedOut.into();
                return Err(node.process_error("stopped")(source));
            }
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Lets a node that was frozen go on.
    ///
    /// # Errors
    /// [`HarnessError`] where its process cannot be signalled.
    pub fn thaw(&self, id: u64) -> Result<(), HarnessError> {
        self.signal(id, Signal::CONT)
    }

    /// Kills these nodes at once, as by kill -9, and waits until they are gone.
    ///
    /// # Errors
    /// [`HarnessError`] where a process cannot be signalled.
    pub async fn kill(&mut self, ids: &[u64]) -> Result<(), HarnessError> {
        let chosen = |node: &&mut NodeProcess| ids.contains(&node.id);
        for node in self.nodes.iter_mut().filter(chosen) {
            node.signal(Signal::KILL)?;
        }
        for node in self.nodes.iter_mut().filter(chosen) {
            node.ended().await?;
        }
        Ok(())
    }

    /// Says so where a node ended by itself.
    ///
    /// # Errors
    /// [`HarnessError`] with the last line of its log.
    pub fn check_alive(&mut self) -> Result<(), HarnessError> {
        self.nodes.iter_mut().try_for_each(NodeProcess::check_alive)
    }

    /// Asks every node to end, and kills those that take longer.
    ///
    /// # Errors
    /// [`HarnessError`] where a process cannot be signalled.
    pub async fn stop_all(&mut self, within: Duration) -> Result<(), HarnessError> {
        for node in &self.nodes {
            node.signal(Signal::TERM)?;
        }
        let deadline = Instant::now() + within;
        for node in &mut self.nodes {
            node.ended_by(deadline).await?;
        }
        Ok(())
    }

    /// Asks every node to end, and tells how each did.
    ///
    /// # Errors
    /// As for [`Self::terminate`].
    pub async fn terminate_all(
        &mut self,
        within: Duration,
    ) -> Result<Vec<ExitStatus>, HarnessError> {
        self.terminate(&self.ids(), within).await
    }

    /// Asks these nodes to end, and tells how each did.
    ///
    /// # Errors
    /// [`HarnessError`] where a process cannot be signalled, or has not ended within the limit.
    pub async fn terminate(
        &mut self,
        ids: &[u64],
        within: Duration,
    ) -> Result<Vec<ExitStatus>, HarnessError> {
        let chosen = |node: &&mut NodeProcess| ids.contains(&node.id);
        for node in self.nodes.iter_mut().filter(chosen) {
            node.signal(Signal::TERM)?;
        }
        let wait = Wait::at_most(within);
        let mut ended = Vec::new();
        for node in self.nodes.iter_mut().filter(chosen) {
            ended.extend(node.exit_status(wait).await?);
        }
        Ok(ended)
    }

    /// Waits until a node says that it leads.
    ///
    /// # Errors
    /// [`HarnessError`] where none does within the limit.
    pub async fn leader(&mut self, within: Duration) -> Result<u64, HarnessError> {
        let wait = Wait::at_most(within);
        loop {
            self.check_alive()?;
            if let Some(leader) = self.survey().leader().await {
                return Ok(leader);
            }
            if wait.is_over() {
                return Err(HarnessError::NoLeader {
                    within,
                    logs: self.directory.clone(),
                });
            }
            sleep(POLL_INTERVAL).await;
        }
    }
}

impl std::fmt::Debug for LocalCluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("LocalCluster");
        shown.field("nodes", &self.nodes).finish_non_exhaustive()
    }
}

fn write_cluster_file(file: &Path, nodes: &[NodeProcess]) -> Result<(), HarnessError> {
    let mut text = "[cluster]\nname = \"local\"\n".to_owned();
    for node in nodes {
        let (id, api, peer) = (node.id, node.api.address(), node.peer_advertised());
        let entry = format!("\n[[node]]\nid = {id}\napi = \"{api}\"\npeer = \"{peer}\"\n");
        text.push_str(&entry);
    }
    // A node that starts meanwhile finds the one or the other, and all of it.
    let new = file.with_extension("new");
    let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, file));
    written.map_err(HarnessError::file(file, "written"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cluster whose nodes run this shell script.
    fn cluster(directory: &Path, script: &str) -> LocalCluster {
        let program = Program {
            path: "/bin/sh".into(),
            arguments: ["-c", script].map(Into::into).to_vec(),
        };
        LocalCluster::create(directory, ClusterSize::Three, program).unwrap()
    }

    /// Waits until the system knows the process no more.
    async fn wait_until_gone(pid: u32) {
        let path = PathBuf::from(format!("/proc/{pid}/exe"));
        let deadline = Instant::now() + Duration::from_secs(20);
        while path.exists() {
            assert!(Instant::now() < deadline, "process {pid} is still there");
            sleep(POLL_INTERVAL).await;
        }
    }

    fn pid(directory: &Path, node: u64) -> u32 {
        let log = std::fs::read_to_string(directory.join(format!("node-{node}.log"))).unwrap();
        log.trim().parse().unwrap()
    }

    async fn wait_until_logged(directory: &Path) {
        let deadline = Instant::now() + Duration::from_secs(20);
        for node in 1..=3 {
            let log = directory.join(format!("node-{node}.log"));
            while !std::fs::read_to_string(&log).is_ok_and(|text| text.ends_with('\n')) {
                assert!(Instant::now() < deadline, "node {node} wrote nothing");
                sleep(POLL_INTERVAL).await;
            }
        }
    }

    #[test]
    fn the_cluster_file_names_every_node_with_its_addresses() {
        let directory = tempfile::tempdir().unwrap();

        let cluster = cluster(directory.path(), "");

        let text = std::fs::read_to_string(directory.path().join("cluster.toml")).unwrap();
        let parsed: toml::Table = text.parse().unwrap();
        let nodes = parsed["node"].as_array().unwrap();
        assert_eq!(parsed["cluster"]["name"].as_str(), Some("local"));
        assert_eq!(nodes.len(), 3);
        for (node, (id, url)) in nodes.iter().zip((1..).zip(cluster.urls())) {
            assert_eq!(node["id"].as_integer(), Some(id));
            assert_eq!(format!("http://{}", node["api"].as_str().unwrap()), url);
            assert_ne!(node["api"], node["peer"]);
        }
    }

    #[tokio::test]
    async fn killed_nodes_are_gone_and_the_others_run() {
        let directory = tempfile::tempdir().unwrap();
        let mut cluster = cluster(directory.path(), "echo $$ >&2; exec sleep 600");
        cluster.start_all().unwrap();
        wait_until_logged(directory.path()).await;

        cluster.kill(&[1, 3]).await.unwrap();

        wait_until_gone(pid(directory.path(), 1)).await;
        wait_until_gone(pid(directory.path(), 3)).await;
        let running: Vec<bool> = cluster.nodes.iter().map(NodeProcess::runs).collect();
        assert_eq!(running, [false, true, false]);
        cluster.check_alive().unwrap();
    }

    #[tokio::test]
    async fn no_node_outlives_its_cluster() {
        let directory = tempfile::tempdir().unwrap();
        let mut cluster = cluster(directory.path(), "echo $$ >&2; exec sleep 600");
        cluster.start_all().unwrap();
        wait_until_logged(directory.path()).await;

        drop(cluster);

        for node in 1..=3 {
            wait_until_gone(pid(directory.path(), node)).await;
        }
    }

    #[tokio::test]
    async fn a_node_that_does_not_end_when_asked_is_killed() {
        let directory = tempfile::tempdir().unwrap();
        let stubborn = "trap '' TERM; echo $$ >&2; while :; do sleep 0.1; done";
        let mut cluster = cluster(directory.path(), stubborn);
        cluster.start_all().unwrap();
        wait_until_logged(directory.path()).await;

        cluster.stop_all(Duration::from_millis(50)).await.unwrap();

        wait_until_gone(pid(directory.path(), 1)).await;
        assert!(cluster.nodes.iter().all(|node| !node.runs()));
    }

    #[tokio::test]
    async fn a_node_that_ends_by_itself_is_told_with_the_last_line_of_its_log() {
        let directory = tempfile::tempdir().unwrap();
        // The others run, and wait for it for ever.
        let one_ends = "case \"$*\" in *'--node 2 '*) echo first >&2; echo the disk is full >&2; exit 1;; esac; exec sleep 600";
        let mut cluster = cluster(directory.path(), one_ends);
        cluster.start_all().unwrap();

        let error = cluster
            .all_ready(Duration::from_secs(20))
            .await
            .unwrap_err();

        let log = directory.path().join("node-2.log");
        assert_eq!(
            error.to_string(),
            format!(
                "node 2 ended by itself (exit status: 1): the disk is full; its log is {}",
                log.display()
            )
        );
    }

    #[tokio::test]
    async fn a_node_that_never_becomes_ready_is_told_at_the_deadline() {
        let directory = tempfile::tempdir().unwrap();
        let mut cluster = cluster(directory.path(), "exec sleep 600");
        cluster.start_all().unwrap();

        let error = cluster
            .all_ready(Duration::from_millis(100))
            .await
            .unwrap_err();

        assert!(matches!(error, HarnessError::NotReady { node: 1, .. }));
        assert!(
            error
                .to_string()
                .contains("was not ready after 100ms: it logged nothing")
        );
    }
}
