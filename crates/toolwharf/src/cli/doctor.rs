//! `doctor`: checks the installation and says how to fix problems.
//!
//! It changes nothing and starts no server.

mod literals;
mod sandbox;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::{SocketAddr, TcpListener},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use api::{Backups, Certificate, Finding, KeptBack, Level, Project, Report, Server, Status};
use config::{Config, Sources};
use model::{HostEnv, Program, ProjectId, ServerSpec, Settings, Surroundings};

use super::{
    Context, No,
    http::{Api, path},
    pages, print,
    reach::Place,
    secrets,
    servers::said_name,
    shown::{self, tools},
};
use crate::cli::http::of_server;
use crate::cli::reach::all_servers;
use backend::{
    lock::{self, Holder},
    loop_detection::LoopDetection,
    startup,
};

/// Number of stderr lines shown with a server's problem.
const LOG_LINES: usize = 5;

/// Servers whose command cannot be started on this machine, each with the reason.
type Missing = BTreeMap<String, Finding>;

#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn ok(&mut self, what: impl Into<String>) {
        self.plain(Level::Ok, what);
    }

    fn warning(&mut self, what: impl Into<String>, help: impl Into<String>) {
        self.0.push(finding(Level::Warning, what, help));
    }

    fn problem(&mut self, what: impl Into<String>, help: impl Into<String>) {
        self.0.push(finding(Level::Problem, what, help));
    }

    /// Adds a finding without advice.
    fn plain(&mut self, level: Level, what: impl Into<String>) {
        let (what, help) = (what.into(), None);
        self.0.push(Finding { level, what, help });
    }

    fn count(&self, level: Level) -> usize {
        self.0
            .iter()
            .filter(|finding| finding.level == level)
            .count()
    }
}

/// Returns a finding with advice (`help`) on how to fix it.
fn finding(level: Level, what: impl Into<String>, help: impl Into<String>) -> Finding {
    let (what, help) = (what.into(), Some(help.into()));
    Finding { level, what, help }
}

pub(super) async fn run(context: &Context) -> anyhow::Result<()> {
    let mut findings = Findings::default();
    let place = context.place().await;
    let running = match &place {
        Ok(Place::Gateway(api)) => api.authority().parse().ok(),
        _ => None,
    };
    let dir = context.dir(None);
    let env = environment(dir.as_deref());
    let config = match Sources::locate(&context.config, &startup::env) {
        Ok(sources) => {
            let settings = startup::settings(&sources).unwrap_or_default();
            context.read_secrets(&sources, &settings, &env).await;
            configuration(&sources, &env, running, &mut findings)
        }
        Err(error) => {
            findings.problem(error.to_string(), "set HOME, or name a file with --config");
            None
        }
    };
    let all = config.iter().flat_map(|config| &config.servers);
    let is_bad = |spec: &&ServerSpec| spec.unusable.is_some();
    let bad: BTreeSet<String> = all
        .clone()
        .filter(is_bad)
        .map(|spec| spec.name.to_string())
        .collect();
    let specs = all.clone().filter(|spec| !is_bad(spec));
    let off: Vec<Finding> = all.filter_map(lacks).collect();
    let own = Sources::locate(&context.config, &startup::env).ok();
    let own = own.zip(dir.as_deref());
    let own = own.map(|(sources, dir)| startup::own_files(&sources, dir));
    let own = own.unwrap_or_default();
    let losses = |spec| sandbox::losses(spec).or_else(|| sandbox::view(spec, &own));
    let losses: Vec<Finding> = specs.clone().filter_map(losses).collect();
    let exposed: Vec<Finding> = specs.clone().flat_map(sandbox::given_ports).collect();
    let host_env = config.as_ref().map(|config| &config.settings.host_env);
    let host_env = host_env.cloned().unwrap_or_default();
    let missing: Missing = specs
        .filter_map(|spec| Some((spec.name.to_string(), command(spec, &host_env, &env)?)))
        .collect();
    match &dir {
        Some(dir) => data_dir(dir, &mut findings),
        None => findings.problem(
            "the data directory cannot be determined",
            "set HOME, or set `data_dir` in toolwharf.toml",
        ),
    }
    match place {
        Ok(Place::Gateway(api)) => gateway(&api, missing, &bad, &mut findings).await,
        Ok(Place::Files(_)) => {
            findings.0.extend(missing.into_values());
            findings.0.extend(exposed);
            findings.0.extend(off);
            match dir.as_deref().and_then(lock::holder) {
                Some(holder) => held(&holder, &mut findings),
                None => {
                    findings.ok("no gateway is running (`toolwharf serve` starts one)");
                    let settings = config.map(|config| config.settings).unwrap_or_default();
                    port(&settings, &mut findings);
                    if let Some(Err(error)) = settings.tls.as_ref().map(::gateway::Tls::open) {
                        findings.problem(
                            format!("{error:#}"),
                            "correct the files of `[tls]`, or remove the table for plain HTTP",
                        );
                    }
                }
            }
        }
        Err(error) => {
            findings.0.extend(missing.into_values());
            findings.problem(
                format!("{error:#}"),
                "check --url, --token-file and --config",
            );
        }
    }
    findings.0.extend(losses);
    let report = Report {
        problems: findings.count(Level::Problem),
        warnings: findings.count(Level::Warning),
        healthy: findings.count(Level::Problem) == 0,
        findings: findings.0,
    };
    context.print(&report, || text(&report))?;
    if report.healthy {
        Ok(())
    } else {
        Err(No.into())
    }
}

