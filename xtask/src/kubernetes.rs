//! A private Kubernetes cluster for the duration of a command: `cargo xtask kubernetes -- CMD…`.
//!
//! One node of Kubernetes 1.20 (API server, controller manager, scheduler, kubelet) on etcd and containerd, with runc
//! and gVisor. The command gets its kubeconfig in `TOOLWHARF_TEST_KUBERNETES` and `KUBECONFIG`. Kubernetes itself is
//! built once, from Debian's source package, in `~/.cache/toolwharf`. Everything else comes from Debian packages.
//!
//! All files (sockets, data, certificates, network namespaces) are in one directory below the system's temporary
//! directory. Control groups have the name of that directory. The daemons listen on free ports of the loopback device.
//! Exception: the kubelet refuses loopback and listens on the address of a bridge that leads only to the pods. No
//! firewall rule is set. The kubelet of 1.20 always writes to `/var/log/pods`, so there can be only one such cluster at
//! a time on a machine, which a lock ensures. `--control-plane` starts only the API server and etcd; any number of them
//! may run next to a whole cluster.
//!
//! The cluster has no network plugin that enforces policies, no volume provisioner (60 volumes on the host's disk exist
//! instead), and pods cannot reach the API server.
//!
//! The cluster stops when the command ends or this process gets a signal. If this process is killed, the daemons get a
//! signal, and the next cluster removes what is left.

use std::{
    env,
    ffi::OsStr,
    fs::{self, File},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{ExitCode, Stdio},
    sync::atomic::AtomicBool,
};

use anyhow::{Context, Result, ensure};
use rustix::{
    fs::{FlockOperation, flock},
    process::{Pid, Signal, kill_process},
};

use crate::{
    daemon::{self, CGROUPS, Daemon, Directory, free_port},
    dist, docker,
    shell::{Cmd, heading, is_executable, is_root, which},
    workspace::{FEATURES, Workspace, caches},
};

/// The environment variable with the kubeconfig of a whole cluster, for tests.
pub(crate) const VARIABLE: &str = "TOOLWHARF_TEST_KUBERNETES";
/// The environment variable with the kubeconfig of an API server, with or without nodes, for tests.
pub(crate) const API_VARIABLE: &str = "TOOLWHARF_TEST_KUBERNETES_API";
const DIR_PREFIX: &str = "toolwharf-kubernetes-";
const KUBERNETES_PROGRAMS: [&str; 4] = [
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
];
/// Programs of a control plane, with their Debian packages.
const NEEDED_PROGRAMS: [(&str, &str); 2] = [("etcd", "etcd-server"), ("openssl", "openssl")];
/// Programs of a node.
const NEEDED_BY_NODES: [(&str, &str); 7] = [
    ("containerd", "containerd"),
    ("ctr", "containerd"),
    ("runc", "runc"),
    ("runsc", "runsc"),
    ("busybox", "busybox-static"),
    ("ip", "iproute2"),
    ("gcc", "gcc"),
];
pub(crate) const PLUGINS: &str = "/usr/lib/cni";
/// The Go compiler. Newer versions cannot build Kubernetes 1.20.
pub(crate) const GO: &str = "/usr/lib/go-1.19/bin/go";
/// Kernel settings that the kubelet changes for the whole machine.
const KERNEL_SETTINGS: [&str; 6] = [
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
];
/// Directories that the kubelet always writes to.
const POD_LOGS: [&str; 2] = ["/var/log/pods", "/var/log/containers"];
/// Where the network plugins record what they created.
const PLUGIN_RESULTS: &str = "/var/lib/cni/results";
const VOLUME_COUNT: usize = 60;

/// Runs a command with a private cluster, and returns its exit code.
pub(crate) fn run(workspace: &Workspace, parts: Parts, cmd: Cmd) -> Result<ExitCode> {
    let interrupted = daemon::interruption()?;
    let cluster = Cluster::start(workspace, parts, &interrupted)?;
    let cmd = cmd.env("KUBECONFIG", &cluster.config);
    daemon::supervise(cluster.tell(cmd), &interrupted)
}

/// The parts of a cluster.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parts {
    /// The API server and etcd.
    ControlPlane,
    All,
}

