use super::*;
use auth::tickets::Tickets;

fn check(
    tickets: &Arc<Tickets>,
    (address, host, origin): (&str, &str, Option<&str>),
    allowed: bool,
) {
    let mut settings = Settings::default();
    settings.allowed_hosts.insert("tools.example.com".into());
    settings
        .allowed_origins
        .insert("https://chat.example.com".into());
    let guard = Guard::new(
        &settings,
        address.parse().expect(address),
        Identities::administrator("twh_secret", &settings, tickets),
    );
    let mut headers = HeaderMap::new();
    headers.insert(header::HOST, host.parse().expect(host));
    if let Some(origin) = origin {
        headers.insert(header::ORIGIN, origin.parse().expect(origin));
    }
    assert_eq!(guard.check(&headers).is_ok(), allowed, "{host} {origin:?}");
}

#[tokio::test]
async fn foreign_hosts_and_origins_are_refused() {
    let (_dir, tickets) = Tickets::for_test().await;
    let check = |address: &str, host: &str, origin: Option<&str>, allowed: bool| {
        check(&tickets, (address, host, origin), allowed);
    };
    for (host, origin) in [
        ("localhost:6280", None),
        ("[::1]:6280", Some("http://localhost:3000")),
        ("Tools.Example.com", Some("https://chat.example.com")),
        // The request comes from a page of the gateway.
        ("Tools.example.com", Some("https://tools.example.com")),
    ] {
        check("127.0.0.1", host, origin, true);
    }
    for (host, origin) in [
        ("evil.example.com", None),
        ("localhost", Some("http://evil.example.com")),
        ("localhost", Some("http://localhost.evil.com")),
        ("localhost", Some("null")),
        ("10.0.0.7", None),
        ("evil.example.com", Some("http://evil.example.com")),
    ] {
        check("127.0.0.1", host, origin, false);
    }
    check("0.0.0.0", "10.0.0.7:80", None, true);
    let own = Some("http://10.0.0.7:6280");
    check("0.0.0.0", "10.0.0.7:6280", own, true);
    let other = Some("http://10.0.0.7:8080");
    check("0.0.0.0", "10.0.0.7:6280", other, false);
    check("0.0.0.0", "10.0.0.7", Some("http://10.0.0.8"), false);
    check("0.0.0.0", "evil.example.com", None, false);
}

#[tokio::test]
async fn a_host_is_a_name_and_a_port_and_nothing_else() {
    let (_dir, tickets) = Tickets::for_test().await;
    let check = |address: &str, host: &str, origin: Option<&str>, allowed: bool| {
        check(&tickets, (address, host, origin), allowed);
    };
    for address in ["127.0.0.1", "0.0.0.0"] {
        for host in [
            "user@localhost",
            "user:password@localhost",
            "localhost:6280:80",
            "localhost:80x",
            "localhost:x",
            "localhost:",
            "localhost:99999",
            "localhost/evil",
            "localhost evil",
            "localhost, evil.example.com",
            "localhost#evil",
            "[::1]evil",
            "[::1]:80evil",
            "[::1]@evil:80",
            "[::1",
            "::1",
            "127.0.0.1@evil.example.com",
        ] {
            check(address, host, None, false);
        }
        for origin in [
            "http://user@localhost",
            "http://localhost/path",
            "http://localhost:80x",
            "http://localhost:",
            "http://localhost@evil.example.com",
            "http://localhost:80@evil.example.com",
            "http://[::1]evil.example.com",
            "http://localhost evil",
            "localhost",
            "https://",
            "",
        ] {
            check(address, "localhost", Some(origin), false);
        }
        check(address, "[::1]:65535", Some("https://[::1]:1"), true);
    }
}

async fn with_public_url(url: &str) -> (impl Sized, Guard) {
    let (dir, tickets) = Tickets::for_test().await;
    let settings = Settings {
        public_url: Some(url.to_owned()),
        ..Settings::default()
    };
    let identities = Identities::new(&settings, vec![url.to_owned()], tickets);
    let identities = identities.expect("root certificates");
    let loopback = "127.0.0.1".parse().expect("an address");
    (dir, Guard::new(&settings, loopback, identities))
}

#[tokio::test]
async fn a_prefix_is_removed_once() {
    for (public_url, asked, expected) in [
        ("https://a.example/tools", "/tools/mcp/ml", "/mcp/ml"),
        ("https://a.example/tools", "/mcp/ml", "/mcp/ml"),
        ("https://a.example/tools", "/tools", "/"),
        ("https://a.example/tools", "/tools?server=a", "/?server=a"),
        (
            "https://a.example/tools",
            "/tools/tools?q=%2F",
            "/tools?q=%2F",
        ),
        (
            "https://a.example/tools",
            "/toolsmith/mcp",
            "/toolsmith/mcp",
        ),
        ("https://a.example/x/y", "/x/y/", "/"),
        ("https://a.example/x/y", "/x/mcp", "/x/mcp"),
        ("https://a.example", "/mcp?a=b", "/mcp?a=b"),
        (
            "https://a.example/tools",
            "http://a.example/tools/sse",
            "http://a.example/sse",
        ),
    ] {
        let (_dir, guard) = with_public_url(public_url).await;
        let mut request = Request::get(asked).body(()).expect(asked);
        let loopback = IpAddr::from([127, 0, 0, 1]);
        guard.arrive(loopback, &mut request).expect("no proxy");
        assert_eq!(*request.uri(), expected, "{public_url} {asked}");
    }
}

