//! Where configuration and state are.
//!
//! Files named on the command line replace all others; then those of `$TOOLWHARF_CONFIG`
//! (several are divided by `:`); then `mcp.json` and `toolwharf.toml` in
//! `$XDG_CONFIG_HOME/toolwharf` (`~/.config/toolwharf`). A file ending in `.toml` holds
//! settings, any other holds servers. The working directory is not looked into: what it
//! holds would start commands merely because somebody stands in a checked-out folder.

use std::path::{Path, PathBuf};

/// The files that make up a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// Server files, in order. Each has to exist, unless it is `optional`.
    pub servers: Vec<PathBuf>,
    pub settings: Option<PathBuf>,
    /// Whether missing files count as empty: the default places may well hold nothing yet.
    pub optional: bool,
}

/// Why there is no place for configuration or state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("neither HOME nor XDG_CONFIG_HOME is set; name a file with --config")]
    NoConfigDir,
    #[error("neither HOME nor XDG_DATA_HOME is set; write `data_dir` into toolwharf.toml")]
    NoDataDir,
    #[error("several .toml files are named; settings come from one")]
    TwoSettings,
}

impl Sources {
    /// # Errors
    /// When nothing is named and there is no home, or two settings files are named.
    pub fn locate(named: &[PathBuf], env: &dyn Fn(&str) -> Option<String>) -> Result<Self, Error> {
        if !named.is_empty() {
            return Self::named(named.to_vec());
        }
        if let Some(list) = env("TOOLWHARF_CONFIG").filter(|list| !list.is_empty()) {
            let paths = list.split(':').filter(|path| !path.is_empty());
            return Self::named(paths.map(PathBuf::from).collect());
        }
        let folder = base(env, "XDG_CONFIG_HOME", ".config").ok_or(Error::NoConfigDir)?;
        Ok(Self {
            servers: vec![folder.join("mcp.json")],
            settings: Some(folder.join("toolwharf.toml")),
            optional: true,
        })
    }

    fn named(paths: Vec<PathBuf>) -> Result<Self, Error> {
        let is_toml = |path: &PathBuf| path.extension().is_some_and(|e| e == "toml");
        let (settings, servers): (Vec<_>, Vec<_>) = paths.into_iter().partition(is_toml);
        if settings.len() > 1 {
            return Err(Error::TwoSettings);
        }
        Ok(Self {
            servers,
            settings: settings.into_iter().next(),
            optional: false,
        })
    }

    /// All files, for watching.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.servers
            .iter()
            .chain(&self.settings)
            .map(PathBuf::as_path)
    }
}

/// Where state is kept: the setting, else `$XDG_DATA_HOME/toolwharf`, else
/// `~/.local/share/toolwharf`.
///
/// # Errors
/// When there is no setting and no home.
pub fn data_dir(
    settings: &model::Settings,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<PathBuf, Error> {
    match &settings.data_dir {
        Some(dir) => Ok(dir.clone()),
        None => base(env, "XDG_DATA_HOME", ".local/share").ok_or(Error::NoDataDir),
    }
}

/// The configuration directory where no file is named: `$XDG_CONFIG_HOME/toolwharf`, else `~/.config/toolwharf`.
pub fn config_dir(env: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    base(env, "XDG_CONFIG_HOME", ".config")
}

/// The XDG base directory specification has relative values ignored.
fn base(env: &dyn Fn(&str) -> Option<String>, xdg: &str, below_home: &str) -> Option<PathBuf> {
    let absolute = |name| {
        env(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let folder = absolute(xdg).or_else(|| Some(absolute("HOME")?.join(below_home)))?;
    Some(folder.join("toolwharf"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locate(named: &[&str], env: &[(&str, &str)]) -> Result<Sources, Error> {
        let named: Vec<_> = named.iter().map(PathBuf::from).collect();
        let lookup = |name: &str| {
            let found = env.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Sources::locate(&named, &lookup)
    }

    fn files(sources: &Sources) -> Vec<&str> {
        sources.files().filter_map(Path::to_str).collect()
    }

    #[test]
    fn named_files_replace_the_rest() {
        let env = [("TOOLWHARF_CONFIG", "/x.json"), ("HOME", "/h")];
        let sources = locate(&["a.json", "s.toml", "b.jsonc"], &env).unwrap();
        assert_eq!(files(&sources), ["a.json", "b.jsonc", "s.toml"]);
        assert!(!sources.optional);
        assert_eq!(locate(&["a.toml", "b.toml"], &[]), Err(Error::TwoSettings));
    }

    #[test]
    fn then_the_environment_then_the_home() {
        let env = [("TOOLWHARF_CONFIG", "/x.json:/y.json"), ("HOME", "/h")];
        assert_eq!(files(&locate(&[], &env).unwrap()), ["/x.json", "/y.json"]);
        let home = locate(&[], &[("HOME", "/h"), ("XDG_CONFIG_HOME", "relative")]).unwrap();
        assert_eq!(
            files(&home),
            [
                "/h/.config/toolwharf/mcp.json",
                "/h/.config/toolwharf/toolwharf.toml"
            ]
        );
        assert!(home.optional);
        assert_eq!(locate(&[], &[]), Err(Error::NoConfigDir));
    }

    #[test]
    fn data_dirs() {
        let mut settings = model::Settings::default();
        let home = |name: &str| (name == "HOME").then(|| "/h".to_owned());
        assert_eq!(
            data_dir(&settings, &home).unwrap(),
            Path::new("/h/.local/share/toolwharf")
        );
        settings.data_dir = Some("/d".into());
        assert_eq!(data_dir(&settings, &home).unwrap(), Path::new("/d"));
    }
}
