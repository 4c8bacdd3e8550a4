//! Servers as processes on loopback: started, waited for, and ended by their process id.

use std::fs::{self, File, Permissions};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rand::Rng as _;
use rustix::process::{Pid, Signal, getuid, kill_process};
use tokio::time::{Instant, sleep};

use crate::error::BenchError;

/// Below the range from which the system takes ports for outgoing connections (32768 on Linux).
const PORT_MIN: u16 = 20_000;
const PORT_MAX: u16 = 32_000;
const PORT_TRIES: usize = 1_000;
/// How often a condition is looked at again.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long a server may take until it answers, or has ended.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How much of a log is shown of a server that failed.
const LAST_LINES: usize = 15;
/// Whom databases run as where the benchmark is root's, which they do not serve.
const NOBODY: &str = "nobody";

/// An address of loopback on which nobody listens.
///
/// # Errors
/// Where every port that is tried is taken.
pub(crate) fn free_address() -> Result<SocketAddr, BenchError> {
    for _ in 0..PORT_TRIES {
        let port = rand::rng().random_range(PORT_MIN..=PORT_MAX);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(address).is_ok() {
            return Ok(address);
        }
    }
    Err(BenchError::NoPort {
        min: PORT_MIN,
        max: PORT_MAX,
    })
}

/// Whose a server's process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    /// Of whoever runs the benchmark.
    Own,
    /// Never root's.
    Unprivileged,
}

/// A command that is killed when this process ends, however it does.
pub(crate) fn command(program: impl AsRef<Path>, user: User) -> Command {
    let mut command = Command::new("setpriv");
    command.arg("--pdeathsig=KILL");
    if user == User::Unprivileged && getuid().is_root() {
        command.args([
            &format!("--reuid={NOBODY}"),
            "--regid=nogroup",
            "--clear-groups",
        ]);
    }
    let path = std::env::var("PATH").unwrap_or_default();
    command
        .arg("--")
        .arg(program.as_ref())
        // Debian keeps servers where only administrators look.
        .env("PATH", format!("{path}:/usr/sbin"))
        .stdin(Stdio::null());
    command
}

/// Runs a command to its end, and gives what it wrote to standard output.
///
/// # Errors
/// Where it cannot be run, or fails.
pub(crate) fn run(name: &str, command: &mut Command) -> Result<String, BenchError> {
    let output = command.output().map_err(process_error(name, "run"))?;
    if !output.status.success() {
        return Err(BenchError::Failed {
            name: name.to_owned(),
            status: output.status,
            said: String::from_utf8_lossy(&output.stderr).into_owned(),
        });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A directory that an unprivileged server can call its own.
///
/// # Errors
/// The system's.
pub(crate) fn unprivileged_directory(directory: &Path) -> Result<(), BenchError> {
    fs::create_dir_all(directory).map_err(BenchError::file(directory, "made"))?;
    if !getuid().is_root() {
        return Ok(());
    }
    let user = run("id", Command::new("id").args(["-u", NOBODY]))?;
    let user = user.trim().parse().ok();
    if let Some(parent) = directory.parent() {
        fs::set_permissions(parent, Permissions::from_mode(0o755))
            .map_err(BenchError::file(parent, "opened to all"))?;
    }
    chown(directory, user, None).map_err(BenchError::file(directory, "given away"))
}

fn process_error(name: &str, action: &'static str) -> impl FnOnce(io::Error) -> BenchError {
    let name = name.to_owned();
    move |source| BenchError::Process {
        name,
        action,
        source,
    }
}

/// A process that runs. It is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    name: String,
    log: PathBuf,
    child: Child,
}

impl Server {
    /// Starts it, with a log in this directory.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn start(
        name: &str,
        directory: &Path,
        mut command: Command,
    ) -> Result<Self, BenchError> {
        let log = directory.join(format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&log);
        let file = file.map_err(BenchError::file(&log, "opened"))?;
        let copy = file.try_clone().map_err(BenchError::file(&log, "opened"))?;
        let child = command.stdout(copy).stderr(file).spawn();
        Ok(Self {
            name: name.to_owned(),
            log,
            child: child.map_err(process_error(name, "started"))?,
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until this says that it is ready.
    ///
    /// # Errors
    /// Where it has ended, or is not ready within [`PATIENCE`].
    pub(crate) async fn ready(
        &mut self,
        is_ready: impl AsyncFn() -> bool,
    ) -> Result<(), BenchError> {
        let deadline = Instant::now() + PATIENCE;
        while !is_ready().await {
            if self.has_ended()? {
                return Err(BenchError::Ended {
                    name: self.name.clone(),
                    log: self.log.clone(),
                    last_lines: self.last_lines(),
                });
            }
            if deadline <= Instant::now() {
                return Err(BenchError::NotReady {
                    name: self.name.clone(),
                    within: PATIENCE,
                    log: self.log.clone(),
                    last_lines: self.last_lines(),
                });
            }
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn signal(&self, signal: Signal) -> Result<(), BenchError> {
        // As long as it is not waited for, its id is not given to another process.
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        let sent = pid.map_or(Ok(()), |pid| kill_process(pid, signal));
        sent.map_err(io::Error::from)
            .map_err(process_error(&self.name, "signalled"))
    }

    /// Asks it to end, and kills it where that takes too long.
    ///
    /// # Errors
    /// The system's.
    pub(crate) async fn end(mut self, signal: Signal) -> Result<(), BenchError> {
        self.signal(signal)?;
        let deadline = Instant::now() + PATIENCE;
        while !self.has_ended()? && Instant::now() < deadline {
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    fn has_ended(&mut self) -> Result<bool, BenchError> {
        let ended = self.child.try_wait();
        let ended = ended.map_err(process_error(&self.name, "waited for"))?;
        Ok(ended.is_some())
    }

    fn last_lines(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        let begin = lines.len().saturating_sub(LAST_LINES);
        lines.get(begin..).unwrap_or_default().join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // One that has ended already cannot be killed, which is what was wanted.
        let _killed = self.child.kill();
        let _waited = self.child.wait();
    }
}
