//! Routes of server registries, and the installation of registry servers.
//!
//! Invariants:
//! - A server from an entry first runs in a trial, with the same sandbox as later.
//! - If the trial fails, nothing is declared and no secret is stored.
//! - The approved tool definitions are those that the trial listed.
//! - A new server is disabled until a user enables it.
//! - An administrator's key is needed for servers that are launched here, as on all routes, and for registries that are
//!   named in the request but not in the settings.

use std::{sync::Arc, time::Duration};

use api::{InstallRequest, Installed, RegistryServer, RegistryServers, TriedTool};
use axum::{
    Json,
    body::Bytes,
    extract::{Path, State, rejection::BytesRejection},
    http::StatusCode,
};
use catalog::Item;
use config::{check_entry, check_project, not_allowed, why_not_allowed};
use engine::{TrialError, Tried};
use model::{NativeName, Origin, ProjectId, ServerKey, ServerName, ServerSpec};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    AppState, Problem, Rest,
    access::{Who, Within, permit},
    answer::found,
    input::{self, Asked, Conditions, Page},
    servers::{promise, unfit},
};
use auth::{Principal, Role};
use backend::{
    projects::{BY_PROJECT, REGISTERED_BY},
    startup,
};
use install::{Error, Filled, Kind, Listing, Place, Plan};

/// Time limit of a trial, which installs and starts the server and lists its tools.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// Maximum length of the end of standard error in a response, in characters.
const MAX_STDERR_CHARS: usize = 1000;
/// Maximum length of a tool description in a response, in characters.
const MAX_DESCRIPTION_CHARS: usize = 2000;

/// Query parameters of a registry search.
#[derive(Debug, Deserialize)]
pub(super) struct Searching {
    #[serde(default)]
    search: String,
    registry: Option<String>,
    limit: Option<u32>,
    after: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Showing {
    registry: Option<String>,
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let why = error.to_string();
        match error {
            Error::NoRegistry(_) | Error::Url(_) => Self::new(422, why),
            Error::NotFound(..) => Self::new(404, why),
            Error::Ambiguous(..) => Self::new(409, why),
            Error::Down(_) => Self::new(502, why),
            Error::Unfit(_, wrong) => unfit(&why, wrong),
        }
    }
}

pub(super) async fn list(
    State(rest): State<AppState>,
    axum::Extension(who): Who,
    Asked(asked): Asked<Searching>,
) -> Result<Json<RegistryServers>, Problem> {
    let Searching {
        search,
        registry,
        limit,
        after,
    } = asked;
    let page = Page::of(limit.unwrap_or(100), after)?;
    let registry = named(&who, registry.as_deref())?;
    let known = &rest.gateway.settings().registries;
    let (servers, notices) = rest.catalogue.search(known, registry, &search).await?;
    let placed = servers
        .into_iter()
        .map(|it| (format!("{} {}", it.name, it.registry), it));
    let servers = page.cut(placed.collect(), |(place, _)| place);
    let next = page.next(&servers, |(place, _)| place.clone());
    let servers = servers.into_iter().map(|(_, it)| it).collect();
    Ok(Json(RegistryServers {
        servers,
        next,
        notices,
    }))
}

pub(super) async fn show(
    State(rest): State<AppState>,
    axum::Extension(who): Who,
    Within(project): Within,
    Path(name): Path<String>,
    Asked(Showing { registry }): Asked<Showing>,
) -> Result<Json<RegistryServer>, Problem> {
    let listing = rest.listing(&who, registry.as_deref(), &name).await?;
    let plans = rest.catalogue.plans(&listing).await;
    if plans.iter().any(|plan| plan.kind == Kind::Mcpb) {
        rest.prune_bundles(None).await;
    }
    let mut told = listing.to_api(&plans);
    if project.is_none() && who.may(Role::Admin, None) {
        let current = rest.variables();
        for option in &mut told.options {
            let plan = plans.iter().find(|plan| plan.id == option.id);
            let set = plan.map(|plan| plan.already_set(&|name| current(name).is_some()));
            option.set = set.unwrap_or_default();
        }
    }
    Ok(Json(told))
}

