//! `cargo xtask graph`, fourth part: checks that each source file is declared by a module. The compiler does not read
//! undeclared files, so their tests would never run, and nobody would notice.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use syn::{Expr, ExprLit, ItemMod, Lit, Meta, visit::Visit};

use crate::workspace::{Workspace, files};

/// Checks the crates and `xtask`.
///
/// # Errors
/// Lists the files that no module declares.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let mut undeclared = Vec::new();
    let mut count = 0;
    for folder in ["crates", "xtask"] {
        let all = rust_files(&workspace.root().join(folder))?;
        count += all.len();
        undeclared.extend(undeclared_of(&all)?);
    }
    let names = undeclared.iter().map(|file| file.display().to_string());
    ensure!(
        undeclared.is_empty(),
        "no module declares these files, so they are not compiled:\n  {}",
        names.collect::<Vec<_>>().join("\n  ")
    );
    eprintln!("    {count} files, each declared by a module");
    Ok(())
}

fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut all = files(&folder.canonicalize()?)?;
    all.retain(|file| file.extension().is_some_and(|extension| extension == "rs"));
    Ok(all)
}

fn undeclared_of(files: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut declared = BTreeSet::new();
    for file in files {
        let text = fs::read_to_string(file);
        let text = text.with_context(|| format!("cannot read {}", file.display()))?;
        let items = syn::parse_file(&text);
        let items = items.with_context(|| format!("cannot parse {}", file.display()))?;
        let mut declarations = Declarations {
            folder: file.parent().unwrap_or(file).to_owned(),
            children: children(file),
            declared: &mut declared,
        };
        declarations.visit_file(&items);
    }
    let is_undeclared = |file: &&PathBuf| !is_root(file) && !declared.contains(*file);
    Ok(files.iter().filter(is_undeclared).cloned().collect())
}

/// Returns whether a file is the root of a crate: a library, a program, a test, an example.
fn is_root(file: &Path) -> bool {
    let is_named = |names: &[&str]| names.iter().any(|name| file.ends_with(name));
    let folder = file.parent().unwrap_or(file);
    let package = folder.parent().unwrap_or(folder);
    is_named(&["main.rs", "lib.rs", "build.rs"])
        || folder.ends_with("src/bin")
        || (folder.ends_with("tests") || folder.ends_with("examples"))
            && package.join("Cargo.toml").exists()
}

/// The folder with the files of the modules that a file declares.
fn children(file: &Path) -> PathBuf {
    let is_named_by_its_folder = file.file_name().is_some_and(|name| name == "mod.rs");
    match is_root(file) || is_named_by_its_folder {
        true => file.parent().unwrap_or(file).to_owned(),
        false => file.with_extension(""),
    }
}

/// Collects the files that a file declares.
struct Declarations<'d> {
    /// The folder of the file.
    folder: PathBuf,
    /// The folder with the files of its modules.
    children: PathBuf,
    declared: &'d mut BTreeSet<PathBuf>,
}

impl<'a> Visit<'a> for Declarations<'_> {
    fn visit_item_mod(&mut self, item: &'a ItemMod) {
        let name = item.ident.to_string();
        if item.content.is_some() {
            self.children.push(&name);
            syn::visit::visit_item_mod(self, item);
            self.children.pop();
            return;
        }
        let path = item.attrs.iter().find_map(|attribute| {
            let Meta::NameValue(pair) = &attribute.meta else {
                return None;
            };
            match &pair.value {
                Expr::Lit(ExprLit {
                    lit: Lit::Str(text),
                    ..
                }) if pair.path.is_ident("path") => Some(text.value()),
                _ => None,
            }
        });
        let files = match path {
            Some(path) => vec![self.folder.join(path)],
            None => vec![
                self.children.join(format!("{name}.rs")),
                self.children.join(name).join("mod.rs"),
            ],
        };
        // The path of an attribute may contain `..`.
        let files = files.iter().filter_map(|file| file.canonicalize().ok());
        self.declared.extend(files);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_no_module_declares_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().canonicalize().expect("its path");
        for (name, text) in [
            (
                "src/lib.rs",
                "mod one; #[cfg(test)] mod tests; mod inner { mod deep; }",
            ),
            ("Cargo.toml", ""),
            ("src/one.rs", "mod two;"),
            ("src/one/two.rs", ""),
            ("src/tests/mod.rs", "mod three;"),
            ("src/tests/three.rs", ""),
            ("src/inner/deep.rs", ""),
            ("src/lost.rs", "mod two;"),
            ("tests/suite/main.rs", "\n"),
            ("tests/suite/lost.rs", ""),
            ("tests/single.rs", "#[path = \"../shared/all.rs\"] mod all;"),
            ("shared/all.rs", ""),
        ] {
            let file = root.join(name);
            fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
            fs::write(file, text).expect("a file");
        }
        let all = rust_files(&root).expect("the files");
        let undeclared = undeclared_of(&all).expect("they are Rust");
        let lost = ["src/lost.rs", "tests/suite/lost.rs"].map(|name| root.join(name));
        assert_eq!(undeclared, lost);
    }
}
