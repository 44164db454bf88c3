//! Locations of configuration and state.
//!
//! Files named on the command line replace all others. Next come those in `$TOOLWHARF_CONFIG` (separated by `:`), then
//! `mcp.json` and `toolwharf.toml` in `$XDG_CONFIG_HOME/toolwharf` (`~/.config/toolwharf`). A file whose name ends in
//! `.toml` holds settings, any other holds servers. The working directory is not searched, because its files could
//! start commands just because the user is in a cloned repository.

use std::path::{Path, PathBuf};

use super::sealed::Sealed;

/// The files of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// Server files, in order. Each must exist, unless they are `optional`.
    pub servers: Vec<PathBuf>,
    pub settings: Option<PathBuf>,
    /// Missing files count as empty. True for the default locations.
    pub optional: bool,
    /// Values for `${NAME}` in the server files, if the environment does not set them.
    pub sealed: Sealed,
}

/// Why there is no location for configuration or state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("neither HOME nor XDG_CONFIG_HOME is set; name a file with --config")]
    NoConfigDir,
    #[error("neither HOME nor XDG_DATA_HOME is set; set `data_dir` in toolwharf.toml")]
    NoDataDir,
    #[error(
        "two .toml files are given, {} and {}; name only the one with the settings", .0.display(), .1.display()
    )]
    TwoSettings(PathBuf, PathBuf),
}

impl Sources {
    /// # Errors
    /// If no file is named and there is no home directory, or if two settings files are named.
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
            sealed: Sealed::default(),
        })
    }

    fn named(paths: Vec<PathBuf>) -> Result<Self, Error> {
        let is_toml = |path: &PathBuf| path.extension().is_some_and(|e| e == "toml");
        let (settings, servers): (Vec<_>, Vec<_>) = paths.into_iter().partition(is_toml);
        if let [one, two, ..] = settings.as_slice() {
            return Err(Error::TwoSettings(one.clone(), two.clone()));
        }
        Ok(Self {
            servers,
            settings: settings.into_iter().next(),
            optional: false,
            sealed: Sealed::default(),
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

/// The state directory: the setting, otherwise `$XDG_DATA_HOME/toolwharf`, otherwise `~/.local/share/toolwharf`.
///
/// # Errors
/// If there is neither a setting nor a home directory.
pub fn data_dir(
    settings: &model::Settings,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<PathBuf, Error> {
    match &settings.data_dir {
        Some(dir) => Ok(dir.clone()),
        None => base(env, "XDG_DATA_HOME", ".local/share").ok_or(Error::NoDataDir),
    }
}

/// The configuration directory if no file is named: `$XDG_CONFIG_HOME/toolwharf`, otherwise `~/.config/toolwharf`.
pub fn config_dir(env: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    base(env, "XDG_CONFIG_HOME", ".config")
}

/// Ignores relative values, as the XDG base directory specification requires.
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
        let two = Error::TwoSettings("a.toml".into(), "b.toml".into());
        assert_eq!(locate(&["a.toml", "b.toml"], &[]), Err(two));
    }

    #[test]
    fn without_named_files_the_environment_comes_before_the_home_folder() {
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
