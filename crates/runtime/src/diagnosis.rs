//! The usual causes of a failure, recognised in a server's stderr, each with its remedy.
//!
//! Invariants: stderr is hostile input, so a diagnosis consists of fixed texts and of program names with a few harmless
//! characters. It changes what people read, and nothing else. The search is linear in the end of stderr, whose
//! size is limited.

use std::fmt;

use model::{Launch, Network};

/// Lines of stderr that are searched for the cause of a failed start, and of the exit of a server that was up. The
/// latter may have logged earlier failures that it survived.
pub const START_LINES: usize = 200;
pub const CRASH_LINES: usize = 12;
/// Maximum length of a program name in a diagnosis.
const MAX_NAME_BYTES: usize = 32;

/// The cause of a failure, and its remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    what: String,
    remedy: String,
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.remedy)
    }
}

struct Cause {
    /// A line that contains one of these texts shows the cause, in lower case.
    marks: &'static [&'static str],
    /// True: a sandbox without network access can be the cause of it.
    is_of_network: bool,
    what: &'static str,
    remedy: &'static str,
}

/// The most specific cause first. If stderr shows several, the first one counts.
const CAUSES: [Cause; 18] = [
    Cause {
        marks: &[
            "certificate has expired",
            "cert_has_expired",
            "certificate expired",
            "certificate has expired or is not yet valid",
        ],
        is_of_network: false,
        what: "the TLS certificate of a host has expired",
        remedy: "check the clock of this machine, and the certificate of the host or of your proxy",
    },
    // Python.
    Cause {
        marks: &["certificate_verify_failed", "certificate verify failed"],
        is_of_network: false,
        what: "it does not trust the TLS certificate of a host, or of a proxy that inspects TLS",
        remedy: "set `SSL_CERT_FILE` and `REQUESTS_CA_BUNDLE` to the CA file of your network, in the `env` of its entry, or for all servers in `[defaults] env` of toolwharf.toml or in the environment of `toolwharf serve`",
    },
    // curl and git.
    Cause {
        marks: &[
            "ssl certificate problem",
            "server certificate verification failed",
        ],
        is_of_network: false,
        what: "it does not trust the TLS certificate of a host, or of a proxy that inspects TLS",
        remedy: "set `SSL_CERT_FILE` and `CURL_CA_BUNDLE` to the CA file of your network, in the `env` of its entry, or for all servers in `[defaults] env` of toolwharf.toml or in the environment of `toolwharf serve`",
    },
    // Rust, such as uv, and Go.
    Cause {
        marks: &[
            "unknownissuer",
            "invalid peer certificate",
            "x509: certificate signed by unknown authority",
            "x509: certificate is not trusted",
        ],
        is_of_network: false,
        what: "it does not trust the TLS certificate of a host, or of a proxy that inspects TLS",
        remedy: "set `SSL_CERT_FILE` to the CA file of your network, in the `env` of its entry, or for all servers in `[defaults] env` of toolwharf.toml or in the environment of `toolwharf serve`",
    },
    // Node.js, such as npx.
    Cause {
        marks: &[
            "unable_to_verify_leaf_signature",
            "self_signed_cert_in_chain",
            "depth_zero_self_signed_cert",
            "unable_to_get_issuer_cert",
            "self-signed certificate",
            "self signed certificate",
            "unable to verify the first certificate",
            "unable to get local issuer certificate",
        ],
        is_of_network: false,
        what: "it does not trust the TLS certificate of a host, or of a proxy that inspects TLS",
        remedy: "set `NODE_EXTRA_CA_CERTS` to the CA file of your network, in the `env` of its entry, or for all servers in `[defaults] env` of toolwharf.toml or in the environment of `toolwharf serve`",
    },
    Cause {
        marks: &[
            "407 proxy authentication required",
            "proxy authentication required",
            "proxy authorization required",
            "statuscode=407",
            "code e407",
            "http code 407",
        ],
        is_of_network: false,
        what: "the proxy requires credentials",
        remedy: "if the proxy variables of `toolwharf serve` contain them, add the names of these variables to `pass_env` in `[defaults]` of toolwharf.toml",
    },
    Cause {
        marks: &[
            "tunneling socket could not be established",
            "tunnel error",
            "proxyconnect tcp",
            "proxyerror",
            "cannot connect to proxy",
            "unable to connect to proxy",
            "failed to connect to proxy",
            "could not resolve proxy",
            "connect tunnel failed",
        ],
        is_of_network: true,
        what: "it does not reach a host through the proxy",
        remedy: "check `HTTPS_PROXY` and `HTTP_PROXY` in the environment of `toolwharf serve`, and add hosts of your own network to `NO_PROXY`",
    },
    Cause {
        marks: &[
            "eai_again",
            "code enotfound",
            "getaddrinfo",
            "dns error",
            "failed to lookup address",
            "name or service not known",
            "temporary failure in name resolution",
            "no such host",
            "could not resolve host",
        ],
        is_of_network: true,
        what: "the name of a host cannot be resolved",
        remedy: "check the host names in its entry and the network of this machine; behind a proxy, set `HTTPS_PROXY` in the environment of `toolwharf serve`",
    },
    Cause {
        marks: &["econnrefused", "connection refused"],
        is_of_network: true,
        what: "a host that it connects to refuses the connection",
        remedy: "check that the service runs, and the addresses in its entry; for `npx` and `uvx`, check the registry that they are configured for",
    },
    Cause {
        marks: &[
            "etimedout",
            "connection timed out",
            "operation timed out",
            "enetunreach",
            "network is unreachable",
        ],
        is_of_network: true,
        what: "a host that it connects to does not answer",
        remedy: "check the network of this machine; behind a proxy, set `HTTPS_PROXY` in the environment of `toolwharf serve`",
    },
    Cause {
        marks: &["no interpreter found for"],
        is_of_network: false,
        what: "the Python version that it needs is not installed",
        remedy: "install it with `uv python install VERSION`",
    },
    Cause {
        marks: &[
            "err_require_esm",
            "err_unknown_builtin_module",
            "no such built-in module",
            "requires node",
            "unsupported node.js version",
            "unexpected token '??='",
            "unexpected token '||='",
            "unexpected token '&&='",
            "unexpected token '?'",
            "unexpected token '.'",
            "unexpected token 'with'",
            "unexpected token 'assert'",
            "unexpected reserved word",
            "invalid regular expression flags",
            "referenceerror: file is not defined",
            "referenceerror: crypto is not defined",
            "referenceerror: fetch is not defined",
        ],
        is_of_network: false,
        what: "it does not work with this version of Node.js",
        remedy: "install a newer Node.js, and put the folder of its `node` first in `PATH`, in the `env` of its entry or in `[defaults] env` of toolwharf.toml",
    },
    Cause {
        marks: &[
            "code e404",
            "404 not found - get",
            "not found in the package registry",
            "code etarget",
            "no matching version found",
            "no solution found when resolving",
            "could not find a version that satisfies",
        ],
        is_of_network: false,
        what: "the registry does not have its package in this version",
        remedy: "check the name and the version in the `args` of its entry; another registry is set with `npm_config_registry` or `UV_DEFAULT_INDEX` in the environment of `toolwharf serve`",
    },
    Cause {
        marks: &["code e401", "code e403", "code eneedauth"],
        is_of_network: false,
        what: "the registry refuses the credentials",
        remedy: "put them into `~/.npmrc`, or add the names of their variables to `pass_env` in `[defaults]` of toolwharf.toml",
    },
    Cause {
        marks: &["eaddrinuse", "address already in use"],
        is_of_network: false,
        what: "another program uses its port",
        remedy: "end that program, or choose another port in its entry",
    },
    Cause {
        marks: &["eacces:", "code eacces", "permission denied"],
        is_of_network: false,
        what: "it may not use a file or a port",
        remedy: "its log names the file or port; change the owner or the permissions of the file",
    },
    Cause {
        marks: &[
            "cannot find module",
            "err_module_not_found",
            "modulenotfounderror",
            "cannot find package",
        ],
        is_of_network: false,
        what: "a module that it needs is not installed",
        remedy: "install its dependencies, for example with `npm install` or `uv sync` in its folder",
    },
    // npm only warns, and the server may have failed for another reason.
    Cause {
        marks: &["ebadengine", "unsupported engine"],
        is_of_network: false,
        what: "its package does not support this version of Node.js",
        remedy: "install a version that its log names, and put the folder of its `node` first in `PATH`, in the `env` of its entry or in `[defaults] env` of toolwharf.toml",
    },
];

