//! The packages and images that an entry may name.

use super::{Kind, Plan};
use crate::document::{Package, is_version};

impl Plan {
    /// Checks the package's name, version and origin.
    pub(super) fn source(&mut self, at: &str, package: &Package) {
        let (hints, bases) = self.kind.usual();
        let (name, version) = (package.identifier.as_str(), self.version.clone());
        let is_one = match self.kind {
            Kind::Npm => is_npm(name),
            Kind::Pypi | Kind::Nuget => is_plain(name),
            Kind::Oci => is_image(name),
            Kind::Mcpb => name.starts_with("https://") || name.starts_with("http://"),
            Kind::Remote => true,
        };
        if !is_one {
            let shown: String = name.chars().take(100).collect();
            let why = format!("`{shown}` is not a valid `{}` package", self.kind.word());
            self.refuse(format!("{at}/identifier"), why);
        }
        if version
            .as_deref()
            .is_some_and(|version| !is_version(version))
            && self.kind != Kind::Oci
        {
            self.refuse(
                format!("{at}/version"),
                "must be a single version such as `1.0.2`, not a range",
            );
        }
        if let Some(hint) = package
            .runtime_hint
            .as_deref()
            .filter(|hint| !hint.is_empty() && !hints.contains(hint))
        {
            let why = format!(
                "`{hint}` does not run `{}` packages; use one of: {}",
                self.kind.word(),
                hints.join(", ")
            );
            self.refuse(format!("{at}/runtimeHint"), why);
        }
        let base = package
            .registry_base_url
            .as_deref()
            .map(|base| base.trim_end_matches('/'));
        if base.is_some_and(|base| !base.is_empty() && !bases.contains(&base)) {
            let why = format!(
                "`{}` packages are not downloaded from this URL; npm, uv and Docker use their configured registries",
                self.kind.word()
            );
            self.refuse(format!("{at}/registryBaseUrl"), why);
        }
        match (self.kind, &self.sha256) {
            (Kind::Mcpb, None) => self.refuse(format!("{at}/fileSha256"), "is missing: MCPB files are only installed with a hash"),
            (Kind::Mcpb, Some(sum)) if sum.len() == 64 && sum.bytes().all(|b| b.is_ascii_hexdigit() && !b.is_ascii_uppercase()) => {}
            (Kind::Mcpb, Some(_)) => self.refuse(format!("{at}/fileSha256"), "must be 64 hexadecimal digits in lower case"),
            (Kind::Nuget, _) => self.refuse(format!("{at}/registryType"), "NuGet packages are not supported: they need .NET, whose packages cannot be pinned by their hashes"),
            (Kind::Oci, _) => self.image(at, version.as_deref()),
            (_, Some(_)) => self.refuse(format!("{at}/fileSha256"), "is not supported for npm and PyPI packages: they are pinned by the hashes of their registries"),
            (_, None) => {}
        }
    }

    /// An image must have a tag or a digest. Older entries have it in `version`.
    fn image(&mut self, at: &str, version: Option<&str>) {
        let has_tag = self
            .target
            .rsplit('/')
            .next()
            .is_some_and(|last| last.contains([':', '@']));
        match (has_tag, version) {
            (false, Some(version)) if is_version(version) || is_plain(version) => {
                self.target = format!("{}:{version}", self.target);
            }
            (true, _) => {}
            (false, _) => self.refuse(
                format!("{at}/identifier"),
                "has no version: an image needs a tag or a digest",
            ),
        }
        if self.target.ends_with(":latest") {
            self.refuse(
                format!("{at}/identifier"),
                "`latest` is not a fixed version: the image needs another tag or a digest",
            );
        }
        if !self.target.contains("@sha256:") {
            self.notices.push(
                "the image has a tag, which its publisher can move: it is not pinned".to_owned(),
            );
        }
    }
}

fn is_plain(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    name.len() <= 214
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.bytes().all(plain)
        && !name.contains("..")
}

/// `name` or `@scope/name`, without version, path or URL.
fn is_npm(name: &str) -> bool {
    match name.strip_prefix('@') {
        Some(scoped) => scoped
            .split_once('/')
            .is_some_and(|(scope, name)| is_plain(scope) && is_plain(name)),
        // npm would treat these as files.
        None => {
            is_plain(name)
                && ![".tgz", ".tar.gz", ".tar"]
                    .iter()
                    .any(|end| name.ends_with(end))
        }
    }
}

/// `host/path/name:tag@sha256:…`, where each part passes `is_plain`.
fn is_image(name: &str) -> bool {
    let (name, digest) = name
        .split_once('@')
        .map_or((name, None), |(name, digest)| (name, Some(digest)));
    let is_digest = digest.is_none_or(|digest| {
        let sum = digest.strip_prefix("sha256:").unwrap_or_default();
        sum.len() == 64 && sum.bytes().all(|byte| byte.is_ascii_hexdigit())
    });
    let mut parts = name.split('/').peekable();
    let mut is_first = true;
    let mut is_fine = is_digest && name.len() <= 255;
    while let Some(part) = parts.next() {
        let is_last = parts.peek().is_none();
        // A registry's port, or a tag.
        let (part, more) = part
            .split_once(':')
            .map_or((part, None), |(part, more)| (part, Some(more)));
        let may_have_more = more.is_none_or(|more| is_plain(more) && (is_last || is_first));
        is_fine &= is_plain(part) && may_have_more;
        is_first = false;
    }
    is_fine
}
