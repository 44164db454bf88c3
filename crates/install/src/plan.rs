//! The possible installation plans of a registry entry, with the inputs that each one needs.
//!
//! Invariant: in a plan with an empty `refused` list, npm, PyPI and Docker can interpret the names only as packages and
//! images. Each argument is either fixed by the publisher and passed to the program itself, or an input.

mod arguments;
mod inputs;
mod packages;

use std::path::PathBuf;

use api::{InstallOption, Wrong};
use serde_json::{Value, json};
use url::Url;

use super::{
    document::{Document, Input, PUBLISHER, Package, Transport, is_odd},
    fetch::is_local,
};

/// Maximum hosts that an entry may permit, and maximum volumes.
const MAX_HOSTS: usize = 64;
/// The members of [`PUBLISHER`] whose permissions are used: Toolwharf's and ToolHive's.
const TOOLWHARF_KEY: &str = "dev.toolwharf";
const TOOLHIVE_KEY: &str = "io.github.stacklok";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Npm,
    Pypi,
    Oci,
    Mcpb,
    Nuget,
    Remote,
}

/// One input of a plan.
#[derive(Clone, Debug, Default)]
pub(crate) struct Field {
    pub(super) name: String,
    pub(super) description: Option<String>,
    pub(super) is_required: bool,
    pub(crate) is_secret: bool,
    pub(super) format: Format,
    pub(super) preset: Option<String>,
    pub(super) placeholder: Option<String>,
    pub(super) choices: Vec<String>,
    pub(super) is_repeated: bool,
    /// True if the value is part of a URL.
    pub(super) is_of_url: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Format {
    #[default]
    Text,
    Number,
    Boolean,
    /// A path of this host.
    Path,
}

/// A part of a text: literal text, or the index of a field.
#[derive(Clone, Debug)]
pub(super) enum Part {
    Text(String),
    Field(usize),
}

pub(super) type Template = Vec<Part>;

/// An argument. It is omitted if one of its fields has no value.
#[derive(Clone, Debug)]
pub(super) struct Word {
    /// The place of the argument in the entry.
    pub(super) at: String,
    pub(super) flag: Option<String>,
    /// `None`: a flag without a value.
    pub(super) value: Option<Template>,
    /// Included only if this field is true.
    pub(super) switch: Option<usize>,
}

/// A host folder to be mounted into a container.
#[derive(Clone, Debug)]
pub(super) struct Bind {
    pub(super) host: Template,
    pub(super) inside: Template,
    pub(super) is_read_only: bool,
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub id: String,
    pub kind: Kind,
    /// The package, the image or the URL.
    pub(crate) target: String,
    pub(crate) version: Option<String>,
    pub sha256: Option<String>,
    pub(crate) refused: Vec<Wrong>,
    pub(super) fields: Vec<Field>,
    /// Options of `npx` or `uvx`.
    pub(super) options: Vec<String>,
    /// The program of a bundle, and its folder on this host.
    pub(super) program: Option<String>,
    pub(super) folder: Option<PathBuf>,
    pub(super) words: Vec<Word>,
    pub(super) env: Vec<(String, Template)>,
    pub(super) headers: Vec<(String, Template)>,
    pub(super) binds: Vec<Bind>,
    /// The URL of a remote server, or the address at which a launched one listens.
    pub(super) url: Option<Template>,
    pub(super) is_sse: bool,
    pub(super) network: Vec<String>,
    pub(super) volumes: Vec<String>,
    pub(super) notices: Vec<String>,
    /// True if the entry requests access to all hosts. That is granted only for the built-in catalogue.
    pub(super) wants_all: bool,
    pub(super) is_open: bool,
    /// True if the entry's registry is on this machine. The servers listed by such a registry may also be on this
    /// machine.
    pub(super) may_be_local: bool,
}

impl Kind {
    pub fn word(self) -> &'static str {
        match self {
            Self::Npm => "npm",
            Self::Pypi => "pypi",
            Self::Oci => "oci",
            Self::Mcpb => "mcpb",
            Self::Nuget => "nuget",
            Self::Remote => "remote",
        }
    }

    fn of(word: &str) -> Option<Self> {
        let all = [Self::Npm, Self::Pypi, Self::Oci, Self::Mcpb, Self::Nuget];
        all.into_iter().find(|kind| kind.word() == word)
    }