#[tokio::test]
async fn only_a_trusted_proxy_says_how_clients_reach_the_gateway() {
    let (_dir, tickets) = Tickets::for_test().await;
    let mut settings = Settings {
        trusted_proxies: vec!["10.0.0.0/8".parse().expect("a network")],
        ..Settings::default()
    };
    settings.allowed_hosts.insert("a.example".into());
    let own = "http://127.0.0.1:6280";
    let outside = "https://a.example/tools";
    for (public_url, from, host, expected) in [
        (None, "10.1.2.3", "a.example", Some(outside)),
        (None, "11.1.2.3", "a.example", Some(own)),
        (None, "127.0.0.1", "a.example", Some(own)),
        // The settings say more than the headers.
        (Some(own), "10.1.2.3", "a.example", Some(own)),
        (None, "10.1.2.3", "evil.example", None),
        (None, "11.1.2.3", "evil.example", Some(own)),
        (None, "10.1.2.3", "a.example/x", None),
        (None, "10.1.2.3", "user@a.example", None),
    ] {
        settings.public_url = public_url.map(str::to_owned);
        let identities = Identities::administrator("twh_secret", &settings, &tickets);
        let guard = Guard::new(&settings, IpAddr::from([127, 0, 0, 1]), identities);
        let mut request = Request::get("/tools/mcp")
            .header("host", "127.0.0.1:6280")
            .header("x-forwarded-proto", "https")
            .header("x-forwarded-host", host)
            .header("x-forwarded-prefix", "/tools")
            .header(BASE, "https://evil.example")
            .body(())
            .expect("a request");
        let arrived = guard.arrive(from.parse().expect(from), &mut request);
        let checked = arrived.and_then(|()| guard.check(request.headers()));
        let base = checked.map(|()| guard.base(request.headers()));
        assert_eq!(base.ok(), expected, "{public_url:?} {from} {host}");
        if expected == Some(outside) {
            assert_eq!(request.uri(), "/mcp");
            assert_eq!(guard.prefix_of(request.headers()), "/tools");
            assert!(!guard.closed);
            let asked = RequestInfo::of(&request);
            let refused = guard.principal(asked).await.expect_err("no key");
            assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
        }
    }
}

#[tokio::test]
async fn the_path_of_a_public_url_is_no_part_of_its_host_or_origin() {
    let (_dir, guard) = with_public_url("https://a.example/tools").await;
    let mut headers = HeaderMap::new();
    headers.insert(header::HOST, "a.example".parse().expect("a host"));
    headers.insert(
        header::ORIGIN,
        "https://a.example".parse().expect("an origin"),
    );
    assert!(guard.check(&headers).is_ok());
    assert!(guard.is_own_page(&headers));
    headers.insert(header::HOST, "127.0.0.1:6280".parse().expect("a host"));
    assert!(guard.check(&headers).is_ok());
    assert!(guard.is_own_page(&headers));
    let who = Principal::new("key:a", Role::Admin, None);
    let link = guard
        .link(&who, &HeaderMap::new())
        .await
        .expect("an answer")
        .expect("a link");
    assert!(
        link.starts_with("https://a.example/tools/sign-in#"),
        "{link}"
    );
}

#[tokio::test]
async fn what_decides_is_said_once() {
    let (_dir, tickets) = Tickets::for_test().await;
    let guard = Guard::new(
        &Settings::default(),
        "127.0.0.1".parse().expect("an address"),
        Identities::administrator("twh_secret", &Settings::default(), &tickets),
    );
    for (name, value) in [
        ("host", "localhost"),
        ("authorization", "Bearer a"),
        ("x-project-id", "a"),
    ] {
        let name: HeaderName = name.parse().expect(name);
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, "localhost".parse().expect("a host"));
        headers.insert(&name, value.parse().expect(value));
        assert!(guard.check(&headers).is_ok(), "{name}");
        headers.append(&name, value.parse().expect(value));
        let refusal = guard.check(&headers).expect_err("it is there twice");
        assert_eq!(refusal.status, StatusCode::BAD_REQUEST, "{name}");
        assert!(refusal.error.message.contains(name.as_str()), "{name}");
    }
}

#[tokio::test]
async fn who_may_ask() {
    let (_dir, tickets) = Tickets::for_test().await;
    let check =
        async |address: &str, require_key: bool, bearer: Option<&str>, who: &str, key: bool| {
            let settings = Settings {
                require_key,
                ..Settings::default()
            };
            let identities = Identities::administrator("twh_secret", &settings, &tickets);
            let guard = Guard::new(&settings, address.parse().expect(address), identities);
            let mut headers = HeaderMap::new();
            if let Some(bearer) = bearer {
                let value = format!("Bearer {bearer}").parse().expect(bearer);
                headers.insert(header::AUTHORIZATION, value);
            }
            let asked = RequestInfo {
                method: &Method::GET,
                headers: &headers,
                path: "/mcp",
            };
            let found = match guard.principal(asked).await {
                Ok(principal) => principal
                    .id
                    .split(':')
                    .next()
                    .unwrap_or_default()
                    .to_owned(),
                Err(refusal) => refusal.status.as_str().to_owned(),
            };
            assert_eq!(found, who, "{address} {require_key} {bearer:?}");
            assert_eq!(guard.key(asked).await.is_ok(), key, "{address} {bearer:?}");
        };
    check("127.0.0.1", false, None, "anonymous", false).await;
    check("127.0.0.1", false, Some("theirs"), "bearer", false).await;
    check("127.0.0.1", false, Some("twh_other"), "401", false).await;
    check("127.0.0.1", false, Some("twh_secret"), "key", true).await;
    for (address, require_key) in [("127.0.0.1", true), ("0.0.0.0", false), ("::", false)] {
        check(address, require_key, None, "401", false).await;
        check(address, require_key, Some("theirs"), "401", false).await;
        check(address, require_key, Some("twh_other"), "401", false).await;
        check(address, require_key, Some("twh_secret"), "key", true).await;
    }
}