impl Parts {
    fn variables(self) -> &'static [&'static str] {
        match self {
            Self::ControlPlane => &[API_VARIABLE],
            Self::All => &[VARIABLE, API_VARIABLE],
        }
    }

    /// The Kubernetes programs that these parts consist of.
    fn programs(self) -> &'static [&'static str] {
        match self {
            Self::ControlPlane => &KUBERNETES_PROGRAMS[..1],
            Self::All => &KUBERNETES_PROGRAMS,
        }
    }
}

pub(crate) struct Cluster {
    config: PathBuf,
    parts: Parts,
    /// `None` if the cluster is not a private one.
    _own: Option<Own>,
}

struct Own {
    daemons: Vec<Daemon>,
    bridge: String,
    /// Previous values of the settings that the kubelet changes.
    kernel: Vec<(PathBuf, String)>,
    /// Directories created by the kubelet.
    logs: Vec<&'static str>,
    // This is dropped after the daemons, to remove what they left.
    dir: Directory,
    /// The lock that allows only one node on this machine.
    lock: Option<File>,
}

impl Cluster {
    pub(crate) fn start(
        workspace: &Workspace,
        parts: Parts,
        interrupted: &AtomicBool,
    ) -> Result<Self> {
        let given = env::var_os(parts.variables()[0]).filter(|config| !config.is_empty());
        if let Some(config) = given {
            let config = config.into();
            return Ok(Self {
                config,
                parts,
                _own: None,
            });
        }
        let has_node = parts == Parts::All;
        heading(match has_node {
            true => "a private Kubernetes cluster",
            false => "a private Kubernetes API server",
        });
        ensure!(
            !has_node || is_root()?,
            "a Kubernetes node needs root: run this as root"
        );
        let by_nodes = NEEDED_BY_NODES.iter().filter(|_| has_node);
        let missing = NEEDED_PROGRAMS
            .iter()
            .chain(by_nodes)
            .filter(|(name, _)| docker::program(name).is_none());
        let mut packages: Vec<&str> = missing.map(|(_, package)| *package).collect();
        if has_node && !Path::new(PLUGINS).join("bridge").exists() {
            packages.push("containernetworking-plugins");
        }
        ensure!(
            packages.is_empty(),
            "programs are missing: run `apt-get install {}`",
            packages.join(" ")
        );
        let cache = cache()?;
        let lock = match has_node {
            true => {
                let lock = File::create(cache.join("lock"))?;
                flock(&lock, FlockOperation::NonBlockingLockExclusive).context(
                    "another private Kubernetes cluster runs on this machine; wait until it stops",
                )?;
                Some(lock)
            }
            false => None,
        };
        build(&cache, parts)?;
        remove_remains()?;
        let dir = Directory::create(DIR_PREFIX)?;
        let kernel = KERNEL_SETTINGS.iter().filter_map(|name| {
            let path = Path::new("/proc/sys").join(name);
            let value = fs::read_to_string(&path).ok()?;
            Some((path, value))
        });
        let mut own = Own {
            daemons: Vec::new(),
            bridge: bridge(std::process::id()),
            kernel: kernel.collect(),
            logs: POD_LOGS
                .into_iter()
                .filter(|path| !Path::new(path).exists())
                .collect(),
            dir,
            lock,
        };
        let config = own.at("admin.conf");
        let bin = cache.join("bin");
        own.api_server(&bin, interrupted)?;
        if has_node {
            own.controllers(&bin)?;
            own.node(workspace, &bin, interrupted)?;
            own.objects()?;
        }
        Ok(Self {
            config,
            parts,
            _own: Some(own),
        })
    }

    /// Passes the kubeconfig of the cluster to the command, and adds `kubectl` to its `PATH` in case the system has
    /// none.
    pub(crate) fn tell(&self, cmd: Cmd) -> Cmd {
        let path = env::var("PATH").unwrap_or_default();
        let own = cache().map(|cache| cache.join("bin")).unwrap_or_default();
        let cmd = cmd.env("PATH", format!("{path}:{}", own.display()));
        let variables = self.parts.variables().iter();
        variables.fold(cmd, |cmd, variable| cmd.env(variable, &self.config))
    }
}

impl Own {
    fn at(&self, name: &str) -> PathBuf {
        self.dir.path.join(name)
    }

