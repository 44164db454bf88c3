//! A server's own volumes: file systems of limited size in files of ours, mounted by the daemon.
//!
//! The daemon's `local` driver mounts a loop device for the time of a container; the device goes
//! with the mount. The file holds the data, the daemon's volume is made anew for each instance.
//!
//! # Invariants
//!
//! - A volume whose data is in a file is never replaced by an empty one: where the file cannot be
//!   mounted, the launch fails.
//! - A file grows with its limit, and never shrinks.
//! - A daemon's volume of ours that has data and no file stays what it is, without a limit.

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
    CHANGE, Call, Client, LABEL_HOSTING, LABEL_INSTALL, call, found, labels, within,
};
use super::spec::check_id;
use crate::image::takes_direct_io;
use crate::unit::Error;

const LABEL_PATH: &str = "toolwharf.path";
/// For a tool that works on a file system.
const TOOL: Duration = Duration::from_secs(60);
const NAME_MAX: usize = 200;
/// Where the tools are, with whatever `PATH` this process was started.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Everybody may write to the root of a volume, whoever the image runs as; and as it is empty,
/// the daemon copies into it what the image has there.
const OPEN_UP: &str = "set_inode_field / mode 041777\nrmdir lost+found\n";

/// What a launch has made ready.
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

/// Whether the volumes of a server hold its limit.
#[derive(Default)]
pub(super) enum Limit {
    /// It has no volumes.
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

    /// Leaves the devices to the container: they go when it does, or now if it never came up.
    pub(super) async fn release(&self) {
        for device in &self.devices {
            if let Err(error) = tool("losetup", ["--detach", device]).await {
                tracing::warn!(device, %error, "a loop device is left");
            }
        }
    }
}

impl Inner {
    /// Makes the volumes of a server ready to be mounted. No container of it may be there.
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
        if name.len() > NAME_MAX {
            return Err(Error::Refused {
                field: "volumes",
                why: format!("`{inside}` is too long for the name of a volume"),
            });
        }
        ready.volumes.push(Volume {
            inside: inside.to_owned(),
            name: name.clone(),
        });
        let file = self.options.dir.join(id).join(format!("{slug}.ext4"));
        let has_file = fs::try_exists(&file).await.unwrap_or(false);
        let old = call(
            "inspect a volume",
            CHANGE,
            client.docker.inspect_volume(&name),
        )
        .await;
        if let Some(old) = found(old)? {
            if old.labels.get(LABEL_INSTALL) != Some(&self.options.install) {
                return Err(Error::Refused {
                    field: "volumes",
                    why: format!("a volume `{name}` exists and is not ours; remove or rename it"),
                });
            }
            if !has_file {
                ready.limit = Limit::None(format!("the volume `{name}` was made without a limit"));
                return Ok(());
            }
            // It names the device of an earlier instance.
            remove(client, &name).await?;
        }
        let device = match self.device(&file, has_file, share).await {
            Ok((device, size)) => {
                if size > share && !matches!(ready.limit, Limit::None(_)) {
                    ready.limit = Limit::None(format!(
                        "the volume of `{inside}` is {size} bytes from an earlier limit: it is not made smaller"
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
                // What is there of it is empty, and would be taken for data the next time.
                let _ = fs::remove_file(&file).await;
                if sandbox.strict {
                    return Err(Error::NotEnforced {
                        what: "disk",
                        why: format!("a volume with a limit cannot be made: {error}"),
                    });
                }
                ready.limit = Limit::None(format!(
                    "volumes are without a limit, since a file cannot be made one here: {error}"
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
        within("create a volume", CHANGE, created).await?;
        Ok(())
    }

    /// A loop device on the file, which has the size or is given it; and how large it is.
    async fn device(&self, file: &Path, exists: bool, share: u64) -> io::Result<(String, u64)> {
        if exists {
            // What a launch that was killed left behind. A device that is still mounted goes
            // when it is not.
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
            // resize2fs insists on the check. Its exit code 1 means: repaired.
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
            tracing::debug!(device, %error, "what is written to a volume is cached twice");
        }
        Ok((device, size))
    }

    pub(super) async fn volumes_remove(&self, id: &str) -> Result<(), Error> {
        check_id(id)?;
        let _turn = self.turns.turn(id).await?;
        let client = self.engine.connect().await?;
        let filters = labels(&[
            (LABEL_INSTALL, self.options.install.as_str()),
            (LABEL_HOSTING, id),
        ]);
        let options = ListVolumesOptionsBuilder::default()
            .filters(&filters)
            .build();
        let listed = client.docker.list_volumes(Some(options));
        let listed = within("list volumes", CHANGE, listed).await?;
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

/// A file with an empty file system, which is there whole or not at all.
async fn make(file: &Path, size: u64) -> io::Result<()> {
    let dir = file.parent().ok_or(io::ErrorKind::InvalidInput)?;
    fs::create_dir_all(dir).await?;
    let new = file.with_extension("new");
    let made = async {
        let image = fs::File::create(&new).await?;
        image.set_len(size).await?;
        drop(image);
        // No blocks for root alone: the limit is the limit.
        let args = ["-q", "-F", "-m", "0"].map(OsStr::new);
        tool("mkfs.ext4", args.into_iter().chain([new.as_os_str()])).await?;
        let script = file.with_extension("debugfs");
        fs::write(&script, OPEN_UP).await?;
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
    match call("remove a volume", CHANGE, removed).await {
        Err(Call::Daemon(404, _)) => Ok(()),
        other => other.map_err(Error::from),
    }
}

/// Runs a tool of the system; what it printed.
async fn tool(
    program: &str,
    args: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> io::Result<String> {
    let path = PATH
        .split(':')
        .map(|dir| PathBuf::from(dir).join(program))
        .find(|path| path.exists())
        .ok_or_else(|| io::Error::other(format!("there is no `{program}`")))?;
    let output = Command::new(path)
        .args(args)
        .env_clear()
        .env("PATH", PATH)
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true)
        .output();
    let Ok(output) = timeout(TOOL, output).await else {
        return Err(io::Error::other(format!(
            "`{program}` does not end within {} s",
            TOOL.as_secs()
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

/// A path as a part of a name; no two paths have the same.
pub(super) fn slug(path: &str) -> String {
    use std::fmt::Write as _;
    let mut slug = String::new();
    for byte in path.trim_start_matches('/').bytes() {
        match byte {
            b'/' => slug.push('-'),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => slug.push(byte.into()),
            // Infallible into a string.
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