/// Finds the cause of a failure in the last `lines` lines of stderr.
pub fn diagnose(stderr: &str, lines: usize, launch: Option<&Launch>) -> Option<Diagnosis> {
    let skipped = stderr.lines().count().saturating_sub(lines);
    let lines: Vec<&str> = stderr.lines().skip(skipped).collect();
    if let Some(name) = lines.iter().find_map(|line| missing_program(line)) {
        return Some(Diagnosis {
            what: format!("the program `{name}` is missing"),
            remedy: format!(
                "install it, or add the folder of `{name}` to `PATH`, in the `env` of its entry or in `[defaults] env` of toolwharf.toml"
            ),
        });
    }
    // An error about data looks like an error in the source code: `Unexpected token '.', "…" is not valid JSON`.
    let is_of_data = |line: &&str| line.contains("valid JSON") || line.contains(" in JSON at ");
    let lines: Vec<&str> = lines.into_iter().filter(|line| !is_of_data(line)).collect();
    let text = lines.join("\n").to_lowercase();
    let is_shown = |cause: &&Cause| cause.marks.iter().any(|mark| text.contains(mark));
    let cause = CAUSES.iter().find(is_shown)?;
    let network = launch
        .and_then(Launch::sandbox)
        .map(|sandbox| &sandbox.network);
    let remedy = match network.filter(|_| cause.is_of_network) {
        Some(Network::None) => {
            "its sandbox has no network; list the hosts that it needs in `network` of its entry"
        }
        Some(Network::Allow(_)) => {
            "its sandbox reaches only the hosts in `network` of its entry; add the host if it is missing"
        }
        Some(Network::Open) | None => cause.remedy,
    };
    Some(Diagnosis {
        what: cause.what.to_owned(),
        remedy: remedy.to_owned(),
    })
}

