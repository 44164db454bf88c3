//! Several gateways of one installation, with a simple load balancer in front of them.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    process::Command,
};

use tempfile::TempDir;
use testkit::{DEADLINE, Process, RawClient, wait_for};

use super::{Gateway, Setup};

impl Setup {
    /// Configures a replica on the Postgres at `url`, with a shared master key and the first replica's administrator
    /// token.
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

/// An nginx as the load balancer. Each request goes to the next replica that accepts connections. A request whose
/// replica dies gets 502.
///
/// HAProxy is not used: when a server dies, HAProxy closes the client's connection without a response unless the
/// request was the first on that connection, and clients do not expect that.
pub(crate) struct Balancer {
    pub(crate) url: String,
    _process: Process,
    _folder: TempDir,
}

impl Balancer {
    pub(crate) async fn before(replicas: &[Gateway]) -> Self {
        Self::at(Self::free(), replicas).await
    }

    /// Returns a free local address.
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