    /// The allowed runtime hints, and the allowed registries.
    fn usual(self) -> (&'static [&'static str], &'static [&'static str]) {
        match self {
            Self::Npm => (&["npx", "node"], &["https://registry.npmjs.org"]),
            Self::Pypi => (&["uvx", "uv", "python", "python3"], &["https://pypi.org"]),
            Self::Oci => (
                &["docker"],
                &[
                    "https://docker.io",
                    "https://ghcr.io",
                    "https://quay.io",
                    "https://mcr.microsoft.com",
                ],
            ),
            Self::Mcpb => (
                &["node", "python", "python3", "uv"],
                &["https://github.com", "https://gitlab.com"],
            ),
            Self::Nuget => (
                &["dnx"],
                &[
                    "https://api.nuget.org",
                    "https://api.nuget.org/v3/index.json",
                ],
            ),
            Self::Remote => (&[], &[]),
        }
    }
}

/// The kinds of packages and remotes in an entry, without duplicates.
pub(super) fn runs(document: &Document) -> Vec<String> {
    let mut runs: Vec<String> = Vec::new();
    let packages = document
        .packages
        .iter()
        .map(|package| package.registry_type.as_str());
    let remotes = document.remotes.iter().map(|_| Kind::Remote.word());
    for word in packages.chain(remotes) {
        if !runs.iter().any(|known| known == word) {
            runs.push(word.to_owned());
        }
    }
    runs
}

/// All plans. Those that are not refused come first.
pub fn plans(document: &Document) -> Vec<Plan> {
    let mut plans = Vec::new();
    for (index, package) in document.packages.iter().enumerate() {
        plans.push(Plan::of_package(document, index, package));
    }
    for (index, remote) in document.remotes.iter().enumerate() {
        plans.push(Plan::of_remote(index, remote));
    }
    plans.sort_by_key(|plan| !plan.refused.is_empty());
    plans
}

impl Plan {
    fn new(id: String, kind: Kind, target: String) -> Self {
        Self {
            id,
            kind,
            target,
            version: None,
            sha256: None,
            refused: Vec::new(),
            fields: Vec::new(),
            options: Vec::new(),
            program: None,
            folder: None,
            words: Vec::new(),
            env: Vec::new(),
            headers: Vec::new(),
            binds: Vec::new(),
            url: None,
            is_sse: false,
            network: Vec::new(),
            volumes: Vec::new(),
            notices: Vec::new(),
            wants_all: false,
            is_open: false,
            may_be_local: false,
        }
    }

    fn of_package(document: &Document, index: usize, package: &Package) -> Self {
        let at = format!("/packages/{index}");
        let word = &package.registry_type;
        let Some(kind) = Kind::of(word) else {
            let mut plan = Self::new(
                format!("packages/{index}"),
                Kind::Nuget,
                package.identifier.clone(),
            );
            let why = format!("`{word}` packages are not supported, only npm, pypi, oci and mcpb");
            plan.refuse(format!("{at}/registryType"), why);
            return plan;
        };
        let target = package.identifier.clone();
        let mut plan = Self::new(format!("{}/{index}", kind.word()), kind, target);
        plan.version = package
            .version
            .clone()
            .filter(|version| !version.is_empty());
        plan.sha256 = package.file_sha256.clone();
        plan.source(&at, package);
        plan.runtime_arguments(&at, package);
        for (index, argument) in package.package_arguments.iter().enumerate() {
            plan.argument(format!("{at}/packageArguments/{index}"), argument);
        }
        for (index, variable) in package.environment_variables.iter().enumerate() {
            plan.variable(&format!("{at}/environmentVariables/{index}"), variable);
        }
        plan.transport(&format!("{at}/transport"), &package.transport);
        plan.permissions(document, &package.identifier);
        plan
    }