    /// One of the templates next to this file, filled in for this cluster.
    fn text(&self, template: &str, address: &str, port: u16) -> String {
        template
            .replace("@DIR@", &self.dir.path.to_string_lossy())
            .replace("@NAME@", &self.dir.name)
            .replace("@ADDRESS@", address)
            .replace("@PORT@", &port.to_string())
    }

    fn start(
        &mut self,
        name: &str,
        program: impl AsRef<OsStr>,
        args: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Result<()> {
        let cmd = Cmd::new("setpriv")
            .args(["--pdeathsig", "TERM", "--"])
            .arg(program)
            .args(args)
            .env("PATH", docker::PATH)
            .dir(&self.dir.path);
        let log = self.at(&format!("{name}.log"));
        self.daemons
            .push(Daemon::start(name, cmd, log, Signal::TERM)?);
        Ok(())
    }

    fn wait(
        &mut self,
        what: &str,
        interrupted: &AtomicBool,
        is_ready: impl Fn(&Self) -> bool,
    ) -> Result<()> {
        daemon::wait_until_ready(what, interrupted, || {
            for daemon in &mut self.daemons {
                daemon.ensure_running()?;
            }
            Ok(is_ready(self))
        })
    }

    fn kubectl<const N: usize>(&self, args: [&str; N]) -> Cmd {
        let own = cache().map(|cache| cache.join("bin/kubectl"));
        let own = own.ok().filter(|file| is_executable(file));
        let program = own.or_else(|| which("kubectl")).unwrap_or_default();
        Cmd::new(program)
            .arg("--kubeconfig")
            .arg(self.at("admin.conf"))
            .args(args)
    }

    fn ctr<const N: usize>(&self, args: [&str; N]) -> Cmd {
        Cmd::new("ctr")
            .arg("--address")
            .arg(self.at("containerd.sock"))
            .args(["--namespace", "k8s.io"])
            .args(args)
    }

    fn api_server(&mut self, bin: &Path, interrupted: &AtomicBool) -> Result<()> {
        let [etcd, peers, api] = [free_port()?, free_port()?, free_port()?];
        fs::write(self.at("keys.sh"), include_str!("kubernetes/keys.sh"))?;
        let keys = Cmd::new("bash")
            .args(["keys.sh", &api.to_string(), &self.address()])
            .dir(&self.dir.path);
        let made = keys.into_command().stderr(Stdio::null()).status()?;
        ensure!(made.success(), "keys.sh cannot make certificates");
        let [etcd, peers] = [etcd, peers].map(|port| format!("http://127.0.0.1:{port}"));
        let args = [
            "--data-dir=etcd".to_owned(),
            format!("--listen-client-urls={etcd}"),
            format!("--advertise-client-urls={etcd}"),
            format!("--listen-peer-urls={peers}"),
            format!("--initial-advertise-peer-urls={peers}"),
            format!("--initial-cluster=default={peers}"),
            "--unsafe-no-fsync".to_owned(),
        ];
        self.start("etcd", "etcd", args)?;
        let api = format!("--secure-port={api}");
        let etcd = format!("--etcd-servers={etcd}");
        let args = [
            &etcd,
            &api,
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--tls-cert-file=apiserver.crt",
            "--tls-private-key-file=apiserver.key",
            "--client-ca-file=ca.crt",
            "--kubelet-client-certificate=admin.crt",
            "--kubelet-client-key=admin.key",
            "--kubelet-certificate-authority=ca.crt",
            "--kubelet-preferred-address-types=InternalIP",
            "--service-cluster-ip-range=10.96.0.0/24",
            "--authorization-mode=Node,RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-account-key-file=accounts.pub",
            "--service-account-signing-key-file=accounts.key",
            "--endpoint-reconciler-type=none",
        ];
        self.start("kube-apiserver", bin.join("kube-apiserver"), args)?;
        self.wait("the API server", interrupted, |own| {
            own.kubectl(["get", "--raw=/readyz"]).succeeds()
        })
    }

    fn controllers(&mut self, bin: &Path) -> Result<()> {
        let args = [
            "--kubeconfig=controller-manager.conf",
            "--bind-address=127.0.0.1",
            "--port=0",
            "--secure-port=0",
            "--leader-elect=false",
            "--service-account-private-key-file=accounts.key",
            "--root-ca-file=ca.crt",
            "--use-service-account-credentials=true",
        ];
        let name = "kube-controller-manager";
        self.start(name, bin.join(name), args)?;
        let args = [
            "--kubeconfig=scheduler.conf",
            "--bind-address=127.0.0.1",
            "--port=0",
            "--secure-port=0",
            "--leader-elect=false",
        ];
        self.start("kube-scheduler", bin.join("kube-scheduler"), args)
    }

    /// The address of the node on the bridge of the pods.
    fn address(&self) -> String {
        format!("10.233.{}.1", std::process::id() % 256)
    }

    fn node(&mut self, workspace: &Workspace, bin: &Path, interrupted: &AtomicBool) -> Result<()> {
        let address = self.address();
        let subnet = format!("{address}/24");
        let link = self.bridge.clone();
        let ip = |args: &[&str]| Cmd::new("ip").args(args).run_for_effect();
        // Without a fixed MAC address, a bridge takes the lowest address of its ports and changes it when pods come and
        // go. Packets of the other pods to this host would then be lost for half a minute.
        let ethernet = format!("02:00:0a:e9:{:02x}:01", std::process::id() % 256);
        ip(&["link", "add", &link, "address", &ethernet, "type", "bridge"])?;
        ip(&["address", "add", &subnet, "dev", &link])?;
        ip(&["link", "set", &link, "up"])?;
        let (network, _) = address.rsplit_once('.').expect("it has dots");
        let network = format!("{network}.0/24");
        let network = serde_json::json!({
            "cniVersion": "0.4.0",
            "name": self.dir.name,
            "plugins": [{
                "type": "bridge",
                "bridge": link,
                "isGateway": true,
                "ipMasq": false,
                "hairpinMode": true,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": network}]],
                    "dataDir": self.at("cni-addresses"),
                },
            }],
        });
        fs::create_dir(self.at("cni"))?;
        fs::write(self.at("cni/network.conflist"), network.to_string())?;
        let port = free_port()?;
        let texts = [
            (
                "containerd.toml",
                include_str!("kubernetes/containerd.toml"),
            ),
            ("runsc", include_str!("kubernetes/runsc.sh")),
            ("kubelet.sh", include_str!("kubernetes/kubelet.sh")),
            ("kubelet.yaml", include_str!("kubernetes/kubelet.yaml")),
        ];
        for (name, text) in texts {
            fs::write(self.at(name), self.text(text, &address, port))?;
        }
        fs::set_permissions(self.at("runsc"), fs::Permissions::from_mode(0o755))?;
        let config = ["--config=containerd.toml"];
        self.start("containerd", "containerd", config)?;
        self.wait("containerd", interrupted, |own| {
            own.ctr(["version"]).succeeds()
        })?;
        self.images(workspace)?;
        // The kubelet expects its root control group to exist.
        for entry in fs::read_dir(CGROUPS)?.flatten() {
            if entry.file_type()?.is_dir() {
                let _ = fs::create_dir(entry.path().join(&self.dir.name));
            }
        }
        let args = [
            "kubelet.sh".to_owned(),
            bin.join("kubelet").display().to_string(),
            "--config=kubelet.yaml".to_owned(),
            "--kubeconfig=kubelet.conf".to_owned(),
            "--hostname-override=node".to_owned(),
            format!("--node-ip={address}"),
            format!("--root-dir={}", self.at("kubelet").display()),
            format!("--cert-dir={}", self.dir.path.display()),
            format!("--volume-plugin-dir={}", self.at("plugins").display()),
            "--container-runtime=remote".to_owned(),
            format!(
                "--container-runtime-endpoint=unix://{}",
                self.at("containerd.sock").display()
            ),
        ];
        self.start("kubelet", "sh", args)?;
        self.wait("the node", interrupted, |own| {
            let ready = own.kubectl(["wait", "--for=condition=Ready", "--timeout=0", "node/node"]);
            ready.succeeds()
        })?;
        self.wait("the default service account", interrupted, |own| {
            own.kubectl(["get", "serviceaccount", "default"]).succeeds()
        })
    }

