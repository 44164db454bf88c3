//! MCPB files: valid ones and harmful ones.

use std::{
    fs,
    io::{Cursor, Write as _},
    os::unix::fs::PermissionsExt as _,
};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use zip::{ZipWriter, write::SimpleFileOptions};

use super::{alone, entry, filled_for, npm, peak, plan, reset_peak};
use crate::{
    bundle::{extract, is_there, prune, unpack},
    fill::Place,
    plan::Plan,
};

/// An archive of these files, with their modes.
pub(super) fn archive(files: &[(&str, &[u8], u32)]) -> (Vec<u8>, String) {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, content, mode) in files {
        let options = SimpleFileOptions::default().unix_permissions(*mode);
        zip.start_file(*name, options).unwrap();
        zip.write_all(content).unwrap();
    }
    let file = zip.finish().unwrap().into_inner();
    let sum = hex::encode(Sha256::digest(&file));
    (file, sum)
}

/// The plan of a bundle with this manifest.
fn bundled(manifest: &Value) -> (Plan, tempfile::TempDir) {
    let text = manifest.to_string();
    let files: [(&str, &[u8], u32); 3] = [
        ("manifest.json", text.as_bytes(), 0o600),
        ("server/index.js", b"// a server", 0o600),
        ("server/run", b"#!/bin/sh", 0o700),
    ];
    let (file, sum) = archive(&files);
    let folder = tempfile::tempdir().unwrap();
    let place = unpack(folder.path(), &sum, &file).unwrap();
    let mut package = npm(json!({"identifier": "https://example.com/a.mcpb", "fileSha256": sum}));
    package["registryType"] = "mcpb".into();
    let mut plan = plan(&entry(package)).unwrap();
    assert!(plan.refused.is_empty(), "{:?}", plan.refused);
    plan.unpacked(place);
    (plan, folder)
}

#[test]
fn c07_a_bundle_runs_by_its_manifest() {
    let (plan, folder) = bundled(&json!({
        "manifest_version": "0.3", "name": "weather", "version": "1.0.0",
        "server": {"type": "node", "entry_point": "server/index.js", "mcp_config": {
            "command": "node",
            "args": ["${__dirname}/server/index.js", "--unit", "${user_config.unit}", "${user_config.folders}"],
            "env": {"KEY": "${user_config.key}"},
            "platform_overrides": {"win32": {"command": "node.exe"}},
        }},
        "user_config": {
            "key": {"type": "string", "title": "Key", "sensitive": true, "required": true},
            "unit": {"type": "string", "default": "C"},
            "folders": {"type": "directory", "multiple": true, "default": ["${HOME}/Desktop"]},
        },
    }));
    assert!(plan.refused.is_empty(), "{:?}", plan.refused);
    let told = plan.to_api();
    assert_eq!(told.inputs["properties"]["key"]["format"], "password");
    assert_eq!(
        told.inputs["properties"]["folders"]["items"]["format"],
        "path"
    );
    let values = json!({"key": "hunter2", "folders": ["/srv/a", "/srv/b"]});
    let done = filled_for(&plan, values, &[], &Place::Project).unwrap();
    assert_eq!(done.entry["command"], "node");
    assert_eq!(
        done.entry["args"],
        json!(["/bundle/server/index.js", "--unit", "C", "/srv/a", "/srv/b"])
    );
    assert_eq!(done.entry["env"], json!({"KEY": "${WEATHER_KEY}"}));
    let mut bundles = fs::read_dir(folder.path()).unwrap();
    let bundle = bundles.next().unwrap().unwrap().path();
    let mounts = [
        format!("{}:/bundle:ro", bundle.display()),
        "/srv/a:/srv/a:ro".into(),
        "/srv/b:/srv/b:ro".into(),
    ];
    assert!(
        mounts.iter().all(|mount| done.mounts.contains(mount)),
        "{:?}",
        done.mounts
    );
    let mode = |path: &str| bundle.join(path).metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(
        (mode("server/index.js"), mode("server/run"), mode("server")),
        (0o644, 0o755, 0o755)
    );
}

