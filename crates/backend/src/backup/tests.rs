//! Backups and their restore, in-process.

use std::{
    fs,
    io::Read as _,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use config::Sources;
use model::ProjectId;
use store::{Location, NewProject, Store, encryption::MasterKey};
use tempfile::TempDir;
use testkit::{postgres::Database, wait_for};
use tokio::time::Instant;

use super::{
    Passphrase, Progress,
    archive::{Manifest, Reader, Writer},
    create::{self, Made, create},
    file::{Checked, Pending},
    is_unfinished,
    restore::{self, Restored, check_finished, restore},
};
use crate::{
    lock::Lock,
    master::{KEY_FILE, Master},
    startup::CliOverrides,
};

const PASSPHRASE: &str = "correct horse battery";
const TOKEN: &str = "twh_administrators_secret_token";
const CLIENT_KEY: &str = "twh_secret_key_of_a_client";

/// A machine with configuration files and a data directory.
struct Machine {
    dir: TempDir,
    database: Option<Database>,
}

impl Machine {
    /// A machine without any file of a gateway.
    fn empty(database: Option<Database>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { dir, database }
    }

    /// An empty machine with a database of the same kind, and the job that restores `file` there.
    async fn to_restore(&self, file: &Path) -> (Self, restore::Job) {
        let database = match &self.database {
            Some(_) => Some(Database::create().await),
            None => None,
        };
        let new = Self::empty(database);
        let mut job = new.restore_job(file);
        if let Some(database) = &new.database {
            // The settings in the backup name the old database.
            let settings = format!("database_url = {:?}\n", database.url());
            fs::write(new.path("toolwharf.toml"), settings).unwrap();
            job.with_config = false;
        }
        (new, job)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn data(&self, name: &str) -> PathBuf {
        self.path("data").join(name)
    }

    fn sources(&self) -> Sources {
        Sources {
            servers: vec![self.path("mcp.json")],
            settings: Some(self.path("toolwharf.toml")),
            ..Sources::default()
        }
    }

    fn location(&self) -> Location {
        match &self.database {
            Some(database) => Location::Postgres(database.url().to_owned()),
            None => Location::Sqlite(self.data("toolwharf.db")),
        }
    }

    async fn store(&self) -> Store {
        Store::open(&self.location()).await.unwrap()
    }

    /// A machine on which a gateway has run.
    async fn used(database: Option<Database>) -> Self {
        let machine = Self::empty(database);
        let settings = match &machine.database {
            Some(database) => format!("database_url = {:?}\n", database.url()),
            None => "naming = \"preserve\"\n".to_owned(),
        };
        fs::write(machine.path("toolwharf.toml"), settings).unwrap();
        fs::write(machine.path("mcp.json"), r#"{"mcpServers":{}}"#).unwrap();
        for (name, content) in [
            ("admin-token", TOKEN),
            ("installation", "abcdef123456"),
            ("clients/cursor.key", CLIENT_KEY),
            ("clients/cursor.json", "{}"),
            ("hosting/ports.json", "{}"),
            (
                "hosting/process/volumes/one/data/%2Fdata/note",
                "of a server",
            ),
            ("bundles/0123/server/run.sh", "#!/bin/sh"),
            ("packages/node/large", "not in a backup"),
        ] {
            let path = machine.data(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        // An image with a hole.
        let image = machine.data("hosting/docker/two/data.ext4");
        fs::create_dir_all(image.parent().unwrap()).unwrap();
        fs::write(&image, "begin").unwrap();
        fs::File::options()
            .write(true)
            .open(&image)
            .unwrap()
            .set_len(8 << 20)
            .unwrap();
        let run = machine.data("bundles/0123/server/run.sh");
        fs::set_permissions(run, fs::Permissions::from_mode(0o755)).unwrap();
        let store = machine.store().await;
        let project = NewProject::new(ProjectId::parse("shop").unwrap());
        store.project_put(&project).await.unwrap();
        let master = Master::open(&store, &machine.data(""), &|_| None).await;
        master.unwrap().login_key().await.unwrap();
        store.close().await;
        machine
    }

    async fn job(&self, file: &Path) -> create::Job {
        create::Job {
            file: file.to_owned(),
            replace: false,
            sources: self.sources(),
            data_dir: self.data(""),
            store: Store::open_unmigrated(&self.location())
                .await
                .unwrap()
                .unwrap(),
            passphrase: None,
            volumes: true,
            progress: Arc::default(),
        }
    }

    async fn backed_up(&self, file: &Path, passphrase: Option<&str>) -> anyhow::Result<Made> {
        let mut job = self.job(file).await;
        job.passphrase = passphrase.map(|text| Passphrase::new(text.to_owned()));
        create(job).await
    }

    fn restore_job(&self, file: &Path) -> restore::Job {
        let mut overrides = CliOverrides::default();
        overrides.data_dir = Some(self.data(""));
        restore::Job {
            file: file.to_owned(),
            replace: false,
            sources: self.sources(),
            with_config: true,
            with_keys: true,
            overrides,
            progress: Arc::default(),
        }
    }

    async fn restored(&self, job: restore::Job) -> Result<Restored, String> {
        let ask = || -> anyhow::Result<Passphrase> { Ok(Passphrase::new(PASSPHRASE.to_owned())) };
        restore(job, ask)
            .await
            .map_err(|error| format!("{error:#}"))
    }

    /// The names of all files and folders.
    fn files(&self) -> Vec<String> {
        let mut all = Vec::new();
        let mut left = vec![self.dir.path().to_owned()];
        while let Some(folder) = left.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let name = path.strip_prefix(self.dir.path()).unwrap();
                all.push(name.display().to_string());
                if path.is_dir() {
                    left.push(path);
                }
            }
        }
        all.sort();
        all
    }
}

/// Everything in the archive, uncompressed.
fn contents(file: &Path) -> Vec<u8> {
    let mut all = Vec::new();
    let checked = Checked::open(file, &Progress::default()).unwrap();
    let mut reader = Reader::new(&checked).unwrap();
    let read = reader.each(|_, path, entry| {
        all.extend_from_slice(path.display().to_string().as_bytes());
        entry.read_to_end(&mut all)?;
        Ok(())
    });
    let manifest = read.unwrap();
    all.extend(serde_json::to_vec(&manifest).unwrap());
    all
}

async fn both() -> [Machine; 2] {
    [
        Machine::used(None).await,
        Machine::used(Some(Database::create().await)).await,
    ]
}

#[tokio::test]
async fn o07_everything_is_restored_on_an_empty_machine() {
    for old in both().await {
        let file = old.path("backup");
        let folder = "bundles/0123/server";
        let set_mode = |machine: &Machine, mode| {
            let mode = fs::Permissions::from_mode(mode);
            fs::set_permissions(machine.data(folder), mode).unwrap();
        };
        set_mode(&old, 0o555);
        let made = old.backed_up(&file, Some(PASSPHRASE)).await.unwrap();
        assert_eq!(made.notes, Vec::<String>::new());
        assert_eq!(made.bytes, fs::metadata(&file).unwrap().len());
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        let (new, job) = old.to_restore(&file).await;
        let with_config = job.with_config;
        let restored = new.restored(job).await.unwrap();
        assert_eq!(restored.data_dir, new.data(""));
        assert_eq!(restored.replaced, None);
        assert_eq!(
            restored.notes.len(),
            usize::from(!with_config),
            "{restored:?}"
        );
        let store = new.store().await;
        let project = ProjectId::parse("shop").unwrap();
        store.project_get(&project).await.unwrap();
        // The restored key opens what the old one sealed.
        let master = Master::open(&store, &new.data(""), &|_| None)
            .await
            .unwrap();
        master.login_key().await.unwrap();
        for name in [
            "admin-token",
            "installation",
            "clients/cursor.key",
            "clients/cursor.json",
            "hosting/ports.json",
            "hosting/process/volumes/one/data/%2Fdata/note",
            "hosting/docker/two/data.ext4",
            "bundles/0123/server/run.sh",
        ] {
            let same = fs::read(old.data(name)).unwrap() == fs::read(new.data(name)).unwrap();
            assert!(same, "{name}");
        }
        for name in ["admin-token", KEY_FILE, "clients/cursor.key"] {
            let mode = fs::metadata(new.data(name)).unwrap().mode();
            assert_eq!(mode & 0o077, 0, "{name}");
        }
        let run = fs::metadata(new.data("bundles/0123/server/run.sh")).unwrap();
        assert_eq!(run.mode() & 0o777, 0o755);
        let mode = fs::metadata(new.data(folder)).unwrap().mode();
        assert_eq!(mode & 0o777, 0o555);
        // So that the test can remove it.
        set_mode(&old, 0o755);
        set_mode(&new, 0o755);
        let image = fs::metadata(new.data("hosting/docker/two/data.ext4")).unwrap();
        assert!(image.blocks() * 512 < 1 << 20, "the hole was filled");
        assert!(!new.data("packages").exists());
        assert_eq!(new.path("mcp.json").exists(), with_config);
        let left: Vec<_> = new.files();
        let left: Vec<_> = left
            .iter()
            .filter(|name| name.contains("restore"))
            .collect();
        assert_eq!(left, Vec::<&String>::new());
        store.close().await;
    }
}

#[tokio::test]
async fn o07_without_a_passphrase_no_key_is_in_the_file() {
    for machine in both().await {
        let file = machine.path("backup");
        let made = machine.backed_up(&file, None).await.unwrap();
        let key = fs::read_to_string(machine.data(KEY_FILE)).unwrap();
        let id = MasterKey::parse(&key).unwrap().id();
        assert!(made.notes[0].contains(&id), "{:?}", made.notes);
        let sealed = machine.path("sealed");
        machine.backed_up(&sealed, Some(PASSPHRASE)).await.unwrap();
        for file in [&file, &sealed] {
            let all = contents(file);
            for secret in [key.trim(), TOKEN, CLIENT_KEY, PASSPHRASE] {
                let found = all
                    .windows(secret.len())
                    .any(|part| part == secret.as_bytes());
                assert!(!found, "{}", file.display());
            }
        }
        // It is restored without the keys, and the notes say what is missing.
        let (new, job) = machine.to_restore(&file).await;
        let restored = new.restored(job).await.unwrap();
        let notes = restored.notes.join("\n");
        assert!(
            notes.contains(&id) && notes.contains("key recover"),
            "{notes}"
        );
        assert!(!new.data(KEY_FILE).exists());
    }
}

#[tokio::test]
async fn o07_existing_data_is_replaced_only_if_asked_and_is_kept() {
    let old = Machine::used(None).await;
    let file = old.path("backup");
    old.backed_up(&file, Some(PASSPHRASE)).await.unwrap();
    let other = Machine::used(None).await;
    fs::write(other.path("mcp.json"), r#"{"mcpServers":{"precious":{}}}"#).unwrap();
    let store = other.store().await;
    let call = store::CallWrite::Intent(store::NewCall {
        id: store::new_id(),
        run_id: None,
        project: None,
        caller: "local".to_owned(),
        server: "precious".to_owned(),
        tool: "echo".to_owned(),
        arguments_digest: String::new(),
        arguments: None,
        started_at: store::now(),
        replay_of: None,
    });
    store.call_writer().write(&[call]).await.unwrap();
    store.close().await;
    let before = other.files();
    let error = other.restored(other.restore_job(&file)).await.unwrap_err();
    for part in ["toolwharf.db", "master.key", "mcp.json", "--force"] {
        assert!(error.contains(part), "{part:?} is not in {error:?}");
    }
    assert_eq!(other.files(), before);

    let key = fs::read_to_string(other.data(KEY_FILE)).unwrap();
    let mut job = other.restore_job(&file);
    job.replace = true;
    let restored = other.restored(job).await.unwrap();
    let replaced = restored.replaced.unwrap();
    assert_eq!(fs::read_to_string(replaced.join(KEY_FILE)).unwrap(), key);
    let kept = fs::read_to_string(replaced.join("config/mcp.json")).unwrap();
    assert!(kept.contains("precious"), "{kept}");
    assert!(replaced.join("toolwharf.db").exists());
    // The journals belong to the old database.
    assert!(replaced.join("toolwharf.db-calls").is_dir());
    assert!(!other.data("toolwharf.db-calls").exists());
    assert_ne!(fs::read_to_string(other.data(KEY_FILE)).unwrap(), key);
    // Nothing in the way was of the packages, which are still there.
    assert!(other.data("packages/node/large").exists());
    Master::open(&other.store().await, &other.data(""), &|_| None)
        .await
        .unwrap();
}

/// Whatever is wrong is found before anything is changed: the machine stays empty.
#[tokio::test]
async fn o07_a_restore_that_is_refused_changes_nothing() {
    let old = Machine::used(None).await;
    let file = old.path("backup");
    old.backed_up(&file, Some(PASSPHRASE)).await.unwrap();
    let whole = fs::read(&file).unwrap();
    let wrong = old.path("wrong");
    let check = async |expect: &str| {
        let new = Machine::empty(None);
        let error = new.restored(new.restore_job(&wrong)).await.unwrap_err();
        assert!(error.contains(expect), "{expect:?} is not in {error:?}");
        assert_eq!(new.files(), Vec::<String>::new(), "{error}");
    };
    check("cannot open").await;
    for length in [0, 10, whole.len() / 2, whole.len() - 1] {
        fs::write(&wrong, &whole[..length]).unwrap();
        let expect = if length == 0 {
            "is not a backup"
        } else {
            "incomplete"
        };
        check(expect).await;
    }
    for at in [100, whole.len() / 2, whole.len() - 60] {
        let mut changed = whole.clone();
        changed[at] ^= 1;
        fs::write(&wrong, changed).unwrap();
        check("damaged").await;
    }

    // Files whose contents this version cannot restore.
    let manifest = |change: &dyn Fn(&mut Manifest)| {
        let checked = Checked::open(&file, &Progress::default()).unwrap();
        let mut reader = Reader::new(&checked).unwrap();
        let mut manifest = reader.each(|_, _, _| Ok(())).unwrap();
        manifest.servers.clear();
        manifest.settings = None;
        manifest.has_keys = false;
        change(&mut manifest);
        manifest
    };
    let write = |manifest: &Manifest, entries: &[(&str, &[u8])]| {
        let pending = Pending::create(&wrong, true).unwrap();
        let mut writer = Writer::new(pending, manifest, Arc::default()).unwrap();
        for (entry, content) in entries {
            writer.bytes(entry, content).unwrap();
        }
        writer.finish().unwrap().publish().unwrap().keep();
    };
    let newer = manifest(&|manifest| {
        let mut later = manifest.database.migrations.last().unwrap().clone();
        later.version += 1;
        manifest.database.migrations.push(later);
    });
    write(&newer, &[("part/of/the/future", b"x")]);
    check("newer Toolwharf").await;
    let plain = manifest(&|_| {});
    write(&plain, &[("part/of/the/future", b"x")]);
    check("does not know").await;
    write(&plain, &[("data/gateway.lock", b"x")]);
    check("does not know").await;
    write(&plain, &[]);
    check("the part `database/toolwharf.db` do not agree").await;
    write(&plain, &[("database/toolwharf.db", b"not a database")]);
    check("the database in the backup is damaged").await;
    let outside = manifest(&|manifest| {
        manifest.images.insert("../../outside.ext4".to_owned(), 1);
    });
    write(&outside, &[("database/toolwharf.db", b"x")]);
    check("unsafe name").await;
    let build = manifest(&|manifest| manifest.database.migrations[2].checksum.clear());
    write(&build, &[("database/toolwharf.db", b"x")]);
    check("another build").await;
}

#[tokio::test]
async fn o07_the_passphrase_is_checked_before_anything_is_changed() {
    let old = Machine::used(None).await;
    let file = old.path("backup");
    old.backed_up(&file, Some("another passphrase"))
        .await
        .unwrap();
    let new = Machine::empty(None);
    let error = new.restored(new.restore_job(&file)).await.unwrap_err();
    assert_eq!(error, "this is not the passphrase of the backup");
    assert_eq!(new.files(), Vec::<String>::new());
    // Without the keys, no passphrase is asked.
    let mut job = new.restore_job(&file);
    job.with_keys = false;
    let ask = || -> anyhow::Result<Passphrase> { panic!("no passphrase is needed") };
    restore(job, ask).await.unwrap();
    assert!(!new.data(KEY_FILE).exists());
}

#[tokio::test]
async fn o07_a_running_gateway_keeps_its_data() {
    let old = Machine::used(None).await;
    let file = old.path("backup");
    old.backed_up(&file, None).await.unwrap();
    let lock = Lock::take(&old.data("")).await.unwrap();
    let mut job = old.restore_job(&file);
    job.replace = true;
    let error = old.restored(job).await.unwrap_err();
    assert!(error.contains("stop it before the restore"), "{error}");
    drop(lock);
    let mut job = old.restore_job(&file);
    job.replace = true;
    old.restored(job).await.unwrap();
}

#[tokio::test]
async fn o07_a_backup_is_restored_into_the_same_kind_of_database() {
    let [sqlite, postgres] = both().await;
    let (one, other) = (sqlite.path("backup"), postgres.path("backup"));
    sqlite.backed_up(&one, None).await.unwrap();
    postgres.backed_up(&other, None).await.unwrap();
    let new = Machine::empty(None);
    let mut job = new.restore_job(&other);
    job.with_config = false;
    let error = new.restored(job).await.unwrap_err();
    assert!(error.contains("of a Postgres database"), "{error}");
    let password = "secret-password";
    let settings = format!("database_url = \"postgres://me:{password}@127.0.0.1:1/x\"\n");
    fs::write(new.path("toolwharf.toml"), settings).unwrap();
    let mut job = new.restore_job(&one);
    job.with_config = false;
    let error = new.restored(job).await.unwrap_err();
    assert!(error.contains("of a SQLite database"), "{error}");
    assert!(!error.contains(password), "{error}");
}

#[tokio::test]
async fn o07_a_backup_that_is_dropped_leaves_no_file() {
    let machine = Machine::used(None).await;
    let file = machine.path("backup");
    let start = Instant::now();
    create(machine.job(&file).await).await.unwrap();
    let whole = start.elapsed();
    fs::remove_file(&file).unwrap();
    // Most of the steps in which it can be dropped are near the end, when the file gets its name.
    let parts = [0, 10, 50].into_iter().chain(70..=110);
    for part in parts {
        let job = machine.job(&file).await;
        if let Ok(done) = tokio::time::timeout(whole * part / 100, create(job)).await {
            done.unwrap();
            fs::remove_file(&file).unwrap();
        }
        let is_gone = async || {
            !machine
                .files()
                .iter()
                .any(|name| name.starts_with("backup"))
        };
        wait_for(
            "the unfinished files to go",
            Duration::from_secs(10),
            is_gone,
        )
        .await;
    }
}

#[tokio::test]
async fn o07_the_key_must_be_there_if_it_is_to_be_included() {
    let machine = Machine::used(None).await;
    fs::rename(machine.data(KEY_FILE), machine.path("elsewhere")).unwrap();
    let file = machine.path("backup");
    let error = machine
        .backed_up(&file, Some(PASSPHRASE))
        .await
        .unwrap_err();
    assert!(
        format!("{error:#}").contains("cannot include the master key"),
        "{error:#}"
    );
    assert!(!file.exists() && !is_unfinished(&file));
    machine.backed_up(&file, None).await.unwrap();
}

#[tokio::test]
async fn o07_a_damaged_database_makes_no_backup() {
    let machine = Machine::used(None).await;
    let file = machine.data("toolwharf.db");
    let mut bytes = fs::read(&file).unwrap();
    // The pages with the project, so that the database can still be opened.
    for page in bytes.chunks_mut(4096).skip(1) {
        if page.windows(4).any(|part| part == b"shop") {
            page.fill(0xaa);
        }
    }
    fs::write(&file, bytes).unwrap();
    let backup = machine.path("backup");
    let error = machine.backed_up(&backup, None).await.unwrap_err();
    assert!(format!("{error:#}").contains("damaged"), "{error:#}");
    assert!(!backup.exists() && !is_unfinished(&backup));
}

#[tokio::test]
async fn o07_an_interrupted_restore_is_noticed_at_the_next_start() {
    let machine = Machine::used(None).await;
    check_finished(&machine.data("")).unwrap();
    fs::write(machine.data("restore-unfinished"), "").unwrap();
    let error = check_finished(&machine.data("")).unwrap_err().to_string();
    assert!(error.contains("--force"), "{error}");
    let file = machine.path("backup");
    machine.backed_up(&file, None).await.unwrap();
    let mut job = machine.restore_job(&file);
    job.replace = true;
    machine.restored(job).await.unwrap();
    check_finished(&machine.data("")).unwrap();
}

#[tokio::test]
async fn o07_configuration_files_without_a_place_are_named() {
    let old = Machine::used(None).await;
    let file = old.path("backup");
    old.backed_up(&file, None).await.unwrap();
    let new = Machine::empty(None);
    let mut job = new.restore_job(&file);
    job.sources.settings = None;
    let error = new.restored(job).await.unwrap_err();
    assert!(
        error.contains("toolwharf.toml") && error.contains("--without-config"),
        "{error}"
    );
    // A file that is there already, with the same content, is not in the way.
    fs::copy(old.path("mcp.json"), new.path("mcp.json")).unwrap();
    new.restored(new.restore_job(&file)).await.unwrap();
}
