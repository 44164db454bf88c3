//! `cargo xtask graph`, third part: checks that dependencies between modules are acyclic.
//!
//! The children of each module are checked separately: none may depend on itself through its siblings. Dependencies on
//! ancestors and descendants, and code under `#[cfg(test)]`, are ignored. A re-exported name belongs to the module that
//! defines it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use syn::{Attribute, Item, Meta, UseTree, visit::Visit};

use crate::workspace::{Workspace, files};

/// The path of a module from the crate root.
type Module = Vec<String>;
/// The modules that each module uses, each with one path as evidence.
type Uses = BTreeMap<String, BTreeMap<String, String>>;

/// Checks every crate of this workspace.
///
/// # Errors
/// For each module, lists one cycle among its children, if there is one.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let mut wrong = Vec::new();
    let mut count = 0;
    for krate in crates(workspace.root())? {
        let name = krate.file_name().unwrap_or_default().to_string_lossy();
        let krate = Crate::read(&krate.join("src"))?;
        count += krate.modules.len();
        for (parent, uses) in krate.levels() {
            if let Some(circle) = circle(&uses) {
                let place = [&[name.to_string()], parent.as_slice()].concat().join("::");
                let mut why = format!("{place}: {}", circle[0]);
                for step in circle.windows(2) {
                    why += &format!(" → {} (by `{}`)", step[1], uses[step[0]][step[1]]);
                }
                wrong.push(why);
            }
        }
    }
    ensure!(
        wrong.is_empty(),
        "modules depend on each other in a cycle:\n  {}",
        wrong.join("\n  ")
    );
    eprintln!("    {count} modules, no cycles");
    Ok(())
}

/// The folders of all crates.
fn crates(root: &Path) -> Result<Vec<PathBuf>> {
    let folder = root.join("crates");
    let entries = fs::read_dir(&folder);
    let entries = entries.with_context(|| format!("cannot read {}", folder.display()))?;
    let mut crates = vec![root.join("xtask")];
    for entry in entries {
        crates.push(entry?.path());
    }
    crates.sort();
    Ok(crates)
}

/// The modules of a crate, and what they use.
#[derive(Default)]
struct Crate {
    modules: BTreeSet<Module>,
    /// Paths from the crate root, by the module that uses them.
    uses: BTreeSet<(Module, Vec<String>)>,
    /// The targets of re-exported names.
    exports: BTreeMap<(Module, String), Vec<String>>,
}

impl Crate {
    fn read(src: &Path) -> Result<Self> {
        let mut krate = Self::default();
        let mut parsed = Vec::new();
        for file in files(src)? {
            if file.extension().is_none_or(|extension| extension != "rs") {
                continue;
            }
            let text = fs::read_to_string(&file);
            let text = text.with_context(|| format!("cannot read {}", file.display()))?;
            let items = syn::parse_file(&text);
            let items = items.with_context(|| format!("cannot parse {}", file.display()))?;
            let path = file.strip_prefix(src).unwrap_or(&file).with_extension("");
            let mut path: Module = path
                .iter()
                .map(|part| part.to_string_lossy().into())
                .collect();
            path.retain(|part| part != "mod");
            if path == ["lib"] || path == ["main"] {
                path.clear();
            }
            if path.iter().all(|part| part != "tests") {
                krate.modules.insert(path.clone());
                parsed.push((path, items));
            }
        }
        for (at, items) in parsed {
            Seen {
                at,
                krate: &mut krate,
            }
            .visit_file(&items);
        }
        Ok(krate)
    }

    /// The module that contains the target of a path from the crate root.
    fn owner(&self, path: &[String]) -> Module {
        let mut path = path.to_vec();
        // Names may be re-exported several times, but not cyclically.
        for _ in 0..8 {
            let length = (0..=path.len())
                .rev()
                .find(|&length| self.modules.contains(&path[..length]));
            let (module, rest) = path.split_at(length.unwrap_or_default());
            let name = rest.first().map(|name| (module.to_vec(), name.clone()));
            match name.and_then(|name| self.exports.get(&name)) {
                Some(target) => path = [target.as_slice(), &rest[1..]].concat(),
                None => return module.to_vec(),
            }
        }
        path
    }

    /// For each module, the siblings that each of its children uses.
    fn levels(&self) -> BTreeMap<Module, Uses> {
        let mut levels = BTreeMap::<Module, Uses>::new();
        for (at, path) in &self.uses {
            let owner = self.owner(path);
            let common = at
                .iter()
                .zip(&owner)
                .take_while(|(one, other)| one == other)
                .count();
            if let (Some(from), Some(to)) = (at.get(common), owner.get(common)) {
                let level = levels.entry(at[..common].to_vec()).or_default();
                let path = format!("{} in {}", path.join("::"), at.join("::"));
                level
                    .entry(from.clone())
                    .or_default()
                    .insert(to.clone(), path);
            }
        }
        levels
    }
}

