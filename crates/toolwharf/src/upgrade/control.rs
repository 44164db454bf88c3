//! The socket in the data directory through which `toolwharf upgrade` reaches the gateway.
//!
//! Invariant: only the user of the gateway and root may request an upgrade, because it runs a program. One connection is one
//! request: a line of JSON in each direction.

use std::{
    fs::{self, File},
    io::{self, ErrorKind},
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixListener, UnixStream},
    time::{Instant, timeout},
};

const SOCKET_FILE: &str = "upgrade.sock";
/// Maximum bytes of a request or a reply.
const MAX_BYTES: u64 = 16 << 10;
/// Time limit for a gateway that holds the lock to listen, and the pause between attempts.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECT_PAUSE: Duration = Duration::from_millis(50);
/// Time limit for a request to arrive, and for a reply to be sent.
const IO_TIMEOUT: Duration = Duration::from_secs(5);

/// A request of `toolwharf upgrade`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    /// The new program, as an absolute path. `None`: the file of the running one, which may have been replaced.
    pub(crate) program: Option<PathBuf>,
}

/// The reply of the gateway.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply {
    /// This process serves now.
    Upgraded { pid: u32, program: PathBuf },
    /// The running gateway serves on.
    Failed { why: String },
}

/// The socket of this gateway. Dropping it removes the file.
pub(crate) struct Control {
    listener: UnixListener,
    /// `None`: the file belongs to another process.
    file: Option<PathBuf>,
}

impl Control {
    /// Listens in the data directory, in place of an earlier gateway.
    pub(crate) fn bind(data_dir: &Path) -> io::Result<Self> {
        let folder = File::open(data_dir)?;
        let path = path(&folder);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        let file = Some(data_dir.join(SOCKET_FILE));
        Ok(Self { listener, file })
    }

    pub(crate) async fn accept(&self) -> io::Result<UnixStream> {
        let (stream, _) = self.listener.accept().await?;
        Ok(stream)
    }

    /// Leaves the file to the process that listens from now on.
    pub(crate) fn leave(mut self) {
        self.file = None;
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            let _ = fs::remove_file(file);
        }
    }
}

/// Connects to the gateway on this data directory. Waits a little for one that is starting.
pub(crate) async fn connect(data_dir: &Path) -> io::Result<UnixStream> {
    let folder = File::open(data_dir)?;
    let until = Instant::now() + CONNECT_TIMEOUT;
    loop {
        match UnixStream::connect(path(&folder)).await {
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::NotFound | ErrorKind::ConnectionRefused
                ) && Instant::now() < until =>
            {
                tokio::time::sleep(CONNECT_PAUSE).await;
            }
            connected => return connected,
        }
    }
}

/// The path of the socket. The address of a socket is limited to 107 bytes, so it does not contain the path of the folder.
fn path(folder: &File) -> PathBuf {
    format!("/proc/self/fd/{}/{SOCKET_FILE}", folder.as_raw_fd()).into()
}

/// Reads a request, if its sender may make it.
pub(crate) async fn request(stream: &mut UnixStream) -> anyhow::Result<Request> {
    let sender = stream.peer_cred()?.uid();
    let own = rustix::process::geteuid().as_raw();
    anyhow::ensure!(
        sender == own || sender == 0,
        "only the user of the gateway and root may upgrade it"
    );
    let request = timeout(IO_TIMEOUT, receive(stream)).await;
    request.map_err(|_| anyhow::anyhow!("the request did not arrive in time"))?
}

/// Sends a reply. Errors are ignored, because the sender of the request has disconnected then.
pub(crate) async fn reply(stream: &mut UnixStream, reply: &Reply) {
    let _ = timeout(IO_TIMEOUT, send(stream, reply)).await;
}

/// Sends a value and closes this direction of the connection.
pub(crate) async fn send(stream: &mut UnixStream, value: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_vec(value)?;
    stream.write_all(&text).await?;
    stream.shutdown().await?;
    Ok(())
}

/// Reads a value up to the end of the stream.
pub(crate) async fn receive<T: DeserializeOwned>(stream: &mut UnixStream) -> anyhow::Result<T> {
    let mut text = Vec::new();
    stream.take(MAX_BYTES).read_to_end(&mut text).await?;
    Ok(serde_json::from_slice(&text)?)
}
