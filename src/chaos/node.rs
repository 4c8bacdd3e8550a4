//! One node process: started, watched, killed, and never left behind.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::{Instant, timeout_at};

use super::HarnessError;
use super::network::PeerPort;
use super::ports::ClaimedPort;
use super::process;

/// How often a condition is looked at again.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The end of a log that is searched for its last line.
const LOG_TAIL_BYTES: u64 = 4 * 1024;

/// For how long a condition is waited for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wait {
    pub(super) within: Duration,
    until: Instant,
}

impl Wait {
    /// From now on.
    pub(super) fn at_most(within: Duration) -> Self {
        Self {
            within,
            until: Instant::now() + within,
        }
    }

    pub(super) fn is_over(self) -> bool {
        self.until <= Instant::now()
    }
}

/// What is started as a node: `serve` and its arguments follow.
#[derive(Debug, Clone)]
pub struct Program {
    /// The file that is run.
    pub path: PathBuf,
    /// What comes before `serve`.
    pub arguments: Vec<OsString>,
}

impl Program {
    /// This very program.
    pub(super) fn this() -> Result<Self, HarnessError> {
        let path = std::env::current_exe().map_err(|source| HarnessError::File {
            path: PathBuf::from("highwater"),
            action: "found",
            source,
        })?;
        Ok(Self {
            path,
            arguments: Vec::new(),
        })
    }
}

/// How a node comes into its cluster.
#[derive(Debug)]
pub(super) enum NodeOrigin {
    /// By this cluster file.
    Formation(PathBuf),
    /// Admitted by one of the nodes at these addresses.
    Join(Vec<String>),
}

/// A node: where it is, and its process while it runs.
#[derive(Debug)]
pub(super) struct NodeProcess {
    pub(super) id: u64,
    pub(super) api: ClaimedPort,
    pub(super) peer: ClaimedPort,
    /// Where its peers dial it, if that is not where it listens.
    pub(super) peer_proxy: Option<ClaimedPort>,
    pub(super) data_dir: PathBuf,
    pub(super) origin: NodeOrigin,
    log: PathBuf,
    child: Option<Child>,
    /// The pipe whose end ends the node. Kept apart from the child, which closes it as soon as it is waited for.
    lifeline: Option<ChildStdin>,
}

impl NodeProcess {
    /// A node that does not run yet; its data and its log will be in `directory`.
    pub(super) fn new(
        directory: &Path,
        id: u64,
        origin: NodeOrigin,
        (api, peer): (ClaimedPort, ClaimedPort),
    ) -> Self {
        Self {
            id,
            api,
            peer,
            peer_proxy: None,
            data_dir: directory.join(format!("node-{id}")),
            origin,
            log: directory.join(format!("node-{id}.log")),
            child: None,
            lifeline: None,
        }
    }

    /// Where its peers dial it.
    pub(super) fn peer_advertised(&self) -> SocketAddr {
        self.peer_proxy.as_ref().unwrap_or(&self.peer).address()
    }

    /// The same for the network.
    pub(super) fn peer_port(&self) -> PeerPort {
        PeerPort {
            node: self.id,
            advertised: self.peer_advertised(),
            listens: self.peer.address(),
        }
    }

    pub(super) fn runs(&self) -> bool {
        self.child.is_some()
    }

    /// The id of its process, if it runs.
    pub(super) fn pid(&self) -> Option<u32> {
        self.child.as_ref().and_then(Child::id)
    }

    /// What its directory and its log are called.
    pub(super) fn name(&self) -> &str {
        let name = self.data_dir.file_name();
        name.and_then(OsStr::to_str).unwrap_or_default()
    }

