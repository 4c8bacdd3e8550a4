//! MariaDB and PostgreSQL as the system's packages bring them, each a process of a test on a socket of its own.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use crate::node::{ended, wait_until};
use crate::world::PATIENCE;

/// Whom the servers run as where the tests are root's, which neither of them serves.
const NOBODY: &str = "nobody";

/// A server that was started. It is killed when this is dropped, and its directory is the test's.
pub(crate) struct Database {
    /// Where its clients find it.
    pub(crate) socket: PathBuf,
    server: Child,
}

/// Runs a program to its end, which has to be a good one.
async fn done(mut command: Command) {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let output = ended(command).await;
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A program of a database. scripts/test installs those that are missing.
fn program(path: impl AsRef<Path>) -> Command {
    let mut command = Command::new(path.as_ref());
    command.kill_on_drop(true);
    command
}

fn spawned(mut command: Command, log: &Path) -> Child {
    let log = fs::File::create(log).unwrap();
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log);
    command.spawn().unwrap()
}

/// The ids of the user that servers run as, where the tests are root's.
fn nobody() -> Option<(u32, u32)> {
    if !rustix::process::getuid().is_root() {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let mut rows = users.lines().map(|row| row.split(':').collect::<Vec<_>>());
    let row = rows
        .find(|row| row[0] == NOBODY)
        .expect("somebody is nobody");
    Some((row[2].parse().unwrap(), row[3].parse().unwrap()))
}

/// A directory of the server's own below one that everybody may pass.
fn home(directory: &Path, name: &str) -> PathBuf {
    fs::set_permissions(directory, Permissions::from_mode(0o755)).unwrap();
    let home = directory.join(name);
    fs::create_dir(&home).unwrap();
    if let Some((user, group)) = nobody() {
        chown(&home, Some(user), Some(group)).unwrap();
    }
    home
}

/// A MariaDB whose administrator needs no password.
pub(crate) async fn maria_db(directory: &Path, name: &str) -> Database {
    let home = home(directory, name);
    let data = format!("--datadir={}", home.join("data").display());
    // A server that starts removes what another one has in a directory that both use.
    let temporary = format!("--tmpdir={}", home.display());
    let user = nobody().map(|_| format!("--user={NOBODY}"));
    let mut install = program("mariadb-install-db");
    install
        .args(["--no-defaults", &data, &temporary, "--skip-test-db"])
        .arg("--auth-root-authentication-method=normal")
        .args(&user);
    done(install).await;
    let socket = home.join("socket");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut server = program("mariadbd");
    server
        // Debian keeps it where only administrators look.
        .env("PATH", format!("{path}:/usr/sbin"))
        .args(["--no-defaults", &data, &temporary, "--skip-networking"])
        .arg(format!("--socket={}", socket.display()))
        .arg(format!("--pid-file={}", home.join("pid").display()))
        .args(&user);
    let server = spawned(server, &directory.join(format!("{name}.log")));
    let database = Database { socket, server };
    wait_until("MariaDB serves", async || {
        let output = database.mysql().args(["-e", "SELECT 1"]).output().await;
        output.unwrap().status.success()
    })
    .await;
    database
}

impl Database {
    fn mysql(&self) -> Command {
        let mut client = program("mariadb");
        client.args(["--no-defaults", "--user=root"]);
        client.arg(format!("--socket={}", self.socket.display()));
        client
    }

    /// Has MariaDB carry these statements out.
    pub(crate) async fn maria_db_runs(&self, statements: &str) {
        let mut client = self.mysql();
        client.args(["-e", statements]);
        done(client).await;
    }

    /// Ends PostgreSQL. Killed, it would leave a little of the system's shared memory behind.
    pub(crate) async fn stop_postgres(mut self) {
        let server = i32::try_from(self.server.id().unwrap()).unwrap();
        kill_process(Pid::from_raw(server).unwrap(), Signal::INT).unwrap();
        let ended = tokio::time::timeout(PATIENCE, self.server.wait()).await;
        assert!(ended.unwrap().unwrap().success());
    }

    /// Has PostgreSQL carry each of these statements out, in this database.
    pub(crate) async fn postgres_runs(&self, database: &str, statements: &[&str]) {
        let mut client = program("psql");
        client.args(["--no-psqlrc", "--username=postgres", "--dbname", database]);
        client.arg(format!("--host={}", self.socket.display()));
        client.args(statements.iter().flat_map(|statement| ["-c", statement]));
        done(client).await;
    }
}

/// A PostgreSQL whose administrator needs no password. Its socket is a directory.
pub(crate) async fn postgres(directory: &Path, name: &str) -> Database {
    let programs = fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL is installed");
    let mut versions: Vec<PathBuf> = programs.map(|entry| entry.unwrap().path()).collect();
    versions.retain(|version| version.join("bin/initdb").exists());
    versions.sort();
    let programs = versions.pop().expect("PostgreSQL is installed").join("bin");
    let home = home(directory, name);
    let server = |name: &str| {
        let mut command = program(programs.join(name));
        if let Some((user, group)) = nobody() {
            command.uid(user).gid(group);
        }
        command.current_dir(&home).arg("-D").arg(home.join("data"));
        command
    };
    let mut initdb = server("initdb");
    initdb.args(["--username=postgres", "--auth=trust", "--no-sync"]);
    done(initdb).await;
    let mut running = server("postgres");
    running
        .args(["-c", "listen_addresses=", "-c"])
        .arg(format!("unix_socket_directories={}", home.display()));
    let running = spawned(running, &directory.join(format!("{name}.log")));
    let database = Database {
        socket: home,
        server: running,
    };
    wait_until("PostgreSQL serves", async || {
        let mut asked = program("psql");
        asked.args([
            "--username=postgres",
            "-c",
            "SELECT 1",
            "postgres",
            "--host",
        ]);
        asked.arg(&database.socket);
        asked.output().await.unwrap().status.success()
    })
    .await;
    database
}
