//! Short descriptions of command lines for lists and logs: `npx @scope/server@1` for `npx -y @scope/server@1 --token x`.
//!
//! Invariant: the text contains the runner, its subcommand, and the package, image, module or script, and nothing else.
//! After an option that is not known here, the next word may be the option's value and therefore a secret, so only the
//! program is shown.

use std::path::Path;

/// The options of a runner.
struct Options {
    /// Options without a value.
    flags: &'static [&'static str],
    /// Options whose value is the next word.
    valued: &'static [&'static str],
    /// Options whose value names what is run. The value is shown.
    shown: &'static [&'static str],
}

const NPX: Options = Options {
    flags: &[
        "-y",
        "--yes",
        "--no",
        "--no-install",
        "-q",
        "--quiet",
        "-s",
        "--silent",
        "--offline",
        "--prefer-offline",
        "--prefer-online",
        "--ignore-existing",
        "--legacy-peer-deps",
        "--bun",
        "--verbose",
    ],
    valued: &[
        "--registry",
        "--cache",
        "--prefix",
        "--userconfig",
        "--loglevel",
        "-w",
        "--workspace",
        "--dir",
        "-C",
    ],
    shown: &["-p", "--package"],
};

const UVX: Options = Options {
    flags: &[
        "-q",
        "--quiet",
        "-v",
        "--verbose",
        "-n",
        "--no-cache",
        "-U",
        "--upgrade",
        "--isolated",
        "--offline",
        "--refresh",
        "--reinstall",
        "--native-tls",
        "--system-certs",
        "--no-progress",
        "--no-config",
        "--no-build",
        "--no-binary",
        "--no-index",
        "--no-env-file",
        "--managed-python",
        "--no-managed-python",
        "--no-python-downloads",
    ],
    valued: &[
        "-w",
        "--with",
        "--with-editable",
        "--with-requirements",
        "-p",
        "--python",
        "-i",
        "--index-url",
        "--index",
        "--default-index",
        "--extra-index-url",
        "-f",
        "--find-links",
        "--cache-dir",
        "--directory",
        "--config-file",
        "-c",
        "--constraints",
        "--overrides",
        "--env-file",
        "--prerelease",
        "--resolution",
        "--color",
        "--link-mode",
        "--exclude-newer",
        "--refresh-package",
        "-P",
        "--upgrade-package",
        "--allow-insecure-host",
    ],
    shown: &["--from", "--spec"],
};

/// `uv run`, which runs a command in the environment of a project.
const UV_RUN: Options = Options {
    flags: &[
        "-q",
        "--quiet",
        "-v",
        "--verbose",
        "-n",
        "--no-cache",
        "--isolated",
        "--active",
        "--no-sync",
        "--frozen",
        "--locked",
        "--offline",
        "--no-project",
        "--no-dev",
        "--all-extras",
        "--exact",
        "--native-tls",
        "-s",
        "--script",
        "--no-env-file",
    ],
    valued: &[
        "--with",
        "--with-editable",
        "--with-requirements",
        "-p",
        "--python",
        "--project",
        "--directory",
        "--package",
        "--extra",
        "--group",
        "--env-file",
        "--index-url",
        "--index",
        "--default-index",
        "--extra-index-url",
        "--cache-dir",
        "--config-file",
    ],
    shown: &["-m", "--module"],
};

const DOCKER: Options = Options {
    flags: &[
        "-i",
        "--interactive",
        "-t",
        "--tty",
        "-it",
        "-ti",
        "-d",
        "--detach",
        "--rm",
        "--init",
        "-P",
        "--publish-all",
        "-q",
        "--quiet",
        "--privileged",
        "--read-only",
        "--no-healthcheck",
        "--oom-kill-disable",
        "--replace",
    ],
    valued: &[
        "-e",
        "--env",
        "--env-file",
        "-v",
        "--volume",
        "--mount",
        "--tmpfs",
        "--name",
        "--network",
        "--net",
        "-p",
        "--publish",
        "-u",
        "--user",
        "-w",
        "--workdir",
        "--entrypoint",
        "--platform",
        "--pull",
        "-l",
        "--label",
        "-h",
        "--hostname",
        "--add-host",
        "--cap-add",
        "--cap-drop",
        "--security-opt",
        "-m",
        "--memory",
        "--cpus",
        "--gpus",
        "--device",
        "--dns",
        "--restart",
        "--runtime",
        "--shm-size",
        "--ulimit",
        "--pids-limit",
        "--log-driver",
        "--stop-timeout",
        "--userns",
        "--ipc",
        "--pid",
    ],
    shown: &[],
};

const PYTHON: Options = Options {
    flags: &[
        "-u", "-B", "-O", "-OO", "-E", "-s", "-S", "-I", "-q", "-v", "-P", "-d", "-x", "-b",
    ],
    valued: &["-X", "-W"],
    shown: &["-m"],
};

