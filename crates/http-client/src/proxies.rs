//! The proxies of the environment, and tunnels through them.
//!
//! Invariant: a variable that is set never means a direct connection. If its value cannot be used, neither can the
//! hosts that it is for. Deliberately absent: proxies over TLS or SOCKS, automatic configuration (PAC).

use std::{env, fmt, net::IpAddr, sync::LazyLock};

use bytes::Bytes;
use http::{
    HeaderValue, Request, StatusCode, Uri,
    header::{HOST, PROXY_AUTHORIZATION},
    uri::Scheme,
};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use model::{NoProxy, Proxy};
use tokio::net::TcpStream;

use crate::BoxError;

/// Maximum size of the response to `CONNECT`. This is the least that hyper allows.
const MAX_HEAD_BYTES: usize = 8 << 10;

static OF_ENVIRONMENT: LazyLock<Proxies> =
    LazyLock::new(|| Proxies::new(|name| Some(env::var_os(name)?.to_string_lossy().into_owned())));
static NONE: LazyLock<Proxies> = LazyLock::new(|| Proxies::new(|_| None));

/// Selects the proxy for a URL.
#[derive(Debug)]
pub struct Proxies {
    http: Option<Chosen>,
    https: Option<Chosen>,
    except: NoProxy,
}

/// A proxy, or why its variable cannot be used.
type Chosen = Result<Via, String>;

/// A proxy to connect through.
pub struct Via {
    /// The variable that names it.
    variable: &'static str,
    proxy: Proxy,
    pub(crate) uri: Uri,
    authorization: Option<HeaderValue>,
}

impl fmt::Debug for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the proxy `{}` (`{}`)", self.proxy, self.variable)
    }
}

impl Proxies {
    /// The proxies of this process: `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`, also in lower case, which
    /// comes first. They are read once.
    #[must_use]
    pub fn of_environment() -> &'static Self {
        &OF_ENVIRONMENT
    }

    /// No proxies. For connections to processes of this installation.
    #[must_use]
    pub fn none() -> &'static Self {
        &NONE
    }

    /// Reads the variables with `value`. Empty ones count as missing.
    #[must_use]
    pub fn new(value: impl Fn(&str) -> Option<String>) -> Self {
        let value = |name: &str| value(name).filter(|value| !value.trim().is_empty());
        let first = |names: [&'static str; 4]| {
            let set = |name| Some(Via::parse(name, &value(name)?));
            names.into_iter().find_map(set)
        };
        let except = ["no_proxy", "NO_PROXY"].into_iter().find_map(value);
        Self {
            http: first(["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"]),
            https: first(["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"]),
            except: NoProxy::parse(&except.unwrap_or_default()),
        }
    }

    /// The variables that cannot be used, each with the reason.
    #[must_use]
    pub fn problems(&self) -> Vec<&str> {
        let chosen = [&self.http, &self.https].into_iter().flatten();
        let mut problems: Vec<&str> = chosen
            .filter_map(|chosen| chosen.as_ref().err().map(String::as_str))
            .collect();
        problems.dedup();
        problems
    }

    /// The proxy for a URL. `None` means a direct connection.
    ///
    /// # Errors
    /// The variable for this URL cannot be used.
    pub(crate) fn find(&self, uri: &Uri) -> Result<Option<&Via>, String> {
        let is_tls = uri.scheme() == Some(&Scheme::HTTPS);
        let chosen = if is_tls { &self.https } else { &self.http };
        let Some(chosen) = chosen else {
            return Ok(None);
        };
        let host = uri.host().unwrap_or_default();
        if is_this_machine(host) || self.except.covers(host, port(uri)) {
            return Ok(None);
        }
        chosen.as_ref().map(Some).map_err(Clone::clone)
    }
}

impl Via {
    fn parse(variable: &'static str, url: &str) -> Chosen {
        let parsed = Proxy::parse(url.trim()).and_then(|proxy| {
            let uri = Uri::try_from(format!("http://{proxy}/")).map_err(|why| why.to_string())?;
            let authorization = proxy.authorization().map(|value| {
                let mut value = HeaderValue::from_str(value).expect("Base64 is plain ASCII");
                value.set_sensitive(true);
                value
            });
            Ok(Self {
                variable,
                proxy,
                uri,
                authorization,
            })
        });
        parsed.map_err(|why| {
            format!("the variable `{variable}` cannot be used: {why}; hosts in `NO_PROXY` are reached without it")
        })
    }

    /// The header that a request in absolute form needs.
    #[must_use]
    pub fn authorization(&self) -> Option<&HeaderValue> {
        self.authorization.as_ref()
    }

    /// Why the proxy did not forward a request to `place`, a host and a port.
    #[must_use]
    pub fn refusal(&self, status: StatusCode, place: &str) -> String {
        let remedy = match (status, &self.authorization) {
            (StatusCode::PROXY_AUTHENTICATION_REQUIRED, None) => {
                "it requires credentials: `http://user:password@host:port`"
            }
            (StatusCode::PROXY_AUTHENTICATION_REQUIRED, Some(_)) => {
                "it does not accept the credentials in its URL"
            }
            _ => "allow this host there, or add it to `NO_PROXY`",
        };
        format!("{self} refused to connect to {place}: HTTP {status}; {remedy}")
    }

    pub(crate) fn unreachable(&self, why: &str) -> BoxError {
        format!("{self} cannot be reached: {why}").into()
    }