fn text(report: &Report) -> String {
    let width = print::width(&std::io::stdout());
    let mut out = String::new();
    for finding in &report.findings {
        let level = match finding.level {
            Level::Ok => "ok      ",
            Level::Warning => "warning ",
            Level::Problem => "PROBLEM ",
        };
        out.push_str(level);
        out.push_str(&print::wrapped(&finding.what, 8, width));
        out.push('\n');
        if let Some(help) = &finding.help {
            out.push_str("        → ");
            out.push_str(&print::wrapped(help, 10, width));
            out.push('\n');
        }
    }
    out.push('\n');
    let warnings = plural(report.warnings, "warning");
    out.push_str(&match (report.problems, report.warnings) {
        (0, 0) => "Verdict: everything is in order.\n".to_owned(),
        (0, _) => format!("Verdict: it works, with {warnings}.\n"),
        (problems, _) => format!(
            "Verdict: {} to fix, {warnings}.\n",
            plural(problems, "problem")
        ),
    });
    out
}

fn plural(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        count => format!("{count} {what}s"),
    }
}

/// Returns the environment for `${VAR}`: the environment of the gateway with this data directory (proc(5), `environ`),
/// or this command's own if the gateway's cannot be read.
fn environment(dir: Option<&Path>) -> impl Fn(&str) -> Option<String> + use<> {
    let pid = dir.and_then(lock::holder).and_then(|holder| holder.pid);
    let read = |pid: u32| {
        // A pid of another pid namespace may refer to a different program here.
        let program = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        (program.trim() == "toolwharf").then(|| fs::read(format!("/proc/{pid}/environ")).ok())?
    };
    let gateway = pid.and_then(read);
    move |name| match &gateway {
        Some(variables) => variables.split(|byte| *byte == 0).find_map(|variable| {
            let value = variable.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
            String::from_utf8(value.to_vec()).ok()
        }),
        None => startup::env(name),
    }
}