    /// Creates the objects that tests expect: runtime classes, and volumes on this host's disk.
    fn objects(&self) -> Result<()> {
        let mut text = include_str!("kubernetes/objects.yaml").to_owned();
        for number in 0..VOLUME_COUNT {
            let path = self.at(&format!("volumes/{number}"));
            // A volume is writable for the pod's group, like one from a storage class. Kubernetes does not ensure that
            // for a `hostPath`.
            fs::create_dir_all(&path)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o777))?;
            let volume = serde_json::json!({
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": format!("volume-{number}")},
                "spec": {
                    "capacity": {"storage": "1Gi"},
                    "accessModes": ["ReadWriteOnce"],
                    "persistentVolumeReclaimPolicy": "Retain",
                    "storageClassName": "toolwharf-test",
                    "hostPath": {"path": path, "type": "Directory"},
                },
            });
            text.push_str(&format!("---\n{volume}\n"));
        }
        let file = self.at("objects.yaml");
        fs::write(&file, text)?;
        self.kubectl(["apply", "--filename"])
            .arg(file)
            .run_for_effect()
    }

    /// Imports the test images: `busybox`, `scripted` and `conformance` (testkit's servers), `everything` (npm's
    /// server-everything), and `toolwharf`.
    fn images(&self, workspace: &Workspace) -> Result<()> {
        workspace
            .cargo(&["build", "--quiet", FEATURES, "--bins"])
            .args(["--package=testkit", "--package=toolwharf"])
            .run()?;
        let pause = self.at("pause");
        fs::write(self.at("pause.c"), include_str!("kubernetes/pause.c"))?;
        let gcc = Cmd::new("gcc").args(["-O2", "-static", "-o"]);
        gcc.arg(&pause).arg(self.at("pause.c")).run()?;
        let pack = |dir: &Path| Cmd::new("tar").args(["--create", "-C"]).arg(dir);
        let import = pack(&self.dir.path).arg("pause");
        self.import("pause:1", import, &["/pause"], &[])?;
        docker::copy_busybox(&self.at("busybox/bin"))?;
        let with_applets = |pack: Cmd, applets: &[&str]| {
            let pack = pack.arg("-C").arg(self.at("busybox"));
            pack.args(applets)
        };

        let target = workspace.target()?.join("debug");
        let scripted = docker::pack_program(&target.join("testkit-scripted"))?;
        // Tests use these programs to list the processes of the pod, since no other container sees them.
        let import = with_applets(scripted, &["bin/sh", "bin/cat"]);
        self.import("scripted:1", import, &["/testkit-scripted"], &[])?;
        self.import(
            "conformance:1",
            docker::pack_program(&target.join("testkit-conformance"))?,
            &["/testkit-conformance"],
            &["--stdio"],
        )?;
        self.import(
            "everything:1",
            docker::pack_everything(workspace)?,
            &["/node_modules/node/bin/node"],
            &["/node_modules/@modelcontextprotocol/server-everything/dist/index.js"],
        )?;
        // Toolwharf's small image, with a server that it can run, and a program with which tests read its files.
        let root = self.at("toolwharf");
        let program = target.join("toolwharf");
        dist::images::small_root(workspace, dist::Arch::of_host()?, &program, &root)?;
        let own = pack(&root)
            .args([".", "-C"])
            .arg(&target)
            .arg("testkit-scripted");
        let import = with_applets(own, &["bin/cat"]);
        self.import("toolwharf:1", import, &["toolwharf"], &[])?;
        let import = pack(&self.at("busybox")).arg("bin");
        self.import("busybox:1", import, &[], &["/bin/sh"])
    }

    /// Creates an image from what `tar` packs, through an archive in the format of `docker save`.
    fn import(&self, name: &str, pack: Cmd, entrypoint: &[&str], command: &[&str]) -> Result<()> {
        let dir = self.at("image");
        fs::create_dir(&dir)?;
        let layer = dir.join("layer.tar");
        let packed = pack
            .into_command()
            .stdout(File::create(&layer)?)
            .status()
            .context("cannot start tar")?;
        ensure!(packed.success(), "cannot pack {name}: {packed}");
        let sum = Cmd::new("sha256sum").arg(&layer).output()?;
        let sum = sum.split(' ').next().unwrap_or_default();
        let config = serde_json::json!({
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": entrypoint, "Cmd": command, "Env": ["PATH=/bin:/usr/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{sum}")]},
        });
        let manifest = serde_json::json!([{
            "Config": "config.json",
            "RepoTags": [format!("toolwharf-test/{name}")],
            "Layers": ["layer.tar"],
        }]);
        fs::write(dir.join("config.json"), config.to_string())?;
        fs::write(dir.join("manifest.json"), manifest.to_string())?;
        let archive = self.at("image.tar");
        let files = ["config.json", "manifest.json", "layer.tar"];
        let tar = Cmd::new("tar").args(["--create", "--file"]).arg(&archive);
        tar.arg("-C").arg(&dir).args(files).run_for_effect()?;
        let import = self.ctr(["images", "import"]).arg(&archive);
        import.run_for_effect()?;
        fs::remove_dir_all(dir)?;
        Ok(fs::remove_file(archive)?)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // The kubelet stops first, so that it starts no further containers.
        self.daemons.retain(|daemon| daemon.name != "kubelet");
        if self.lock.is_some() {
            end_pods(&self.dir.name);
        }
        // The last daemon stops first, and etcd last, since all others need it.
        while self.daemons.pop().is_some() {}
        if self.lock.is_none() {
            return;
        }
        Cmd::new("ip")
            .args(["link", "delete", &self.bridge])
            .succeeds();
        for (path, value) in &self.kernel {
            let _ = fs::write(path, value);
        }
        for path in &self.logs {
            let _ = fs::remove_dir_all(path);
        }
        for result in fs::read_dir(PLUGIN_RESULTS).into_iter().flatten().flatten() {
            let name = result.file_name();
            if name.to_string_lossy().starts_with(&self.dir.name) {
                let _ = fs::remove_file(result.path());
            }
        }
    }
}

