//! Launches a command in a sandbox for a unit.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use model::{Network, Sandbox};
use tokio::io::duplex;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::Inner;
use super::api::{Call, Detail, LABEL_HOSTING, LABEL_INSTALL, LABEL_RUN, Made, New};
use super::envd::Envd;
use super::life::{self, Life};
use crate::common::{self, refused};
use runtime::unit::{Confined, Enforced, Error, Instance, Stdio, Unit, remove_each};

/// The capacity of a pipe, in bytes.
const BUFFER_BYTES: usize = 64 << 10;
/// Timeout for removing a sandbox after a failed launch. After that, the sandbox ends with its lease.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(20);

impl Inner {
    /// Checks that the API responds and accepts the key.
    pub(super) async fn probe(&self) -> Result<String, Error> {
        self.api
            .list(&[(LABEL_INSTALL, &self.options.install)])
            .await?;
        Ok(format!("virtual machines of E2B, at {}", self.api.url()))
    }

    pub(super) async fn sweep(&self) -> Result<usize, Error> {
        let install = self.options.install.as_str();
        let run = self.options.run.as_str();
        let mut all = self.api.list(&[(LABEL_INSTALL, install)]).await?;
        // E2B has applied the filter. The labels are checked again here, because the sandboxes are killed.
        all.retain(|sandbox| {
            sandbox.label(LABEL_INSTALL) == Some(install) && sandbox.label(LABEL_RUN) != Some(run)
        });
        remove_each(all, |sandbox| async move {
            Ok(usize::from(self.api.kill(&sandbox.id).await?))
        })
        .await
    }

    pub(super) async fn launch(self: &Arc<Self>, unit: &Unit) -> Result<Instance, Error> {
        let unit = unit.confined()?;
        let (template, command) = asked(unit)?;
        let id = &unit.sandbox.id;
        let _turn = self.keyed_lock.turn(id).await?;
        self.make_room(id).await?;
        let new = New {
            template,
            timeout: self.options.lease.as_secs(),
            secure: true,
            allow_internet_access: unit.sandbox.network == Network::Open,
            metadata: BTreeMap::from([
                (LABEL_INSTALL, self.options.install.as_str()),
                (LABEL_RUN, &self.options.run),
                (LABEL_HOSTING, id),
            ]),
        };
        let made = match self.api.make(&new).await {
            Ok(made) => made,
            Err(error) => {
                // E2B may still create the sandbox.
                if matches!(error, Call::Other(_)) {
                    let _ = timeout(CLEANUP_TIMEOUT, self.make_room(id)).await;
                }
                return Err(match error {
                    Call::Answer(status @ (400 | 403 | 404), why) if why.contains("emplate") => {
                        Error::Refused {
                            field: "image",
                            why: format!(
                                "E2B has no template `{template}` for this key: {why} (status {status})"
                            ),
                        }
                    }
                    error => error.into(),
                });
            }
        };
        let started = self.start(unit, &made, command).await;
        if started.is_err() {
            let killed = timeout(CLEANUP_TIMEOUT, self.api.kill(&made.id)).await;
            if !matches!(killed, Ok(Ok(_))) {
                tracing::warn!(
                    label = unit.label,
                    sandbox = made.id,
                    "cannot remove a sandbox; it ends with its lease"
                );
            }
        }
        started
    }

    async fn start(
        self: &Arc<Self>,
        unit: Confined<'_>,
        made: &Made,
        (cmd, args): (&str, &[String]),
    ) -> Result<Instance, Error> {
        let detail = self.api.get(&made.id).await?;
        let detail =
            detail.ok_or_else(|| Error::Failed("the sandbox ended immediately".to_owned()))?;
        let enforced = rows(unit.sandbox, &detail);
        let limited = |what: &str| !matches!(what, "filesystem" | "privileges");
        common::check_strict(unit.sandbox, &enforced, limited)?;
        let envd = Envd::new(Arc::clone(self), made)?;
        let started = envd.start(cmd, args, &unit.launch.env).await;
        let started = started.map_err(|error| match error {
            Call::Answer(400, why) => Error::Refused {
                field: "command",
                why,
            },
            // Here, 401 and 403 mean that `envd` rejected its own token, not that the key is wrong.
            Call::Answer(status, why) => {
                Error::Failed(format!("E2B's sandbox says: {why} (status {status})"))
            }
            Call::Other(error) => error,
        })?;
        let (exit, shared) = common::state(unit.label, None);
        let (stdin, input) = duplex(BUFFER_BYTES);
        let (output, stdout) = duplex(BUFFER_BYTES);
        let killed = CancellationToken::new();
        let output = life::output(started.events, output, Arc::clone(&shared), killed.clone());
        let life = Life {
            inner: Arc::clone(self),
            sandbox: made.id.clone(),
            pid: started.pid,
            shared: Arc::clone(&shared),
            input: self
                .tasks
                .spawn(life::input(envd.clone(), started.pid, input)),
            output: self.tasks.spawn(output),
            envd,
            killed,
            exit,
        };
        self.tasks.spawn(life.run());
        let stdio = Stdio {
            stdin: Box::new(stdin),
            stdout: Box::new(stdout),
        };
        let ports = BTreeMap::new();
        Ok(common::instance(shared, Some(stdio), ports, enforced))
    }

