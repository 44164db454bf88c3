//! `cargo xtask graph`, third part: within a crate, modules use each other in one direction only.
//!
//! A module is what stands directly under the root of its crate, with all that is in it. What code under `#[cfg(test)]`
//! uses does not count, and a name that the root exports again belongs to the module that has it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result, bail};
use syn::{Attribute, Item, Meta, UseTree, visit::Visit};

use crate::{lengths::rust_files, workspace::Workspace};

/// The crates that are checked.
const CRATES: [&str; 7] = [
    "model",
    "mcp",
    "oauth",
    "engine",
    "api",
    "config",
    "toolwharf",
];

/// Which modules each module uses.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// Checks this workspace.
///
/// # Errors
/// With one circle of each crate that has some.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let mut wrong = Vec::new();
    let mut count = 0;
    for name in CRATES {
        let uses = read(&workspace.root().join("crates").join(name).join("src"))?;
        count += uses.len();
        if let Some(circle) = circle(&uses) {
            wrong.push(format!("{name}: {}", circle.join(" → ")));
        }
    }
    if wrong.is_empty() {
        eprintln!("    {count} modules of {}, no circle", CRATES.join(", "));
        return Ok(());
    }
    bail!(
        "modules use each other in a circle:\n  {}",
        wrong.join("\n  ")
    )
}

/// Reads a crate's sources.
fn read(src: &Path) -> Result<Uses> {
    let mut files = Vec::new();
    rust_files(src, &mut files)?;
    let mut uses = Uses::new();
    let mut exported = BTreeMap::new();
    for file in files {
        let text = fs::read_to_string(&file);
        let text = text.with_context(|| format!("cannot read {}", file.display()))?;
        let parsed = syn::parse_file(&text);
        let parsed = parsed.with_context(|| format!("cannot parse {}", file.display()))?;
        let path = file.strip_prefix(src).unwrap_or(&file).with_extension("");
        let mut path: Vec<String> = path
            .iter()
            .map(|part| part.to_string_lossy().into())
            .collect();
        path.retain(|part| part != "mod");
        if path == ["lib"] || path == ["main"] {
            exports(&parsed.items, &mut exported);
        } else if path.last().is_some_and(|last| last != "tests") {
            let mut seen = Seen {
                at: path.clone(),
                uses: BTreeSet::new(),
            };
            seen.visit_file(&parsed);
            uses.entry(path.remove(0)).or_default().extend(seen.uses);
        }
    }
    let modules: BTreeSet<String> = uses.keys().cloned().collect();
    for (module, used) in &mut uses {
        let owner = |name: &String| exported.get(name).unwrap_or(name).clone();
        *used = used
            .iter()
            .map(owner)
            .filter(|name| name != module)
            .collect();
        used.retain(|name| modules.contains(name));
    }
    Ok(uses)
}

/// Notes which names the root of a crate exports again, and whose they are.
fn exports(items: &[Item], exported: &mut BTreeMap<String, String>) {
    for item in items {
        let Item::Use(item) = item else { continue };
        let mut paths = Vec::new();
        flatten(&item.tree, &mut Vec::new(), &mut paths);
        for path in paths {
            let path: Vec<_> = path
                .iter()
                .filter(|part| !matches!(part.as_str(), "crate" | "self"))
                .collect();
            if let [module, .., name] = path.as_slice() {
                exported.insert((*name).clone(), (*module).clone());
            }
        }
    }
}

/// The paths of a `use`, each whole.
fn flatten(tree: &UseTree, before: &mut Vec<String>, paths: &mut Vec<Vec<String>>) {
    let mut end = |last: Option<String>| {
        paths.push(before.iter().cloned().chain(last).collect());
    };
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            flatten(&path.tree, before, paths);
            before.pop();
        }
        UseTree::Group(group) => {
            for tree in &group.items {
                flatten(tree, before, paths);
            }
        }
        UseTree::Name(name) => end(Some(name.ident.to_string())),
        UseTree::Rename(rename) => end(Some(rename.rename.to_string())),
        UseTree::Glob(_) => end(None),
    }
}

/// What a file uses of its own crate.
struct Seen {
    /// The module that is being read.
    at: Vec<String>,
    uses: BTreeSet<String>,
}

