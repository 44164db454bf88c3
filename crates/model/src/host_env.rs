//! Variables of this host that servers get in addition to those in their entries.
//!
//! From the environment of `serve`: CA files, proxies and package registries, and the variables in `[defaults]
//! pass_env`. From the settings: the variables in `[defaults] env`. An entry's own variables override them.
//!
//! Invariant: a URL with user information, which may hold a password, is passed on only if the settings name its
//! variable. Deliberately absent: the variables that only processes get, such as `HOME` (`runtime::process`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Returns whether variables or headers with this name usually hold secrets.
pub(crate) fn is_secretive(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    [
        "key",
        "token",
        "secret",
        "passw",
        "auth",
        "credential",
        "cookie",
    ]
    .iter()
    .any(|word| name.contains(word))
}

/// Variables with the path of a file of CA certificates: OpenSSL and Rust, Node.js, Requests, curl, AWS, pip, Deno.
pub const CA_FILES: [&str; 7] = [
    "SSL_CERT_FILE",
    "NODE_EXTRA_CA_CERTS",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "AWS_CA_BUNDLE",
    "PIP_CERT",
    "DENO_CERT",
];
const PROXIES: [&str; 6] = [
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
];
const NO_PROXY: [&str; 2] = ["NO_PROXY", "no_proxy"];
/// Makes Node.js use the proxy variables.
const NODE_USE_ENV_PROXY: &str = "NODE_USE_ENV_PROXY";
const REGISTRIES: [&str; 8] = [
    "npm_config_registry",
    "NPM_CONFIG_REGISTRY",
    "UV_DEFAULT_INDEX",
    "UV_INDEX",
    "UV_INDEX_URL",
    "UV_EXTRA_INDEX_URL",
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
];
/// Added to `NO_PROXY`, because no proxy leads back to this machine.
const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// The part of this host that a server shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surroundings {
    /// The files and the network of this host: a process or a sandbox.
    Host,
    /// The network of this host, but other files: a Docker container.
    Container,
    /// Another machine.
    Elsewhere,
}

/// The variables that this host gives to the servers that it launches. `Debug` hides the values.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct HostEnv {
    variables: BTreeMap<String, String>,
    /// The variables that the settings name.
    chosen: BTreeSet<String>,
    /// Variables of the environment that are not passed on because their value contains user information.
    withheld: BTreeSet<String>,
}

impl HostEnv {
    /// `env` and `pass_env` are those of the settings. `lookup` finds a variable of the environment.
    pub fn resolve(
        env: BTreeMap<String, String>,
        pass_env: &BTreeSet<String>,
        lookup: &dyn Fn(&str) -> Option<String>,
    ) -> Self {
        // A value with the prefix `()` is an exported shell function: code, not data.
        let set =
            |name: &str| lookup(name).filter(|value| !value.is_empty() && !value.starts_with("()"));
        let mut variables = BTreeMap::new();
        let mut withheld = BTreeSet::new();
        let usual = CA_FILES.iter().chain(&PROXIES).chain(&NO_PROXY);
        let usual = usual.chain([&NODE_USE_ENV_PROXY]).chain(&REGISTRIES);
        for name in usual {
            let is_chosen = pass_env.contains(*name) || env.contains_key(*name);
            match set(name) {
                Some(value) if !is_chosen && users(name, &value).next().is_some() => {
                    withheld.insert((*name).to_owned());
                }
                Some(value) => drop(variables.insert((*name).to_owned(), value)),
                None => {}
            }
        }
        let passed = pass_env
            .iter()
            .filter_map(|name| Some((name.clone(), set(name)?)));
        variables.extend(passed);
        let chosen = pass_env.iter().chain(env.keys()).cloned().collect();
        let has_own = NO_PROXY.iter().any(|name| env.contains_key(*name));
        variables.extend(env);
        let has_proxy = PROXIES.iter().any(|name| variables.contains_key(*name));
        if has_proxy && !has_own {
            except_loopback(&mut variables);
        }
        Self {
            variables,
            chosen,
            withheld,
        }
    }