/// Kills all processes in the control groups of a cluster's pods.
fn end_pods(name: &str) {
    daemon::stops(|| {
        let groups = Path::new(CGROUPS).join("pids").join(name);
        let unified = Path::new(CGROUPS).join(name);
        let mut pids = Vec::new();
        for group in [groups, unified] {
            collect(&group, &mut pids);
        }
        for pid in &pids {
            let _ = kill_process(*pid, Signal::KILL);
        }
        pids.is_empty()
    });
}

fn collect(group: &Path, pids: &mut Vec<Pid>) {
    let procs = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    pids.extend(
        procs
            .lines()
            .filter_map(|pid| Pid::from_raw(pid.parse().ok()?)),
    );
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect(&entry.path(), pids);
        }
    }
}

/// The directory where Kubernetes is built, shared by all checkouts.
fn cache() -> Result<PathBuf> {
    let cache = caches()?.join("kubernetes-1.20");
    fs::create_dir_all(&cache)?;
    Ok(cache)
}

/// Part of the set-up: builds the API server in advance, unless the environment names another cluster.
pub(crate) fn build_api_server(_: &Workspace) -> Result<()> {
    if env::var_os(API_VARIABLE).is_some_and(|config| !config.is_empty()) {
        return Ok(());
    }
    build(&cache()?, Parts::ControlPlane)
}

