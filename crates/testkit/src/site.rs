//! A local web site, for servers that fetch pages.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    task::JoinSet,
};

/// A web site. Dropping it stops the site.
///
/// | path | response |
/// | --- | --- |
/// | `/robots.txt` | forbids `/private` |
/// | `/missing` | 404 |
/// | `/huge` | two million characters of text |
/// | `/picture.png` | not HTML |
/// | all others | the page |
pub struct Site {
    url: String,
    _tasks: JoinSet<()>,
}

impl Site {
    /// Starts a site with one HTML page.
    ///
    /// # Panics
    /// If no port is free.
    pub async fn new(page: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = vec![0; 8192];
                let read = stream.read(&mut head).await.unwrap_or_default();
                let head = String::from_utf8_lossy(&head[..read]).into_owned();
                let path = head.split(' ').nth(1).unwrap_or_default();
                // The client may have disconnected.
                let _ = stream.write_all(&answer(path, page)).await;
            }
        });
        Self {
            url: format!("http://{address}"),
            _tasks: tasks,
        }
    }

    /// Returns the URL of `path`, for example `/soup`.
    #[must_use]
    pub fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }
}

fn answer(path: &str, page: &str) -> Vec<u8> {
    let huge;
    let (status, kind, body) = match path {
        "/robots.txt" => (
            "200 OK",
            "text/plain",
            "User-agent: *\nDisallow: /private\n",
        ),
        "/missing" => ("404 Not Found", "text/html", "<html>There is none.</html>"),
        "/picture.png" => ("200 OK", "image/png", "\u{89}PNG\r\n\u{1a}\n"),
        "/huge" => {
            huge = "Stir, and stir again.".repeat(100_000);
            ("200 OK", "text/plain", &*huge)
        }
        _ => ("200 OK", "text/html", page),
    };
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
    .into_bytes()
}