fn configuration(
    sources: &Sources,
    env: &dyn Fn(&str) -> Option<String>,
    running: Option<SocketAddr>,
    findings: &mut Findings,
) -> Option<Config> {
    match Config::load(sources, env) {
        Ok(mut config) => {
            let own = match running {
                Some(address) => LoopDetection::at(&[address]),
                None => LoopDetection::configured(&config.settings),
            };
            own.leave_out(&mut config);
            for problem in &config.problems {
                findings.plain(Level::Problem, problem.to_string());
            }
            for warning in config.settings.host_env.warnings() {
                let (what, help) = warning.split_once("; ").unwrap_or((&warning, ""));
                findings.warning(what, help);
            }
            for warning in &config.warnings {
                // The text of the warning already contains the advice.
                findings.plain(Level::Warning, warning.to_string());
            }
            let files: Vec<String> = config
                .sources
                .iter()
                .map(|f| f.display().to_string())
                .collect();
            match (config.servers.len(), files.as_slice()) {
                (_, []) => {
                    let wanted: Vec<String> = sources
                        .files()
                        .map(|file| file.display().to_string())
                        .collect();
                    findings.warning(
                        format!("there is no configuration yet ({})", wanted.join(", ")),
                        "`toolwharf add NAME -- COMMAND` or `toolwharf import FILE` creates one",
                    );
                }
                (0, files) => findings.warning(
                    format!("the configuration has no servers: {}", files.join(", ")),
                    "`toolwharf add NAME -- COMMAND` adds one",
                ),
                (count, files) => {
                    let servers = &config.servers;
                    let blocked = servers.iter().filter(|it| it.unusable.is_some()).count();
                    let but = match blocked {
                        0 => String::new(),
                        blocked => format!(", {blocked} of them blocked"),
                    };
                    findings.ok(format!(
                        "the configuration is usable: {} in {}{but}",
                        plural(count, "server"),
                        files.join(", ")
                    ));
                }
            }
            findings.0.extend(literals::literals(sources, &config));
            Some(config)
        }
        Err(errors) => {
            for problem in &errors.problems {
                findings.plain(Level::Problem, problem.to_string());
            }
            None
        }
    }
}

/// Returns what a disabled server lacks.
fn lacks(spec: &ServerSpec) -> Option<Finding> {
    let first = spec.unset.first().filter(|_| !spec.enabled)?;
    let unset: Vec<&str> = spec.unset.iter().map(String::as_str).collect();
    Some(unset_of(
        &format!("`{}`", spec.name),
        &unset.join(", "),
        &secrets::command(first, None),
        &format!("toolwharf enable {}", spec.name),
    ))
}

fn unset_of(whose: &str, unset: &str, set: &str, enable: &str) -> Finding {
    finding(
        Level::Warning,
        format!("server {whose} is disabled, and lacks {unset}"),
        format!("`{set}` sets it, then `{enable}` enables the server"),
    )
}

/// Returns why a server's command cannot be started. Errors inside the program appear only when it runs.
fn command(
    spec: &ServerSpec,
    host_env: &HostEnv,
    env: &dyn Fn(&str) -> Option<String>,
) -> Option<Finding> {
    let launch = spec.launch()?;
    let Program::Command {
        program: command, ..
    } = &launch.program
    else {
        return None;
    };
    if !spec.enabled {
        return None;
    }
    let problem = |what: String, help: String| Some(finding(Level::Problem, what, help));
    let name = &spec.name;
    if let Some(cwd) = launch.cwd.as_ref().filter(|cwd| !cwd.is_dir()) {
        return problem(
            format!(
                "the `cwd` of server `{name}` is not a directory: {}",
                cwd.display()
            ),
            "create it, or change `cwd`".to_owned(),
        );
    }
    if command.contains('/') {
        let file = launch.cwd.clone().unwrap_or_default().join(command);
        return match fs::metadata(&file) {
            Ok(meta) if is_executable(&meta) => None,
            Ok(_) => problem(
                format!(
                    "the command of server `{name}` is not executable: {}",
                    file.display()
                ),
                format!("chmod +x {}", file.display()),
            ),
            Err(_) => problem(
                format!(
                    "the command of server `{name}` does not exist: {}",
                    file.display()
                ),
                "check the path".to_owned(),
            ),
        };
    }
    let path = host_env
        .complete(&launch.env, Surroundings::Host)
        .remove("PATH")
        .or_else(|| env("PATH"))
        .unwrap_or_default();
    let found = std::env::split_paths(&path)
        .map(|dir| dir.join(command))
        .any(|file| fs::metadata(file).is_ok_and(|meta| is_executable(&meta)));
    if found {
        return None;
    }
    let install = match command.as_str() {
        "uvx" | "uv" => "; it is part of uv: `pip install uv`",
        "npx" | "node" => "; it is part of Node.js",
        "docker" => "; install Docker, or use another way to run the server",
        _ => "",
    };
    problem(
        format!("the command `{command}` of server `{name}` is not in PATH"),
        format!("install it, or write its full path in `command`{install}"),
    )
}

