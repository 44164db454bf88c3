//! Volumes of servers: file systems of limited size in files, mounted by the daemon.
//!
//! The daemon's `local` driver mounts a loop device while a container runs. The device disappears when it is unmounted.
//! The data is in the file; the daemon's volume is created again for each instance.
//!
//! # Invariants
//!
//! - A volume with data in a file is never replaced by an empty one. If the file cannot be mounted, the launch fails.
//! - A file grows with its limit and never shrinks.
//! - An existing daemon volume of this installation with data but without a file stays an ordinary volume without a
//!   limit.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::models::{Mount, MountType, VolumeCreateRequest};
use bollard::query_parameters::{ListVolumesOptionsBuilder, RemoveVolumeOptions};
use model::Sandbox;
use tokio::fs;
use tokio::process::Command;
use tokio::time::timeout;

use super::Inner;
use super::engine::{
    CHANGE_TIMEOUT, Call, Client, LABEL_HOSTING, LABEL_INSTALL, call, found, labels, within,
};
use crate::common::{check_id, refused};
use runtime::image::takes_direct_io;
use runtime::unit::Error;

const LABEL_PATH: &str = "toolwharf.path";
/// Timeout of a tool that works on a file system.
const TOOL_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_NAME_BYTES: usize = 200;
/// Search path for the tools, independent of the `TOOL_PATH` of this process.
const TOOL_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Makes the root of a volume empty, and writable for any user of an image. The daemon copies the image's files at that
/// path into an empty volume.
const DEBUGFS_SCRIPT: &str = "set_inode_field / mode 041777\nrmdir lost+found\n";

/// The prepared volumes of a launch.
#[derive(Default)]
pub(super) struct Volumes {
    volumes: Vec<Volume>,
    devices: Vec<String>,
    pub(super) limit: Limit,
}

struct Volume {
    inside: String,
    name: String,
}

/// How the volumes of a server are limited.
#[derive(Default)]
pub(super) enum Limit {
    /// The server has no volumes.
    #[default]
    Nothing,
    Each(u64),
    None(String),
}

impl Volumes {
    pub(super) fn mounts(&self) -> Vec<Mount> {
        let mount = |volume: &Volume| Mount {
            target: Some(volume.inside.clone()),
            source: Some(volume.name.clone()),
            typ: Some(MountType::VOLUME),
            read_only: Some(false),
            ..Mount::default()
        };
        self.volumes.iter().map(mount).collect()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.volumes.iter().any(|volume| volume.name == name)
    }

    /// Leaves the loop devices to the container. They disappear when the container ends, or now if it never started.
    pub(super) async fn release(&self) {
        for device in &self.devices {
            if let Err(error) = tool("losetup", ["--detach", device]).await {
                tracing::warn!(device, %error, "cannot detach a loop device");
            }
        }
    }
}

impl Inner {
    /// Prepares the volumes of a server for mounting. No container of the server may exist.
    pub(super) async fn volumes(
        &self,
        client: &Client,
        sandbox: &Sandbox,
    ) -> Result<Volumes, Error> {
        let mut ready = Volumes::default();
        if sandbox.volumes.is_empty() {
            return Ok(ready);
        }
        let share = sandbox.limits.disk / sandbox.volumes.len() as u64;
        ready.limit = Limit::Each(share);
        for inside in &sandbox.volumes {
            match self
                .volume(client, sandbox, inside, share, &mut ready)
                .await
            {
                Ok(()) => {}
                Err(error) => {
                    ready.release().await;
                    return Err(error);
                }
            }
        }
        Ok(ready)
    }

