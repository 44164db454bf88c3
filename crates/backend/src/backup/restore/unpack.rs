//! Reads a backup: first all of it without writing anything, then its parts into a temporary folder.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, bail};
use runtime::sandbox::saved::make_image;
use store::{Chunk, dump_of_file};
use zeroize::Zeroizing;

use super::super::{
    CONFIG, DATA, DATA_ITEMS, DATABASE_ENTRY, FILES_SUFFIX, KEYS_ENTRY, Passphrase, Progress,
    TABLES, VOLUMES,
    archive::{ConfigFile, Entry, MAX_SMALL_BYTES, Manifest, Reader, small, to_file},
    file::Checked,
    tree,
};

/// The folder for keys in the temporary folder. In an archive they are one encrypted file.
pub(super) const KEYS: &str = "keys";

/// The content of key files, by their path in the data directory.
pub(super) type Keys = BTreeMap<String, Zeroizing<String>>;

/// A backup that was read completely.
#[derive(Clone)]
pub(super) struct Scanned {
    file: Arc<Checked>,
    pub(super) manifest: Arc<Manifest>,
    /// The content of the configuration files, by entry.
    config: Arc<BTreeMap<String, Vec<u8>>>,
    /// The encrypted keys.
    pub(super) keys: Option<Arc<Vec<u8>>>,
    /// Paths in the archive that become one file or folder of the data directory each. The database and keys are
    /// separate.
    pub(super) items: Arc<BTreeSet<PathBuf>>,
}

impl Scanned {
    /// The content of the settings file.
    pub(super) fn settings(&self) -> Option<&[u8]> {
        let file = self.manifest.settings.as_ref()?;
        self.content(file)
    }

    pub(super) fn content(&self, file: &ConfigFile) -> Option<&[u8]> {
        self.config.get(&file.entry).map(Vec::as_slice)
    }
}

/// The kind of an entry.
enum Kind<'p> {
    Config,
    Keys,
    Database,
    /// Rows of this table.
    Table(&'p str),
    /// A part of the file or folder with this path.
    Item(PathBuf),
}

/// The permissions of a folder, which are set last: nothing can be created in a folder that cannot be written to.
struct FolderMode {
    path: PathBuf,
    mode: u32,
}

/// Decides by its path what an entry is.
fn kind(path: &Path) -> anyhow::Result<Kind<'_>> {
    let parts: Vec<&str> = path
        .components()
        .map_while(|part| match part {
            Component::Normal(name) => name.to_str(),
            _ => None,
        })
        .collect();
    let table = path.strip_prefix(TABLES).ok();
    let table = table.and_then(|rest| rest.parent()).and_then(Path::to_str);
    Ok(match parts.as_slice() {
        [CONFIG, _, _] => Kind::Config,
        [only] if *only == KEYS_ENTRY => Kind::Keys,
        _ if path == Path::new(DATABASE_ENTRY) => Kind::Database,
        ["database", "tables", name, _] if table == Some(*name) => Kind::Table(name),
        [DATA, ..] if data_item(path).is_some() => Kind::Item(data_item(path).unwrap_or_default()),
        [VOLUMES, "process", "volumes", server, ..] => {
            Kind::Item([VOLUMES, "process", "volumes", *server].iter().collect())
        }
        [VOLUMES, "docker", server, ..] => {
            Kind::Item([VOLUMES, "docker", *server].iter().collect())
        }
        _ => bail!(
            "the backup has a part that this version of Toolwharf does not know, {}: restore it with a newer version",
            path.display()
        ),
    })
}

/// The path in the archive of the file or folder for the data directory that an entry belongs to.
fn data_item(path: &Path) -> Option<PathBuf> {
    let inside = path.strip_prefix(DATA).ok()?;
    let item = DATA_ITEMS.iter().find(|item| inside.starts_with(item))?;
    Some(Path::new(DATA).join(item))
}

/// Returns whether this is the path of an image below `hosting`.
fn is_image(name: &str) -> bool {
    let path = Path::new(VOLUMES).join(name);
    let is_plain = |part| matches!(part, Component::Normal(_));
    path.extension().is_some_and(|end| end == "ext4")
        && path.components().all(is_plain)
        && matches!(kind(&path), Ok(Kind::Item(above)) if path.parent() == Some(above.as_path()))
}