fn is_executable(meta: &fs::Metadata) -> bool {
    meta.is_file() && meta.permissions().mode() & 0o111 != 0
}

fn data_dir(dir: &Path, findings: &mut Findings) {
    let shown = dir.display();
    let meta = match fs::metadata(dir) {
        Ok(meta) => meta,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            findings.ok(format!(
                "the data directory will be created at the first start: {shown}"
            ));
            return;
        }
        Err(error) => {
            findings.problem(
                format!("the data directory cannot be read: {shown}: {error}"),
                "check its permissions",
            );
            return;
        }
    };
    if !meta.is_dir() {
        findings.problem(
            format!("the data directory is not a directory: {shown}"),
            "move the file away, or name another directory with `data_dir`",
        );
        return;
    }
    let before = findings.count(Level::Ok) + findings.0.len();
    if meta.permissions().mode() & 0o022 != 0 {
        findings.problem(
            format!("other users can write to the data directory: {shown}"),
            format!("chmod go-w {shown}"),
        );
    }
    if tempfile::tempfile_in(dir).is_err() {
        findings.problem(
            format!("the data directory cannot be written to: {shown}"),
            "check its owner and permissions, and whether the disk is full",
        );
    }
    let token: PathBuf = dir.join(auth::admin_token::TOKEN_FILE);
    if let Ok(token_meta) = fs::metadata(&token) {
        let token = token.display();
        if token_meta.permissions().mode() & 0o077 != 0 {
            findings.problem(
                format!("other users can read the administrator's token: {token}"),
                format!("rm {token} and restart the gateway, which creates a new one"),
            );
        } else if token_meta.uid() != meta.uid() {
            findings.warning(
                format!("{token} and its directory have different owners"),
                "remove the file and restart the gateway, which creates a new one",
            );
        }
    }
    if before == findings.count(Level::Ok) + findings.0.len() {
        findings.ok(format!("the data directory is in order: {shown}"));
    }
}

/// Checks whether the gateway could listen.
fn port(settings: &Settings, findings: &mut Findings) {
    let listen = &settings.listen;
    match TcpListener::bind(listen.as_str()) {
        Ok(_) => findings.ok(format!("the address {listen} is free")),
        Err(error) => findings.problem(
            format!(
                "the gateway cannot listen on {listen}{}: {error}",
                runtime::used_by(listen)
            ),
            "end the program that listens there, or choose another address with `listen` in toolwharf.toml or \
             `serve --listen`",
        ),
    }
}

/// Reports a gateway that holds the lock of the data directory but does not respond, or uses other configuration files.
fn held(holder: &Holder, findings: &mut Findings) {
    match &holder.at {
        None => findings.warning(
            format!("the data directory belongs to {holder}"),
            "check again later",
        ),
        Some(at) => {
            let files: Vec<_> = at
                .config
                .iter()
                .map(|file| file.display().to_string())
                .collect();
            findings.problem(
                format!(
                    "the data directory belongs to {holder}, which does not respond or uses other configuration files: {}",
                    files.join(", ")
                ),
                format!(
                    "pass the same files with --config, end the gateway with `kill {}`, or use another --data-dir",
                    at.pid
                ),
            );
        }
    }
}