pub(super) async fn install(
    State(rest): State<AppState>,
    who: Who,
    Within(project): Within,
    Path(name): Path<String>,
    Asked(Showing { registry }): Asked<Showing>,
    body: Result<Bytes, BytesRejection>,
) -> Result<(StatusCode, Json<Installed>), Problem> {
    let asked: InstallRequest = input::object(body).map_err(without_values)?;
    permit(
        &who,
        project.as_ref().map_or(Role::Admin, |_| Role::Manage),
        project.as_ref(),
    )?;
    let listing = rest.listing(&who, registry.as_deref(), &name).await?;
    if asked
        .digest
        .as_ref()
        .is_some_and(|digest| *digest != listing.digest)
    {
        let why = format!(
            "the entry `{}` changed since it was shown; show it again",
            listing.document.name
        );
        return Err(Problem::new(409, why));
    }
    let _turn = rest.catalogue.turn().await;
    let plan = chosen(
        rest.catalogue.plans(&listing).await,
        asked.option.as_deref(),
    )?;
    if plan.is_launched() {
        permit(&who, Role::Admin, project.as_ref())?;
    }
    let last = listing.document.name.rsplit('/').next().unwrap_or_default();
    let server = asked.name.as_deref().unwrap_or(last);
    let server = ServerName::parse(server)
        .map_err(|error| Problem::field(422, "/name", error.to_string()))?;
    rest.is_free(project.as_ref(), &server).await?;
    let current = rest.variables();
    let place = match &project {
        Some(_) => Place::Project,
        None => Place::File(&current),
    };
    let what = format!("cannot install `{}`", listing.document.name);
    let filled = plan
        .fill(&server, &asked.values, &asked.writable, &place)
        .map_err(|wrong| unfit(&what, wrong))?;
    let spec = rest
        .described(project.as_ref(), &server, &filled, &plan)
        .await?;
    let trial = tokio::time::timeout(TRIAL_TIMEOUT, rest.gateway.trial(&spec)).await;
    let late = || {
        Problem::new(
            504,
            format!(
                "the trial of `{server}` took more than {} min, and nothing was installed",
                TRIAL_TIMEOUT.as_secs() / 60
            ),
        )
    };
    let (tried, unseen) = match trial.map_err(|_| late())? {
        Ok(tried) => (Some(tried), None),
        Err(error) if error.needs_login => (None, Some(error.reason.to_string())),
        Err(error) => {
            if plan.kind == Kind::Mcpb {
                rest.prune_bundles(plan.sha256.clone()).await;
            }
            return Err(failed(&server, &error));
        }
    };
    let key = ServerKey {
        owner: project.clone(),
        name: server.clone(),
    };
    let declared = rest
        .declare(&who, key, &listing, filled, &plan, tried, unseen)
        .await?;
    Ok((StatusCode::CREATED, Json(declared)))
}

impl Rest {
    /// Looks up variables as an entry of the configuration file does, without empty ones.
    fn variables(&self) -> impl Fn(&str) -> Option<String> + Sync + use<> {
        let sealed = self.live.sources().sealed.get();
        move |name| {
            let value = startup::env(name).filter(|value| !value.is_empty());
            // A secret that cannot be decrypted has no value, but its name is taken.
            let sealed = || Some(sealed.get(name)?.unwrap_or_default().to_owned());
            value.or_else(sealed)
        }
    }

    async fn listing(
        &self,
        who: &Principal,
        registry: Option<&str>,
        name: &str,
    ) -> Result<Listing, Problem> {
        let registry = named(who, registry)?;
        let known = &self.gateway.settings().registries;
        Ok(self.catalogue.get(known, registry, name).await?)
    }

    /// Removes bundles that no server uses.
    async fn prune_bundles(&self, only: Option<String>) {
        let Ok(rows) = self.projects.store().server_list_all().await else {
            return;
        };
        let mut used: String = rows.iter().map(|row| row.config.to_string()).collect();
        for server in self.gateway.fleet().all() {
            let mounts = server
                .spec
                .sandbox()
                .into_iter()
                .flat_map(|own| &own.mounts);
            used.extend(mounts.map(|mount| mount.host.display().to_string()));
        }
        self.catalogue.prune_bundles(used, only).await;
    }