    async fn volume(
        &self,
        client: &Client,
        sandbox: &Sandbox,
        inside: &str,
        share: u64,
        ready: &mut Volumes,
    ) -> Result<(), Error> {
        let id = sandbox.id.as_str();
        let slug = slug(inside);
        let name = name(&self.options.install, id, inside);
        if name.len() > MAX_NAME_BYTES {
            let why = format!(
                "`{inside}` is too long: the volume name would exceed {MAX_NAME_BYTES} bytes"
            );
            return refused("volumes", why);
        }
        ready.volumes.push(Volume {
            inside: inside.to_owned(),
            name: name.clone(),
        });
        let file = self.options.dir.join(id).join(format!("{slug}.ext4"));
        let has_file = fs::try_exists(&file).await.unwrap_or(false);
        let old = call(
            "inspect a volume",
            CHANGE_TIMEOUT,
            client.docker.inspect_volume(&name),
        )
        .await;
        if let Some(old) = found(old)? {
            if old.labels.get(LABEL_INSTALL) != Some(&self.options.install) {
                let why = format!(
                    "the Docker volume `{name}` exists but was not created by this installation; remove it with `docker volume rm`"
                );
                return refused("volumes", why);
            }
            if !has_file {
                ready.limit =
                    Limit::None(format!("the volume `{name}` was created without a limit"));
                return Ok(());
            }
            // The daemon's volume refers to the device of an earlier instance.
            remove(client, &name).await?;
        }
        let device = match self.device(&file, has_file, share).await {
            Ok((device, size)) => {
                if size > share && !matches!(ready.limit, Limit::None(_)) {
                    ready.limit = Limit::None(format!(
                        "the volume of `{inside}` has {size} bytes from an earlier limit and cannot be shrunk"
                    ));
                }
                ready.devices.push(device.clone());
                Some(device)
            }
            Err(error) if has_file => {
                return Err(Error::Failed(format!(
                    "cannot mount the volume {}: {error}",
                    file.display()
                )));
            }
            Err(error) => {
                // Remove the empty file, which would count as data at the next launch.
                let _ = fs::remove_file(&file).await;
                if sandbox.strict {
                    return Err(Error::NotEnforced {
                        what: "disk",
                        why: format!("cannot create a volume with a limit: {error}"),
                    });
                }
                ready.limit = Limit::None(format!(
                    "volumes have no limit, because this host cannot mount files as volumes: {error}"
                ));
                None
            }
        };
        let options = device.map(|device| {
            HashMap::from([
                ("type".to_owned(), "ext4".to_owned()),
                ("o".to_owned(), "nosuid,nodev,discard".to_owned()),
                ("device".to_owned(), device),
            ])
        });
        let pairs = [
            (LABEL_INSTALL, self.options.install.as_str()),
            (LABEL_HOSTING, id),
            (LABEL_PATH, inside),
        ];
        let request = VolumeCreateRequest {
            name: Some(name),
            driver: Some("local".to_owned()),
            driver_opts: options,
            labels: Some(
                pairs
                    .map(|(name, value)| (name.into(), value.into()))
                    .into(),
            ),
            ..VolumeCreateRequest::default()
        };
        let created = client.docker.create_volume(request);
        within("create a volume", CHANGE_TIMEOUT, created).await?;
        Ok(())
    }

    /// Sets up a loop device on the file, which is resized if needed. Returns the device and its size in bytes.
    async fn device(&self, file: &Path, exists: bool, share: u64) -> io::Result<(String, u64)> {
        if exists {
            // Detach devices that a killed launch left. A device that is still mounted disappears when it is unmounted.
            let left = tool(
                "losetup",
                ["--noheadings", "--output=NAME", "--associated"]
                    .map(OsStr::new)
                    .into_iter()
                    .chain([file.as_os_str()]),
            )
            .await?;
            for device in left.split_whitespace() {
                tool("losetup", ["--detach", device]).await?;
            }
        } else {
            make(file, share).await?;
        }
        let mut size = fs::metadata(file).await?.len();
        if size < share {
            let image = fs::OpenOptions::new().write(true).open(file).await?;
            image.set_len(share).await?;
            size = share;
            // resize2fs requires this check. Its exit code 1 means that errors were repaired.
            let _ = tool("e2fsck", [OsStr::new("-fp"), file.as_os_str()]).await;
            tool("resize2fs", [file]).await?;
        }
        let device = tool(
            "losetup",
            [OsStr::new("--find"), OsStr::new("--show"), file.as_os_str()],
        )
        .await?;
        let device = device.trim().to_owned();
        if takes_direct_io(file)
            && let Err(error) = tool("losetup", ["--direct-io=on", &device]).await
        {
            tracing::debug!(device, %error, "cannot enable direct I/O, so data written to this volume is cached twice");
        }
        Ok((device, size))
    }

