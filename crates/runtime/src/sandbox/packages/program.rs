//! Finds the file of an installed package to run.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::request::{Registry, Request, is_file_name};

/// Limit for program names in an error message.
const MAX_SHOWN: usize = 20;

/// Returns the program that `request` names, or the default program of its package.
///
/// # Errors
/// Not found. The text lists the programs of the package.
pub(super) fn find(request: &Request, folder: &Path) -> Result<PathBuf, String> {
    let (bins, names) = match request.registry {
        Registry::Npm => ("node_modules/.bin", npm_names(folder, &request.package)),
        Registry::Pypi => ("venv/bin", python_names(folder)),
    };
    let name = match (&request.program, names.len()) {
        (Some(program), _) => Some(program.as_str()),
        (None, 1) if request.registry == Registry::Npm => names.first().map(String::as_str),
        (None, _) => {
            // Without its scope.
            let name = request.package.rsplit('/').next().unwrap_or_default();
            names.get(name).map(String::as_str)
        }
    };
    let found = name.map(|name| folder.join(bins).join(name));
    found
        .filter(|path| path.exists())
        .ok_or_else(|| no_program(request, &names))
}

fn no_program(request: &Request, names: &BTreeSet<String>) -> String {
    let package = &request.package;
    let wanted = match &request.program {
        Some(program) => format!("program `{}`", program.escape_debug()),
        None => "program with the same name".to_owned(),
    };
    if names.is_empty() {
        return format!(
            "`{package}` contains no program, so not the {wanted} either; it may be a library: check the package's name in `args`"
        );
    }
    let shown: Vec<_> = names
        .iter()
        .take(MAX_SHOWN)
        .map(|name| name.escape_debug().to_string())
        .collect();
    let option = match request.registry {
        Registry::Npm => "npx --package",
        Registry::Pypi => "uvx --from",
    };
    let shown = shown.join(", ");
    format!("`{package}` has no {wanted}; name one of: {shown}, as in `{option} {package} NAME`")
}

/// The programs of one package, from its manifest.
fn npm_names(folder: &Path, package: &str) -> BTreeSet<String> {
    let manifest = folder
        .join("node_modules")
        .join(package)
        .join("package.json");
    let manifest = fs::read(manifest).unwrap_or_default();
    let manifest: Value = serde_json::from_slice(&manifest).unwrap_or_default();
    let names: BTreeSet<String> = match &manifest["bin"] {
        Value::String(_) => package
            .rsplit('/')
            .next()
            .map(str::to_owned)
            .into_iter()
            .collect(),
        Value::Object(bins) => bins.keys().cloned().collect(),
        _ => BTreeSet::new(),
    };
    names
        .into_iter()
        .filter(|name| is_file_name(name))
        .collect()
}

/// The programs of all packages in a virtual environment, without the environment's own programs.
fn python_names(folder: &Path) -> BTreeSet<String> {
    let own = ["activate", "deactivate", "python", "pydoc", "pip"];
    let entries = fs::read_dir(folder.join("venv/bin"))
        .into_iter()
        .flatten()
        .flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| is_file_name(name) && !own.iter().any(|own| name.starts_with(own)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(line: &str) -> Request {
        let mut words = line.split(' ').map(str::to_owned);
        let command = words.next().unwrap();
        let args: Vec<_> = words.collect();
        Request::parse(&command, &args).unwrap().unwrap()
    }

    fn put(folder: &Path, file: &str, text: &str) {
        let file = folder.join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    #[test]
    fn u03_a_package_of_npm_is_run_by_its_only_program_or_the_one_of_its_name() {
        let two = r#"{"a":"a.js","b":"b.js"}"#;
        let which = "name one of: a, b, as in `npx --package @s/one NAME`";
        let no_c = "`@s/one` has no program `c`; name one of: a";
        let library = "it may be a library";
        for (bin, line, expected) in [
            (r#""a.js""#, "npx @s/one", Ok("one")),
            (r#"{"a":"a.js"}"#, "npx @s/one", Ok("a")),
            (r#"{"a":"a.js","one":"b.js"}"#, "npx @s/one", Ok("one")),
            (two, "npx @s/one", Err(which)),
            (two, "npx -p @s/one b", Ok("b")),
            (r#"{"a":"a.js"}"#, "npx -p @s/one c", Err(no_c)),
            (r#"{"../a":"a.js"}"#, "npx @s/one", Err(library)),
            ("null", "npx @s/one", Err(library)),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let folder = folder.path();
            let manifest = format!(r#"{{"bin":{bin}}}"#);
            put(folder, "node_modules/@s/one/package.json", &manifest);
            for name in ["a", "b", "one"] {
                put(folder, &format!("node_modules/.bin/{name}"), "");
            }
            check(folder, "node_modules/.bin", line, expected);
        }
    }

    #[test]
    fn u03_a_package_of_pypi_is_run_by_the_program_of_its_name() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["python3", "activate.fish", "one", "other"] {
            put(folder.path(), &format!("venv/bin/{name}"), "");
        }
        for (line, expected) in [
            ("uvx one", Ok("one")),
            ("uvx one[x]@1", Ok("one")),
            ("uvx --from two other", Ok("other")),
            (
                "uvx two",
                Err(
                    "`two` has no program with the same name; name one of: one, other, as in `uvx --from two NAME`",
                ),
            ),
        ] {
            check(folder.path(), "venv/bin", line, expected);
        }
    }

    fn check(folder: &Path, bins: &str, line: &str, expected: Result<&str, &str>) {
        match (find(&request(line), folder), expected) {
            (Ok(path), Ok(name)) => assert_eq!(path, folder.join(bins).join(name), "{line}"),
            (Err(why), Err(part)) => assert!(why.contains(part), "{line}: {why}"),
            (found, _) => panic!("{line}: {found:?}"),
        }
    }
}