fn build(cache: &Path, parts: Parts) -> Result<()> {
    let lock = File::create(cache.join("build.lock"))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    let is_missing = |name: &&str| !is_executable(&cache.join("bin").join(name));
    let mut missing: Vec<&str> = parts
        .programs()
        .iter()
        .copied()
        .filter(is_missing)
        .collect();
    if which("kubectl").is_none() && is_missing(&"kubectl") {
        missing.push("kubectl");
    }
    if missing.is_empty() {
        return Ok(());
    }
    ensure!(
        Path::new(GO).exists(),
        "Go 1.19, which builds Kubernetes, is not installed: run `apt-get install golang-1.19-go`"
    );
    eprintln!(
        "    building {} of Kubernetes (only once; takes several minutes)",
        missing.join(", ")
    );
    let script = cache.join("build.sh");
    fs::write(&script, include_str!("kubernetes/build.sh"))?;
    Cmd::new("bash").arg(script).arg(cache).args(missing).run()
}

fn bridge(owner: u32) -> String {
    format!("twk{owner}")
}

/// Removes what is left of clusters whose owner was killed.
fn remove_remains() -> Result<()> {
    for (owner, dir) in daemon::remains(DIR_PREFIX)? {
        end_pods(&dir.name);
        let link = bridge(owner);
        Cmd::new("ip").args(["link", "delete", &link]).succeeds();
        drop(dir);
    }
    Ok(())
}