    /// Starts its process, unless it runs.
    pub(super) fn start(
        &mut self,
        program: &Program,
        settings: &[String],
        environment: &[(OsString, OsString)],
    ) -> Result<(), HarnessError> {
        if self.runs() {
            return Ok(());
        }
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log)
            .map_err(|source| HarnessError::File {
                path: self.log.clone(),
                action: "opened",
                source,
            })?;
        let mut command = Command::new(&program.path);
        command
            .args(&program.arguments)
            .arg("serve")
            .args(self.entrance())
            .arg("--data-dir")
            .arg(&self.data_dir)
            .args(settings);
        if self.peer_proxy.is_some() {
            let listens = self.peer.address().to_string();
            command.args(["--peer-listen", &listens]);
        }
        command
            // The other end of the pipe is closed with this process, whatever ends it.
            .arg("--end-with-stdin")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            // An interrupt from the terminal is for the harness: it ends its nodes itself.
            .process_group(0)
            .kill_on_drop(true);
        // The settings of whoever runs the harness are not the node's, but for what is logged.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("HIGHWATER_") && !text.starts_with("HIGHWATER_LOG") {
                command.env_remove(&name);
            }
        }
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        let mut child = command.spawn().map_err(self.process_error("started"))?;
        self.lifeline = child.stdin.take();
        self.child = Some(child);
        Ok(())
    }

    fn entrance(&self) -> Vec<OsString> {
        match &self.origin {
            NodeOrigin::Formation(file) => {
                let node = self.id.to_string().into();
                vec!["--cluster".into(), file.into(), "--node".into(), node]
            }
            NodeOrigin::Join(urls) => {
                let (api, peer) = (self.api.address(), self.peer.address());
                let addresses = ["--listen".into(), api.to_string().into()].into_iter();
                let peer = ["--peer-listen".into(), peer.to_string().into()];
                let join = ["--join".into(), urls.join(",").into()];
                addresses.chain(peer).chain(join).collect()
            }
        }
    }

    /// Sends a signal, if its process runs.
    pub(super) fn signal(&self, signal: Signal) -> Result<(), HarnessError> {
        // As long as the process is not waited for, its id is not given to another.
        let pid = self
            .pid()
            .and_then(|pid| i32::try_from(pid).ok())
            .and_then(Pid::from_raw);
        let Some(pid) = pid else {
            return Ok(());
        };
        kill_process(pid, signal)
            .map_err(io::Error::from)
            .map_err(self.process_error("signalled"))
    }

    /// Whether all of it stands still; one that does not run does.
    pub(super) fn stands_still(&self) -> Result<bool, HarnessError> {
        let stands = self.pid().map_or(Ok(true), process::stands_still);
        stands.map_err(self.process_error("looked at"))
    }

    /// Waits until its process has ended.
    pub(super) async fn ended(&mut self) -> Result<(), HarnessError> {
        if let Some(child) = &mut self.child {
            let waited = child.wait().await;
            waited.map_err(self.process_error("waited for"))?;
            self.child = None;
        }
        Ok(())
    }

    /// Waits until its process has ended by itself, and tells how; nothing where none runs.
    pub(super) async fn exit_status(
        &mut self,
        wait: Wait,
    ) -> Result<Option<ExitStatus>, HarnessError> {
        let Some(child) = &mut self.child else {
            return Ok(None);
        };
        match timeout_at(wait.until, child.wait()).await {
            Ok(status) => {
                let status = status.map_err(self.process_error("waited for"))?;
                self.child = None;
                Ok(Some(status))
            }
            Err(_elapsed) => Err(HarnessError::NotEnded {
                node: self.id,
                within: wait.within,
                log: self.log.clone(),
            }),
        }
    }

    /// How its process ended, if it has.
    pub(super) fn has_ended(&mut self) -> Result<Option<ExitStatus>, HarnessError> {
        let Some(child) = &mut self.child else {
            return Ok(None);
        };
        let ended = child.try_wait();
        let ended = ended.map_err(self.process_error("waited for"))?;
        if ended.is_some() {
            self.child = None;
        }
        Ok(ended)
    }

    /// Waits until its process has ended, and kills it where that takes longer than the deadline.
    pub(super) async fn ended_by(&mut self, deadline: Instant) -> Result<(), HarnessError> {
        if let Ok(ended) = timeout_at(deadline, self.ended()).await {
            return ended;
        }
        self.signal(Signal::KILL)?;
        self.ended().await
    }

    /// Says so where its process ended though nobody ended it.
    pub(super) fn check_alive(&mut self) -> Result<(), HarnessError> {
        match self.has_ended()? {
            None => Ok(()),
            Some(status) => Err(HarnessError::Died {
                node: self.id,
                status,
                last_line: self.last_line(),
                log: self.log.clone(),
            }),
        }
    }

    /// What to say of one that was waited for in vain.
    pub(super) fn not_ready(&self, within: Duration) -> HarnessError {
        HarnessError::NotReady {
            node: self.id,
            within,
            last_line: self.last_line(),
            log: self.log.clone(),
        }
    }

    pub(super) fn process_error(
        &self,
        action: &'static str,
    ) -> impl FnOnce(io::Error) -> HarnessError + use<> {
        let node = self.id;
        move |source| HarnessError::Process {
            node,
            action,
            source,
        }
    }

    pub(super) fn last_line(&self) -> String {
        let tail = read_tail(&self.log).unwrap_or_default();
        let line = tail.lines().rev().find(|line| !line.trim().is_empty());
        line.unwrap_or("it logged nothing").to_owned()
    }
}

fn read_tail(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