    /// Kills all sandboxes of a server. They belong to an instance of an earlier run, or to one that was killed but
    /// whose end is unknown.
    async fn make_room(&self, server: &str) -> Result<(), Error> {
        let labels = [
            (LABEL_INSTALL, self.options.install.as_str()),
            (LABEL_HOSTING, server),
        ];
        for sandbox in self.api.list(&labels).await? {
            if labels
                .iter()
                .all(|&(name, value)| sandbox.label(name) == Some(value))
            {
                self.api.kill(&sandbox.id).await?;
            }
        }
        Ok(())
    }
}

/// Returns the template and the command, if E2B can run the unit.
fn asked(unit: Confined<'_>) -> Result<(&str, (&str, &[String])), Error> {
    let sandbox = unit.sandbox;
    let needs = "an E2B sandbox needs a template as its `image`";
    let (template, command) = common::image_of(unit, needs)?;
    common::check_id(&sandbox.id)?;
    let sound = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:".contains(&byte);
    if !(1..=256).contains(&template.len()) || !template.bytes().all(sound) {
        let name = template.escape_debug();
        return refused(
            "image",
            format!("`{name}` must consist of 1 to 256 letters, digits and `._-/:`"),
        );
    }
    let Some((cmd, args)) = command.split_first() else {
        return refused(
            "command",
            "an E2B template has no default command; set the server's command",
        );
    };
    if !unit.has_streams() {
        return refused(
            "ports",
            "a server in an E2B sandbox supports only the stdio transport",
        );
    }
    if !sandbox.ports.is_empty() {
        return refused(
            "ports",
            "ports of E2B sandboxes cannot be published; remove them, or use a provider on this host",
        );
    }
    if let Some(volume) = sandbox.volumes.first() {
        return refused(
            "volumes",
            format!(
                "`{volume}` would not outlive the sandbox: E2B keeps nothing after a sandbox has ended; use a provider on \
                 this host"
            ),
        );
    }
    if let Some(mount) = sandbox.mounts.first() {
        let why = format!(
            "`{}` is a path on this host, but E2B sandboxes run elsewhere; use a provider on this host",
            mount.host.display()
        );
        return refused("mounts", why);
    }
    if let Network::Allow(_) = sandbox.network {
        return refused(
            "network",
            "allow-lists are not supported in E2B sandboxes; set `network` to `none` or `open`",
        );
    }
    Ok((template, (cmd, args)))
}