    /// Checks that no server has the name yet.
    async fn is_free(&self, project: Option<&ProjectId>, name: &ServerName) -> Result<(), Problem> {
        let there = match project {
            None => self.live.has(name).await,
            Some(project) => {
                let server = self.projects.store().server_get(project, name).await;
                found(server)?.is_some()
            }
        };
        match there {
            true => Err(Problem::field(
                409,
                "/name",
                format!("there is a server `{name}` already: choose another name"),
            )),
            false => Ok(()),
        }
    }

    /// Returns the server as the gateway would run it, enabled.
    async fn described(
        &self,
        project: Option<&ProjectId>,
        name: &ServerName,
        filled: &Filled,
        plan: &Plan,
    ) -> Result<ServerSpec, Problem> {
        let bad = |problems: Vec<String>| {
            Problem::new(
                422,
                format!("server `{name}` is unusable: {}", problems.join("; ")),
            )
        };
        let mut spec = match project {
            None => {
                let path = std::path::Path::new("/");
                let sealed = self.live.sources().sealed.get().with(&filled.secrets);
                check_entry(path, name, &filled.entry, &startup::env, &Arc::new(sealed))
                    .map_err(|unfit| bad(unfit.problems))?
                    .0
            }
            Some(project) => {
                let mut secrets = self.projects.secret_values(project).await?;
                secrets.values.extend(filled.secrets.clone());
                let mut spec = check_project(project, name, &filled.entry, &secrets.values)
                    .map_err(|unfit| bad(unfit.problems))?;
                secrets.hold_back(&mut spec, &filled.entry);
                let allowed = &self.gateway.settings().hosting.mounts;
                let refused = spec.sandbox().and_then(|own| not_allowed(allowed, own));
                if let Some(path) = refused {
                    return Err(Problem::new(422, why_not_allowed(path)));
                }
                spec
            }
        };
        if let Some(why) = &spec.unusable {
            return Err(bad(vec![why.to_string()]));
        }
        if let Origin::Remote(remote) = &mut spec.origin {
            remote.public_only = plan.is_public_only();
        }
        Ok(spec)
    }

    /// Declares a server after its trial, disabled.
    #[expect(clippy::too_many_arguments, reason = "the parts of an installation")]
    async fn declare(
        &self,
        who: &Who,
        key: ServerKey,
        listing: &Listing,
        filled: Filled,
        plan: &Plan,
        tried: Option<Tried>,
        unseen: Option<String>,
    ) -> Result<Installed, Problem> {
        let Filled {
            mut entry,
            secrets,
            network,
            mounts,
        } = filled;
        entry["disabled"] = true.into();
        let conditions = Conditions::only_new();
        let name = key.name.clone();
        let mut set = Vec::new();
        let declared = match &key.owner {
            None => {
                let kept = async {
                    for (secret, value) in &secrets {
                        self.projects.config_secret_set(secret, value).await?;
                        set.push(secret.clone());
                    }
                    if !set.is_empty() {
                        self.refresh_secrets().await?;
                    }
                    Ok(())
                };
                match kept.await {
                    Ok(()) => self.write(who, name.clone(), &conditions, entry).await,
                    Err(problem) => Err(problem),
                }
            }
            Some(project) => {
                if !plan.is_launched() && plan.is_public_only() {
                    entry[REGISTERED_BY] = BY_PROJECT.into();
                }
                entry["description"] = listing.document.description.as_str().into();
                let kept = async {
                    for (secret, value) in &secrets {
                        self.projects.secret_set(project, secret, value).await?;
                        set.push(secret.clone());
                    }
                    Ok(())
                };
                match kept.await {
                    Ok(()) => {
                        self.own(who, project.clone(), name.clone(), &conditions, entry)
                            .await
                    }
                    Err(problem) => Err(problem),
                }
            }
        };
        if declared.is_err() && !set.is_empty() {
            for secret in &set {
                let _ = match &key.owner {
                    Some(project) => self.projects.secret_delete(project, secret).await,
                    None => self.projects.store().config_secret_delete(secret).await,
                };
            }
            if key.owner.is_none() {
                let _ = self.refresh_secrets().await;
            }
        }
        declared?;
        let tools = tried
            .as_ref()
            .map(|tried| tried.tools.as_slice())
            .unwrap_or_default();
        self.gateway.agree_to(&key, tools).await?;
        let target = self.find(key.owner.as_ref(), name.as_str()).await?;
        let placement = tried.as_ref().and_then(|tried| tried.placement.as_deref());
        let enforced = placement.map(|placement| placement.enforced.iter());
        let enforced = enforced.into_iter().flatten();
        Ok(Installed {
            server: self.to_api(who, &target).await,
            tools: tools.iter().map(shown).collect(),
            unseen,
            provider: placement.map(|placement| placement.provider.to_string()),
            enforced: enforced.map(promise).collect(),
            network,
            volumes: plan.to_api().volumes,
            mounts,
            secrets: set,
            notices: plan.to_api().notices,
        })
    }
}

