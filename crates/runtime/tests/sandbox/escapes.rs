//! Attempts to see or write host files from inside, for a table of layouts, as root and as an ordinary user.
//!
//! Each layout is a home directory with a program in it, a data directory and a configuration directory. The server
//! examines every file that it can find. All of Toolwharf's own files and the user's secrets contain [`SECRET`], which
//! the server must not find. The files that it finds are compared with the list of visible files. Everything happens in
//! a separate mount namespace with shared propagation, as systemd creates it. While the server runs, something is
//! mounted below the shown folders.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{PermissionsExt as _, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::VICTIM;

const SECRET: &str = "twh-secret-of-the-host";
const USER: u32 = 65_534;

/// The server: waits for a line, then prints what it sees as JSON.
const PROBE: &str = r#"#!/usr/bin/python3
import json, os, sys
print("up", flush=True)
sys.stdin.readline()
SECRET = b"-".join([b"twh", b"secret", b"of", b"the", b"host"])
found, readable, secrets, writable = [], [], [], []
def look(path):
    found.append(path)
    if os.path.islink(path): return
    if os.path.isdir(path):
        name = os.path.join(path, ".probe")
        try:
            open(name, "x").close(); os.unlink(name); writable.append(path)
        except OSError: pass
        try: names = os.listdir(path)
        except OSError: return
        readable.append(path)
        for name in names:
            below = os.path.join(path, name)
            if below not in ("/proc", "/dev", "/sys", "/usr"): look(below)
    elif os.path.isfile(path):
        try:
            with open(path, "rb") as file: text = file.read(1 << 20)
            readable.append(path)
            if SECRET in text: secrets.append(path)
        except OSError: pass
        try: open(path, "ab").close(); writable.append(path)
        except OSError: pass
look("/")
# What is not listed in a folder may still be there.
for path in sys.argv[1:]:
    try:
        for at, _, names in os.walk(path):
            for name in names:
                with open(os.path.join(at, name), "rb") as file:
                    if SECRET in file.read(1 << 20): secrets.append(os.path.join(at, name))
    except OSError: pass
core = __import__("resource").getrlimit(4)
print(json.dumps({"found": found, "readable": readable, "secrets": secrets, "writable": writable, "core": core}))
"#;

/// Files in every home directory, besides the program. `*` marks those with the secret.
const HOME: [&str; 12] = [
    ".ssh/id_ed25519*",
    ".netrc*",
    ".bash_history*",
    "package.json",
    "Documents/letter.txt*",
    "proj/.env*",
    "proj/.env.example",
    "proj/.git/config*",
    "proj/src/key.pem*",
    "proj/src/sub/.npmrc*",
    "proj/src/helper.py",
    "other/app/.env*",
];

struct Layout {
    name: &'static str,
    /// The words of the command line. `@` is the home directory. `PROBE` is the server's script, whose file is created.
    command: String,
    data: &'static str,
    config: &'static str,
    more: Value,
    /// Files with a secret that are shown because the entry requests that.
    asked: &'static [&'static str],
}

const DATA: &str = "@/.local/share/toolwharf";
const CONFIG: &str = "@/.config/toolwharf";

fn layouts() -> Vec<Layout> {
    let usual = |name, command: &str| Layout {
        name,
        command: command.to_owned(),
        data: DATA,
        config: CONFIG,
        more: json!({}),
        asked: &[],
    };
    let project = "python3 @/proj/PROBE";
    let given = |name, arguments: &str| usual(name, &format!("{project} {arguments}"));
    vec![
        usual("a script of a project", project),
        usual("deep in a project", "python3 @/proj/src/app/PROBE"),
        usual("an executable script", "@/proj/PROBE"),
        given("by a flag", "--root=@/proj"),
        usual("in the home itself", "python3 @/PROBE"),
        usual("beside nothing", "python3 @/scripts/PROBE"),
        usual("beside the data", "python3 @/.local/share/PROBE"),
        usual("a program beside the data", "@/.local/share/PROBE"),
        usual("beside the configuration", "@/.config/PROBE"),
        given("an argument around the data", "@/.local"),
        given("an argument around all", "@/.local @/.config"),
        given("the data as an argument", "@/.local/share/toolwharf"),
        given("a file of the data", "@/.local/share/toolwharf/master.key"),
        given("the home as an argument", "@ / /home"),
        given("a link to the data", "@/proj/link"),
        Layout {
            data: "@/proj/data",
            config: "@/proj/config",
            ..usual("the data in the project", project)
        },
        Layout {
            config: "@/proj/mcp.json",
            ..usual("one file of configuration", project)
        },
        Layout {
            config: "@/proj/later/mcp.json",
            ..given("configuration that is not there yet", "@/proj")
        },
        Layout {
            more: json!({"mounts": ["@/.local:/mnt/local:ro", "@/.config:/mnt/config:rw"]}),
            ..usual("mounts around the files", project)
        },
        Layout {
            more: json!({"mounts": ["@/.local:/mnt/local:rw"], "show": ["@/.config"]}),
            ..usual("what is shown around the files", project)
        },
        Layout {
            more: json!({"show": ["@/proj/.env"], "hide": ["@/proj/src/helper.py"]}),
            asked: &["@/proj/.env"],
            ..usual("more and less", project)
        },
        Layout {
            more: json!({"volumes": ["/data"], "mounts": ["@/other:/other:rw"]}),
            asked: &["/other/app/.env"],
            ..usual("a volume and a mount", project)
        },
    ]
}