const NODE: Options = Options {
    flags: &[
        "--no-warnings",
        "--enable-source-maps",
        "--experimental-strip-types",
        "--experimental-vm-modules",
        "--experimental-modules",
        "--experimental-sqlite",
        "--trace-warnings",
        "--use-system-ca",
        "--use-openssl-ca",
    ],
    valued: &[
        "-r",
        "--require",
        "--import",
        "--loader",
        "--experimental-loader",
        "--env-file",
        "-C",
        "--conditions",
    ],
    shown: &[],
};

const DENO: Options = Options {
    flags: &[
        "-A",
        "--allow-all",
        "--allow-net",
        "--allow-read",
        "--allow-write",
        "--allow-env",
        "--allow-run",
        "--allow-sys",
        "--allow-ffi",
        "-N",
        "-R",
        "-W",
        "-E",
        "-q",
        "--quiet",
        "--no-check",
        "--no-prompt",
        "--cached-only",
        "--no-lock",
    ],
    valued: &["-c", "--config", "--import-map"],
    shown: &[],
};

/// Runners whose first word says what is run.
const PLAIN: Options = Options {
    flags: &[],
    valued: &[],
    shown: &[],
};

const JAVA: Options = Options {
    flags: &["-server"],
    valued: &["-cp", "-classpath", "--class-path"],
    shown: &["-jar", "-m"],
};

/// Returns what a command line runs.
pub(crate) fn target(program: &str, args: &[String]) -> String {
    let full = Path::new(program)
        .file_name()
        .and_then(|name| name.to_str());
    let name = full.unwrap_or(program);
    let name = name
        .strip_suffix(".exe")
        .or(name.strip_suffix(".cmd"))
        .unwrap_or(name);
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let found = match (name, words.as_slice()) {
        ("cmd", ["/c" | "/C", program, ..]) => return target(program, &args[2..]),
        ("npx" | "bunx" | "pnpx", rest) => run(name, rest, &NPX),
        ("npm", ["exec", rest @ ..]) => run("npm exec", rest, &NPX),
        ("npm", ["x", rest @ ..]) => run("npm x", rest, &NPX),
        ("pnpm", ["dlx", rest @ ..]) => run("pnpm dlx", rest, &NPX),
        ("yarn", ["dlx", rest @ ..]) => run("yarn dlx", rest, &NPX),
        ("bun", ["x", rest @ ..]) => run("bun x", rest, &NPX),
        ("bun", ["run", rest @ ..]) => run("bun run", rest, &PLAIN),
        ("uvx", rest) => run("uvx", rest, &UVX),
        ("uv", ["tool", "run", rest @ ..]) => run("uv tool run", rest, &UVX),
        ("uv", ["--directory" | "--project", _, "run", rest @ ..] | ["run", rest @ ..]) => {
            run("uv run", rest, &UV_RUN)
        }
        ("pipx", ["run", rest @ ..]) => run("pipx run", rest, &UVX),
        ("docker" | "podman" | "nerdctl", ["run", rest @ ..])
        | ("docker" | "podman", ["container", "run", rest @ ..]) => {
            run(&format!("{name} run"), rest, &DOCKER)
        }
        ("deno", ["run", rest @ ..]) => run("deno run", rest, &DENO),
        ("go", ["run", rest @ ..]) => run("go run", rest, &PLAIN),
        ("java", rest) => run(name, rest, &JAVA),
        ("node", rest) => run(name, rest, &NODE),
        ("bun" | "deno" | "tsx" | "ts-node" | "ruby" | "php" | "dotnet" | "Rscript", rest) => {
            run(name, rest, &PLAIN)
        }
        (name, rest) if is_python(name) => run(name, rest, &PYTHON),
        _ => None,
    };
    found.unwrap_or_else(|| program.to_owned())
}

fn is_python(name: &str) -> bool {
    let version = name.strip_prefix("python");
    let is_version = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'.')
    };
    version.is_some_and(is_version) || name == "py"
}

/// Returns the runner with what it runs, or `None` if the words cannot be understood.
fn run(runner: &str, words: &[&str], options: &Options) -> Option<String> {
    let mut text = runner.to_owned();
    let mut add = |word: &str| {
        text.push(' ');
        // A scope such as `@modelcontextprotocol` is not the user of a URL.
        match word.contains("://") {
            true => text.push_str(&url_for_display(word)),
            false => text.push_str(word),
        }
    };
    let mut rest = words.iter();
    while let Some(&word) = rest.next() {
        let (option, value) = match word.split_once('=') {
            Some((option, value)) if option.starts_with("--") => (option, Some(value)),
            _ => (word, None),
        };
        if word == "--" {
            add(rest.next()?);
            return Some(text);
        }
        if !word.starts_with('-') {
            add(word);
            return Some(text);
        }
        if options.shown.contains(&option) {
            let value = value.or_else(|| rest.next().copied())?;
            add(option);
            add(value);
            // The word after `python -m MODULE` or `java -jar FILE` is an argument.
            if matches!(option, "-m" | "-jar" | "--module") {
                return Some(text);
            }
        } else if options.valued.contains(&option) {
            if value.is_none() {
                rest.next()?;
            }
        } else if value.is_none() && !options.flags.contains(&option) {
            return None;
        }
    }
    None
}

