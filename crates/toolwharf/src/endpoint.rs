//! The address for clients, and the listener behind it.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use anyhow::Context as _;
use backend::{
    lock::Address,
    service_manager::{self, ServiceManager},
};
use gateway::Tls;
use model::Settings;
use tokio::net::{TcpListener, lookup_host};

use crate::upgrade::Predecessor;

/// The address for clients.
pub(crate) struct Endpoint {
    pub(crate) address: SocketAddr,
    /// True if the user chose the port.
    pub(crate) is_fixed: bool,
    /// This process opened the listener.
    is_bound: bool,
    /// The URL for clients on this machine.
    pub(crate) url: String,
    pub(crate) tls: Option<Arc<Tls>>,
}

impl Endpoint {
    /// Loads the certificate, and uses the listener of the running gateway or of the service manager, or opens one.
    pub(crate) async fn open(
        settings: &Settings,
        listen: Option<&str>,
        predecessor: Option<&mut Predecessor>,
    ) -> anyhow::Result<(TcpListener, Self)> {
        let tls = settings.tls.as_ref().map(Tls::open).transpose()?;
        let listen = listen.unwrap_or(&settings.listen);
        if let Some(predecessor) = predecessor {
            let listener = predecessor.listener()?;
            let endpoint = Self::of(&listener, predecessor.is_fixed, tls)?;
            return Ok((listener, endpoint));
        }
        let Some(passed) = service_manager::passed_listener()? else {
            return Self::bind(listen, tls).await;
        };
        if !passed.is_kept {
            return Self::passed(passed.listener, tls);
        }
        let address = passed.listener.local_addr()?;
        let mut wanted = lookup_host(listen).await.into_iter().flatten();
        if wanted.any(|wanted| wanted == address) {
            let endpoint = Self::of(&passed.listener, true, tls)?;
            return Ok((passed.listener, endpoint));
        }
        // `listen` has changed since the earlier gateway opened it.
        service_manager::forget_kept(&passed.listener);
        Self::bind(listen, tls).await
    }

    /// The service manager that expects messages of this process.
    pub(crate) fn service_manager(
        &self,
        predecessor: Option<&Predecessor>,
        listener: &TcpListener,
    ) -> ServiceManager {
        let status = format!("serving {}/mcp", self.url);
        let service_manager = ServiceManager::of_this_process(&status);
        if let Some(predecessor) = predecessor {
            let service_manager = service_manager.with_watchdog(predecessor.watchdog);
            service_manager.mute();
            return service_manager;
        }
        if self.is_bound && self.is_fixed {
            service_manager.keep(listener);
        }
        service_manager
    }

    async fn bind(listen: &str, tls: Option<Arc<Tls>>) -> anyhow::Result<(TcpListener, Self)> {
        let listener = TcpListener::bind(listen).await.with_context(|| {
            format!(
                "cannot listen on `{listen}`{}; choose another address with --listen ADDR:PORT (0 picks a free port)",
                runtime::used_by(listen)
            )
        })?;
        let endpoint = Self::of(&listener, !listen.ends_with(":0"), tls)?;
        let is_bound = true;
        Ok((
            listener,
            Self {
                is_bound,
                ..endpoint
            },
        ))
    }

    /// The socket of the service manager replaces the configured address.
    fn passed(listener: TcpListener, tls: Option<Arc<Tls>>) -> anyhow::Result<(TcpListener, Self)> {
        let endpoint = Self::of(&listener, true, tls)?;
        tracing::info!(
            "listening on {}, the socket of the service manager; `listen` is not used",
            endpoint.address
        );
        Ok((listener, endpoint))
    }

    fn of(listener: &TcpListener, is_fixed: bool, tls: Option<Arc<Tls>>) -> anyhow::Result<Self> {
        let address = listener.local_addr()?;
        Ok(Self {
            address,
            is_fixed,
            is_bound: false,
            url: format!("{}://{}", scheme(tls.is_some()), dialable(address)),
            tls,
        })
    }

    /// The address that the data directory contains for other programs on this machine.
    pub(crate) fn announced<'a>(&'a self, settings: &'a Settings) -> Address<'a> {
        // Without TLS, programs on this machine need no proxy.
        let public_url = settings.public_url.as_deref();
        Address {
            url: &self.url,
            is_fixed: self.is_fixed,
            certificate: self.tls.as_ref().map(|tls| tls.digest()),
            public_url: public_url.filter(|_| self.tls.is_some()),
        }
    }

    /// Returns whether only clients on this machine use the gateway.
    pub(crate) fn is_local(&self, settings: &Settings) -> bool {
        self.address.ip().is_loopback()
            && settings.public_url.is_none()
            && settings.trusted_proxies.is_empty()
            && settings.oidc.is_empty()
    }
}

/// The address for clients on this machine.
fn dialable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(v4) if v4.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
        IpAddr::V6(v6) if v6.is_unspecified() => IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// The addresses of this gateway that tokens may name as audience. The first one is shown to clients.
pub(crate) fn bases(settings: &Settings, address: SocketAddr) -> Vec<String> {
    if let Some(url) = &settings.public_url {
        return vec![url.clone()];
    }
    let scheme = scheme(settings.tls.is_some());
    let mut bases = vec![format!("{scheme}://{}", dialable(address))];
    if dialable(address).ip().is_loopback() {
        let names = ["127.0.0.1", "localhost", "[::1]"];
        bases.extend(names.map(|name| format!("{scheme}://{name}:{}", address.port())));
    }
    bases
}

fn scheme(has_tls: bool) -> &'static str {
    if has_tls { "https" } else { "http" }
}
