//! Compresses the console (`web/dist`) into the binary: `src/console` serves what this writes.

use std::{env, fmt::Write as _, fs, io::Write as _, path::Path};

use flate2::{Compression, write::GzEncoder};

const DIST: &str = "../../web/dist";

fn main() {
    println!("cargo::rerun-if-changed={DIST}");
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let mut files = Vec::new();
    collect(Path::new(DIST), "", &mut files);
    files.sort();
    let mut table = "&[\n".to_owned();
    for (number, path) in files.iter().enumerate() {
        let text = fs::read(Path::new(DIST).join(path)).expect("a file that was listed");
        let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
        gzip.write_all(&text).expect("memory can be written");
        let compressed = gzip.finish().expect("memory can be written");
        let file = Path::new(&out).join(format!("{number}.gz"));
        fs::write(&file, compressed).expect("OUT_DIR is writable");
        let _ = writeln!(table, "({path:?}, include_bytes!({file:?})),");
    }
    table.push(']');
    fs::write(Path::new(&out).join("console.rs"), table).expect("OUT_DIR is writable");
}

/// Paths of all files below `folder`, relative to `web/dist`.
fn collect(folder: &Path, above: &str, files: &mut Vec<String>) {
    let entries = fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("{}: {error}; run `cargo xtask web`", folder.display()));
    for entry in entries {
        let entry = entry.expect("a folder that can be read");
        let name = entry.file_name().into_string().expect("names are ASCII");
        let path = format!("{above}{name}");
        match entry.path().is_dir() {
            true => collect(&entry.path(), &format!("{path}/"), files),
            false => files.push(path),
        }
    }
}
