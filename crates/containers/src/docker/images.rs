//! Imports, inspects and pulls images.

use std::time::Duration;

use bollard::query_parameters::CreateImageOptionsBuilder;
use futures_util::StreamExt as _;

use super::engine::{CHANGE_TIMEOUT, Call, Client, call, found, within};
use crate::common::refused;
use runtime::unit::Error;

/// Timeout of a pull from a registry.
const PULL_TIMEOUT: Duration = Duration::from_secs(300);

/// Creates an image from an archive.
pub(super) async fn import(
    client: &Client,
    what: &'static str,
    (name, tag): (&str, &str),
    archive: Vec<u8>,
) -> Result<(), Error> {
    let options = CreateImageOptionsBuilder::default()
        .from_src("-")
        .repo(name)
        .tag(tag)
        .build();
    let body = bollard::body_full(archive.into());
    let mut import = client.docker.create_image(Some(options), Some(body), None);
    within(what, CHANGE_TIMEOUT, async {
        while let Some(progress) = import.next().await {
            progress?;
        }
        Ok(())
    })
    .await
}

pub(super) async fn inspect_image(client: &Client, image: &str) -> Result<Option<Image>, Error> {
    let inspected = client.docker.inspect_image(image);
    match call("inspect an image", CHANGE_TIMEOUT, inspected).await {
        // The daemon rejected the image name, although our own check accepted it.
        Err(Call::Daemon(400, why)) => refused("image", format!("`{image}`: {why}")),
        other => Ok(found(other)?.map(|image| {
            let config = image.config.unwrap_or_default();
            Image {
                id: image.id.unwrap_or_default(),
                entrypoint: config.entrypoint.unwrap_or_default(),
                command: config.cmd.unwrap_or_default(),
                volumes: config.volumes.unwrap_or_default(),
            }
        })),
    }
}

pub(super) async fn pull(client: &Client, image: &str) -> Result<Image, Error> {
    // Without a tag, the daemon would pull all tags.
    let last = image.rsplit('/').next().unwrap_or(image);
    let tagged = match last.contains([':', '@']) {
        true => image.to_owned(),
        false => format!("{image}:latest"),
    };
    let options = CreateImageOptionsBuilder::default()
        .from_image(&tagged)
        .build();
    let mut progress = client.docker.create_image(Some(options), None, None);
    let pulled = call("pull an image", PULL_TIMEOUT, async {
        while let Some(step) = progress.next().await {
            step?;
        }
        Ok(())
    })
    .await;
    let why = match pulled {
        Ok(()) => match inspect_image(client, image).await? {
            Some(image) => return Ok(image),
            None => "the image is still missing after the pull".to_owned(),
        },
        Err(Call::Daemon(_, why)) => why,
        Err(Call::Other(Error::Failed(why))) => why,
        Err(Call::Other(error)) => return Err(error),
    };
    let why = format!("`{image}` is not on this host and cannot be pulled: {why}");
    refused("image", why)
}

/// The daemon's description of an image.
#[derive(Clone, Default)]
pub(super) struct Image {
    pub(super) id: String,
    pub(super) entrypoint: Vec<String>,
    pub(super) command: Vec<String>,
    /// Paths that would become anonymous daemon volumes without a limit.
    pub(super) volumes: Vec<String>,
}