/// The program that a line reports as missing.
fn missing_program(line: &str) -> Option<&str> {
    let line = line.trim();
    let name = if let Some((before, _)) = line.split_once(": No such file or directory") {
        // `/usr/bin/env: ‘node’: No such file or directory`
        let (by, name) = before.rsplit_once(": ")?;
        by.trim_end_matches(':').ends_with("env").then_some(name)?
    } else if let Some((before, _)) = line.split_once(" ENOENT") {
        // `Error: spawn uvx ENOENT`
        before.rsplit_once("spawn ")?.1
    } else if let Some((before, _)) = line.split_once(": executable file not found") {
        // `exec: "node": executable file not found in $PATH`
        before.rsplit_once("exec: ")?.1
    } else if let Some(before) = line.strip_suffix(": command not found") {
        // `bash: line 1: node: command not found`
        before.rsplit_once(' ').map_or(before, |(_, name)| name)
    } else if let Some(before) = line.strip_suffix(": not found") {
        // `sh: 1: node: not found`
        let (by, name) = before.rsplit_once(": ")?;
        by.contains("sh:").then_some(name)?
    } else {
        return None;
    };
    let name = name.trim_matches(['\'', '"', '`', '‘', '’']);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._+-".contains(&byte);
    let fits = (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(is_plain);
    fits.then_some(name)
}

#[cfg(test)]
mod tests {
    use model::{Place, Program, Sandbox};

    use super::*;

    fn check(stderr: &str, what: &str, remedy: &str) {
        let found = diagnose(stderr, START_LINES, None);
        let found = found.unwrap_or_else(|| panic!("no cause in {stderr}"));
        assert!(found.what.contains(what), "{stderr}\n{found}");
        assert!(found.remedy.contains(remedy), "{stderr}\n{found}");
    }

    #[test]
    fn real_messages_show_their_cause() {
        let uv = "error: Failed to fetch: `https://pypi.org/simple/mcp-server-time/`\n  Caused by: Request failed after 3 retries\n  Caused by: error sending request for url (https://pypi.org/simple/mcp-server-time/)\n  Caused by: client error (Connect)\n  Caused by: ";
        let npm = "npm error code CODE\nnpm error errno CODE\nnpm error request to https://registry.npmjs.org/x failed, reason: WHY\nnpm error A complete log of this run can be found in: /root/.npm/_logs/2026-debug-0.log\n";
        let npm = |code: &str, why: &str| npm.replace("CODE", code).replace("WHY", why);
        let trust = "does not trust the TLS certificate";
        for (stderr, what, remedy) in [
            (format!("{uv}invalid peer certificate: UnknownIssuer\n"), trust, "`SSL_CERT_FILE`"),
            (npm("SELF_SIGNED_CERT_IN_CHAIN", "self-signed certificate in certificate chain"), trust, "`NODE_EXTRA_CA_CERTS`"),
            (npm("UNABLE_TO_VERIFY_LEAF_SIGNATURE", "unable to verify the first certificate"), trust, "`NODE_EXTRA_CA_CERTS`"),
            ("ssl.SSLCertVerificationError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get local issuer certificate (_ssl.c:1028)".into(), trust, "`REQUESTS_CA_BUNDLE`"),
            ("Get \"https://api.github.com/\": tls: failed to verify certificate: x509: certificate signed by unknown authority".into(), trust, "`SSL_CERT_FILE`"),
            ("curl: (60) SSL certificate problem: unable to get local issuer certificate".into(), trust, "`CURL_CA_BUNDLE`"),
            (npm("CERT_HAS_EXPIRED", "certificate has expired"), "expired", "clock"),
            (format!("{uv}tunnel error: proxy authorization required\n"), "requires credentials", "`pass_env`"),
            ("curl: (56) CONNECT tunnel failed, response 407\ncurl: 407 Proxy Authentication Required".into(), "requires credentials", "`pass_env`"),
            (npm("ECONNREFUSED", "tunneling socket could not be established, cause=connect ECONNREFUSED 10.0.0.1:3128"), "through the proxy", "`HTTPS_PROXY`"),
            (format!("{uv}tunnel error: unsuccessful\n"), "through the proxy", "`NO_PROXY`"),
            ("Get \"https://x/\": proxyconnect tcp: dial tcp 10.0.0.1:3128: connect: connection refused".into(), "through the proxy", "`HTTPS_PROXY`"),
            (npm("ENOTFOUND", "getaddrinfo ENOTFOUND registry.npmjs.org"), "cannot be resolved", "`HTTPS_PROXY`"),
            (npm("EAI_AGAIN", "getaddrinfo EAI_AGAIN registry.npmjs.org"), "cannot be resolved", "`HTTPS_PROXY`"),
            (format!("{uv}dns error\n  Caused by: failed to lookup address information: Temporary failure in name resolution"), "cannot be resolved", "network"),
            ("Error: connect ECONNREFUSED 127.0.0.1:5432\n    at TCPConnectWrap.afterConnect".into(), "refuses the connection", "service runs"),
            (format!("{uv}tcp connect error\n  Caused by: Connection refused (os error 111)"), "refuses the connection", "registry"),
            (npm("ETIMEDOUT", "connect ETIMEDOUT 104.16.0.1:443"), "does not answer", "`HTTPS_PROXY`"),
            ("/usr/bin/env: ‘node’: No such file or directory".into(), "program `node` is missing", "`PATH`"),
            ("env: 'node': No such file or directory".into(), "program `node` is missing", "`PATH`"),
            ("Error: spawn uvx ENOENT\n    at ChildProcess._handle.onexit".into(), "program `uvx` is missing", "`PATH`"),
            ("sh: 1: python: not found".into(), "program `python` is missing", "install it"),
            ("bash: line 1: npx: command not found".into(), "program `npx` is missing", "install it"),
            ("exec: \"git\": executable file not found in $PATH".into(), "program `git` is missing", "install it"),
            ("error: No interpreter found for Python >=3.13 in managed installations or search path".into(), "Python version", "uv python install"),
            ("/s/index.js:3\n  a ??= 1;\n    ^^^\n\nSyntaxError: Unexpected token '??='".into(), "version of Node.js", "newer Node.js"),
            ("SyntaxError: Unexpected token 'with'\n    at ESMLoader.moduleStrategy".into(), "version of Node.js", "newer Node.js"),
            ("Error [ERR_REQUIRE_ESM]: require() of ES Module /x not supported.".into(), "version of Node.js", "newer Node.js"),
            ("You are using Node.js 16. This server requires Node.js 20 or later (requires Node >= 20).".into(), "version of Node.js", "newer Node.js"),
            ("npm warn EBADENGINE Unsupported engine {\nnpm warn EBADENGINE   package: 'x@1.0.0',\nnpm warn EBADENGINE   required: { node: '>=22' },".into(), "does not support this version", "its log names"),
            ("npm error code E404\nnpm error 404 Not Found - GET https://registry.npmjs.org/nope - Not found\nnpm warn EBADENGINE".into(), "does not have its package", "`npm_config_registry`"),
            ("  × No solution found when resolving tool dependencies:\n  ╰─▶ Because nope was not found in the package registry and you require nope, we can conclude".into(), "does not have its package", "`UV_DEFAULT_INDEX`"),
            ("npm error code E401\nnpm error Incorrect or missing password.".into(), "refuses the credentials", "`pass_env`"),
            ("Error: EACCES: permission denied, open '/root/x'".into(), "may not use a file", "permissions"),
            ("Error: listen EADDRINUSE: address already in use :::3000".into(), "uses its port", "another port"),
            ("Error: Cannot find module '@modelcontextprotocol/sdk'\nRequire stack:".into(), "module that it needs", "npm install"),
            ("ModuleNotFoundError: No module named 'mcp'".into(), "module that it needs", "uv sync"),
            ("PermissionError: [Errno 13] Permission denied: '/x'".into(), "may not use a file", "permissions"),
        ] {
            check(&stderr, what, remedy);
        }
    }

    #[test]
    fn other_output_shows_no_cause() {
        for stderr in [
            "",
            "starting\nError: API_KEY is not set",
            "SyntaxError: Unexpected token } in JSON at position 4",
            "SyntaxError: Unexpected token '.', \"...\" is not valid JSON",
            "Traceback (most recent call last):\nValueError: x",
            "Node.js version: v20.1.0\nfile access log: /var/log/x\nfailed to resolve the schema",
            "spawn $(rm -rf /) ENOENT",
            "FileNotFoundError: [Errno 2] No such file or directory: 'data.json'",
            "cat: data.txt: No such file or directory",
        ] {
            assert_eq!(diagnose(stderr, START_LINES, None), None, "{stderr}");
        }
        let old = format!("ECONNREFUSED\n{}", "still fine\n".repeat(CRASH_LINES));
        assert_eq!(diagnose(&old, CRASH_LINES, None), None);
    }

    #[test]
    fn a_diagnosis_repeats_no_output() {
        let found = diagnose("UnknownIssuer hunter2 \u{1b}[2J", START_LINES, None);
        let found = found.unwrap().to_string();
        assert!(
            !found.contains("hunter2") && !found.contains('\u{1b}'),
            "{found}"
        );
    }

    #[test]
    fn a_sandbox_without_network_is_the_cause() {
        let program = Program::Command {
            program: "x".to_owned(),
            args: Vec::new(),
        };
        let mut sandbox = Sandbox::new("x");
        let remedy = |sandbox: &Sandbox, stderr: &str| {
            let launch = Launch::new(program.clone(), Place::Sandbox(sandbox.clone()));
            diagnose(stderr, START_LINES, Some(&launch)).unwrap().remedy
        };
        sandbox.network = Network::None;
        assert!(remedy(&sandbox, "getaddrinfo EAI_AGAIN x").contains("has no network"));
        assert!(remedy(&sandbox, "UnknownIssuer").contains("SSL_CERT_FILE"));
        sandbox.network = Network::Allow(vec!["a".to_owned()]);
        assert!(remedy(&sandbox, "tunnel error: unsuccessful").contains("reaches only"));
        sandbox.network = Network::Open;
        assert!(remedy(&sandbox, "dns error").contains("HTTPS_PROXY"));
    }
}