/// Reads the whole file and checks it. Writes nothing. Blocks.
pub(super) fn scan(path: &Path, progress: &Progress) -> anyhow::Result<Scanned> {
    let file = Checked::open(path, progress)?;
    let mut config = BTreeMap::new();
    let mut config_bytes = 0;
    let (mut keys, mut items) = (None, BTreeSet::new());
    let mut has_database = false;
    let mut reader = Reader::new(&file)?;
    let manifest = reader.each(|manifest, path, entry| {
        // A newer version may have other parts, and the error should name the version.
        manifest.database.check()?;
        match kind(path)? {
            Kind::Config => {
                let content = small(entry)?;
                config_bytes += content.len() as u64;
                if config_bytes > MAX_SMALL_BYTES {
                    bail!("its configuration files are larger than {MAX_SMALL_BYTES} bytes");
                }
                config.insert(path.to_string_lossy().into_owned(), content);
            }
            Kind::Keys => keys = Some(Arc::new(small(entry)?)),
            Kind::Database => has_database = true,
            Kind::Table(_) => {}
            Kind::Item(item) => {
                items.insert(item);
            }
        }
        Ok(())
    });
    let manifest = manifest.with_context(|| format!("{} cannot be restored", path.display()))?;
    let missing = manifest
        .servers
        .iter()
        .chain(&manifest.settings)
        .find(|file| !config.contains_key(&file.entry));
    let differs = match missing {
        Some(file) => Some(file.entry.as_str()),
        None if manifest.has_keys != keys.is_some() => Some(KEYS_ENTRY),
        None if has_database != (manifest.database.engine == "sqlite") => Some(DATABASE_ENTRY),
        None => None,
    };
    if let Some(part) = differs {
        bail!(
            "{} is not complete: the list of its parts and the part `{part}` do not agree; use another backup",
            path.display()
        );
    }
    if let Some(name) = manifest.images.keys().find(|name| !is_image(name)) {
        bail!(
            "{} has a volume with an unsafe name: {name:?}",
            path.display()
        );
    }
    Ok(Scanned {
        file: Arc::new(file),
        manifest: Arc::new(manifest),
        config: Arc::new(config),
        keys,
        items: Arc::new(items),
    })
}

/// Decrypts the keys.
pub(super) fn keys(sealed: &[u8], passphrase: &Passphrase) -> anyhow::Result<Keys> {
    let plain = passphrase.open(sealed)?;
    let keys: BTreeMap<String, String> = serde_json::from_slice(&plain)
        .map_err(|_| anyhow::anyhow!("the keys in the backup have an unknown form"))?;
    let is_plain = |name: &String| {
        let path = Path::new(name);
        let mut parts = path.components();
        path.components().count() <= 2 && parts.all(|part| matches!(part, Component::Normal(_)))
    };
    if !keys.keys().all(is_plain) {
        bail!("the keys in the backup have an unknown form");
    }
    let keys = keys.into_iter();
    Ok(keys
        .map(|(name, text)| (name, Zeroizing::new(text)))
        .collect())
}

