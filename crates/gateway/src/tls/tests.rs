use std::{future::pending, os::unix::fs::symlink};

use testkit::{DEADLINE, PrivateCa};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    sync::mpsc,
    time::{Instant, sleep, timeout},
};

use super::*;

/// The files of a certificate, below a link like the one that a Kubernetes volume switches.
struct Volume {
    folder: tempfile::TempDir,
    files: TlsSettings,
}

impl Volume {
    fn new(certificate: &PrivateCa) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str| folder.path().join("..data").join(name);
        let this = Self {
            files: TlsSettings {
                cert: file("cert.pem"),
                key: file("key.pem"),
            },
            folder,
        };
        this.switch(certificate.folder());
        this
    }

    fn switch(&self, to: &Path) {
        let [link, new] = ["..data", "..data.new"].map(|name| self.folder.path().join(name));
        symlink(to, &new).expect("a link");
        fs::rename(&new, &link).expect("switched");
    }

    /// A folder with this certificate and this key.
    fn pair(&self, name: &str, certificate: &Path, key: &Path) -> std::path::PathBuf {
        let folder = self.folder.path().join(name);
        fs::create_dir(&folder).expect("a folder");
        fs::copy(certificate, folder.join("cert.pem")).expect("copied");
        fs::copy(key, folder.join("key.pem")).expect("copied");
        folder
    }
}

async fn failure(tls: &Tls) -> String {
    loop {
        if let Some(why) = tls.failure() {
            return why;
        }
        sleep(POLL_INTERVAL).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_changed_certificate_is_loaded_and_an_invalid_one_is_not() {
    let [one, other] = ["one.example", "other.example"].map(|name| PrivateCa::new(&[name]));
    let volume = Volume::new(&one);
    let tls = Tls::open(&volume.files).expect("a certificate");
    let first = tls.digest();
    let (changed, mut changes) = mpsc::unbounded_channel();
    let watching = tls.watch(|digest| drop(changed.send(digest.to_owned())));
    let test = async {
        volume.switch(other.folder());
        let second = changes.recv().await.expect("loaded");
        assert_ne!(first, second);
        assert_eq!(tls.digest(), second);

        let file = |of: &PrivateCa, name: &str| of.folder().join(name);
        let mixed = volume.pair("mixed", &file(&one, "cert.pem"), &file(&other, "key.pem"));
        volume.switch(&mixed);
        let why = failure(&tls).await;
        assert!(
            why.contains("is not that of the first certificate"),
            "{why}"
        );
        assert_eq!(tls.digest(), second);

        volume.switch(one.folder());
        assert_eq!(changes.recv().await.expect("loaded"), first);
        assert_eq!(tls.failure(), None);

        volume.switch(&volume.folder.path().join("missing"));
        let why = failure(&tls).await;
        assert!(why.contains("cannot read"), "{why}");
        assert_eq!(tls.digest(), first);
    };
    tokio::select! {
        () = watching => unreachable!("it never returns"),
        () = test => {}
    }
}

#[test]
fn files_without_a_certificate_or_a_key_are_errors() {
    let authority = PrivateCa::new(&["one.example"]);
    let folder = tempfile::tempdir().expect("a folder");
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| authority.folder().join(name));
    let write = |name: &str, text: &str| {
        let file = folder.path().join(name);
        fs::write(&file, text).expect("written");
        file
    };
    let empty = write("empty", "");
    let broken = write(
        "broken",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    );
    let cut = write("cut", "-----BEGIN CERTIFICATE-----\nAAAA\n");
    for (cert, key, expect) in [
        (&empty, &key, "contains no certificate"),
        (&key, &key, "contains no certificate"),
        (&broken, &key, "cannot be used with the key"),
        (&cut, &key, "is not a valid PEM file"),
        (&cert, &empty, "contains no private key"),
        (&cert, &cert, "contains no private key"),
        (&folder.path().to_owned(), &key, "is not a file"),
        (&folder.path().join("missing"), &key, "cannot read"),
    ] {
        let files = TlsSettings {
            cert: cert.clone(),
            key: key.clone(),
        };
        let Err(error) = Tls::open(&files) else {
            panic!("{expect}: no error");
        };
        let why = format!("{error:#}");
        assert!(why.contains(expect), "{expect}: {why}");
    }
}

async fn connected() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let client = TcpStream::connect(address).await.expect("connected");
    let (server, _) = listener.accept().await.expect("accepted");
    (client, server)
}

#[tokio::test]
async fn a_silent_client_is_disconnected() {
    let authority = PrivateCa::new(&["one.example"]);
    let tls = Tls::open(&Volume::new(&authority).files).expect("a certificate");
    for (is_scarce, expect) in [(false, HANDSHAKE_TIMEOUT), (true, SHORT_HANDSHAKE_TIMEOUT)] {
        // The second client sends the beginning of a record.
        for sends in [false, true] {
            let (mut client, server) = connected().await;
            if sends {
                client
                    .write_all(&[HANDSHAKE_RECORD, 3, 1])
                    .await
                    .expect("sent");
                server.readable().await.expect("readable");
            }
            tokio::time::pause();
            let start = Instant::now();
            let accepted = tls.accept(server, || is_scarce, pending()).await;
            assert!(accepted.is_none());
            let took = start.elapsed();
            assert!(
                took >= expect && took < expect + Duration::from_secs(1),
                "{took:?}"
            );
            tokio::time::resume();
        }
    }
    assert_eq!(tls.handshakes.available_permits(), MAX_HANDSHAKES);
}

#[tokio::test]
async fn a_client_without_tls_is_told() {
    let authority = PrivateCa::new(&["one.example"]);
    let tls = Tls::open(&Volume::new(&authority).files).expect("a certificate");
    let (mut client, server) = connected().await;
    client
        .write_all(b"GET / HTTP/1.1\r\n\r\n")
        .await
        .expect("sent");
    let reading = async {
        let mut text = String::new();
        client.read_to_string(&mut text).await.expect("a response");
        text
    };
    let both = futures_util::future::join(tls.accept(server, || false, pending()), reading);
    let (accepted, text) = timeout(DEADLINE, both).await.expect("in time");
    assert!(accepted.is_none());
    assert!(text.starts_with("HTTP/1.1 400 "), "{text}");
    assert!(text.contains("https://"), "{text}");
}