struct Home {
    _directory: TempDir,
    at: PathBuf,
}

impl Home {
    fn new(layout: &Layout) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("twh-")
            .tempdir_in("/home")
            .unwrap();
        let home = Self {
            at: directory.path().to_owned(),
            _directory: directory,
        };
        for file in HOME {
            let text = if file.ends_with('*') { SECRET } else { "" };
            let key = if file.contains(".pem") {
                "-----BEGIN PRIVATE KEY-----\n"
            } else {
                ""
            };
            home.put(
                &home.at.join(file.trim_end_matches('*')),
                &format!("{key}{text}"),
            );
        }
        home.put(&home.at.join("proj/pyproject.toml"), "");
        let (data, config) = (home.path(layout.data), home.path(layout.config));
        for file in [
            "admin-token",
            "master.key",
            "toolwharf.sqlite",
            "hosting/process/x",
        ] {
            home.put(&data.join(file), SECRET);
        }
        match config.extension() {
            Some(_) if config.to_str().unwrap().contains("later") => {}
            Some(_) => home.put(&config, SECRET),
            None => home.put(&config.join("mcp.json"), SECRET),
        }
        symlink(&data, home.at.join("proj/link")).unwrap();
        let _ = fs::create_dir_all(home.at.join("proj/later"));
        for word in layout.command.split(' ') {
            if let Some(folder) = word.strip_suffix("PROBE") {
                home.put(&home.path(folder).join("probe.py"), PROBE);
            }
        }
        fs::set_permissions(&home.at, fs::Permissions::from_mode(0o755)).unwrap();
        home
    }

    fn path(&self, text: &str) -> PathBuf {
        self.text(text).into()
    }

    fn text(&self, text: &str) -> String {
        let home = self.at.to_str().unwrap();
        text.replace('@', home).replace("PROBE", "probe.py")
    }

    fn put(&self, path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        // Accessible to everyone, so that only the sandbox protects it.
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn give(&self, path: &Path, user: u32) {
        lchown(path, Some(user), Some(user)).unwrap();
        if path.is_dir() && !path.is_symlink() {
            for entry in fs::read_dir(path).unwrap() {
                self.give(&entry.unwrap().path(), user);
            }
        }
    }
}

struct Seen {
    probe: Value,
    visible: Vec<Value>,
    lines: String,
}

/// Runs `before`, a shell script, then a layout's server. While it runs, mounts something below `late`, and lets the
/// server look.
fn run(
    layout: &Layout,
    home: &Home,
    user: u32,
    before: &str,
    late: &[PathBuf],
) -> Result<Seen, String> {
    home.give(&home.at, user);
    let mut spec: Value = serde_json::from_str(&home.text(&layout.more.to_string())).unwrap();
    let words = layout.command.split(' ');
    let command: Vec<_> = words.map(|word| home.text(word)).collect();
    spec["command"] = json!(command);
    spec["own"] = json!([home.path(layout.data), home.path(layout.config)]);
    // The mounts are made private first, so that nothing propagates to the host's mounts.
    let script = format!(
        "{before} && mount --make-rshared / && exec setpriv --reuid={user} --regid={user} --clear-groups \"$@\""
    );
    let mut child = Command::new("unshare")
        .args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            &script,
            "sh",
        ])
        .args([VICTIM, "view", &spec.to_string()])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", &home.at)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut lines = String::new();
    while !lines.ends_with("up\n") {
        if stdout.read_line(&mut lines).unwrap() == 0 || lines.contains("launch failed") {
            let _ = child.wait();
            return Err(lines);
        }
    }
    for folder in late {
        let enter = format!("--mount=/proc/{}/ns/mnt", child.id());
        let mount = ["mount", "-t", "tmpfs", "-o", "mode=0777", "late"];
        let mut mounting = Command::new("nsenter");
        mounting.arg(enter).args(mount).arg(folder);
        assert!(mounting.status().unwrap().success(), "{}", folder.display());
    }
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    stdout.read_to_string(&mut lines).unwrap();
    child.wait().unwrap();
    let probe = lines.lines().find(|line| line.starts_with("{\"found\""));
    let probe = probe.unwrap_or_else(|| panic!("{}: {lines}", layout.name));
    let visible = lines
        .lines()
        .filter_map(|line| line.strip_prefix("visible "));
    Ok(Seen {
        probe: serde_json::from_str(probe).unwrap(),
        visible: visible
            .map(|line| serde_json::from_str(line).unwrap())
            .collect(),
        lines: lines.clone(),
    })
}