    /// The complete environment of a server from its entry's own variables. An own variable counts for all spellings of
    /// its name, since programs read `HTTPS_PROXY` and `https_proxy` alike.
    #[must_use]
    pub fn complete(
        &self,
        own: &BTreeMap<String, String>,
        surroundings: Surroundings,
    ) -> BTreeMap<String, String> {
        let mut all = own.clone();
        for (name, value) in &self.variables {
            let is_own = own.keys().any(|own| own.eq_ignore_ascii_case(name));
            let is_chosen = self.chosen.contains(name);
            let is_known = match surroundings {
                Surroundings::Host => true,
                _ if CA_FILES.contains(&name.as_str()) => false,
                Surroundings::Container => is_chosen || !leads_to_loopback(value),
                Surroundings::Elsewhere => is_chosen,
            };
            if !is_own && is_known {
                all.insert(name.clone(), value.clone());
            }
        }
        all
    }

    /// The variables that the settings name.
    pub fn chosen(&self) -> impl Iterator<Item = (&String, &String)> {
        let all = self.variables.iter();
        all.filter(|(name, _)| self.chosen.contains(*name))
    }

    /// Parts of the values that must not be shown.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = &str> {
        self.variables.iter().flat_map(|(name, value)| {
            let whole = is_secretive(name).then_some(value.as_str());
            let users = users(name, value).flat_map(|user| {
                let password = user.split_once(':').map(|(_, password)| password);
                [Some(user), password].into_iter().flatten()
            });
            whole.into_iter().chain(users)
        })
    }

    /// The variables that are not passed on because their value contains user information.
    pub fn withheld(&self) -> impl Iterator<Item = &str> {
        self.withheld.iter().map(String::as_str)
    }

    /// Warnings for the operator about these variables. They contain no values.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        self.withheld.iter().map(|name| {
            format!(
                "`{name}` contains user information, so the servers that Toolwharf starts do not get it; to pass it on, add it to `pass_env` in `[defaults]` of toolwharf.toml"
            )
        })
    }
}

impl fmt::Debug for HostEnv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.variables.keys()).finish()
    }
}

/// The user information of the URLs in a value: one URL, or several with blanks or commas between them. Proxies need no
/// scheme.
fn users<'v>(name: &str, value: &'v str) -> impl Iterator<Item = &'v str> {
    let is_proxy = PROXIES.contains(&name);
    let urls = value.split(|c: char| c == ',' || c.is_whitespace());
    urls.filter_map(move |url| {
        let rest = match url.split_once("://") {
            Some((_, rest)) => rest,
            None if is_proxy => url,
            None => return None,
        };
        // A password may contain an unescaped `/`, so the last `@` counts.
        rest.rsplit_once('@').map(|(user, _)| user)
    })
}

/// Returns whether this is a URL, or `host:port`, of this machine.
fn leads_to_loopback(value: &str) -> bool {
    let rest = value.split_once("://").map_or(value, |(_, rest)| rest);
    let place = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let place = place.rsplit_once('@').map_or(place, |(_, place)| place);
    place.starts_with("127.") || place.starts_with("[::1]") || {
        let host = place.split(':').next().unwrap_or_default();
        host.eq_ignore_ascii_case("localhost")
    }
}

