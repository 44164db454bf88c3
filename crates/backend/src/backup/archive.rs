//! The contents of a backup: a tar archive whose first entry, the manifest, says what follows.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufReader, Read},
    path::{Component, Path, PathBuf},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use store::Dump;
use tar::{Archive, Builder, EntryType, Header};

use super::{
    Progress,
    file::{Checked, Pending},
    tree::{self, Skipped},
};

const MANIFEST: &str = "manifest.json";
/// Maximum size of the manifest, of all configuration files together, and of the encrypted keys, in bytes each.
pub(super) const MAX_SMALL_BYTES: u64 = 64 << 20;
/// Compression level. Higher levels take several times as long.
const LEVEL: i32 = 3;
const BUFFER_BYTES: usize = 256 << 10;

/// What a backup contains.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Manifest {
    /// The version of Toolwharf that made it.
    pub(super) toolwharf: String,
    pub(super) made_at: store::Time,
    pub(super) database: Dump,
    /// The id of the master key that the database's secrets are encrypted with.
    pub(super) master_key: Option<String>,
    /// True: it contains the encrypted keys.
    pub(super) has_keys: bool,
    /// The files with servers, in order.
    pub(super) servers: Vec<ConfigFile>,
    pub(super) settings: Option<ConfigFile>,
    /// True: it contains the volumes of hosted servers.
    pub(super) has_volumes: bool,
    /// Sizes of the images whose files it contains, in bytes, by their path below `hosting`.
    pub(super) images: BTreeMap<String, u64>,
}

/// A configuration file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ConfigFile {
    /// Its name in the archive.
    pub(super) entry: String,
    /// Where it was.
    pub(super) path: PathBuf,
}

/// Writes an archive.
pub(super) struct Writer {
    tar: Builder<zstd::Encoder<'static, Pending>>,
    progress: Arc<Progress>,
    made_at: u64,
    pub(super) skipped: Skipped,
}

impl Writer {
    pub(super) fn new(
        to: Pending,
        manifest: &Manifest,
        progress: Arc<Progress>,
    ) -> io::Result<Self> {
        let encoder = zstd::Encoder::new(to, LEVEL)?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let mut writer = Self {
            tar: Builder::new(encoder),
            progress,
            made_at: since.map_or(0, |since| since.as_secs()),
            skipped: Skipped::default(),
        };
        let manifest = serde_json::to_vec_pretty(manifest)?;
        writer.bytes(MANIFEST, &manifest)?;
        Ok(writer)
    }

    /// Adds a file with this content.
    pub(super) fn bytes(&mut self, entry: &str, content: &[u8]) -> io::Result<()> {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_size(content.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(self.made_at);
        self.tar.append_data(&mut header, entry, content)?;
        self.progress.add(content.len());
        Ok(())
    }

    /// Adds a file or a directory with everything below it. Symbolic links are stored as such and never followed.
    /// `except`: names directly below `from` to leave out.
    pub(super) fn tree(&mut self, entry: &str, from: &Path, except: &[&str]) -> io::Result<()> {
        let (progress, skipped) = (&self.progress, &mut self.skipped);
        tree::append(
            &mut self.tar,
            Path::new(entry),
            from,
            except,
            progress,
            skipped,
        )
    }

    /// Completes the file, which can then be published.
    pub(super) fn finish(self) -> io::Result<Pending> {
        let mut pending = self.tar.into_inner()?.finish()?;
        pending.seal()?;
        Ok(pending)
    }
}

type Contents = zstd::Decoder<'static, BufReader<Box<dyn Read>>>;

/// Reads the archive of a file that was checked.
pub(super) struct Reader(Archive<Contents>);

impl Reader {
    pub(super) fn new(file: &Checked) -> io::Result<Self> {
        let contents: Box<dyn Read> = Box::new(file.contents()?);
        let contents = BufReader::with_capacity(BUFFER_BYTES, contents);
        let mut archive = Archive::new(zstd::Decoder::with_buffer(contents)?);
        archive.set_preserve_permissions(true);
        archive.set_preserve_ownerships(rustix::process::geteuid().is_root());
        archive.set_overwrite(false);
        Ok(Self(archive))
    }

    /// Calls `each` with the manifest, and then for each other entry, with its path. Reading stops at the first error.
    ///
    /// # Errors
    /// If the archive has no manifest at its beginning, or an entry has an unsafe path.
    pub(super) fn each(
        &mut self,
        mut each: impl FnMut(&Manifest, &Path, &mut Entry<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<Manifest> {
        let unreadable = "the contents of the backup cannot be read";
        let mut entries = self.0.entries().context(unreadable)?;
        let first = entries.next().context("the backup is empty")?;
        let mut first = first.context(unreadable)?;
        if *first.path().context(unreadable)? != *Path::new(MANIFEST) {
            bail!("the backup does not say what it contains");
        }
        let manifest = small(&mut first)?;
        let manifest: Manifest = serde_json::from_slice(&manifest)
            .context("the description of the backup's contents has an unknown form")?;
        for entry in entries {
            let mut entry = entry.context(unreadable)?;
            let path = entry.path().context(unreadable)?.into_owned();
            let is_plain = |part| matches!(part, Component::Normal(_));
            if !path.components().all(is_plain) {
                bail!(
                    "the backup has a file with an unsafe name: {}",
                    path.display()
                );
            }
            each(&manifest, &path, &mut entry)?;
        }
        Ok(manifest)
    }
}

pub(super) type Entry<'e> = tar::Entry<'e, Contents>;

/// Reads an entry that is kept in memory.
pub(super) fn small(entry: &mut Entry<'_>) -> anyhow::Result<Vec<u8>> {
    let mut content = Vec::new();
    let read = entry.take(MAX_SMALL_BYTES + 1).read_to_end(&mut content);
    let read = read.context("the contents of the backup cannot be read")?;
    if read as u64 > MAX_SMALL_BYTES {
        bail!("a part of the backup is larger than {MAX_SMALL_BYTES} bytes");
    }
    Ok(content)
}

/// Writes an entry to a new file of this user alone. Blocks of zeros become holes.
pub(super) fn to_file(
    entry: &mut Entry<'_>,
    path: &Path,
    progress: &Progress,
) -> anyhow::Result<()> {
    let shown = || format!("cannot write {}", path.display());
    if let Some(folder) = path.parent() {
        tree::private_folder(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let mut file = tree::private_file(path).with_context(shown)?;
    let mut block = vec![0; BUFFER_BYTES];
    let mut length = 0;
    loop {
        let read = fill(entry, &mut block).context("the contents of the backup cannot be read")?;
        if read == 0 {
            break;
        }
        write_block(&mut file, &block[..read]).with_context(shown)?;
        length += read as u64;
        progress.add(read);
    }
    file.set_len(length)
        .and_then(|()| file.sync_all())
        .with_context(shown)
}

fn write_block(file: &mut File, block: &[u8]) -> io::Result<()> {
    use std::io::{Seek as _, Write as _};
    match block.iter().all(|byte| *byte == 0) {
        true => file.seek_relative(block.len().cast_signed() as i64),
        false => file.write_all(block),
    }
}

/// Reads until the block is full or the entry ends.
fn fill(entry: &mut Entry<'_>, block: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < block.len() {
        match entry.read(&mut block[filled..])? {
            0 => break,
            read => filled += read,
        }
    }
    Ok(filled)
}
