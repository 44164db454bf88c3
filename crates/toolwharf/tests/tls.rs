//! TLS on the gateway's own listener: clients that are silent, a changed and a broken certificate, and the commands on the
//! same machine, which trust exactly the gateway's certificate.

mod common;

use std::{fs, net::SocketAddr, path::Path};

use common::{LEGACY, SETTINGS, Setup, cli, echo};
use testkit::{DEADLINE, Peer, PrivateCa, StdioClient, peer, wait_for, within};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
    process::Command,
};

/// With this many connections of 16, handshakes get less time.
const CROWD: usize = 12;

/// Replaces the files in this folder, one after the other, as certificate tools do.
fn put(folder: &Path, authority: &PrivateCa) {
    for name in ["cert.pem", "key.pem"] {
        let new = folder.join("new.pem");
        fs::copy(authority.folder().join(name), &new).expect("copied");
        fs::rename(&new, folder.join(name)).expect("renamed");
    }
}

/// A command of a user whose home is `folder`.
fn command(folder: &Path, line: &str) -> Command {
    let mut command = cli::toolwharf();
    command
        .args(line.split(' '))
        .env("HOME", folder)
        .current_dir(folder);
    command
}

async fn run(folder: &Path, line: &str) -> cli::Said {
    cli::said(command(folder, line), "").await
}

/// Returns the response to a request for `/healthz`. The connection stays open.
async fn health(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> String {
    let request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    within("a response", DEADLINE, async {
        stream.write_all(request).await.expect("sent");
        stream.flush().await.expect("sent");
        let mut text = Vec::new();
        while !text.ends_with(b"\r\n\r\nok\n") {
            let read = stream.read_buf(&mut text).await.expect("received");
            assert!(read > 0, "the connection was closed");
        }
        String::from_utf8(text).expect("UTF-8")
    })
    .await
}

#[tokio::test]
async fn a_gateway_terminates_tls() {
    let [one, other] = ["one.example", "other.example"].map(|name| PrivateCa::new(&[name]));
    let setup = Setup::new().scripted("one", &["--tools", "1"]);
    put(setup.folder(), &one);
    let at = setup.folder().display().to_string();
    let settings = format!(
        "{SETTINGS}max_connections = 16\n[tls]\ncert = \"{at}/cert.pem\"\nkey = \"{at}/key.pem\"\n"
    );
    let (mut process, folder) = setup.settings(&settings).spawn();
    let folder = folder.path();
    let url = process.announced(|line| {
        let url = line.strip_prefix("toolwharf is at ")?;
        Some(url.strip_suffix("/mcp")?.to_owned())
    });
    let url = url.await;
    let address = url.strip_prefix("https://").expect("a URL with https");
    let address: SocketAddr = address.parse().expect("an address");

    // Silent clients do not keep others out, and are disconnected.
    let mut silent = Vec::new();
    for _ in 0..CROWD {
        silent.push(TcpStream::connect(address).await.expect("connected"));
    }
    let connecting = one.connect(address, "one.example");
    let connected = within("a handshake", DEADLINE, connecting).await;
    let mut kept = connected.expect("a certificate for one.example");
    assert!(health(&mut kept).await.starts_with("HTTP/1.1 200 "));
    let mut text = Vec::new();
    let closing = silent[0].read_to_end(&mut text);
    let closed = within("the end of a silent connection", DEADLINE, closing).await;
    assert_eq!(closed.expect("closed"), 0);
    drop(silent);

    // The certificate is neither for 127.0.0.1 nor from an authority that this machine trusts.
    run(folder, "ls --data-dir data").await.code(0);
    let link = run(folder, "open --print --data-dir data").await.code(0);
    assert!(link.out.starts_with(&format!("{url}/sign-in#")), "{link:?}");
    let named = format!("ls --url {url} --token-file data/admin-token");
    let unknown = run(folder, &named).await.code(1);
    unknown.says("does not trust the authority");
    run(folder, &format!("{named} --data-dir data"))
        .await
        .code(0);
    let line = "stdio --config mcp.json --config toolwharf.toml --data-dir data";
    let client = StdioClient::spawn(command(folder, line));
    let mut peer = Peer::stdio(client, LEGACY, peer::all_capabilities()).await;
    echo(&mut peer, "echo", 1).await;

    put(folder, &other);
    wait_for("the changed certificate", DEADLINE, async || {
        other.connect(address, "other.example").await.is_ok()
    })
    .await;
    assert!(one.connect(address, "one.example").await.is_err());
    wait_for("commands that trust it", DEADLINE, async || {
        run(folder, "ls --data-dir data").await.code == Some(0)
    })
    .await;
    // Open connections continue.
    health(&mut kept).await;
    echo(&mut peer, "echo", 2).await;

    fs::write(folder.join("cert.pem"), "no certificate").expect("written");
    wait_for("a message in the log", DEADLINE, async || {
        process.stderr().contains("keeping the previous one")
    })
    .await;
    let connected = other.connect(address, "other.example").await;
    health(&mut connected.expect("the previous certificate")).await;
    let listed = run(folder, "ls --data-dir data").await.code(0);
    listed.says("the changed certificate of the gateway cannot be used");
    let found = run(folder, "doctor --data-dir data -o json").await.code(1);
    assert!(found.out.contains("contains no certificate"), "{found:?}");

    // A new process could not serve with this certificate, so the old one stays.
    let refused = run(folder, "upgrade --data-dir data").await.code(1);
    refused.says("contains no certificate");
    health(&mut kept).await;
    put(folder, &other);
    run(folder, "upgrade --data-dir data").await.code(0);
    assert!(process.wait(DEADLINE).await.success());
    let connected = other.connect(address, "other.example").await;
    health(&mut connected.expect("the new process serves")).await;
    echo(&mut peer, "echo", 3).await;
}

#[tokio::test]
async fn without_a_usable_certificate_nothing_is_served() {
    let settings =
        format!("{SETTINGS}[tls]\ncert = \"/missing/cert.pem\"\nkey = \"/missing/key.pem\"\n");
    let refused = Setup::new().settings(&settings).refused().await;
    assert!(
        refused.contains("cannot read /missing/cert.pem"),
        "{refused}"
    );
}