/// Returns the requested registry. A URL that is not in the settings needs an administrator's key.
fn named<'r>(who: &Principal, registry: Option<&'r str>) -> Result<Option<&'r str>, Problem> {
    if registry.is_some_and(|registry| registry.contains("://")) {
        permit(who, Role::Admin, None)?;
    }
    Ok(registry)
}

/// Returns the first plan with this id or kind, or without `option` the first plan.
fn chosen(plans: Vec<Plan>, option: Option<&str>) -> Result<Plan, Problem> {
    let ids: Vec<String> = plans.iter().map(|plan| plan.id.clone()).collect();
    let is_it =
        |plan: &Plan| option.is_none_or(|option| plan.id == option || plan.kind.word() == option);
    plans.into_iter().find(is_it).ok_or_else(|| {
        let why = match ids.is_empty() {
            true => "the entry contains neither a package nor a remote server".to_owned(),
            false => {
                let option = super::answer::shown(option.unwrap_or_default());
                format!(
                    "unknown option `{option}`; must be one of {}",
                    ids.join(", ")
                )
            }
        };
        Problem::field(422, "/option", why)
    })
}

fn failed(server: &ServerName, error: &TrialError) -> Problem {
    let stderr = error.stderr.as_deref().map(|text| {
        let lines: Vec<&str> = text.lines().rev().take(5).collect();
        let text: Vec<&str> = lines.into_iter().rev().collect();
        text.join(" | ")
            .chars()
            .take(MAX_STDERR_CHARS)
            .collect::<String>()
    });
    let stderr = stderr
        .filter(|text| !text.is_empty())
        .map(|text| format!(" | {text}"));
    let why = format!(
        "the trial of `{server}` failed, and nothing was installed: {}{}",
        error.reason,
        stderr.unwrap_or_default()
    );
    Problem::new(422, why)
}

/// Removes parts of the body from an error. They may contain secrets.
fn without_values(mut problem: Problem) -> Problem {
    if problem.status == 400 {
        problem
            .errors
            .retain(|wrong| !wrong.pointer.starts_with("/values"));
        if problem.errors.is_empty() {
            r#"the body must be {"option": …, "digest": …, "name": …, "values": {…}}"#
                .clone_into(&mut problem.detail);
        }
    }
    problem
}

fn shown(item: &Item) -> TriedTool {
    let raw = mcp::json::without_lone_surrogates(&item.raw);
    let tool: Value = serde_json::from_slice(&raw).unwrap_or_default();
    let text = |value: &Value| {
        value
            .as_str()
            .map(|text| text.chars().take(MAX_DESCRIPTION_CHARS).collect::<String>())
    };
    TriedTool {
        name: NativeName::new(item.native.clone()).to_string(),
        title: text(&tool["title"]).or_else(|| text(&tool["annotations"]["title"])),
        description: text(&tool["description"]).unwrap_or_default(),
        annotations: Some(tool["annotations"].clone()).filter(Value::is_object),
        input_schema: match &tool["inputSchema"] {
            Value::Null => json!({"type": "object"}),
            schema => schema.clone(),
        },
    }
}
