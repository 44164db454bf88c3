//! Several gateways of one installation, and a plain balancer before them.

use std::{fs, net::TcpListener, process::Command};

use tempfile::TempDir;
use testkit::{DEADLINE, Process, RawClient, postgres::Database, wait_for};

use super::{Gateway, Setup};

impl Setup {
    /// One of several on the same Postgres, with the same master key and the first one's administrator.
    pub(crate) fn of_replica(self, database: &Database, first: Option<&Gateway>) -> Self {
        let setup = self
            .env("TOOLWHARF_DATABASE_URL", database.url())
            .env("TOOLWHARF_MASTER_KEY", &"5a".repeat(32));
        if let Some(first) = first {
            let data = setup.folder().join("data");
            fs::create_dir(&data).unwrap();
            fs::write(data.join("admin-token"), first.token()).unwrap();
        }
        setup
    }
}

/// HAProxy: each request goes to the next replica that accepts connections.
pub(crate) struct Balancer {
    pub(crate) url: String,
    _process: Process,
    _folder: TempDir,
}

impl Balancer {
    pub(crate) async fn before(replicas: &[Gateway]) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = port.local_addr().unwrap();
        drop(port);
        let mut text = format!(
            "defaults\n mode http\n timeout connect 1s\n timeout client 60s\n timeout server 60s\n option redispatch 1\n \
             retries 2\nfrontend front\n bind {address}\n default_backend all\nbackend all\n balance roundrobin\n"
        );
        for (at, replica) in replicas.iter().enumerate() {
            let url: url::Url = replica.client().url().parse().unwrap();
            let port = url.port().unwrap();
            text += &format!(" server r{at} 127.0.0.1:{port} check inter 200ms fall 1\n");
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("haproxy.cfg");
        fs::write(&file, text).unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("haproxy");
        command.env("PATH", format!("{path}:/usr/sbin:/usr/local/sbin"));
        command.arg("-db").arg("-f").arg(&file);
        let process = Process::spawn(command.into());
        wait_for("the balancer", DEADLINE, async || {
            tokio::net::TcpStream::connect(address).await.is_ok()
        })
        .await;
        Self {
            url: format!("http://{address}"),
            _process: process,
            _folder: folder,
        }
    }

    pub(crate) fn client(&self) -> RawClient {
        RawClient::new(&format!("{}/mcp", self.url))
    }
}