#[test]
fn c07_a_hostile_manifest_is_refused() {
    let of = |kind: &str, config: Value| json!({"server": {"type": kind, "mcp_config": config}});
    let node = |more: Value| {
        let mut config = json!({"command": "node"});
        let more = more.as_object().unwrap().clone();
        config.as_object_mut().unwrap().extend(more);
        of("node", config)
    };
    let (command, argument) = ("mcp_config/command", "mcp_config/args/0");
    let outside = "${__dirname}/../../../etc/passwd";
    let shell = "${__dirname}/../../bin/sh";
    let mut elsewhere = node(json!({}));
    elsewhere["compatibility"] = json!({"platforms": ["darwin"]});
    for (manifest, place) in [
        (
            node(json!({"command": "bash", "args": ["-c", "id"]})),
            command,
        ),
        (node(json!({"command": "/usr/bin/node"})), command),
        (of("binary", json!({"command": shell})), command),
        (of("binary", json!({"command": "sh"})), command),
        (of("uv", json!({"command": "uv"})), "type"),
        (node(json!({"args": ["${HOME}/x"]})), argument),
        (node(json!({"args": ["/etc/passwd"]})), argument),
        (node(json!({"args": [outside]})), argument),
        (
            node(json!({"env": {"LD_PRELOAD": "x"}})),
            "mcp_config/env/LD_PRELOAD",
        ),
        (json!({"server": 1}), "/packages/identifier"),
        (elsewhere, "/manifest/compatibility/platforms"),
    ] {
        let place = match place.strip_prefix('/') {
            Some(_) => place.to_owned(),
            None => format!("/manifest/server/{place}"),
        };
        let place = place.as_str();
        let (plan, _folder) = bundled(&manifest);
        let wrong = filled_for(&plan, json!({}), &[], &Place::Project).expect_err(place);
        let places: Vec<&str> = wrong.iter().map(|wrong| wrong.pointer.as_str()).collect();
        assert!(places.contains(&place), "{place}: {wrong:?}");
    }
}

#[test]
fn c07_a_hostile_archive_writes_nothing() {
    let outer = tempfile::tempdir().unwrap();
    let folder = outer.path().join("bundles");
    for (name, mode) in [
        ("../escaped", 0o644),
        ("/escaped", 0o644),
        ("a/../../escaped", 0o644),
        ("a\\..\\escaped", 0o644),
        ("a//b", 0o644),
        ("c\u{7}", 0o644),
    ] {
        let (file, sum) = archive(&[("manifest.json", b"{}", 0o644), (name, b"x", mode)]);
        let why = unpack(&folder, &sum, &file).expect_err(name);
        assert!(why.contains("not a path inside"), "{name}: {why}");
    }
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    zip.add_symlink("link", "/etc", SimpleFileOptions::default())
        .unwrap();
    let file = zip.finish().unwrap().into_inner();
    let why = unpack(&folder, &hex::encode(Sha256::digest(&file)), &file).unwrap_err();
    assert!(why.contains("neither a file nor a folder"), "{why}");
    // The content exceeds the limit, although the archive itself has a thousandth of its size.
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let block = vec![0; 1 << 20];
    for index in 0..9 {
        zip.start_file(format!("zeros{index}"), SimpleFileOptions::default())
            .unwrap();
        zip.write_all(&block).unwrap();
    }
    let bomb = zip.finish().unwrap().into_inner();
    assert!(bomb.len() < 1 << 16);
    let place = tempfile::tempdir().unwrap();
    let why = extract(&bomb, &place.path().join("bomb"), 8 << 20).unwrap_err();
    assert!(why.contains("more than 8 MiB"), "{why}");
    for bytes in [&b"no archive"[..], b""] {
        let why = unpack(&folder, &hex::encode(Sha256::digest(bytes)), bytes).unwrap_err();
        assert!(why.contains("not a valid zip archive"), "{why}");
    }
    let (file, _) = archive(&[("manifest.json", b"{}", 0o644)]);
    let why = unpack(&folder, &"0".repeat(64), &file).unwrap_err();
    assert!(why.contains("the SHA-256 of the MCPB file is"), "{why}");
    // No partial files remain, here or next to it.
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 1);
}

