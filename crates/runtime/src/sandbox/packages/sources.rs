//! The registries that npm and uv are configured for, and the files with that configuration.
//!
//! # Invariants
//!
//! - Configuration files are read here, as the user of this process, and an installation gets copies. The installation
//!   sees nothing else of a home directory.
//! - Only the hosts and ports of configured registries are reachable, plus the file hosts of public ones.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use hyper::Uri;
use model::{HostEnv, NoProxy, Proxy, url_for_display};
use serde_json::Value;
use toml::Table;

use crate::egress::Parents;

/// The folder for configuration files in the sandbox.
const FOLDER_INSIDE: &str = "/run/toolwharf";
/// Maximum size of a configuration file. Larger files are ignored.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Variables of this process that npm and uv get, because they affect how registries are reached. `PATH` and the like
/// are given to every process.
const PASSED_ON: [&str; 2] = ["NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE"];
const PASSED_ON_PREFIXES: [&str; 3] = ["npm_config_", "pip_", "uv_"];
/// npm settings that are not passed on, because they name host folders or are set by this module.
const NPM_DECIDED: [&str; 12] = [
    "cache",
    "git",
    "https_proxy",
    "logs_dir",
    "node_options",
    "noproxy",
    "no_proxy",
    "prefix",
    "proxy",
    "script_shell",
    "tmp",
    "userconfig",
];
/// uv settings that are not passed on. `UV_COMPILE_BYTECODE` would make uv run the Python of the package's environment.
const UV_DECIDED: [&str; 9] = [
    "UV_CACHE_DIR",
    "UV_COMPILE_BYTECODE",
    "UV_CONFIG_FILE",
    "UV_HTTP_PROXY",
    "UV_HTTPS_PROXY",
    "UV_LINK_MODE",
    "UV_NO_PROXY",
    "UV_PYTHON_BIN_DIR",
    "UV_PYTHON_INSTALL_DIR",
];
/// Variables of uv that name files, separated by blanks.
const UV_FILES: [&str; 5] = [
    "UV_BUILD_CONSTRAINT",
    "UV_CONSTRAINT",
    "UV_EXCLUDE",
    "UV_OVERRIDE",
    "PIP_CERT",
];
/// Public registries and their file hosts.
const FILE_HOSTS: [(&str, &str); 3] = [
    ("pypi.org", "files.pythonhosted.org"),
    ("test.pypi.org", "test-files.pythonhosted.org"),
    ("npm.pkg.github.com", "pkg-npm.githubusercontent.com"),
];
/// The hosts from which uv downloads Pythons, unless a mirror is configured.
const PYTHON_HOSTS: [&str; 6] = [
    "releases.astral.sh",
    "github.com",
    "objects.githubusercontent.com",
    "release-assets.githubusercontent.com",
    "raw.githubusercontent.com",
    "downloads.python.org",
];
/// The registry URL in lock files, which npm replaces with the configured registry.
const NPM_DEFAULT: &str = "https://registry.npmjs.org/";

/// The variables of this process.
pub(super) type Environment = BTreeMap<String, String>;

/// The prefix of the URLs of all packages of a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    scheme: String,
    host: String,
    port: u16,
    /// Ends with `/`.
    path: String,
}

/// Everything that an installation needs from this host to reach its registries.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Sources {
    pub(super) env: BTreeMap<String, String>,
    /// Path in the sandbox → content.
    pub(super) files: BTreeMap<PathBuf, Vec<u8>>,
    /// Host paths that are visible in the sandbox, read-only and at the same path.
    pub(super) shown: Vec<PathBuf>,
    /// Folders in uv's `find-links`.
    pub(super) links: Vec<PathBuf>,
    pub(super) registries: Vec<Place>,
    /// Download sources for Python interpreters.
    pub(super) pythons: Vec<Place>,
    pub(super) parents: Parents,
}

/// The variables of this process, and those that the settings give to all servers.
pub(super) fn environment(host_env: &HostEnv) -> Environment {
    let text = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    let mut all: Environment = std::env::vars_os().filter_map(text).collect();
    let chosen = host_env.chosen();
    all.extend(chosen.map(|(name, value)| (name.clone(), value.clone())));
    all
}