    /// Each gateway of a database has its own volumes here, so none belong to the shared `_installation`.
    pub(super) async fn volumes_remove(
        &self,
        id: &str,
        _installation: Option<&str>,
    ) -> Result<(), Error> {
        check_id(id)?;
        let _turn = self.keyed_lock.turn(id).await?;
        let client = self.engine.connect().await?;
        let filters = labels(&[
            (LABEL_INSTALL, self.options.install.as_str()),
            (LABEL_HOSTING, id),
        ]);
        let options = ListVolumesOptionsBuilder::default()
            .filters(&filters)
            .build();
        let listed = client.docker.list_volumes(Some(options));
        let listed = within("list volumes", CHANGE_TIMEOUT, listed).await?;
        for volume in listed.volumes.unwrap_or_default() {
            remove(&client, &volume.name).await?;
        }
        let dir = self.options.dir.join(id);
        match fs::remove_dir_all(&dir).await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::Failed(format!(
                "cannot remove {}: {error}",
                dir.display()
            ))),
            _ => Ok(()),
        }
    }
}

/// Creates a file with an empty file system atomically.
async fn make(file: &Path, size: u64) -> io::Result<()> {
    let dir = file.parent().ok_or(io::ErrorKind::InvalidInput)?;
    fs::create_dir_all(dir).await?;
    let new = file.with_extension("new");
    let made = async {
        let image = fs::File::create(&new).await?;
        image.set_len(size).await?;
        drop(image);
        // No blocks reserved for root, so that the limit is exact.
        let args = ["-q", "-F", "-m", "0"].map(OsStr::new);
        tool("mkfs.ext4", args.into_iter().chain([new.as_os_str()])).await?;
        let script = file.with_extension("debugfs");
        fs::write(&script, DEBUGFS_SCRIPT).await?;
        let args = [
            OsStr::new("-w"),
            OsStr::new("-f"),
            script.as_os_str(),
            new.as_os_str(),
        ];
        let opened = tool("debugfs", args).await;
        fs::remove_file(&script).await?;
        opened?;
        fs::rename(&new, file).await
    }
    .await;
    if made.is_err() {
        let _ = fs::remove_file(&new).await;
    }
    made
}

pub(super) async fn remove(client: &Client, name: &str) -> Result<(), Error> {
    let options = None::<RemoveVolumeOptions>;
    let removed = client.docker.remove_volume(name, options);
    match call("remove a volume", CHANGE_TIMEOUT, removed).await {
        Err(Call::Daemon(404, _)) => Ok(()),
        other => other.map_err(Error::from),
    }
}

/// Runs a system tool and returns its output.
async fn tool(
    program: &str,
    args: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> io::Result<String> {
    let path = TOOL_PATH
        .split(':')
        .map(|dir| PathBuf::from(dir).join(program))
        .find(|path| path.exists())
        .ok_or_else(|| io::Error::other(format!("`{program}` is not installed in {TOOL_PATH}")))?;
    let output = Command::new(path)
        .args(args)
        .env_clear()
        .env("PATH", TOOL_PATH)
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true)
        .output();
    let Ok(output) = timeout(TOOL_TIMEOUT, output).await else {
        return Err(io::Error::other(format!(
            "`{program}` did not finish within {} s",
            TOOL_TIMEOUT.as_secs()
        )));
    };
    let output = output?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        let why = why.trim();
        return Err(io::Error::other(format!("`{program}` failed: {why}")));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

pub(super) fn name(install: &str, server: &str, inside: &str) -> String {
    format!("toolwharf.{install}.{server}.{}", slug(inside))
}

/// Encodes a path as a part of a name, uniquely.
pub(super) fn slug(path: &str) -> String {
    use std::fmt::Write as _;
    let mut slug = String::new();
    for byte in path.trim_start_matches('/').bytes() {
        match byte {
            b'/' => slug.push('-'),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => slug.push(byte.into()),
            // Writing to a string cannot fail.
            other => drop(write!(slug, "_{other:02x}")),
        }
    }
    slug
}

#[cfg(test)]
mod tests {
    use super::slug;

    #[test]
    fn paths_become_different_names() {
        let check = |path, expected| assert_eq!(slug(path), expected);
        check("/data", "data");
        check("/var/lib/x", "var-lib-x");
        check("/var-lib/x", "var_2dlib-x");
        check("/a_2d", "a_5f2d");
        check("/ü.db", "_c3_bc_2edb");
    }
}