    /// Asks the proxy for a connection to `place`, a host and a port.
    pub(crate) async fn tunnel(
        &self,
        io: TokioIo<TcpStream>,
        place: &str,
    ) -> Result<TokioIo<TcpStream>, BoxError> {
        let mut request = Request::connect(place).header(HOST, place);
        if let Some(authorization) = &self.authorization {
            request = request.header(PROXY_AUTHORIZATION, authorization);
        }
        let request = request.body(Empty::<Bytes>::new())?;
        let broken = |error: hyper::Error| -> BoxError {
            format!(
                "{self} did not connect to {place}: {}",
                model::with_causes(&error)
            )
            .into()
        };
        let (mut sender, connection) = http1::Builder::new()
            .max_buf_size(MAX_HEAD_BYTES)
            .handshake(io)
            .await
            .map_err(broken)?;
        // Ends with the response head: a tunnel has no other HTTP messages.
        let opening = async { connection.without_shutdown().await.map_err(broken) };
        let asking = async {
            let response = sender.send_request(request).await.map_err(broken)?;
            match response.status() {
                status if status.is_success() => Ok(()),
                status => Err(self.refusal(status, place).into()),
            }
        };
        let (parts, ()) = tokio::try_join!(opening, asking)?;
        Ok(parts.io)
    }
}

/// The port of a URL, or that of its scheme.
pub(crate) fn port(uri: &Uri) -> u16 {
    let is_tls = uri.scheme() == Some(&Scheme::HTTPS);
    uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 })
}

/// Returns whether a host is this machine by definition. A proxy would look for it on its own machine.
fn is_this_machine(host: &str) -> bool {
    let host = host.trim_matches(['[', ']']).trim_end_matches('.');
    match host.parse::<IpAddr>() {
        Ok(ip) => ip.to_canonical().is_loopback() || ip.is_unspecified(),
        Err(_) => {
            let host = host.to_ascii_lowercase();
            host == "localhost" || host.ends_with(".localhost")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(variables: &[(&str, &str)]) -> Proxies {
        let found = |name: &str| variables.iter().find(|(known, _)| *known == name);
        Proxies::new(|name| found(name).map(|(_, value)| (*value).to_owned()))
    }

    fn found(proxies: &Proxies, url: &str) -> String {
        match proxies.find(&url.parse().expect(url)) {
            Ok(Some(via)) => format!("{} {}", via.variable, via.proxy),
            Ok(None) => "direct".to_owned(),
            Err(why) => why,
        }
    }

    #[test]
    fn the_variable_of_the_scheme_comes_first_and_lower_case_before_upper() {
        let all = proxies(&[
            ("HTTP_PROXY", "http://upper:1"),
            ("https_proxy", "http://lower:2"),
            ("HTTPS_PROXY", "http://upper:2"),
            ("ALL_PROXY", "http://all:3"),
        ]);
        assert_eq!(found(&all, "http://a/"), "HTTP_PROXY upper:1");
        assert_eq!(found(&all, "https://a/"), "https_proxy lower:2");
        let all = proxies(&[
            ("http_proxy", ""),
            ("HTTPS_PROXY", " "),
            ("ALL_PROXY", "all:3"),
        ]);
        assert_eq!(found(&all, "http://a/"), "ALL_PROXY all:3");
        assert_eq!(found(&all, "https://a/"), "ALL_PROXY all:3");
        assert_eq!(found(&proxies(&[]), "https://a/"), "direct");
    }

    #[test]
    fn this_machine_and_the_hosts_of_no_proxy_are_reached_directly() {
        let all = proxies(&[
            ("ALL_PROXY", "http://p:1"),
            ("NO_PROXY", "corp.test,10.0.0.0/8,b.test:444"),
        ]);
        for (url, is_direct) in [
            ("http://127.0.0.1:5/", true),
            ("http://127.9.9.9/", true),
            ("https://[::1]/", true),
            ("http://[::ffff:127.0.0.1]/", true),
            ("http://0.0.0.0:1/", true),
            ("http://LocalHost.:1/", true),
            ("http://a.localhost/", true),
            ("http://notlocalhost/", false),
            ("https://x.corp.test/", true),
            ("http://10.1.2.3/", true),
            ("http://192.168.0.1/", false),
            ("https://b.test:444/", true),
            ("https://b.test/", false),
        ] {
            let expected = if is_direct { "direct" } else { "ALL_PROXY p:1" };
            assert_eq!(found(&all, url), expected, "{url}");
        }
        let none = proxies(&[("ALL_PROXY", "http://p:1"), ("no_proxy", "*")]);
        assert_eq!(found(&none, "https://a/"), "direct");
    }

    /// The hosts of an unusable variable are not reached at all, so that nothing leaves by another way.
    #[test]
    fn an_unusable_variable_is_an_error_without_its_credentials() {
        let all = proxies(&[
            ("ALL_PROXY", "socks5://me:hunter2@s:1"),
            ("http_proxy", "http://me:hunter2@p:1"),
            ("NO_PROXY", "near.test"),
        ]);
        assert_eq!(found(&all, "http://a/"), "http_proxy p:1");
        assert_eq!(found(&all, "https://near.test/"), "direct");
        let why = found(&all, "https://a/");
        for part in [
            "`ALL_PROXY`",
            "`socks5://s:1`",
            "http://host:port",
            "`NO_PROXY`",
        ] {
            assert!(why.contains(part), "{part}: {why}");
        }
        assert_eq!(all.problems(), [why]);
        assert!(!format!("{all:?}").contains("hunter2"), "{all:?}");
        let all = proxies(&[("ALL_PROXY", "https://p")]);
        assert_eq!(all.problems().len(), 1);
    }
}
