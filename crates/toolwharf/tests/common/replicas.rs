//! Several gateways of one installation, and a plain balancer before them.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    process::Command,
};

use tempfile::TempDir;
use testkit::{DEADLINE, Process, RawClient, wait_for};

use super::{Gateway, Setup};

impl Setup {
    /// One of several on the Postgres of this URL, with the same master key and the first one's administrator.
    pub(crate) fn of_replica(self, url: &str, first: Option<&Gateway>) -> Self {
        let setup = self
            .env("TOOLWHARF_DATABASE_URL", url)
            .env("TOOLWHARF_MASTER_KEY", &"5a".repeat(32));
        if let Some(first) = first {
            let data = setup.folder().join("data");
            fs::create_dir(&data).unwrap();
            fs::write(data.join("admin-token"), first.token()).unwrap();
        }
        setup
    }
}

/// nginx: each request goes to the next replica that accepts connections; one whose replica dies is answered with 502.
///
/// Not HAProxy: when a server dies it closes the client's connection without an answer, unless the request was the first on
/// it, and clients that do not expect that end.
pub(crate) struct Balancer {
    pub(crate) url: String,
    _process: Process,
    _folder: TempDir,
}

impl Balancer {
    pub(crate) async fn before(replicas: &[Gateway]) -> Self {
        Self::at(Self::free(), replicas).await
    }

    /// An address that one can listen at.
    pub(crate) fn free() -> SocketAddr {
        let port = TcpListener::bind("127.0.0.1:0").unwrap();
        port.local_addr().unwrap()
    }

    pub(crate) async fn at(address: SocketAddr, replicas: &[Gateway]) -> Self {
        let servers = replicas.iter().map(|replica| {
            let url: url::Url = replica.client().url().parse().unwrap();
            let port = url.port().unwrap();
            format!("server 127.0.0.1:{port} max_fails=1 fail_timeout=1s;")
        });
        let servers: String = servers.collect();
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().display();
        let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
        let paths: String = paths
            .iter()
            .map(|path| format!("{path}_temp_path {at}/{path};"))
            .collect();
        let text = format!(
            "daemon off; master_process off; pid {at}/pid; events {{}}
             http {{
                 access_log off; {paths}
                 upstream all {{ {servers} }}
                 server {{
                     listen {address};
                     location / {{
                         proxy_pass http://all; proxy_http_version 1.1; proxy_buffering off;
                         proxy_set_header Host $http_host; proxy_set_header Connection '';
                         proxy_connect_timeout 1s;
                     }}
                 }}
             }}"
        );
        let file = folder.path().join("nginx.conf");
        fs::write(&file, text).unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("nginx");
        command.env("PATH", format!("{path}:/usr/sbin:/usr/local/sbin"));
        command.args(["-e", "stderr", "-c"]).arg(&file);
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