/// The complete paths of a `use`.
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

/// Collects what a module uses of its own crate.
struct Seen<'c> {
    at: Module,
    krate: &'c mut Crate,
}

impl Seen<'_> {
    /// The path from the crate root. `None` if it leads out of the crate, or to a name in scope here.
    fn absolute(&self, path: &[String]) -> Option<Vec<String>> {
        let ups = path.iter().take_while(|part| *part == "super").count();
        match path.first()?.as_str() {
            "crate" => Some(path[1..].to_vec()),
            "self" => Some([&self.at, &path[1..]].concat()),
            "super" => {
                let above = self.at.len().checked_sub(ups)?;
                Some([&self.at[..above], &path[ups..]].concat())
            }
            first => {
                let child = [self.at.as_slice(), &[first.to_owned()]].concat();
                let is_module = self.krate.modules.contains(&child);
                is_module.then(|| [&self.at, path].concat())
            }
        }
    }

    fn path(&mut self, path: &[String]) {
        if let Some(path) = self.absolute(path) {
            self.krate.uses.insert((self.at.clone(), path));
        }
    }
}

impl<'a> Visit<'a> for Seen<'_> {
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
        self.krate.modules.insert(self.at.clone());
        syn::visit::visit_item_mod(self, item);
        self.at.pop();
    }

    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        let mut paths = Vec::new();
        flatten(&item.tree, &mut Vec::new(), &mut paths);
        for path in paths {
            self.path(&path);
            if let (Some(path), Some(name)) = (self.absolute(&path), path.last()) {
                let name = (self.at.clone(), name.clone());
                self.krate.exports.insert(name, path);
            }
        }
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
        for start in ["crate :: ", "super :: "] {
            for (at, _) in text.match_indices(start) {
                let parts = text[at..].split(" :: ");
                let is_name = |part: &&str| part.chars().all(|c| c.is_alphanumeric() || c == '_');
                let path: Vec<String> = parts.take_while(is_name).map(str::to_owned).collect();
                self.path(&path);
            }
        }
    }
}

/// Returns whether this is `#[cfg(test)]`.
fn is_for_tests(attribute: &Attribute) -> bool {
    attribute.path().is_ident("cfg")
        && matches!(&attribute.meta, Meta::List(list) if list.tokens.to_string() == "test")
}

/// A cycle of modules, if there is one, with the first module repeated at the end.
fn circle(uses: &Uses) -> Option<Vec<&str>> {
    /// Follows `module`; `done` are modules that do not lead into a cycle.
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
            for next in uses.get(module).into_iter().flat_map(BTreeMap::keys) {
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

    fn krate(files: &[(&str, &str)]) -> BTreeMap<Module, Uses> {
        let dir = tempfile::tempdir().expect("a directory");
        for (name, text) in files {
            let file = dir.path().join(name);
            fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
            fs::write(file, text).expect("a file");
        }
        Crate::read(dir.path()).expect("a crate").levels()
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
            let levels = krate(&[
                ("lib.rs", "mod one; mod two; pub use one::A;"),
                ("one.rs", "use crate::two::B;"),
                ("two.rs", back),
            ]);
            let circle = circle(&levels[&Vec::new()]);
            assert_eq!(circle, Some(vec!["one", "two", "one"]), "{back}");
        }
    }

    #[test]
    fn a_circle_is_found_at_any_depth() {
        let levels = krate(&[
            ("lib.rs", "mod one;"),
            ("one/mod.rs", "mod a; mod b; pub(crate) use b::B; use a::A;"),
            ("one/a.rs", "use super::B; use super::A;"),
            ("one/b/mod.rs", "mod c;"),
            ("one/b/c.rs", "fn f() { crate::one::a::f() }"),
        ]);
        assert_eq!(levels.len(), 1, "{levels:?}");
        assert_eq!(
            circle(&levels[&vec!["one".to_owned()]]),
            Some(vec!["a", "b", "a"])
        );
    }

    #[test]
    fn what_tests_use_and_what_is_in_a_module_is_no_circle() {
        let levels = krate(&[
            ("lib.rs", "mod one; mod two;"),
            ("one.rs", "mod part; use crate::two::B; use part::P;"),
            ("one/part.rs", "use super::A; use crate::one;"),
            ("one/tests.rs", "use crate::two::B;"),
            ("two.rs", "#[cfg(test)] mod tests { use crate::one::A; }"),
        ]);
        assert_eq!(levels.len(), 1, "{levels:?}");
        let uses = &levels[&Vec::new()]["one"];
        assert_eq!(uses.keys().collect::<Vec<_>>(), ["two"]);
    }
}