/// Reports what a running gateway says about its servers. This replaces the findings of this command, so that each
/// problem is reported once. `bad`: servers of the file whose entries were already reported.
async fn gateway(api: &Api, mut missing: Missing, bad: &BTreeSet<String>, findings: &mut Findings) {
    let url = &api.url;
    let servers = match all_servers(api, None).await {
        Ok(servers) => servers,
        Err(error) => {
            findings.0.extend(missing.into_values());
            findings.problem(
                format!("the gateway at {url} does not list its servers: {error:#}"),
                "check that it is a gateway of this version, and that the key is an administrator's",
            );
            return;
        }
    };
    findings.ok(format!("a gateway is running at {url}"));
    for one in servers.iter().filter(|one| one.declared != "project") {
        let is_of_file = one.declared == "file";
        if is_of_file && one.status != "running" && bad.contains(&one.name) {
            continue;
        }
        let here = is_of_file.then(|| missing.remove(&one.name)).flatten();
        server(api, one, here, findings).await;
    }
    // The remaining findings are about entries that the gateway has not loaded.
    findings.0.extend(missing.into_values());
    if let Err(error) = declared(api, findings).await {
        findings.problem(
            format!("the gateway at {url} does not list the servers of projects: {error:#}"),
            "check that it is a gateway of this version, and that the key is an administrator's",
        );
    }
    match api.get::<Status>(&path(&["status"])).await {
        Ok(status) => {
            if !status.database.answers {
                let why = status.database.reason.unwrap_or_default();
                findings.problem(
                    format!(
                        "the database ({}) does not answer: {why}",
                        status.database.kind
                    ),
                    "check that it runs and can be reached from the gateway",
                );
            }
            for kept in &status.kept_back {
                kept_back(kept, findings);
            }
            if let Some(last) = &status.backups {
                backups(last, findings);
            }
            if let Some(certificate) = &status.certificate {
                certificate_in_use(certificate, findings);
            }
        }
        Err(error) => findings.problem(
            format!("the gateway at {url} does not return its status: {error:#}"),
            "check that it is a gateway of this version",
        ),
    }
}

/// Reports whether the gateway uses the certificate in its files.
fn certificate_in_use(certificate: &Certificate, findings: &mut Findings) {
    let file = &certificate.file;
    match &certificate.failing {
        Some(why) => findings.problem(
            format!("the changed certificate {file} is not in use, but the previous one: {why}"),
            "correct the files of `[tls]`; the gateway tries again by itself",
        ),
        None => findings.ok(format!("clients get the certificate {file}")),
    }
}

/// Reports the outcomes of scheduled backups.
fn backups(last: &Backups, findings: &mut Findings) {
    let made = last.succeeded.as_ref().map(|made| {
        let size = made.bytes.and_then(|bytes| u64::try_from(bytes).ok());
        let size = size.map_or_else(String::new, |bytes| format!(", {}", shown::size(bytes)));
        format!("{} ({}{size})", print::time(made.at), made.place)
    });
    match (&last.failed, made) {
        (Some(failed), made) if last.failing => {
            let made = made.map_or_else(
                || "there is no earlier backup".to_owned(),
                |made| format!("the last backup is of {made}"),
            );
            findings.problem(
                format!(
                    "the backup of {} into {} on {} failed: {}; {made}",
                    print::time(failed.at),
                    failed.place,
                    failed.host,
                    failed.reason.as_deref().unwrap_or("the reason is unknown"),
                ),
                "remove the cause; the gateway tries again within ten minutes",
            );
        }
        (_, Some(made)) => findings.ok(format!("the last scheduled backup is of {made}")),
        (_, None) => findings.ok("the first scheduled backup has not been made yet"),
    }
}

/// Reports problems of servers that projects declare.
async fn declared(api: &Api, findings: &mut Findings) -> anyhow::Result<()> {
    let projects = pages::all::<Project>(api, &path(&["projects"]), &()).await?;
    for project in projects.rows.into_iter().filter(|project| project.enabled) {
        let id = ProjectId::parse(&project.id)?;
        for one in all_servers(api, Some(&id)).await? {
            if one.declared == "project" && (one.reason.is_some() || !one.problems.is_empty()) {
                server(api, &one, None, findings).await;
            }
        }
    }
    Ok(())
}