impl Place {
    pub(super) fn parse(url: &str) -> Option<Self> {
        let url: Uri = url.trim().parse().ok()?;
        let scheme = url.scheme_str()?.to_ascii_lowercase();
        let default = match scheme.as_str() {
            "http" => 80,
            "https" => 443,
            _ => return None,
        };
        let host = url.host()?.trim_matches(['[', ']']).to_ascii_lowercase();
        let path = url.path().trim_end_matches('/');
        Some(Self {
            scheme,
            host,
            port: url.port_u16().unwrap_or(default),
            path: format!("{path}/"),
        })
    }

    /// Returns whether a URL belongs to this registry.
    pub(super) fn holds(&self, url: &str) -> bool {
        let plain = |path: &str| {
            let path = path
                .to_ascii_lowercase()
                .replace("%2e", ".")
                .replace("%2f", "/");
            !path.contains('\\') && !path.split('/').any(|part| part == "." || part == "..")
        };
        Self::parse(url).is_some_and(|other| {
            (&self.scheme, &self.host, self.port) == (&other.scheme, &other.host, other.port)
                && other.path.starts_with(&self.path)
                && plain(&other.path)
        })
    }

    /// The registry's host and port, and those of its file host.
    fn addresses(&self) -> Vec<(String, u16)> {
        let mut all = vec![(self.host.clone(), self.port)];
        let files = FILE_HOSTS.iter().filter(|(host, _)| *host == self.host);
        all.extend(files.map(|(_, files)| ((*files).to_owned(), 443)));
        all
    }
}

/// The hosts and ports of some registries.
pub(super) fn addresses<'a>(
    places: impl IntoIterator<Item = &'a Place>,
) -> BTreeSet<(String, u16)> {
    places.into_iter().flat_map(Place::addresses).collect()
}

impl Sources {
    /// The sources for both npm and uv. `home` is their home directory on the stage.
    fn common(host: &Environment, home: &Path) -> Self {
        let mut sources = Self::default();
        for (name, value) in host {
            let lower = name.to_ascii_lowercase();
            let npm = lower
                .strip_prefix("npm_config_")
                .map(|key| key.replace('-', "_"));
            let decided = npm.is_some_and(|key| NPM_DECIDED.contains(&key.as_str()))
                || UV_DECIDED.contains(&name.as_str());
            if !decided
                && (PASSED_ON.contains(&name.as_str())
                    || PASSED_ON_PREFIXES
                        .iter()
                        .any(|prefix| lower.starts_with(prefix)))
            {
                sources.env.insert(name.clone(), value.clone());
            }
        }
        for name in PASSED_ON {
            if let Some(path) = host.get(name) {
                sources.copy(Path::new(path), Path::new(path));
            }
        }
        if let Some(folders) = host.get("SSL_CERT_DIR") {
            sources
                .env
                .insert("SSL_CERT_DIR".to_owned(), folders.clone());
            sources.shown.extend(std::env::split_paths(folders));
        }
        let text = |path: PathBuf| path.display().to_string();
        sources.env.extend([
            ("HOME".to_owned(), text(home.to_owned())),
            ("TMPDIR".to_owned(), text(home.join("tmp"))),
            // Files linked from a cache would share the permissions set here.
            ("UV_LINK_MODE".to_owned(), "copy".to_owned()),
            ("UV_CACHE_DIR".to_owned(), text(home.join(".cache/uv"))),
            ("npm_config_cache".to_owned(), text(home.join(".npm"))),
            (
                "npm_config_logs_dir".to_owned(),
                text(home.join(".npm/_logs")),
            ),
        ]);
        sources
    }

    /// Copies a host file, if it exists, and returns its content.
    pub(super) fn copy(&mut self, from: &Path, inside: &Path) -> Option<String> {
        let about = from.metadata().ok()?;
        if !from.is_absolute() || !about.is_file() || about.len() > MAX_FILE_BYTES {
            return None;
        }
        let content = fs::read(from).ok()?;
        let text = String::from_utf8_lossy(&content).into_owned();
        self.files.insert(inside.to_owned(), content);
        Some(text)
    }

