//! MCPB files: an archive of a server with a manifest. Each is unpacked once, into a folder named by its hash. The
//! server runs in a sandbox that sees the files read-only.
//!
//! Invariants: a file is unpacked only if its hash is the one in the registry entry. No file is written outside the
//! bundle's folder, whatever its name in the archive; links and devices are refused. Sizes are counted while writing,
//! not taken from the archive. A bundle exists completely or not at all.

use crate::archive::MAX_FILES;
use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Cursor, Read as _, Seek as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::SystemTime,
};

use api::Wrong;
use serde::Deserialize;
use serde_json::Value;
use zip::ZipArchive;

use super::{
    archive,
    document::Input,
    fill::BUNDLE,
    plan::{Part, Plan, Template, Word},
};

/// Maximum bytes of an MCPB file.
pub(super) const MAX_FILE_BYTES: usize = 128 << 20;
/// Maximum total bytes of a bundle's files.
const MAX_UNPACKED_BYTES: u64 = 1 << 30;
/// Maximum bytes of a manifest.
const MAX_MANIFEST_BYTES: u64 = 1 << 20;
const MANIFEST: &str = "manifest.json";
/// Maximum arguments, variables and inputs of a manifest, each.
const MAX_ITEMS: usize = 64;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Manifest {
    server: Server,
    user_config: BTreeMap<String, UserConfig>,
    compatibility: Compatibility,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Compatibility {
    platforms: Option<Vec<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Server {
    #[serde(rename = "type")]
    kind: String,
    mcp_config: Config,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
struct Config {
    command: String,
    args: Vec<String>,
    env: BTreeMap<String, String>,
    platform_overrides: BTreeMap<String, Override>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
struct Override {
    command: Option<String>,
    args: Option<Vec<String>>,
    env: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct UserConfig {
    #[serde(rename = "type")]
    kind: String,
    title: Option<String>,
    description: Option<String>,
    required: bool,
    #[serde(rename = "default")]
    preset: Value,
    multiple: bool,
    sensitive: bool,
}

/// The folder of a bundle with this hash. It may not exist.
pub(super) fn folder(bundles: &Path, sha256: &str) -> PathBuf {
    bundles.join(sha256)
}

/// Returns true if the bundle exists, and marks it as used now.
pub(super) fn is_there(place: &Path) -> bool {
    let opened = File::open(place);
    opened.is_ok_and(|folder| folder.set_modified(SystemTime::now()).is_ok())
}

/// Removes bundles that no server uses, except the `kept` most recently used ones.
pub(super) fn prune(bundles: &Path, is_used: impl Fn(&str) -> bool, kept: usize) {
    let entries = fs::read_dir(bundles).into_iter().flatten().flatten();
    let mut unused: Vec<(SystemTime, PathBuf)> = entries
        .filter(|entry| !entry.file_name().to_str().is_some_and(&is_used))
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    unused.sort();
    unused.reverse();
    for (_, place) in unused.into_iter().skip(kept) {
        if let Err(error) = fs::remove_dir_all(&place) {
            tracing::warn!("cannot remove the bundle {}: {error}", place.display());
        }
    }
}

/// Creates an unnamed file in `bundles` for a download. The kernel deletes the file when it is closed.
pub(super) fn download_file(bundles: &Path) -> io::Result<File> {
    fs::create_dir_all(bundles)?;
    tempfile::tempfile_in(bundles)
}

/// Like [`unpack`], for a downloaded file.
pub(super) fn unpack_file(bundles: &Path, sha256: &str, mut file: File) -> Result<PathBuf, String> {
    // Another caller may have unpacked the same bundle during the download.
    let place = folder(bundles, sha256);
    if is_there(&place) {
        return Ok(place);
    }
    let mut bytes = Vec::new();
    let read = file
        .rewind()
        .and_then(|()| file.take(MAX_FILE_BYTES as u64).read_to_end(&mut bytes));
    read.map_err(|error| format!("the downloaded MCPB file cannot be read: {error}"))?;
    unpack(bundles, sha256, &bytes)
}

/// Unpacks a file into its folder below `bundles`.
///
/// # Errors
/// Why it is refused. No partial files remain.
pub(super) fn unpack(bundles: &Path, sha256: &str, file: &[u8]) -> Result<PathBuf, String> {
    let found = model::sha256_hex(file);
    if found != sha256 {
        return Err(format!(
            "the SHA-256 of the MCPB file is {found}, but the registry entry says {sha256}"
        ));
    }
    let place = folder(bundles, sha256);
    if is_there(&place) {
        return Ok(place);
    }
    let shown = bundles.display();
    let disk = |error: io::Error| format!("the bundle cannot be written to {shown}: {error}");
    fs::create_dir_all(bundles).map_err(disk)?;
    let stage = tempfile::Builder::new()
        .prefix(".new-")
        .tempdir_in(bundles)
        .map_err(disk)?;
    let inside = stage.path().join("bundle");
    extract(file, &inside, MAX_UNPACKED_BYTES)?;
    match fs::rename(&inside, &place) {
        // Another task created the folder first.
        Err(_) if place.is_dir() => Ok(place),
        done => done.map(|()| place).map_err(disk),
    }
}

/// Writes the files of an archive below `into`, with at most `most` bytes in total.
pub fn extract(file: &[u8], into: &Path, most: u64) -> Result<(), String> {
    let bad = |error: &dyn std::fmt::Display| format!("the MCPB file cannot be unpacked: {error}");
    archive::check(file, most)?;
    let mut archive = ZipArchive::new(Cursor::new(file)).map_err(|error| bad(&error))?;
    if archive.len() > MAX_FILES {
        return Err(format!(
            "the MCPB file contains more than {MAX_FILES} files"
        ));
    }
    let mut left = most;
    folder_at(into)?;
    for index in 0..archive.len() {
        let entry = archive.by_index(index).map_err(|error| bad(&error))?;
        let name = entry.name().map_err(|error| bad(&error))?.into_owned();
        let shown: String = name.escape_debug().take(100).collect();
        let path = inside(&name)
            .ok_or_else(|| format!("the file name `{shown}` is not a path inside the bundle"))?;
        let place = into.join(path);
        let mode = entry.unix_mode().unwrap_or_default();
        let kind = mode & 0o170_000;
        if entry.is_symlink() || !matches!(kind, 0 | 0o100_000 | 0o040_000) {
            return Err(format!(
                "the MCPB file contains `{shown}`, which is neither a file nor a folder"
            ));
        }
        if entry.is_dir() {
            folder_at(&place)?;
            continue;
        }
        if let Some(parent) = place.parent() {
            folder_at(parent)?;
        }
        let mode = if mode & 0o111 == 0 { 0o644 } else { 0o755 };
        let written = OpenOptions::new().write(true).create_new(true).open(&place);
        let mut out: File = written
            .map_err(|error| format!("`{shown}` of the MCPB file cannot be written: {error}"))?;
        out.set_permissions(Permissions::from_mode(mode))
            .map_err(|error| bad(&error))?;
        let count = io::copy(&mut entry.take(left + 1), &mut out).map_err(|error| bad(&error))?;
        left = left
            .checked_sub(count)
            .ok_or_else(|| format!("the MCPB file unpacks to more than {} MiB", most >> 20))?;
    }
    Ok(())
}

fn folder_at(path: &Path) -> Result<(), String> {
    // Servers run as other users, and the umask of this process may be restrictive.
    let made = fs::create_dir_all(path)
        .and_then(|()| fs::set_permissions(path, Permissions::from_mode(0o755)));
    made.map_err(|error| format!("the folder {} cannot be created: {error}", path.display()))
}

/// Returns the path if it stays inside the folder lexically.
fn inside(name: &str) -> Option<PathBuf> {
    let name = name.strip_suffix('/').unwrap_or(name);
    let is_plain = |part: &str| {
        !matches!(part, "" | "." | "..")
            && !part.contains('\\')
            && !part.chars().any(char::is_control)
    };
    let parts: Vec<&str> = name.split('/').collect();
    let is_fine =
        name.len() <= 1024 && parts.len() <= 64 && parts.iter().all(|part| is_plain(part));
    is_fine.then(|| parts.iter().collect())
}

impl Plan {
    /// Adds the manifest of an unpacked bundle to the plan: the program, arguments, variables and inputs. Errors go to
    /// `refused`.
    pub fn unpacked(&mut self, folder: PathBuf) {
        let manifest = match read(&folder) {
            Ok(manifest) => manifest,
            Err(why) => return self.refused.push(Wrong::new("/packages/identifier", why)),
        };
        let mut wrong = |place: &str, why: String| {
            self.refused
                .push(Wrong::new(format!("/manifest{place}"), why))
        };
        let config = manifest.server.mcp_config.here();
        if let Some(platforms) = &manifest.compatibility.platforms
            && !platforms.iter().any(|platform| platform == "linux")
        {
            wrong(
                "/compatibility/platforms",
                "does not include `linux`".to_owned(),
            );
        }
        for (count, what) in [
            (config.args.len(), "arguments"),
            (config.env.len(), "variables"),
            (manifest.user_config.len(), "inputs"),
        ] {
            if count > MAX_ITEMS {
                return wrong(
                    "",
                    format!("has {count} {what}; the maximum is {MAX_ITEMS}"),
                );
            }
        }
        let command = config.command.as_str();
        let program = match (manifest.server.kind.as_str(), command) {
            ("node", "node") => Some("node".to_owned()),
            ("python", "python" | "python3") => Some("python3".to_owned()),
            ("binary", path) => {
                let path = path.strip_prefix("${__dirname}/").unwrap_or(path);
                inside(path)
                    .filter(|path| folder.join(path).is_file())
                    .map(|path| format!("{BUNDLE}/{}", path.display()))
            }
            ("uv", _) => {
                return wrong(
                    "/server/type",
                    "`uv` bundles install packages when they start, which cannot be pinned"
                        .to_owned(),
                );
            }
            _ => None,
        };
        let Some(program) = program else {
            let shown: String = command.escape_debug().take(100).collect();
            return wrong(
                "/server/mcp_config/command",
                format!(
                    "`{shown}` cannot run a bundle: use `node`, `python3` or a file in the bundle"
                ),
            );
        };
        let mut fields = BTreeMap::new();
        for (key, asked) in &manifest.user_config {
            let why = match key.len() > 100 {
                true => "has a key of more than 100 bytes",
                false => "has a key with invisible characters",
            };
            if key.len() > 100 || key.chars().any(|c| super::document::is_odd(c, false)) {
                return wrong("/user_config", why.to_owned());
            }
            fields.insert(format!("user_config.{key}"), (key.clone(), asked));
        }
        let mut places: BTreeMap<String, usize> = BTreeMap::new();
        for (name, (key, asked)) in fields {
            let at = self.field(&asked.input(), &key);
            self.fields[at].is_repeated = asked.multiple;
            places.insert(name, at);
        }
        let mut words = Vec::new();
        for (index, text) in config.args.iter().enumerate() {
            let at = format!("/manifest/server/mcp_config/args/{index}");
            match template(text, &places) {
                Ok(value) => words.push(Word {
                    at,
                    flag: None,
                    value: Some(value),
                    switch: None,
                }),
                Err(why) => return self.refused.push(Wrong::new(at, why)),
            }
        }
        words.append(&mut self.words);
        self.words = words;
        for (name, text) in &config.env {
            let at = format!("/manifest/server/mcp_config/env/{name}");
            match template(text, &places) {
                Ok(value) => self.manifest_variable(&at, name, value),
                Err(why) => return self.refused.push(Wrong::new(at, why)),
            }
        }
        self.program = Some(program);
        self.folder = Some(folder);
    }
}

impl Config {
    /// The configuration for Linux.
    fn here(mut self) -> Self {
        if let Some(own) = self.platform_overrides.remove("linux") {
            self.command = own.command.unwrap_or(self.command);
            self.args = own.args.unwrap_or(self.args);
            self.env.extend(own.env.unwrap_or_default());
        }
        self
    }
}

impl UserConfig {
    fn input(&self) -> Input {
        let format = match self.kind.as_str() {
            "number" => Some("number"),
            "boolean" => Some("boolean"),
            "directory" | "file" => Some("filepath"),
            _ => None,
        };
        let preset = match &self.preset {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            Value::Bool(boolean) => Some(boolean.to_string()),
            _ => None,
        };
        Input {
            description: self.description.clone().or(self.title.clone()),
            is_required: self.required,
            is_secret: self.sensitive,
            format: format.map(str::to_owned),
            // Defaults with `${…}` name folders of the user, which a gateway does not know.
            preset: preset.filter(|text| !text.contains("${")),
            ..Input::default()
        }
    }
}

/// Parses a text of the manifest with `${__dirname}` and `${user_config.KEY}` in it.
fn template(text: &str, fields: &BTreeMap<String, usize>) -> Result<Template, String> {
    let mut template = Template::new();
    let mut plain = String::new();
    let mut rest = text;
    if text.len() > 4096 {
        return Err("is longer than 4096 bytes".to_owned());
    }
    if text.chars().any(|c| super::document::is_odd(c, false)) {
        return Err("contains invisible characters".to_owned());
    }
    while let Some((before, after)) = rest.split_once("${") {
        plain.push_str(before);
        let (name, tail) = after
            .split_once('}')
            .ok_or("has `${` without a closing `}`")?;
        rest = tail;
        match (name, fields.get(name)) {
            ("__dirname", _) => plain.push_str(BUNDLE),
            ("/" | "pathSeparator", _) => plain.push('/'),
            (_, Some(field)) => {
                template.push(Part::Text(std::mem::take(&mut plain)));
                template.push(Part::Field(*field));
            }
            _ => return Err(format!("contains the unknown variable `${{{name}}}`")),
        }
    }
    plain.push_str(rest);
    template.push(Part::Text(plain));
    template.retain(|part| !matches!(part, Part::Text(text) if text.is_empty()));
    Ok(template)
}

fn read(folder: &Path) -> Result<Manifest, String> {
    let mut text = Vec::new();
    let opened = File::open(folder.join(MANIFEST));
    let read = opened.and_then(|file| file.take(MAX_MANIFEST_BYTES).read_to_end(&mut text));
    read.map_err(|error| format!("the {MANIFEST} of the bundle cannot be read: {error}"))?;
    mcp::json::validate(&text, 32)
        .map_err(|fault| format!("the {MANIFEST} of the bundle is invalid: {fault}"))?;
    serde_json::from_slice(&text)
        .map_err(|error| format!("the {MANIFEST} of the bundle is invalid: {error}"))
}