fn except_loopback(variables: &mut BTreeMap<String, String>) {
    let is_set = NO_PROXY.iter().any(|name| variables.contains_key(*name));
    for name in NO_PROXY {
        let Some(value) = variables
            .get(name)
            .map(String::as_str)
            .or_else(|| (!is_set).then_some(""))
        else {
            continue;
        };
        let named: Vec<&str> = value.split(',').map(str::trim).collect();
        let missing = LOOPBACK.iter().filter(|host| !named.contains(host));
        let given = Some(value).filter(|value| !value.is_empty());
        let all: Vec<&str> = given.into_iter().chain(missing.copied()).collect();
        let joined = all.join(",");
        variables.insert(name.to_owned(), joined);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(all: &[(&str, &str)]) -> BTreeMap<String, String> {
        let all = all.iter();
        all.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn resolved(host: &[(&str, &str)], env: &[(&str, &str)], pass: &[&str]) -> HostEnv {
        let host = map(host);
        let pass = pass.iter().map(|name| (*name).to_owned()).collect();
        HostEnv::resolve(map(env), &pass, &|name| host.get(name).cloned())
    }

    fn check(all: &HostEnv, own: &[(&str, &str)], place: Surroundings, expected: &[(&str, &str)]) {
        assert_eq!(all.complete(&map(own), place), map(expected), "{place:?}");
    }

    #[test]
    fn ca_files_proxies_and_registries_come_from_the_environment() {
        let all = resolved(
            &[
                ("SSL_CERT_FILE", "/me@home/ca.pem"),
                ("https_proxy", "http://proxy:3128"),
                ("NO_PROXY", "intra.test,localhost"),
                ("UV_DEFAULT_INDEX", "https://pypi.intra.test/simple"),
                ("UV_INDEX_CORP_PASSWORD", "hunter2"),
                ("npm_config_registry", "http://127.0.0.1:4873"),
                ("npm_config__authToken", "hunter2"),
                ("GITHUB_TOKEN", "hunter2"),
                ("REQUESTS_CA_BUNDLE", ""),
                ("CURL_CA_BUNDLE", "() { :; }"),
            ],
            &[],
            &[],
        );
        let proxy = ("https_proxy", "http://proxy:3128");
        let except = ("NO_PROXY", "intra.test,localhost,127.0.0.1,::1");
        let index = ("UV_DEFAULT_INDEX", "https://pypi.intra.test/simple");
        let registry = ("npm_config_registry", "http://127.0.0.1:4873");
        let file = ("SSL_CERT_FILE", "/me@home/ca.pem");
        check(
            &all,
            &[],
            Surroundings::Host,
            &[file, proxy, except, index, registry],
        );
        check(&all, &[], Surroundings::Container, &[proxy, except, index]);
        check(&all, &[], Surroundings::Elsewhere, &[]);
        assert_eq!((all.warnings().count(), all.secrets().count()), (0, 0));
    }

    #[test]
    fn the_settings_add_variables_and_the_entry_overrides_them() {
        let all = resolved(
            &[
                ("A_TOKEN", "hunter2"),
                ("SSL_CERT_FILE", "/theirs"),
                ("HTTP_PROXY", "http://a"),
            ],
            &[("SSL_CERT_FILE", "/ours"), ("TZ", "UTC"), ("NO_PROXY", "")],
            &["A_TOKEN", "UNSET"],
        );
        let all_of_it = [
            ("A_TOKEN", "hunter2"),
            ("HTTP_PROXY", "http://a"),
            ("NO_PROXY", ""),
            ("SSL_CERT_FILE", "/ours"),
            ("TZ", "UTC"),
        ];
        check(&all, &[], Surroundings::Host, &all_of_it);
        check(
            &all,
            &[("http_proxy", ""), ("TZ", "CET")],
            Surroundings::Elsewhere,
            &[
                ("A_TOKEN", "hunter2"),
                ("NO_PROXY", ""),
                ("TZ", "CET"),
                ("http_proxy", ""),
            ],
        );
        assert!(all.secrets().any(|secret| secret == "hunter2"));
    }

    #[test]
    fn a_url_with_user_information_is_passed_on_only_by_name() {
        let host = [
            ("HTTPS_PROXY", "http://me:hunter2@proxy:3128"),
            ("UV_INDEX", "https://a/simple corp=https://token@b/simple"),
            ("ALL_PROXY", "me:hunter2@proxy"),
        ];
        let all = resolved(&host, &[], &[]);
        check(&all, &[], Surroundings::Host, &[]);
        let warnings: Vec<String> = all.warnings().collect();
        assert_eq!(warnings.len(), 3);
        assert!(
            warnings.iter().all(|text| !text.contains("hunter2")),
            "{warnings:?}"
        );
        let all = resolved(&host, &[], &["HTTPS_PROXY"]);
        assert_eq!(all.warnings().count(), 2);
        let given = all.complete(&BTreeMap::new(), Surroundings::Host);
        assert_eq!(given["HTTPS_PROXY"], host[0].1);
        let secrets: Vec<&str> = all.secrets().collect();
        assert_eq!(secrets, ["me:hunter2", "hunter2"]);
        assert!(!format!("{all:?}").contains("hunter2"));
    }

    #[test]
    fn addresses_of_this_machine_are_recognised() {
        for value in [
            "http://127.0.0.1:1/x",
            "localhost:80",
            "http://[::1]:1",
            "http://u@LOCALHOST",
        ] {
            assert!(leads_to_loopback(value), "{value}");
        }
        for value in [
            "http://proxy:1",
            "localhost.example:80",
            "http://10.0.0.1",
            "",
        ] {
            assert!(!leads_to_loopback(value), "{value}");
        }
    }
}