impl Seen {
    /// Notes a path, if it leads to a module of this crate.
    fn path(&mut self, path: &[String]) {
        let ups = path.iter().take_while(|part| *part == "super").count();
        let first = match path.first().map(String::as_str) {
            Some("crate") => path.get(1),
            Some("super") if ups < self.at.len() => return,
            Some("super") => path.get(ups),
            _ => None,
        };
        self.uses.extend(first.cloned());
    }
}

impl<'a> Visit<'a> for Seen {
    fn visit_item(&mut self, item: &'a Item) {
        let attributes = match item {
            Item::Mod(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            _ => return syn::visit::visit_item(self, item),
        };
        if !attributes.iter().any(is_for_tests) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'a syn::ItemMod) {
        self.at.push(item.ident.to_string());
        syn::visit::visit_item_mod(self, item);
        self.at.pop();
    }

    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        let mut paths = Vec::new();
        flatten(&item.tree, &mut Vec::new(), &mut paths);
        paths.iter().for_each(|path| self.path(path));
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        let parts: Vec<String> = path
            .segments
            .iter()
            .map(|part| part.ident.to_string())
            .collect();
        self.path(&parts);
        syn::visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, mac: &'a syn::Macro) {
        let text = mac.tokens.to_string();
        for (at, start) in text.match_indices("crate :: ") {
            let rest = &text[at + start.len()..];
            let name = rest
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .next();
            self.uses.extend(name.map(str::to_owned));
        }
    }
}

/// Whether this is `#[cfg(test)]`.
fn is_for_tests(attribute: &Attribute) -> bool {
    attribute.path().is_ident("cfg")
        && matches!(&attribute.meta, Meta::List(list) if list.tokens.to_string() == "test")
}

/// A circle, with its first module once more at the end, if there is one.
fn circle(uses: &Uses) -> Option<Vec<&str>> {
    /// Follows `module`; `done` are those that lead into no circle.
    fn follow<'u>(
        uses: &'u Uses,
        module: &'u str,
        way: &mut Vec<&'u str>,
        done: &mut BTreeSet<&'u str>,
    ) -> Option<Vec<&'u str>> {
        if let Some(at) = way.iter().position(|known| *known == module) {
            return Some(way[at..].iter().copied().chain([module]).collect());
        }
        if !done.contains(module) {
            way.push(module);
            for next in uses.get(module).into_iter().flatten() {
                if let Some(circle) = follow(uses, next, way, done) {
                    return Some(circle);
                }
            }
            way.pop();
            done.insert(module);
        }
        None
    }
    let mut done = BTreeSet::new();
    uses.keys()
        .find_map(|module| follow(uses, module, &mut Vec::new(), &mut done))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn krate(files: &[(&str, &str)]) -> Uses {
        let dir = tempfile::tempdir().expect("a directory");
        for (name, text) in files {
            let file = dir.path().join(name);
            fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
            fs::write(file, text).expect("a file");
        }
        read(dir.path()).expect("a crate")
    }

    #[test]
    fn a_circle_is_found_whichever_way_it_is_written() {
        for back in [
            "use crate::{x, one::A};",
            "fn f() { crate::one::f() }",
            "fn f() -> super::one::A { todo!() }",
            "fn f() { println!(\"{}\", crate::one::f()) }",
            "use crate::A;",
            "mod in_it { use super::super::one::A; }",
        ] {
            let uses = krate(&[
                ("lib.rs", "mod one; mod two; pub use one::A;"),
                ("one.rs", "use crate::two::B;"),
                ("two.rs", back),
            ]);
            assert_eq!(circle(&uses), Some(vec!["one", "two", "one"]), "{back}");
        }
    }

    #[test]
    fn what_tests_use_and_what_is_in_a_module_is_no_circle() {
        let uses = krate(&[
            ("lib.rs", "mod one; mod two;"),
            ("one.rs", "mod part; use crate::two::B; use part::P;"),
            ("one/part.rs", "use super::A; use crate::one;"),
            ("one/tests.rs", "use crate::two::B;"),
            ("two.rs", "#[cfg(test)] mod tests { use crate::one::A; }"),
        ]);
        assert_eq!(circle(&uses), None, "{uses:?}");
        assert_eq!(uses["one"], BTreeSet::from(["two".to_owned()]));
    }
}