    /// The sources that npm needs to find its own settings.
    pub(super) fn npm(host: &Environment, home: &Path) -> Self {
        let mut sources = Self::common(host, home);
        let named = host
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case("npm_config_userconfig"));
        let own = host.get("HOME").map(|home| Path::new(home).join(".npmrc"));
        let inside = Path::new(FOLDER_INSIDE).join("npmrc");
        if let Some(file) = named.map(|(_, value)| value.into()).or(own) {
            sources.copy(&file, &inside);
        }
        let inside = inside.display().to_string();
        sources
            .env
            .insert("npm_config_userconfig".to_owned(), inside);
        sources
    }

    /// Adds the registries in npm's own settings, as printed by `npm config list --json`.
    ///
    /// # Errors
    /// A setting cannot be used.
    pub(super) fn add_npm(&mut self, host: &Environment, config: &Value) -> Result<(), String> {
        let settings = config.as_object().ok_or("npm printed no settings object")?;
        for (key, value) in settings {
            let Some(value) = value.as_str() else {
                continue;
            };
            if key == "registry" || key.starts_with('@') && key.ends_with(":registry") {
                let place = Place::parse(value).ok_or_else(|| {
                    let value = url_for_display(value);
                    format!("npm setting `{key}` must be an `http` or `https` URL, not `{value}`")
                })?;
                self.registries.push(place);
            }
            let is_file = key == "cafile"
                || key == "globalconfig"
                || [":cafile", ":certfile", ":keyfile"]
                    .iter()
                    .any(|end| key.ends_with(end));
            if is_file {
                self.copy(Path::new(value), Path::new(value));
            }
        }
        // npm does not get the proxy variables, because it cannot reach these proxies from inside.
        let text = |key: &str| {
            let configured = settings.get(key).and_then(Value::as_str);
            npm_variable(host, key).or(configured)
        };
        let (http, https) = (text("proxy"), text("https-proxy"));
        let except = match settings.get("noproxy") {
            Some(Value::Array(all)) => all
                .iter()
                .filter_map(Value::as_str)
                .collect::<Vec<_>>()
                .join(","),
            Some(Value::String(all)) => all.clone(),
            _ => String::new(),
        };
        let except = npm_variable(host, "noproxy").unwrap_or(&except);
        self.parents = parents(host, http, https.or(http), except)?;
        // npm's lock files contain URLs of the public registry, even if npm is configured for another one.
        self.registries.extend(Place::parse(NPM_DEFAULT));
        Ok(())
    }

    /// The addresses that npm may connect to. URLs of the public registry lead to the configured one.
    pub(super) fn npm_addresses(&self) -> BTreeSet<(String, u16)> {
        let configured = self.registries.len().saturating_sub(1);
        addresses(&self.registries[..configured])
    }

    /// The sources that uv needs. `pythons`: the folder for interpreters that it downloads.
    ///
    /// # Errors
    /// A setting cannot be used.
    pub(super) fn uv(host: &Environment, home: &Path, pythons: &Path) -> Result<Self, String> {
        let mut sources = Self::common(host, home);
        let of_home = |file: &str| host.get("HOME").map(|home| Path::new(home).join(file));
        let netrc = host.get("NETRC").map(PathBuf::from).or(of_home(".netrc"));
        let inside = Path::new(FOLDER_INSIDE).join("netrc");
        if netrc.is_some_and(|netrc| sources.copy(&netrc, &inside).is_some()) {
            sources
                .env
                .insert("NETRC".to_owned(), inside.display().to_string());
        }
        let mut configured = Vec::new();
        let config = Path::new(FOLDER_INSIDE).join("config");
        sources
            .env
            .insert("XDG_CONFIG_HOME".to_owned(), config.display().to_string());
        if let Some(file) = host.get("UV_CONFIG_FILE") {
            let inside = Path::new(FOLDER_INSIDE).join("uv.toml");
            configured.extend(sources.uv_settings(Path::new(file), &inside)?);
            sources
                .env
                .insert("UV_CONFIG_FILE".to_owned(), inside.display().to_string());
        } else {
            let folder = host
                .get("XDG_CONFIG_HOME")
                .map(PathBuf::from)
                .or(of_home(".config"));
            if let Some(folder) = folder {
                let file = folder.join("uv/uv.toml");
                configured.extend(sources.uv_settings(&file, &config.join("uv/uv.toml"))?);
            }
            let system = Path::new("/etc/uv/uv.toml");
            configured.extend(sources.uv_settings(system, system)?);
        }
        for file in UV_FILES.iter().filter_map(|name| host.get(*name)) {
            for file in file.split_whitespace() {
                sources.copy(Path::new(file), Path::new(file));
            }
        }
        let folder = host
            .get("UV_PYTHON_INSTALL_DIR")
            .map_or(pythons, |theirs| Path::new(theirs));
        sources.shown.push(folder.to_owned());
        let folder = folder.display().to_string();
        sources
            .env
            .insert("UV_PYTHON_INSTALL_DIR".to_owned(), folder);
        sources.indexes(host, &configured)?;
        let setting = |name: &str| {
            configured
                .iter()
                .find_map(|table| table.get(name)?.as_str())
        };
        let (http, https) = (setting("http-proxy"), setting("https-proxy"));
        let except = configured.iter().find_map(|table| table.get("no-proxy"));
        let except = except.map(texts).unwrap_or_default().join(",");
        sources.parents = parents(host, http, https, &except)?;
        Ok(sources)
    }

    /// Copies a configuration file of uv, without its proxies, which cannot be reached from inside.
    fn uv_settings(&mut self, file: &Path, inside: &Path) -> Result<Option<Table>, String> {
        let Some(text) = self.copy(file, inside) else {
            return Ok(None);
        };
        // The parser's own message would contain the line, which may include a secret.
        let table: Table = toml::from_str(&text)
            .map_err(|_| format!("the uv settings `{}` are not valid TOML", file.display()))?;
        let mut kept = table.clone();
        for name in [
            "http-proxy",
            "https-proxy",
            "no-proxy",
            "cache-dir",
            "link-mode",
            "compile-bytecode",
        ] {
            kept.remove(name);
        }
        let kept = toml::to_string(&kept)
            .map_err(|_| format!("the uv settings `{}` cannot be copied", file.display()))?;
        self.files.insert(inside.to_owned(), kept.into_bytes());
        Ok(Some(table))
    }

    /// Adds uv's indexes and its download sources for Python interpreters.
    fn indexes(&mut self, host: &Environment, configured: &[Table]) -> Result<(), String> {
        let variable = |name: &str| host.get(name).map_or("", String::as_str);
        let (mut urls, mut has_default) = (Vec::new(), false);
        for name in ["UV_DEFAULT_INDEX", "UV_INDEX_URL"] {
            has_default |= !variable(name).is_empty();
            urls.extend(variable(name).split_whitespace().map(str::to_owned));
        }
        for name in ["UV_INDEX", "UV_EXTRA_INDEX_URL"] {
            urls.extend(variable(name).split_whitespace().map(str::to_owned));
        }
        urls.extend(variable("UV_FIND_LINKS").split(',').map(str::to_owned));
        for table in configured {
            let pip = table.get("pip").and_then(toml::Value::as_table);
            for table in [Some(table), pip].into_iter().flatten() {
                has_default |= table.contains_key("index-url");
                for key in ["index-url", "extra-index-url", "find-links"] {
                    urls.extend(table.get(key).map(texts).unwrap_or_default());
                }
                let indexes = table.get("index").and_then(toml::Value::as_array);
                for index in indexes.into_iter().flatten() {
                    has_default |=
                        index.get("default").and_then(toml::Value::as_bool) == Some(true);
                    urls.extend(
                        index
                            .get("url")
                            .and_then(toml::Value::as_str)
                            .map(str::to_owned),
                    );
                }
            }
        }
        if !has_default {
            urls.push("https://pypi.org/simple".to_owned());
        }
        for url in urls
            .iter()
            .map(|url| url.trim())
            .filter(|url| !url.is_empty())
        {
            // An entry of `UV_INDEX` may start with a name.
            let bare = match url.split_once('=') {
                Some((name, rest)) if !name.contains([':', '/']) => rest,
                _ => url,
            };
            match Place::parse(bare) {
                Some(place) => self.registries.push(place),
                None => {
                    let path = Path::new(bare.strip_prefix("file://").unwrap_or(bare));
                    if !path.is_absolute() {
                        let shown = url_for_display(bare);
                        return Err(format!(
                            "`{shown}` in the settings of uv is neither a URL of an index nor an absolute path"
                        ));
                    }
                    self.links.push(path.to_owned());
                }
            }
        }
        let mut mirrors = Vec::new();
        for (name, key) in [
            ("UV_PYTHON_INSTALL_MIRROR", "python-install-mirror"),
            ("UV_PYPY_INSTALL_MIRROR", "pypy-install-mirror"),
            ("UV_PYTHON_DOWNLOADS_JSON_URL", "python-downloads-json-url"),
            ("UV_ASTRAL_MIRROR_URL", "astral-mirror-url"),
        ] {
            mirrors.extend(host.get(name).map(String::as_str));
            mirrors.extend(
                configured
                    .iter()
                    .filter_map(|table| table.get(key)?.as_str()),
            );
        }
        let local = mirrors
            .iter()
            .filter_map(|mirror| mirror.strip_prefix("file://"));
        self.shown.extend(local.map(PathBuf::from));
        self.pythons = match mirrors.is_empty() {
            true => PYTHON_HOSTS
                .iter()
                .filter_map(|host| Place::parse(&format!("https://{host}/")))
                .collect(),
            false => mirrors
                .iter()
                .filter_map(|mirror| Place::parse(mirror))
                .collect(),
        };
        Ok(())
    }
}

