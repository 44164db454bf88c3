//! Software bills of materials, in the format CycloneDX 1.5: what a binary and an image are made of.
//!
//! The crates come from `cargo metadata`, with the features of the release and for its target, the packages of the console
//! from its lock file, and Debian's packages from dpkg. Crates that only tests or build scripts use are left out.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{Arch, Release};
use crate::{shell::Cmd, workspace::FEATURES};

/// Writes the file for a binary, or for an image: with its name, and the packages of Debian in it. Returns its path.
pub(super) fn write(
    release: &Release,
    arch: Arch,
    image: Option<(&str, &[Value])>,
) -> Result<PathBuf> {
    let platform = format!("--filter-platform={}", arch.triple());
    let metadata = release
        .workspace
        .metadata(&["--locked", FEATURES, &platform])?;
    let mut components = crates(&metadata)?;
    let lock = release.workspace.root().join("web/package-lock.json");
    let lock = fs::read(&lock).with_context(|| format!("cannot read {}", lock.display()))?;
    components.extend(of_console(&serde_json::from_slice(&lock)?));
    let (kind, end) = match image {
        Some((kind, packages)) => {
            components.extend_from_slice(packages);
            ("container", format!("-image-{kind}"))
        }
        None => ("application", String::new()),
    };
    let time = Cmd::new("date").args(["--utc", "+%Y-%m-%dT%H:%M:%SZ"]);
    let time = time.arg(format!("--date=@{}", release.epoch)).output()?;
    let sbom = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": time.trim(),
            "component": {
                "type": kind,
                "bom-ref": "toolwharf",
                "name": "toolwharf",
                "version": release.version,
                "licenses": [{ "expression": "Apache-2.0" }],
            },
        },
        "components": components,
    });
    let name = format!(
        "toolwharf-{}-{}{end}.cdx.json",
        release.version,
        arch.name()
    );
    let file = release.out.join(name);
    super::write(&file, serde_json::to_string_pretty(&sbom)? + "\n", 0o644)?;
    Ok(file)
}

/// The crates that the binary is made of, sorted.
fn crates(metadata: &Value) -> Result<Vec<Value>> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let id = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let packages: BTreeMap<String, Value> = list(&metadata["packages"])
        .into_iter()
        .map(|package| (id(&package["id"]), package))
        .collect();
    let uses: BTreeMap<String, Vec<String>> = list(&metadata["resolve"]["nodes"])
        .iter()
        .map(|node| {
            let normal = list(&node["deps"]).into_iter().filter(|used| {
                // Neither `dev` nor `build`.
                list(&used["dep_kinds"])
                    .iter()
                    .any(|kind| kind["kind"].is_null())
            });
            (
                id(&node["id"]),
                normal.map(|used| id(&used["pkg"])).collect(),
            )
        })
        .collect();
    let first = packages
        .iter()
        .find(|(_, package)| package["name"] == "toolwharf");
    let (first, _) = first.context("cargo metadata lists no package `toolwharf`")?;
    let mut found = BTreeSet::new();
    let mut next = vec![first.clone()];
    while let Some(id) = next.pop() {
        if found.insert(id.clone()) {
            next.extend(uses.get(&id).into_iter().flatten().cloned());
        }
    }
    found.remove(first);
    let mut components: Vec<Value> = found
        .iter()
        .filter_map(|id| {
            let package = packages.get(id)?;
            let (name, version) = (package["name"].as_str()?, package["version"].as_str()?);
            let mut component = json!({
                "type": "library",
                "bom-ref": format!("cargo:{name}@{version}"),
                "name": name,
                "version": version,
            });
            if let Some(license) = package["license"].as_str() {
                // Old crates separate alternatives by a slash.
                let expression = license.replace(" / ", " OR ").replace('/', " OR ");
                component["licenses"] = json!([{ "expression": expression }]);
            }
            // Crates of this workspace are in no registry.
            if package["source"].is_string() {
                component["purl"] = json!(format!("pkg:cargo/{name}@{version}"));
            }
            Some(component)
        })
        .collect();
    components.sort_by_key(|component| component["bom-ref"].to_string());
    Ok(components)
}

/// The npm packages in the console, from its lock file.
fn of_console(lock: &Value) -> Vec<Value> {
    let packages = lock["packages"].as_object().into_iter().flatten();
    let shipped = packages.filter_map(|(path, package)| {
        let (_, name) = path.rsplit_once("node_modules/")?;
        let version = package["version"].as_str()?;
        let is_shipped = package["dev"] != true;
        is_shipped.then(|| {
            json!({
                "type": "library",
                "bom-ref": format!("npm:{path}@{version}"),
                "name": name,
                "version": version,
                "purl": format!("pkg:npm/{}@{version}", name.replace('@', "%40")),
            })
        })
    });
    shipped.collect()
}

/// The packages that are installed in a root file system, or those of them that are named.
pub(super) fn debian(root: &Path, named: Option<&[&str]>) -> Result<Vec<Value>> {
    let listed = Cmd::new("dpkg-query")
        .arg(format!(
            "--admindir={}",
            root.join("var/lib/dpkg").display()
        ))
        .args([
            "--show",
            "--showformat",
            "${Package} ${Version} ${Architecture}\\n",
        ])
        .output()?;
    let packages = listed.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let (name, version, arch) = (words.next()?, words.next()?, words.next()?);
        let is_wanted = named.is_none_or(|named| named.contains(&name));
        is_wanted.then(|| {
            json!({
                "type": "library",
                "bom-ref": format!("deb:{name}@{version}"),
                "name": name,
                "version": version,
                "purl": format!("pkg:deb/debian/{name}@{}?arch={arch}", version.replace('+', "%2B")),
            })
        })
    });
    Ok(packages.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_are_those_that_the_binary_uses() {
        let package = |name: &str, source: Option<&str>| json!({"id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0", "source": source});
        let uses = |name: &str, kind: Value| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let metadata = json!({
            "packages": [
                package("toolwharf", None), package("engine", None), package("used", Some("registry")),
                package("tests", Some("registry")), package("builds", Some("registry")),
            ],
            "resolve": {"nodes": [
                {"id": "toolwharf", "deps": [uses("engine", Value::Null), uses("tests", json!("dev"))]},
                {"id": "engine", "deps": [uses("used", Value::Null), uses("builds", json!("build"))]},
            ]},
        });
        let found = crates(&metadata).expect("crates");
        let names: Vec<&str> = found
            .iter()
            .filter_map(|one| one["name"].as_str())
            .collect();
        assert_eq!(names, ["engine", "used"]);
        assert_eq!(found[0].get("purl"), None);
        assert_eq!(found[1]["purl"], "pkg:cargo/used@1.0.0");
        assert_eq!(found[1]["licenses"][0]["expression"], "MIT OR Apache-2.0");
    }

    #[test]
    fn tools_of_the_console_are_not_in_it() {
        let lock = json!({"packages": {
            "": {"version": "0.0.0"},
            "node_modules/@scope/shown": {"version": "2.0.0"},
            "node_modules/builds": {"version": "3.0.0", "dev": true},
        }});
        let found = of_console(&lock);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0]["purl"], "pkg:npm/%40scope/shown@2.0.0");
    }
}
