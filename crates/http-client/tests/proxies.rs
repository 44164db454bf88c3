//! Requests through a proxy: what reaches it, and what the errors say.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use http::Request;
use http_client::{Client, Options, Proxies};
use testkit::{ForwardProxy, serve};
use tokio::{net::TcpListener, task::JoinSet};

const CREDENTIALS: &str = "me:hunter2";

/// The proxies of an environment with these variables.
fn environment(variables: &[(&str, String)]) -> &'static Proxies {
    let value = |name: &str| {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value.clone())
    };
    Box::leak(Box::new(Proxies::new(value)))
}

/// The text of a response, or of the error.
async fn get(proxies: &'static Proxies, public_only: bool, url: &str) -> String {
    let client = Client::new(Options {
        proxies,
        ..Options::guarded(public_only)
    });
    let request = Request::get(url).body(Bytes::new()).expect("a request");
    let answer = client.fetch(request, 1 << 16, Duration::from_secs(30));
    match answer.await {
        Ok(answer) => String::from_utf8_lossy(answer.body()).into_owned(),
        Err(why) => why,
    }
}

fn url(proxy: SocketAddr) -> String {
    format!("http://{CREDENTIALS}@{proxy}")
}

/// A proxy with credentials that reaches one server under these names, and the server.
async fn proxy(hosts: &[&str]) -> (ForwardProxy, SocketAddr, JoinSet<()>) {
    let (server, tasks) = serve::host().await;
    let hosts: Vec<_> = hosts.iter().map(|host| (*host, server)).collect();
    let proxy = ForwardProxy::start(Some(CREDENTIALS), &hosts).await;
    (proxy, server, tasks)
}

#[tokio::test]
async fn plain_requests_are_forwarded_and_those_to_this_machine_are_not() {
    let (proxy, server, _tasks) = proxy(&["web.test:80", "web.test:8080"]).await;
    let proxies = environment(&[("http_proxy", url(proxy.address()))]);
    let answer = get(proxies, false, "http://web.test/a?b").await;
    assert_eq!(answer, "from the host: GET /a?b HTTP/1.1");
    let answer = get(proxies, false, "http://web.test:8080/").await;
    assert_eq!(answer, "from the host: GET / HTTP/1.1");
    let answer = get(proxies, false, &format!("http://{server}/near")).await;
    assert_eq!(answer, "from the host: GET /near HTTP/1.1");
    let expected = ["GET http://web.test/a?b", "GET http://web.test:8080/"];
    assert_eq!(proxy.seen(), expected);
}

/// The proxy gets the address that was checked, in a tunnel, so that it cannot resolve the name differently.
#[tokio::test]
async fn a_guarded_request_names_only_addresses_that_were_checked() {
    let hosts = ["93.184.216.34:80", "[2606:2800:21f::1]:80"];
    let (proxy, _, _tasks) = proxy(&hosts).await;
    let proxies = environment(&[("ALL_PROXY", url(proxy.address()))]);
    for place in hosts {
        let answer = get(proxies, true, &format!("http://{place}/x")).await;
        assert_eq!(answer, "from the host: GET /x HTTP/1.1", "{place}");
    }
    let expected = hosts.map(|place| format!("CONNECT {place}"));
    assert_eq!(proxy.seen(), expected);
    for (refused, why) in [
        ("http://10.0.0.1/", "not public"),
        ("https://[::ffff:10.0.0.1]/", "not public"),
        ("http://localhost/", "not public"),
    ] {
        let answer = get(proxies, true, refused).await;
        assert!(answer.contains(why), "{refused}: {answer}");
    }
    // No name server is asked for a label that is longer than 63 characters.
    let unknown = format!("http://{}.test/", "a".repeat(64));
    let answer = get(proxies, true, &unknown).await;
    assert!(answer.contains("cannot resolve `aaa"), "{answer}");
    assert_eq!(proxy.seen(), expected);
}

#[tokio::test]
async fn errors_name_the_proxy_and_its_variable_and_no_credentials() {
    let (proxy, ..) = proxy(&["web.test:443"]).await;
    let address = proxy.address();
    let named = format!("the proxy `{address}` (`HTTPS_PROXY`)");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let free = listener.local_addr().expect("bound");
    drop(listener);
    let nowhere = format!("the proxy `{free}` (`HTTPS_PROXY`) cannot be reached");
    for (proxy, target, parts) in [
        (
            url(address),
            "https://other.test/",
            [
                named.as_str(),
                "refused to connect to other.test:443: HTTP 403",
                "`NO_PROXY`",
            ],
        ),
        (
            format!("http://{address}"),
            "https://web.test/",
            [named.as_str(), "HTTP 407", "requires credentials"],
        ),
        (
            format!("http://me:hunter3@{address}"),
            "https://web.test/",
            [
                named.as_str(),
                "HTTP 407",
                "does not accept the credentials",
            ],
        ),
        (
            url(free),
            "https://web.test/",
            [nowhere.as_str(), "refused", ""],
        ),
        (
            "socks5://me:hunter2@s.test:1080".to_owned(),
            "https://web.test/",
            [
                "`HTTPS_PROXY`",
                "`socks5://s.test:1080`",
                "http://host:port",
            ],
        ),
    ] {
        let why = get(environment(&[("HTTPS_PROXY", proxy)]), false, target).await;
        for part in parts {
            assert!(why.contains(part), "{part:?} is not in {why}");
        }
        assert!(!why.contains("hunter"), "{why}");
    }
}