/// Returns an npm setting from an environment variable.
fn npm_variable<'a>(host: &'a Environment, key: &str) -> Option<&'a str> {
    let wanted = format!("npm_config_{}", key.replace('-', "_"));
    let mut named = host
        .iter()
        .filter(|(name, _)| name.replace('-', "_").eq_ignore_ascii_case(&wanted));
    named
        .next()
        .map(|(_, value)| value.as_str())
        .filter(|value| !value.is_empty())
}

/// Returns a text, or each text of a list.
fn texts(value: &toml::Value) -> Vec<String> {
    match value {
        toml::Value::String(text) => vec![text.clone()],
        toml::Value::Array(all) => all.iter().flat_map(texts).collect(),
        _ => Vec::new(),
    }
}

/// The proxies in the settings, otherwise those in the environment.
fn parents(
    host: &Environment,
    http: Option<&str>,
    https: Option<&str>,
    except: &str,
) -> Result<Parents, String> {
    let variable = |names: [&str; 2]| {
        let found = names.iter().filter_map(|name| host.get(*name));
        found.map(String::as_str).find(|value| !value.is_empty())
    };
    let all = variable(["all_proxy", "ALL_PROXY"]);
    let http = http.or(variable(["http_proxy", "HTTP_PROXY"])).or(all);
    let https = https.or(variable(["https_proxy", "HTTPS_PROXY"])).or(all);
    let none = variable(["no_proxy", "NO_PROXY"]).unwrap_or_default();
    Ok(Parents {
        http: http.map(Proxy::parse).transpose()?,
        https: https.map(Proxy::parse).transpose()?,
        except: NoProxy::parse(&format!("{except},{none}")),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn variables(variables: &[(&str, &str)]) -> Environment {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        variables.iter().map(own).collect()
    }

    fn texts(addresses: BTreeSet<(String, u16)>) -> Vec<String> {
        let all = addresses.into_iter();
        all.map(|(host, port)| format!("{host}:{port}")).collect()
    }

    fn addresses_of(places: &[Place]) -> Vec<String> {
        texts(addresses(places))
    }

    #[test]
    fn u03_npm_and_uv_get_what_leads_to_registries_and_nothing_else() {
        let host = variables(&[
            ("AWS_SECRET_ACCESS_KEY", "s"),
            ("HOME", "/nowhere"),
            ("NO_PROXY", "x"),
            ("NPM_CONFIG_CACHE", "/cache"),
            ("NPM_CONFIG_REGISTRY", "http://r"),
            ("TOOLWHARF_DATABASE_URL", "s"),
            ("UV_COMPILE_BYTECODE", "1"),
            ("UV_INDEX", "http://i"),
            ("UV_LINK_MODE", "symlink"),
            ("https_proxy", "http://p"),
            ("npm_config_https-proxy", "http://p"),
            ("npm_config_strict_ssl", "true"),
        ]);
        let own = [
            ("HOME", "/stage"),
            ("NPM_CONFIG_REGISTRY", "http://r"),
            ("TMPDIR", "/stage/tmp"),
            ("UV_CACHE_DIR", "/stage/.cache/uv"),
            ("UV_INDEX", "http://i"),
            ("UV_LINK_MODE", "copy"),
            ("npm_config_cache", "/stage/.npm"),
            ("npm_config_logs_dir", "/stage/.npm/_logs"),
            ("npm_config_strict_ssl", "true"),
        ];
        let npm = Sources::npm(&host, Path::new("/stage"));
        let mut expected = variables(&own);
        expected.insert(
            "npm_config_userconfig".into(),
            "/run/toolwharf/npmrc".into(),
        );
        assert_eq!((npm.env, npm.files), (expected, BTreeMap::new()));
        let uv = Sources::uv(&host, Path::new("/stage"), Path::new("/pythons")).unwrap();
        let mut expected = variables(&own);
        expected.insert("UV_PYTHON_INSTALL_DIR".into(), "/pythons".into());
        expected.insert("XDG_CONFIG_HOME".into(), "/run/toolwharf/config".into());
        assert_eq!(uv.env, expected);
        assert_eq!(
            addresses_of(&uv.registries),
            ["files.pythonhosted.org:443", "i:80", "pypi.org:443"]
        );
        assert!(
            format!("{:?}", uv.parents).contains("https: Some(Proxy(p:80))"),
            "{:?}",
            uv.parents
        );
    }

    #[test]
    fn u03_npm_reaches_its_registries_and_those_of_scopes() {
        let home = tempfile::tempdir().unwrap();
        let home = home.path().to_str().unwrap();
        fs::write(format!("{home}/.npmrc"), "secret").unwrap();
        fs::write(format!("{home}/ca"), "ca").unwrap();
        let host = variables(&[("HOME", home), ("HTTP_PROXY", "http://env:1")]);
        let mut npm = Sources::npm(&host, Path::new("/stage"));
        let config = json!({
            "registry": "https://Registry.example/npm/", "@a:registry": "http://10.0.0.1:4873", "access": null,
            "@b:registry": "https://npm.pkg.github.com/", "cafile": format!("{home}/ca"), "https-proxy": "http://npm:2", "noproxy": ["x"],
        });
        npm.add_npm(&host, &config).unwrap();
        let expected = [
            "10.0.0.1:4873",
            "npm.pkg.github.com:443",
            "pkg-npm.githubusercontent.com:443",
            "registry.example:443",
        ];
        assert_eq!(texts(npm.npm_addresses()), expected);
        let parents = format!("{:?}", npm.parents);
        assert!(
            parents.contains("env:1") && parents.contains("npm:2"),
            "{parents}"
        );
        let inside: Vec<_> = npm
            .files
            .keys()
            .map(|path| path.display().to_string())
            .collect();
        assert_eq!(
            inside,
            ["/run/toolwharf/npmrc".to_owned(), format!("{home}/ca")].map(|path| path)
        );
        let held = |url: &str| npm.registries.iter().any(|place| place.holds(url));
        assert!(
            held("https://registry.example/npm/a/-/a-1.tgz")
                && !held("https://registry.example/a.tgz")
        );
        let error = npm
            .add_npm(&host, &json!({"registry": "ftp://me:hunter2@r"}))
            .unwrap_err();
        assert!(error.contains("`ftp://r`"), "{error}");
    }

    #[test]
    fn u03_uv_reaches_the_indexes_of_its_variables_and_files() {
        let home = tempfile::tempdir().unwrap();
        let home = home.path().to_str().unwrap();
        fs::create_dir_all(format!("{home}/.config/uv")).unwrap();
        let settings = "https-proxy = 'http://me:hunter2@toml:3'\nextra-index-url = ['https://extra/simple']\n\
            python-install-mirror = 'https://mirror/x'\n[[index]]\nurl = 'https://first/simple'\ndefault = true\n\
            [pip]\nfind-links = ['https://links/x', '/wheels']\n";
        fs::write(format!("{home}/.config/uv/uv.toml"), settings).unwrap();
        fs::write(format!("{home}/.netrc"), "secret").unwrap();
        let host = variables(&[
            ("HOME", home),
            ("UV_INDEX", "named=https://me:pass@second:8/simple"),
        ]);
        let uv = Sources::uv(&host, Path::new("/stage"), Path::new("/pythons")).unwrap();
        let expected = ["extra:443", "first:443", "links:443", "second:8"];
        assert_eq!(addresses_of(&uv.registries), expected);
        assert_eq!(addresses_of(&uv.pythons), ["mirror:443"]);
        assert_eq!(uv.links, [PathBuf::from("/wheels")]);
        assert!(
            format!("{:?}", uv.parents).contains("toml:3"),
            "{:?}",
            uv.parents
        );
        let copied = &uv.files[Path::new("/run/toolwharf/config/uv/uv.toml")];
        let copied = String::from_utf8(copied.clone()).unwrap();
        assert!(
            copied.contains("first") && !copied.contains("hunter2"),
            "{copied}"
        );
        assert_eq!(uv.files[Path::new("/run/toolwharf/netrc")], b"secret");
        fs::write(format!("{home}/.config/uv/uv.toml"), "hunter2").unwrap();
        let error = Sources::uv(&host, Path::new("/stage"), Path::new("/pythons")).unwrap_err();
        assert!(
            error.contains("uv.toml") && !error.contains("hunter2"),
            "{error}"
        );
    }
}