fn kept_back(kept: &KeptBack, findings: &mut Findings) {
    let server = &kept.server;
    let (of, option) = match &kept.project {
        Some(project) => (
            format!(" of project `{project}`"),
            format!(" --project {project}"),
        ),
        None => Default::default(),
    };
    let are = if kept.tools == 1 { "is" } else { "are" };
    findings.warning(
        format!(
            "{} of server `{server}`{of} {are} kept back: the definition changed and is not approved",
            tools(kept.tools)
        ),
        format!("`toolwharf tools approve {server}{option}` shows the changes and asks for approval"),
    );
}

/// Reports the state of a server. `here`: why its command cannot be started on this machine, if known.
async fn server(api: &Api, server: &Server, here: Option<Finding>, findings: &mut Findings) {
    let whose = said_name(server);
    let of = server.project.as_ref();
    let of = of.map_or_else(String::new, |project| format!(" --project {project}"));
    let name = format!("{}{of}", server.name);
    // For servers of the configuration file, `sandbox::view` reports missing files.
    if server.declared != "file" && !server.files_missing.is_empty() {
        let (what, help) = sandbox::not_shown(&whose, &server.files_missing);
        findings.warning(what, help);
    }
    for port in &server.ports {
        if let Some(notice) = &port.notice {
            let (what, help) = notice.split_once(". ").unwrap_or((notice, ""));
            findings.warning(
                format!("port {} of server {whose}: {what}", port.port),
                help,
            );
        }
    }
    for problem in &server.problems {
        findings.warning(
            format!("server {whose}: {problem}"),
            format!(
                "report it to the author of the server; `toolwharf events {name}` shows its history"
            ),
        );
    }
    match server.status.as_str() {
        // If a server does not run, the reason found on this machine is more helpful than its state.
        status if here.is_some() && !matches!(status, "running" | "starting" | "disabled") => {
            findings.0.extend(here);
        }
        "running" => {
            let tools = tools(server.tools);
            findings.ok(format!("server {whose} is running, {tools}"));
        }
        "disabled" if !server.unset.is_empty() => findings.0.push(unset_of(
            &whose,
            &server.unset.join(", "),
            &secrets::command(&server.unset[0], server.project.as_deref()),
            &format!("toolwharf enable {name}"),
        )),
        "disabled" => findings.ok(format!("server {whose} is disabled")),
        "stopped" => findings.ok(format!("server {whose} is stopped")),
        "idle" if server.reason.is_none() => {
            findings.ok(format!("server {whose} starts at its first use"));
        }
        "starting" | "restarting" if server.reason.is_some() && server.restart_count > 0 => {
            findings.problem(
                format!(
                    "server {whose} failed and is starting again: {}",
                    server.reason.as_deref().unwrap_or_default()
                ),
                more(&name),
            )
        }
        "starting" | "restarting" | "stopping" => findings.warning(
            format!(
                "server {whose} is still {}: what it offers may be missing from the lists",
                server.status
            ),
            format!("check again later; `toolwharf logs -f {name}` shows its output"),
        ),
        status => {
            let reason = server.reason.as_deref().unwrap_or("the reason is unknown");
            let status = if status == "backoff" {
                "in backoff"
            } else {
                status
            };
            let mut what = format!("server {whose} is {status}: {reason}");
            let logs = of_server(&server.id, &["logs"]);
            let logs = api.text(&format!("{logs}?tail={LOG_LINES}")).await;
            for line in logs.unwrap_or_default().lines() {
                what.push_str("\n| ");
                what.push_str(line);
            }
            if let Some(first) = server.unset.first() {
                let set = secrets::command(first, server.project.as_deref());
                findings.problem(what, format!("run `{set}`"));
                return;
            }
            findings.problem(what, more(&name));
        }
    }
}

/// Returns the advice for a server that fails. The remedy, if it is known, is in the reason.
fn more(name: &str) -> String {
    format!(
        "`toolwharf logs {name}` and `toolwharf events {name}` show more; fix the cause, or run `toolwharf disable {name}`"
    )
}