/// Writes everything except tables into a folder, in the layout of the archive, and checks a SQLite database. Blocks.
pub(super) fn unpack(
    scanned: &Scanned,
    keys: Option<Keys>,
    into: &Path,
    progress: &Progress,
) -> anyhow::Result<()> {
    for (entry, content) in &*scanned.config {
        write(&into.join(entry), content)?;
    }
    for (name, text) in keys.into_iter().flatten() {
        write(&into.join(KEYS).join(name), text.as_bytes())?;
    }
    let mut folders = Vec::new();
    let mut reader = Reader::new(&scanned.file)?;
    reader.each(|_, path, entry| match kind(path)? {
        Kind::Config | Kind::Keys | Kind::Table(_) => Ok(()),
        Kind::Database => to_file(entry, &into.join(path), progress),
        Kind::Item(above) => {
            folders.extend(item(path, &above, entry, into, progress)?);
            Ok(())
        }
    })?;
    tree::sync(into).with_context(|| format!("cannot write {}", into.display()))?;
    // Each folder after those in it.
    for folder in folders.iter().rev() {
        set_mode(&folder.path, folder.mode)?;
    }
    for (name, bytes) in &scanned.manifest.images {
        let image = into.join(VOLUMES).join(name);
        let files = into.join(VOLUMES).join(format!("{name}{FILES_SUFFIX}"));
        if !fs::symlink_metadata(&files).is_ok_and(|meta| meta.is_dir()) {
            bail!("the backup does not contain the files of the volume {name}");
        }
        if let Err(why) = make_image(&image, &files, *bytes) {
            bail!(
                "cannot make the volume {name}: {why}; e2fsprogs has the programs for it, and only root can restore the \
                 owners of files"
            );
        }
        fs::remove_dir_all(&files).with_context(|| format!("cannot remove {}", files.display()))?;
    }
    if !scanned.manifest.images.is_empty() {
        let volumes = into.join(VOLUMES);
        tree::sync(&volumes).with_context(|| format!("cannot write {}", volumes.display()))?;
    }
    if scanned.manifest.database.engine == "sqlite" {
        let file = into.join(DATABASE_ENTRY);
        let found = dump_of_file(&file).context("the database in the backup is damaged")?;
        if found != scanned.manifest.database {
            bail!("the database in the backup is not the one that the backup describes");
        }
    }
    Ok(())
}

/// Writes an entry of a file or folder for the data directory. `above`: the file or folder. Returns the permissions of a
/// folder if they have to be set later.
fn item(
    path: &Path,
    above: &Path,
    entry: &mut Entry<'_>,
    into: &Path,
    progress: &Progress,
) -> anyhow::Result<Option<FolderMode>> {
    let target = into.join(path);
    let kind = entry.header().entry_type();
    let is_known = kind.is_file() || kind.is_dir() || (kind.is_symlink() && path != above);
    if !is_known {
        bail!(
            "the backup has a part of an unknown kind: {}",
            path.display()
        );
    }
    // Not a file of that name in a volume, which has an owner.
    let is_image = path.extension().is_some_and(|end| end == "ext4")
        && path.starts_with(VOLUMES)
        && path.parent() == Some(above);
    if is_image && kind.is_file() {
        to_file(entry, &target, progress)?;
        return Ok(None);
    }
    if let Some(folder) = target.parent() {
        tree::private_folder(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let shown = || format!("cannot write {}", target.display());
    let size = usize::try_from(entry.size()).unwrap_or(usize::MAX);
    if !entry.unpack_in(into).with_context(shown)? {
        bail!(
            "the backup has a file with an unsafe name: {}",
            path.display()
        );
    }
    progress.add(size);
    let mode = entry.header().mode().with_context(shown)? & 0o7777;
    if !kind.is_dir() || mode & 0o700 == 0o700 {
        return Ok(None);
    }
    set_mode(&target, mode | 0o700)?;
    Ok(Some(FolderMode { path: target, mode }))
}

fn set_mode(path: &Path, mode: u32) -> anyhow::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .with_context(|| format!("cannot set the permissions of {}", path.display()))
}

fn write(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    use std::io::Write as _;
    let written = || {
        if let Some(folder) = path.parent() {
            tree::private_folder(folder)?;
        }
        tree::private_file(path)?.write_all(content)
    };
    written().with_context(|| format!("cannot write {}", path.display()))
}

/// Passes the rows of all tables to `put`, in the order of the archive, until it returns false. Blocks.
pub(super) fn chunks(
    scanned: &Scanned,
    progress: &Progress,
    mut put: impl FnMut(Chunk) -> bool,
) -> anyhow::Result<()> {
    let mut goes_on = true;
    let mut reader = Reader::new(&scanned.file)?;
    reader.each(|_, path, entry| {
        if let Kind::Table(name) = kind(path)?
            && goes_on
        {
            let rows = small(entry)?;
            progress.add(rows.len());
            let table = name.to_owned();
            goes_on = put(Chunk { table, rows });
        }
        Ok(())
    })?;
    Ok(())
}
