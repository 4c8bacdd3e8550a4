//! Where a setting may stand: a flag goes before the environment, that before the file, and that before the default.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use tokio::process::Command;

use crate::node::{Node, ended, serve, started, wait_until_ready, words};
use crate::world::send;

/// Where a switch stands, and how.
#[derive(Debug, Clone, Copy, Default)]
struct Told {
    flag: Option<&'static str>,
    environment: Option<(&'static str, &'static str)>,
    file: Option<&'static str>,
}

impl Told {
    /// A node that is told so.
    fn node(self, scratch: &Path, arguments: Vec<OsString>) -> Command {
        let mut command = started(arguments);
        command.args(self.flag).envs(self.environment);
        if let Some(text) = self.file {
            let file = scratch.join("settings.toml");
            fs::write(&file, text).unwrap();
            command.arg("--config").arg(file);
        }
        command
    }
}

/// Every way to tell a switch, and whether it is on then.
fn ways(
    [flag, on, off]: [&'static str; 3],
    variable: &'static str,
    [file_on, file_off]: [&'static str; 2],
) -> [(Told, bool); 10] {
    let told = |flag, environment: Option<&'static str>, file| Told {
        flag,
        environment: environment.map(|value| (variable, value)),
        file,
    };
    [
        (told(None, None, None), false),
        (told(Some(flag), None, None), true),
        (told(None, Some("true"), None), true),
        (told(None, Some("false"), None), false),
        (told(None, None, Some(file_on)), true),
        (told(None, None, Some(file_off)), false),
        (told(None, Some("false"), Some(file_on)), false),
        (told(None, Some("true"), Some(file_off)), true),
        (told(Some(on), Some("false"), Some(file_off)), true),
        (told(Some(off), Some("true"), Some(file_on)), false),
    ]
}

#[tokio::test]
async fn a_lease_creates_where_flag_environment_or_file_say_so_and_the_first_of_them_counts() {
    for (told, creates) in ways(
        ["--auto-create", "--auto-create=true", "--auto-create=false"],
        "HIGHWATER_AUTO_CREATE",
        ["auto_create = true", "auto_create = false"],
    ) {
        let guard = tempfile::tempdir().unwrap();
        let (data_dir, stderr) = (guard.path().join("data"), guard.path().join("log"));
        let mut command = told.node(guard.path(), serve(&data_dir));
        command.stderr(fs::File::create(&stderr).unwrap());
        let child = command.spawn().unwrap();
        let node = Node { child, stderr };
        let url = wait_until_ready(&data_dir).await;

        let one = send("POST", &format!("{url}/v1/sequences/one/leases"), "", &[]).await;
        let list = r#"[{"sequence":"several"}]"#;
        let several = send("POST", &format!("{url}/v1/leases"), list, &[]).await;

        let status = if creates { 201 } else { 404 };
        for answer in [one, several] {
            assert_eq!(answer.status, status, "{told:?}: {}", answer.text);
        }
        node.kill().await;
    }
}

#[tokio::test]
async fn strangers_are_listened_to_where_the_first_of_flag_environment_and_file_says_so() {
    for (told, insecure) in ways(
        ["--insecure", "--insecure=true", "--insecure=false"],
        "HIGHWATER_INSECURE",
        ["insecure = true", "insecure = false"],
    ) {
        let guard = tempfile::tempdir().unwrap();
        // An address of no machine: nothing ever listens there.
        let arguments = ["serve", "--listen", "192.0.2.1:7101", "--data-dir"];
        let mut arguments = words(&arguments);
        arguments.push(guard.path().join("data").into());

        let output = ended(told.node(guard.path(), arguments)).await;

        let said = String::from_utf8(output.stderr).unwrap();
        let (exit, text) = if insecure {
            (1, "cannot be listened on: give this machine that address")
        } else {
            (2, "is not loopback, and nothing protects it")
        };
        assert_eq!(output.status.code(), Some(exit), "{told:?}: {said}");
        assert!(said.contains(text), "{told:?}: {said}");
    }
}