#[test]
fn bundles_that_nobody_uses_go_but_for_the_last_ones() {
    let folder = tempfile::tempdir().unwrap();
    let bundles = folder.path();
    for (at, name) in ["one", "two", "three", "four"].into_iter().enumerate() {
        fs::create_dir(bundles.join(name)).unwrap();
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(at as u64);
        fs::File::open(bundles.join(name))
            .unwrap()
            .set_modified(time)
            .unwrap();
    }
    assert!(is_there(&bundles.join("two")) && !is_there(&bundles.join("five")));
    prune(bundles, |name| name == "one", 2);
    let left = ["one", "two", "three", "four"].map(|name| bundles.join(name).exists());
    assert_eq!(left, [true, true, false, true]);
}

/// An archive that consists of a directory only: `there` entries, declared as `told` by the end records, and `extra`
/// bytes more than its declared size.
pub(super) fn directory(there: u64, told: u64, is_wide: bool, extra: u64) -> Vec<u8> {
    let mut header = [0; 48];
    header[..4].copy_from_slice(b"PK\x01\x02");
    header[28] = 2;
    header[46..].copy_from_slice(b"a/");
    let mut file = header.repeat(usize::try_from(there).unwrap());
    let (bytes, begin) = (file.len() as u64 + extra, file.len() as u64);
    if is_wide {
        file.extend(b"PK\x06\x06");
        for value in [44, 0, 0, told, told, bytes, 0] {
            file.extend(u64::to_le_bytes(value));
        }
        // The two versions and the two disk numbers take twelve bytes together. The loop wrote sixteen, so four are
        // removed.
        let versions = usize::try_from(begin).unwrap() + 12;
        file.drain(versions..versions + 4);
        file.extend(b"PK\x06\x07\0\0\0\0");
        file.extend(begin.to_le_bytes());
        file.extend(1_u32.to_le_bytes());
    }
    file.extend(b"PK\x05\x06\0\0\0\0");
    let count = match is_wide {
        true => u16::MAX,
        false => u16::try_from(told).unwrap(),
    };
    file.extend([count.to_le_bytes(), count.to_le_bytes()].concat());
    file.extend(u32::try_from(bytes).unwrap().to_le_bytes());
    file.extend([0; 6]);
    file
}

#[test]
fn a_directory_of_two_million_entries_is_refused_before_it_is_parsed() {
    const NAME: &str = "a_directory_of_two_million_entries_is_refused_before_it_is_parsed";
    alone(&format!("bundles::{NAME}"), || {
        const MANY: u64 = 2_000_000;
        let cases = [
            (directory(MANY, MANY, true, 0), "contains 2000000 files"),
            (directory(MANY, 1, true, 0), "file has 96000000 bytes"),
            (directory(MANY, 1, false, 0), "file has 96000000 bytes"),
            (directory(50_001, 50_001, false, 0), "contains 50001 files"),
            (directory(9, 10, false, 0), "fewer entries"),
            (directory(9, 8, false, 0), "more entries"),
            (directory(9, 8, true, 0), "more entries"),
            (directory(9, 9, false, 1000), "larger than the archive"),
            (directory(9, 9, true, 1000), "larger than the archive"),
            (directory(9, u64::MAX, true, 0), "files; the maximum is"),
            (directory(2, 2, false, 0), "overlap"),
        ];
        let folder = tempfile::tempdir().unwrap();
        let into = folder.path().join("bundle");
        let before = reset_peak();
        let start = tokio::time::Instant::now();
        for (file, part) in &cases {
            let why = extract(file, &into, 1 << 30).expect_err(part);
            assert!(why.contains(part), "{part}: {why}");
        }
        // For the first of these files alone, the zip parser needed 757 MiB.
        let more = peak() - before;
        assert!(more < 32 << 10, "{more} KiB");
        let took = start.elapsed();
        assert!(took < std::time::Duration::from_secs(10), "{took:?}");
        assert!(!into.exists());
    });
}
