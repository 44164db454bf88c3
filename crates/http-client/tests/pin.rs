//! Connections to a server whose certificate is known.

use std::{io::Read as _, process::Command, time::Duration};

use bytes::Bytes;
use http::Request;
use http_client::{Client, InvalidPin, Options, Pin, Proxies};
use testkit::{PrivateCa, serve};

/// The digest of the certificate, as another program computes it.
fn digest(authority: &PrivateCa) -> String {
    let mut command = Command::new("openssl");
    command.args(["x509", "-noout", "-fingerprint", "-sha256", "-in"]);
    let made = command.arg(authority.folder().join("cert.pem")).output();
    let made = made.expect("openssl is missing; run: apt-get install openssl");
    let mut text = String::new();
    made.stdout
        .as_slice()
        .read_to_string(&mut text)
        .expect("text");
    let (_, digest) = text.trim().split_once('=').expect("a fingerprint");
    digest.replace(':', "").to_lowercase()
}

async fn get(url: &str, pin: &str) -> String {
    let client = Client::new(Options {
        proxies: Proxies::none(),
        pin: Some(pin.parse().expect(pin)),
        ..Options::guarded(false)
    });
    let request = Request::get(url).body(Bytes::new()).expect("a request");
    let answer = client.fetch(request, 1 << 16, Duration::from_secs(30));
    match answer.await {
        Ok(answer) => String::from_utf8_lossy(answer.body()).into_owned(),
        Err(why) => why,
    }
}

#[tokio::test]
async fn only_the_pinned_certificate_is_accepted() {
    let [one, other] = ["one.example", "other.example"].map(|name| PrivateCa::new(&[name]));
    let (server, _tasks) = serve::host().await;
    let (address, _connections) = one.serve(server).await;
    // Neither the name nor the authority matters.
    for url in [
        format!("https://{address}/a"),
        format!("https://localhost:{}/a", address.port()),
    ] {
        assert_eq!(
            get(&url, &digest(&one)).await,
            "from the host: GET /a HTTP/1.1"
        );
        let why = get(&url, &digest(&other)).await;
        assert!(why.contains("another certificate"), "{why}");
    }
}

#[test]
fn a_pin_is_a_digest() {
    assert!("5a".repeat(32).parse::<Pin>().is_ok());
    for text in ["", "5a", &"5a".repeat(33), &"zz".repeat(32)] {
        assert_eq!(text.parse::<Pin>(), Err(InvalidPin), "{text}");
    }
}