/// The URL without the parts that may contain secrets: user, query and fragment.
#[must_use]
pub fn url_for_display(url: &str) -> String {
    let end = url.find(['?', '#']).unwrap_or(url.len());
    let (shown, cut) = url.split_at(end);
    // Some parsers accept one slash or three before the user. A path of a file has no user.
    let is_scheme = |text: &str| {
        !matches!(text, "" | "file") && text.bytes().all(|b| b.is_ascii_alphanumeric())
    };
    let authority = match shown.split_once(":/") {
        Some((scheme, rest)) if is_scheme(scheme) => {
            shown.len() - rest.trim_start_matches('/').len()
        }
        _ => shown.find("://").map_or(0, |at| at + 3),
    };
    let path = shown[authority..]
        .find('/')
        .map_or(shown.len(), |at| authority + at);
    let host = shown[authority..path]
        .rfind('@')
        .map_or(authority, |at| authority + at + 1);
    let tail = if cut.len() > 1 { "?…" } else { "" };
    format!("{}{}{tail}", &shown[..authority], &shown[host..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_names_the_package_and_no_secret() {
        for (line, expect) in [
            (
                "npx -y @modelcontextprotocol/server-memory",
                "npx @modelcontextprotocol/server-memory",
            ),
            ("npx -y pkg@1.2.3 --token hunter2", "npx pkg@1.2.3"),
            ("/usr/bin/npx pkg", "npx pkg"),
            ("npx --package=@a/b b hunter2", "npx --package @a/b b"),
            ("npx -p @a/b b hunter2", "npx -p @a/b b"),
            ("npx --registry https://u:hunter2@r pkg", "npx pkg"),
            ("npx git+https://u:hunter2@host/p", "npx git+https://host/p"),
            // The value of an option that is not known may be a secret.
            ("npx --token hunter2 pkg", "npx"),
            ("npx", "npx"),
            ("cmd /c npx -y pkg", "npx pkg"),
            ("npm exec -y -- pkg hunter2", "npm exec pkg"),
            ("pnpm dlx pkg", "pnpm dlx pkg"),
            ("pnpm --dir x dlx pkg", "pnpm"),
            ("yarn dlx pkg", "yarn dlx pkg"),
            ("bunx pkg@latest", "bunx pkg@latest"),
            ("bun x pkg", "bun x pkg"),
            ("bun index.ts", "bun index.ts"),
            ("uvx mcp-server-time --local x", "uvx mcp-server-time"),
            ("uvx pkg@1.0", "uvx pkg@1.0"),
            ("uvx --from x y hunter2", "uvx --from x y"),
            (
                "uvx --from git+https://u:hunter2@host/p@main y",
                "uvx --from git+https://host/p@main y",
            ),
            ("uvx --python 3.12 --with z pkg", "uvx pkg"),
            ("uvx -y", "uvx"),
            ("uv tool run pkg", "uv tool run pkg"),
            ("uv --directory /srv/x run server.py", "uv run server.py"),
            ("uv run --with mcp[cli] mcp run x.py", "uv run mcp"),
            ("pipx run pkg", "pipx run pkg"),
            (
                "docker run -i --rm -e KEY=hunter2 -e OTHER ghcr.io/a/b:1 --key hunter2",
                "docker run ghcr.io/a/b:1",
            ),
            ("docker run --env=KEY=hunter2 image", "docker run image"),
            ("docker run --future hunter2 image", "docker"),
            ("docker ps", "docker"),
            ("podman run --rm -it image", "podman run image"),
            (
                "node path/to/index.js --key hunter2",
                "node path/to/index.js",
            ),
            ("node --no-warnings --env-file=.env a.js", "node a.js"),
            ("node -e hunter2", "node"),
            ("python -m module hunter2", "python -m module"),
            ("python3.12 -u server.py", "python3.12 server.py"),
            ("/venv/bin/python -m a.b", "python -m a.b"),
            ("python -c hunter2", "python"),
            ("pythonic hunter2", "pythonic"),
            ("deno run -A --allow-net=h jsr:@a/b", "deno run jsr:@a/b"),
            ("java -jar server.jar hunter2", "java -jar server.jar"),
            ("go run ./cmd/server", "go run ./cmd/server"),
            ("/opt/bin/server --key hunter2", "/opt/bin/server"),
            ("sh -c hunter2", "sh"),
        ] {
            let mut words = line.split(' ').map(str::to_owned);
            let program = words.next().unwrap_or_default();
            let args: Vec<String> = words.collect();
            assert_eq!(target(&program, &args), expect, "{line}");
        }
    }
}