    fn of_remote(index: usize, remote: &Transport) -> Self {
        let url = remote.url.clone().unwrap_or_default();
        let mut plan = Self::new(format!("remote/{index}"), Kind::Remote, url.clone());
        let at = format!("/remotes/{index}");
        match remote.kind.as_str() {
            "streamable-http" | "http" => {}
            "sse" => plan.is_sse = true,
            _ => plan.refuse(format!("{at}/type"), "must be `streamable-http` or `sse`"),
        }
        let input = Input {
            value: Some(url),
            variables: remote.variables.clone(),
            ..Input::default()
        };
        let first = plan.fields.len();
        plan.url = Some(plan.template(&input, "url"));
        for field in &mut plan.fields[first..] {
            field.is_of_url = true;
        }
        for (index, header) in remote.headers.iter().enumerate() {
            let at = format!("{at}/headers/{index}");
            let token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            let name = &header.name;
            let is_hop = [
                "host",
                "content-length",
                "transfer-encoding",
                "connection",
                "mcp-session-id",
            ]
            .contains(&name.to_ascii_lowercase().as_str());
            if name.is_empty() || !name.bytes().all(token) || is_hop {
                let why = format!("`{name}` is not an allowed header name");
                plan.refuse(format!("{at}/name"), why);
            }
            let template = plan.template(&header.input, name);
            plan.headers.push((name.clone(), template));
        }
        plan
    }

    fn refuse(&mut self, at: String, why: impl Into<String>) {
        self.refused.push(Wrong::new(at, why));
    }

    /// Sets the hosts that the server may reach, and its volumes.
    fn permissions(&mut self, document: &Document, identifier: &str) {
        let publisher = &document.meta[PUBLISHER];
        let texts = |value: &Value| -> Vec<String> {
            let items = value.as_array().into_iter().flatten().take(MAX_HOSTS);
            items
                .filter_map(Value::as_str)
                .filter(|text| !text.chars().any(|c| is_odd(c, false)))
                .map(str::to_owned)
                .collect()
        };
        let own = &publisher[TOOLWHARF_KEY];
        self.wants_all = own["network"] == "open";
        self.network = texts(&own["network"]);
        self.volumes = texts(&own["volumes"]);
        let outbound = &publisher[TOOLHIVE_KEY][identifier]["permissions"]["network"]["outbound"];
        self.wants_all |= outbound["insecure_allow_all"] == true;
        let ports: Vec<u64> = outbound["allow_port"]
            .as_array()
            .into_iter()
            .flatten()
            .take(MAX_HOSTS)
            .filter_map(Value::as_u64)
            .collect();
        for host in texts(&outbound["allow_host"]) {
            let hosts = match host.strip_prefix('.') {
                Some(domain) => vec![domain.to_owned(), format!("*.{domain}")],
                None => vec![host],
            };
            for host in hosts {
                match ports.as_slice() {
                    [] => self.network.push(host),
                    ports => self
                        .network
                        .extend(ports.iter().map(|port| format!("{host}:{port}"))),
                }
            }
        }
        self.network.truncate(MAX_HOSTS);
    }

    /// Sets what the entry may do, according to the registry that lists it. `None`: the built-in catalogue, which is
    /// trusted.
    pub fn listed_by(&mut self, registry: Option<&Url>) {
        self.may_be_local = registry.is_some_and(is_local);
        self.is_open = self.wants_all && registry.is_none();
        if self.wants_all && !self.is_open {
            let why = "the entry requests access to all hosts; the server can only reach the hosts that the entry names";
            self.notices.push(why.to_owned());
        }
    }

    /// The network access of the sandbox, in the format of entries.
    pub(super) fn reaches(&self) -> Value {
        match (self.is_launched() && !self.is_open, self.network.as_slice()) {
            (false, _) => "open".into(),
            (true, []) => "none".into(),
            (true, hosts) => json!({"allow": hosts}),
        }
    }

    /// Returns true if a remote server must be at a public address, since its URL comes from a registry.
    pub fn is_public_only(&self) -> bool {
        !self.may_be_local
    }

    pub fn is_launched(&self) -> bool {
        self.kind != Kind::Remote
    }

    /// The plan as returned by the API.
    pub fn to_api(&self) -> InstallOption {
        InstallOption {
            id: self.id.clone(),
            kind: self.kind.word().to_owned(),
            target: match self.kind {
                Kind::Remote | Kind::Mcpb => model::url_for_display(&self.target),
                _ => self.target.clone(),
            },
            version: self.version.clone(),
            refused: self.refused.clone(),
            inputs: self.inputs(),
            sandbox: self.is_launched(),
            network: self.reaches(),
            volumes: self.volumes.clone(),
            notices: self.notices.clone(),
            set: Vec::new(),
        }
    }
}