fn texts(value: &Value) -> BTreeSet<PathBuf> {
    let all = value.as_array().unwrap().iter();
    all.map(|text| PathBuf::from(text.as_str().unwrap()))
        .collect()
}

impl Seen {
    /// The innermost entry of the list that contains a path.
    fn entry(&self, path: &Path) -> Option<&Value> {
        let holds = |one: &&Value| path.starts_with(one["path"].as_str().unwrap());
        let all = self.visible.iter().filter(holds);
        all.max_by_key(|one| {
            Path::new(one["path"].as_str().unwrap())
                .components()
                .count()
        })
    }

    /// Compares the list with what the server found.
    fn compare(&self, name: &str, user: u32) {
        let found = texts(&self.probe["found"]);
        let writable = texts(&self.probe["writable"]);
        let is_frame = |path: &Path| {
            let below = |one: &Value| Path::new(one["path"].as_str().unwrap()).starts_with(path);
            self.visible.iter().any(below)
        };
        for path in &found {
            let entry = self.entry(path);
            let hidden = entry
                .map(|entry| texts(&entry["hidden"]))
                .unwrap_or_default();
            // In a writable mount, an empty folder covers what is hidden.
            let is_mask =
                entry.is_some_and(|entry| entry["write"] == true) && hidden.contains(path);
            let is_hidden = !is_mask && hidden.iter().any(|hidden| path.starts_with(hidden));
            // Parent folders of visible paths, and links of the system, count as listed.
            let is_listed = entry.is_some() && !is_hidden
                || is_frame(path)
                || path.parent() == Some(Path::new("/"));
            let is_listed = is_listed || path == Path::new("/var/tmp");
            assert!(is_listed, "{name}: {path:?} is there and not listed");
            if writable.contains(path) {
                let writes = entry.is_some_and(|entry| entry["write"] == true);
                assert!(writes, "{name}: {path:?} is writable and not listed so");
            }
        }
        for entry in &self.visible {
            let path = Path::new(entry["path"].as_str().unwrap());
            let Some(host) = entry["host"].as_str().map(Path::new) else {
                continue;
            };
            if path.starts_with("/usr") {
                continue;
            }
            let hidden = texts(&entry["hidden"]);
            for there in below(host) {
                let inside = path.join(there.strip_prefix(host).unwrap());
                let inside = if there == host {
                    path.to_owned()
                } else {
                    inside
                };
                let is_hidden = hidden.iter().any(|hidden| inside.starts_with(hidden));
                if entry["write"] == true && hidden.contains(&inside) {
                    continue;
                }
                assert_eq!(found.contains(&inside), !is_hidden, "{name}: {inside:?}");
                // If root starts the server, it runs as a separate user, which file permissions restrict.
                if user != 0 && entry["write"] == true && there.is_dir() && !is_hidden {
                    assert!(writable.contains(&inside), "{name}: {}", inside.display());
                }
            }
        }
    }
}

/// Lists a folder and everything in it.
fn below(path: &Path) -> Vec<PathBuf> {
    let mut all = vec![path.to_owned()];
    if path.is_dir() && !path.is_symlink() {
        for entry in fs::read_dir(path).unwrap() {
            all.extend(below(&entry.unwrap().path()));
        }
    }
    all
}

fn users() -> [u32; 2] {
    [0, USER]
}

