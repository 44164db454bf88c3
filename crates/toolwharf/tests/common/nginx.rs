//! nginx as a reverse proxy.

use std::{fs, net::SocketAddr, process::Command};

use tempfile::TempDir;
use testkit::{DEADLINE, Process, wait_for};

/// A running nginx.
pub(crate) struct Nginx {
    _process: Process,
    _folder: TempDir,
}

impl Nginx {
    /// Starts nginx with these lines of the block `http`, and waits until it listens at `address`.
    pub(crate) async fn start(lines: &str, address: SocketAddr) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().display();
        let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
        let paths: String = paths
            .iter()
            .map(|path| format!("{path}_temp_path {at}/{path};"))
            .collect();
        let text = format!(
            "daemon off; master_process off; pid {at}/pid; events {{}}\n\
             http {{ access_log off; {paths}\n{lines}\n}}\n"
        );
        let file = folder.path().join("nginx.conf");
        fs::write(&file, text).unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("nginx");
        command.env("PATH", format!("{path}:/usr/sbin:/usr/local/sbin"));
        command.args(["-e", "stderr", "-c"]).arg(&file);
        let process = Process::spawn(command.into());
        wait_for("nginx", DEADLINE, async || {
            tokio::net::TcpStream::connect(address).await.is_ok()
        })
        .await;
        Self {
            _process: process,
            _folder: folder,
        }
    }
}
