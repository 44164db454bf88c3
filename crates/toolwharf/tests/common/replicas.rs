//! Several gateways of one installation, with a simple load balancer in front of them.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
};

use testkit::RawClient;

use super::{Gateway, Setup, nginx::Nginx};

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
    _nginx: Nginx,
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
        let lines = format!(
            "upstream all {{ {servers} }}
             server {{
                 listen {address};
                 location / {{
                     proxy_pass http://all; proxy_http_version 1.1; proxy_buffering off;
                     proxy_set_header Host $http_host; proxy_set_header Connection '';
                     proxy_connect_timeout 1s;
                 }}
             }}"
        );
        Self {
            url: format!("http://{address}"),
            _nginx: Nginx::start(&lines, address).await,
        }
    }

    pub(crate) fn client(&self) -> RawClient {
        RawClient::new(&format!("{}/mcp", self.url))
    }
}