#[test]
fn u12_no_layout_shows_toolwharfs_own_files_or_a_persons_secrets() {
    for layout in layouts() {
        for user in users() {
            let home = Home::new(&layout);
            let late = [home.at.join("proj/src"), home.at.join("other/app")];
            let late = &late[..usize::from(layout.name.starts_with('a'))];
            let seen = run(&layout, &home, user, "true", late);
            let seen = seen.unwrap_or_else(|why| panic!("{} as {user}: {why}", layout.name));
            let name = &format!("{} as {user}", layout.name);
            let asked: BTreeSet<_> = layout.asked.iter().map(|path| home.path(path)).collect();
            let lines = &seen.lines;
            assert_eq!(texts(&seen.probe["secrets"]), asked, "{name}: {lines}");
            assert!(lines.contains("row filesystem true "), "{name}: {lines}");
            assert_eq!(seen.probe["core"], json!([0, 0]), "{name}");
            seen.compare(name, user);
        }
    }
}

#[test]
fn what_is_mounted_later_on_the_host_is_not_there() {
    for user in users() {
        let layout = Layout {
            more: json!({"mounts": ["@/other:/other:ro"]}),
            asked: &["/other/app/.env"],
            ..layouts().remove(0)
        };
        let home = Home::new(&layout);
        let late = ["proj/src", "proj", "other/app"].map(|folder| home.at.join(folder));
        let seen = run(&layout, &home, user, "true", &late).unwrap();
        let found = texts(&seen.probe["found"]);
        // The server sees the folders that existed, not what was mounted over them.
        for kept in ["proj/src/helper.py", "proj/pyproject.toml"] {
            let lines = &seen.lines;
            assert!(found.contains(&home.at.join(kept)), "{kept}: {lines}");
        }
        assert!(found.contains(Path::new("/other/app/.env")));
        let writable = texts(&seen.probe["writable"]);
        let scratch = ["/tmp", "/run", "/dev"].map(Path::new);
        let others = writable
            .iter()
            .find(|path| !scratch.iter().any(|own| path.starts_with(own)));
        assert_eq!(others, None);
    }
}

/// The test uses container layers, and file systems that this user cannot look into.
#[test]
fn mounts_that_are_there_already_are_read_only_and_no_obstacle() {
    for user in users() {
        let layout = Layout {
            more: json!({"mounts": ["@/mnt/readable:/readable:ro", "@/mnt/writable:/writable:rw"]}),
            ..layouts().remove(0)
        };
        let home = Home::new(&layout);
        fs::create_dir(home.at.join("mnt")).unwrap();
        let before = format!(
            "cd {} && mount -t tmpfs top . && cd .. && cd mnt && mkdir -p readable/open readable/closed/merged writable/merged && \
             chmod 777 writable && mount -t tmpfs layer readable/open && mount -t tmpfs layer readable/closed/merged && \
             mount -t tmpfs layer writable/merged && chmod 700 readable/closed && cd /",
            home.at.join("mnt").display()
        );
        let seen = run(&layout, &home, user, &before, &[]).unwrap();
        let lines = &seen.lines;
        assert!(lines.contains("row filesystem true "), "{user}: {lines}");
        let probe = &seen.probe;
        let writable = texts(&probe["writable"]);
        let below = |folder: &str| {
            writable
                .iter()
                .filter(|path| path.starts_with(folder))
                .count()
        };
        assert_eq!(below("/readable"), 0, "{user}: {writable:?}");
        assert!(below("/writable") > 0, "{user}: {writable:?}");
    }
}

#[test]
fn a_mount_of_toolwharfs_own_files_is_refused() {
    for (field, path) in [
        ("mounts", "@/.local/share/toolwharf:/x:ro"),
        ("mounts", "@/.local/share/toolwharf/hosting:/x:rw"),
        ("mounts", "@/proj/link:/x:ro"),
        ("show", "@/.config/toolwharf/mcp.json"),
    ] {
        let layout = Layout {
            more: json!({field: [path]}),
            ..layouts().remove(0)
        };
        let home = Home::new(&layout);
        let why = run(&layout, &home, USER, "true", &[]).err().unwrap();
        assert!(why.contains(&format!("launch failed: {field}: `")), "{why}");
    }
    let layout = Layout {
        more: json!({"mounts": ["@/proj:/x:rw"]}),
        config: "@/proj/mcp.json",
        ..layouts().remove(0)
    };
    let home = Home::new(&layout);
    let why = run(&layout, &home, 0, "true", &[]).err().unwrap();
    assert!(why.contains("mount another folder"), "{why}");
}