/// Returns the enforcement status of the sandbox, according to E2B.
fn rows(asked: &Sandbox, found: &Detail) -> Vec<Enforced> {
    const MIB: u64 = 1 << 20;
    let limits = asked.limits;
    let row = |what, holds, how| Enforced { what, holds, how };
    let size = |has: String, limit: String, within: bool| match within {
        true => format!("the template has {has}"),
        false => {
            format!("the template has {has}, which E2B cannot reduce; requested: {limit}")
        }
    };
    let cpu = u64::from(found.cpu_count) * 1000 <= u64::from(limits.cpu_millis);
    let cores = f64::from(limits.cpu_millis) / 1000.0;
    let memory = found.memory_mb.saturating_mul(MIB);
    let disk = found.disk_size_mb.saturating_mul(MIB);
    let asked_open = asked.network == Network::Open;
    let (network, how) = match (asked_open, found.allow_internet_access) {
        (true, _) => (true, "open".to_owned()),
        (false, Some(allowed)) => (
            !allowed,
            format!("E2B reports allowInternetAccess = {allowed}"),
        ),
        (false, None) => (
            false,
            "requested without internet, but E2B does not report whether that is enforced"
                .to_owned(),
        ),
    };
    vec![
        row(
            "cpu",
            cpu,
            size(
                format!("{} cores", found.cpu_count),
                format!("{cores} cores"),
                cpu,
            ),
        ),
        row(
            "memory",
            memory <= limits.memory,
            size(
                format!("{memory} bytes"),
                limits.memory.to_string(),
                memory <= limits.memory,
            ),
        ),
        row(
            "disk",
            disk <= limits.disk,
            size(
                format!("{disk} bytes"),
                limits.disk.to_string(),
                disk <= limits.disk,
            ),
        ),
        row("pids", false, "E2B does not limit processes".to_owned()),
        row(
            "filesystem",
            false,
            "the server can write to its whole sandbox, which is removed with the server"
                .to_owned(),
        ),
        row("network", network, how),
        row(
            "privileges",
            false,
            "the server runs as the template's user, who may be root in the sandbox".to_owned(),
        ),
        row(
            "kernel",
            true,
            "a virtual machine with its own kernel, according to E2B".to_owned(),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use model::{Launch, Place, Program, Reach};

    use super::*;

    fn image(command: &[&str]) -> Launch {
        let command = command.iter().map(|&word| word.to_owned()).collect();
        let image = "base".to_owned();
        Launch::new(Program::Image { image, command }, Place::Host)
    }

    #[test]
    fn what_a_sandbox_cannot_do_is_refused_by_its_field() {
        let with = |launch: &Launch, sandbox: &Sandbox| {
            let asked = asked(Confined {
                label: "h1",
                launch,
                sandbox,
                fence: None,
            });
            let owned = |(template, (cmd, args)): (&str, (&str, &[String]))| {
                format!("{template} {cmd} {args:?}")
            };
            asked.map(owned)
        };
        let check = |field: &str, launch: Launch, change: &dyn Fn(&mut Sandbox)| {
            let mut sandbox = Sandbox::new("h1");
            change(&mut sandbox);
            match with(&launch, &sandbox) {
                Err(Error::Refused { field: found, .. }) => assert_eq!(found, field),
                other => panic!("{field}: {other:?}"),
            }
        };
        let cat = || image(&["cat"]);
        let asked = with(&image(&["cat", "-u"]), &Sandbox::new("h1"));
        assert_eq!(asked.unwrap(), r#"base cat ["-u"]"#);
        check("command", image(&[]), &|_| {});
        let mut command = cat();
        let (program, args) = ("cat".into(), Vec::new());
        command.program = Program::Command { program, args };
        check("command", command, &|_| {});
        let mut spaced = cat();
        let (image, words) = ("a b".into(), vec!["cat".into()]);
        spaced.program = Program::Image {
            image,
            command: words,
        };
        check("image", spaced, &|_| {});
        let mut port = cat();
        let path = "/mcp".into();
        port.reach = Reach::Port { path };
        check("ports", port, &|_| {});
        check("ports", cat(), &|it| {
            it.ports = vec![model::Port {
                inside: 80,
                host: None,
            }]
        });
        check("volumes", cat(), &|it| it.volumes = vec!["/data".into()]);
        check("network", cat(), &|it| {
            it.network = Network::Allow(vec!["x.example".into()])
        });
        check("id", cat(), &|it| it.id = "A/B".into());
    }

    #[test]
    fn limits_hold_if_the_template_is_within_them() {
        let detail = Detail {
            cpu_count: 2,
            memory_mb: 512,
            disk_size_mb: 512,
            allow_internet_access: Some(false),
        };
        let mut asked = Sandbox::new("h1");
        let held = |asked: &Sandbox, detail: &Detail| {
            let rows = rows(asked, detail);
            let held = rows.iter().filter(|row| row.holds);
            held.map(|row| row.what).collect::<Vec<_>>()
        };
        assert_eq!(
            held(&asked, &detail),
            ["memory", "disk", "network", "kernel"]
        );
        asked.limits.cpu_millis = 2000;
        asked.limits.memory -= 1;
        asked.limits.disk = 1 << 20;
        assert_eq!(held(&asked, &detail), ["cpu", "network", "kernel"]);
        let silent = Detail {
            allow_internet_access: None,
            ..detail
        };
        assert_eq!(held(&asked, &silent), ["cpu", "kernel"]);
        asked.network = Network::Open;
        assert_eq!(held(&asked, &silent), ["cpu", "network", "kernel"]);
    }
}
