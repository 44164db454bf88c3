//! Declaration of servers: in the configuration file, in a project, or by a registration.

use std::path::PathBuf;

use api::{Imported, Server, Unusable, Wrong};
use axum::{
    Extension,
    body::Bytes,
    extract::{
        Path, Query, State,
        rejection::{BytesRejection, QueryRejection},
    },
    http::{HeaderMap, StatusCode, header},
    response::Response,
};
use config::{ConfigError, ImportReport, Off, Sources, check_project, foreign_switches, misplaced};
use model::{Origin, ProjectId, ServerName};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use store::{NewServer, TransportKind};

use super::{START_TIMEOUT, Source, Target, answered};
use crate::{
    AppState, Problem, Rest,
    access::{Who, Within, permit},
    input::{self, Conditions},
};
use auth::Role;
use backend::{
    entries::{Owner, Sealing, restored},
    hosting,
    loop_detection::LoopDetection,
    projects::{BY_PROJECT, REGISTERED_BY},
    server_files::{self, Edited},
};

/// Query parameters of a registration.
#[derive(Debug, Deserialize)]
pub(crate) struct Registering {
    #[serde(default = "yes")]
    wait: bool,
}

fn yes() -> bool {
    true
}

/// A parsed entry of a project's server, as it is stored.
pub(crate) struct Entry {
    pub(crate) server: NewServer,
}

impl Entry {
    /// Parses an entry. Masked values are replaced by the values of the previous entry, `before`.
    ///
    /// # Errors
    /// All errors in the entry.
    pub(crate) fn read(
        project: &ProjectId,
        name: &ServerName,
        value: Value,
        before: Option<&Value>,
    ) -> Result<Self, Vec<Wrong>> {
        let Value::Object(members) = value else {
            return Err(vec![Wrong::new("", "must be an object")]);
        };
        let members = input::entry(members).map_err(|wrong| vec![wrong])?;
        let Value::Object(mut members) = restored(members.into(), before)? else {
            return Err(vec![Wrong::new("", "must be an object")]);
        };
        let mut errors = Vec::new();
        if members
            .remove("name")
            .is_some_and(|own| own != name.as_str())
        {
            let what = format!("must be `{name}`, the name in the path");
            errors.push(Wrong::new("/name", what));
        }
        if members.contains_key(REGISTERED_BY) {
            let pointer = format!("/{REGISTERED_BY}");
            let why = "is set by the gateway: leave it out";
            errors.push(Wrong::new(pointer, why));
        }
        let description = match members.remove("description") {
            None => String::new(),
            Some(Value::String(text)) => match input::description("/description", &text) {
                Ok(()) => text,
                Err(problem) => {
                    errors.extend(problem.into_errors());
                    String::new()
                }
            },
            Some(_) => {
                errors.push(Wrong::new("/description", "must be a string"));
                String::new()
            }
        };
        let value = Value::Object(members);
        // Missing secrets are not an error here. A server that lacks secrets is stored, and its state reports the
        // missing ones.
        errors.extend(misplaced(&value));
        let spec = check_project(project, name, &value, &Default::default());
        let spec = spec.map_err(|unfit| errors.extend(unfit.wrong));
        let (Ok(spec), true, Value::Object(mut members)) = (spec, errors.is_empty(), value) else {
            return Err(errors);
        };
        members.remove("enabled");
        members.remove("disabled");
        foreign_switches(&mut members);
        let transport = match &spec.origin {
            Origin::Launch(_) => TransportKind::Stdio,
            Origin::Remote(remote) if remote.sse => TransportKind::Sse,
            Origin::Remote(_) => TransportKind::Http,
        };
        Ok(Self {
            server: NewServer {
                name: name.clone(),
                description,
                transport,
                config: Value::Object(members),
                enabled: spec.enabled,
            },
        })
    }
}

/// Returns all errors in a body as one problem.
pub(crate) fn unfit(what: &str, errors: Vec<Wrong>) -> Problem {
    let first = errors.first().map_or("", |wrong| wrong.detail.as_str());
    let more = match errors.len() {
        0 | 1 => String::new(),
        count => format!(" (and {} more)", count - 1),
    };
    let place = match errors.first() {
        Some(wrong) if !wrong.pointer.is_empty() => format!("`{}`: ", wrong.pointer),
        _ => String::new(),
    };
    let mut problem = Problem::new(422, format!("{what}: {place}{first}{more}"));
    problem.errors = errors;
    problem
}

impl From<hosting::Error> for Problem {
    fn from(error: hosting::Error) -> Self {
        use hosting::Error;
        match error {
            Error::Unfit(wrong) => unfit("the registration is invalid", wrong),
            Error::Taken(_) => Self::field(409, "/name", error.to_string()),
            Error::Declared { .. } => Self::new(409, error.to_string()),
            Error::NoProject(_) => Self::field(422, "/project", error.to_string()),
            Error::Store(error) => error.into(),
            Error::Volumes(_) => Self::new(502, error.to_string()),
            Error::Key(_) => Self::new(500, error.to_string()),
        }
    }
}

/// Returns the absolute path of a file. The caller may have another working directory.
pub(crate) fn file(file: PathBuf) -> String {
    let file = std::path::absolute(&file).unwrap_or(file);
    file.display().to_string()
}

pub fn imported((from, report): (PathBuf, ImportReport)) -> Imported {
    let words = |names: Vec<ServerName>| names.iter().map(ToString::to_string).collect();
    let unusable = |all: Vec<(String, String)>| {
        let all = all.into_iter();
        let unusable = |(name, why)| Unusable {
            name,
            why,
            unset: Vec::new(),
        };
        all.map(unusable).collect()
    };
    let off = |off: Off| Unusable {
        name: off.name,
        why: off.why,
        unset: off.unset,
    };
    Imported {
        file: file(from),
        added: words(report.added),
        unchanged: words(report.unchanged),
        clashes: words(report.clashes),
        refused: unusable(report.refused),
        skipped: unusable(report.skipped),
        off: report.off.into_iter().map(off).collect(),
        notes: unusable(report.notes),
        warnings: Vec::new(),
    }
}

impl Rest {
    /// Changes the files and reloads them. Also returns other errors in the files.
    pub(crate) async fn edit<T: Send + 'static>(
        &self,
        change: impl FnOnce(&Sources, &LoopDetection) -> Result<T, server_files::Error> + Send + 'static,
    ) -> Result<(T, Vec<String>), Problem> {
        let (done, taken_in) = self.live.change(change).await?;
        let not_in_force = |errors: &ConfigError| {
            format!(
                "the file was changed, but the gateway keeps the old configuration until these errors are fixed:\n{errors}"
            )
        };
        Ok((done, taken_in.err().iter().map(not_in_force).collect()))
    }

    /// See [`backend::projects::Projects::sealing`].
    pub(crate) async fn sealing(&self) -> Result<Sealing<'_>, Problem> {
        let sealing = self.projects.sealing().await;
        sealing.map_err(|error| match error.downcast::<store::Error>() {
            Ok(error) => error.into(),
            Err(error) => Problem::new(500, format!("{error:#}")),
        })
    }

    /// Waits until a server runs or has failed to start.
    async fn settled(&self, id: &str) {
        if let Some(server) = self.hosting.server(id).filter(|server| server.spec.enabled) {
            let _ = tokio::time::timeout(START_TIMEOUT, server.up()).await;
        }
    }
}

/// `POST`: registers a server. The row follows the contract of `kb.agent_workspaces` (H01).
pub(crate) async fn register(
    State(rest): State<AppState>,
    Extension(who): Who,
    query: Result<Query<Registering>, QueryRejection>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let Registering { wait } = input::query(query)?;
    let entry = hosting::Entry::read(input::json(body)?, None).map_err(hosting::Error::Unfit)?;
    let row = rest.hosting.register(entry).await?;
    if wait {
        rest.settled(&row.id).await;
        let server = rest.hosting.server(&row.id);
        if let Some(refused) = server.and_then(|server| server.status().refused) {
            rest.hosting.withdraw(&row.id).await?;
            let why = refused.why.to_string();
            return Err(Problem::field(422, refused.pointer, why));
        }
    }
    let prefix = rest.front.guard().prefix_of(&headers);
    let place = format!("{prefix}/api/v1/mcp/servers/{}", row.id);
    let target = Target::from(row);
    let told = rest.to_api(&who, &target).await;
    let mut response = answered(StatusCode::CREATED, target.tag(), told);
    if let Ok(place) = place.parse() {
        response.headers_mut().insert(header::LOCATION, place);
    }
    Ok(response)
}

/// `PUT`: replaces a server where it is declared. A new server is declared in the given project, or by default in the
/// configuration file.
pub(crate) async fn save(
    State(rest): State<AppState>,
    who: Who,
    Within(project): Within,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let body: Value = input::json(body)?;
    let conditions = Conditions::of(&headers);
    let target = match rest.find(project.as_ref(), &id).await {
        // A server with this name in another project is replaced only if the path contains its id.
        Ok(target) => Some(target).filter(|it| it.key.owner == project || it.id() == id),
        Err(problem) if problem.status == 404 => None,
        Err(problem) => return Err(problem),
    };
    let name = match &target {
        Some(target) => target.key.name.clone(),
        None => ServerName::parse(&id).map_err(|error| Problem::new(422, error.to_string()))?,
    };
    let owner = match &target {
        Some(target) => target.key.owner.clone(),
        None => project,
    };
    match (target, owner) {
        (Some(target), owner) if matches!(target.home, Source::Registered(_)) => {
            permit(&who, Role::Admin, owner.as_ref())?;
            rest.replace(&who, &target, &conditions, body).await
        }
        (_, Some(project)) => rest.own(&who, project, name, &conditions, body).await,
        (_, None) => rest.write(&who, name, &conditions, body).await,
    }
}

impl Rest {
    /// Replaces a registration.
    pub(super) async fn replace(
        &self,
        who: &Who,
        target: &Target,
        conditions: &Conditions,
        body: Value,
    ) -> Result<Response, Problem> {
        let entry = registration(target, body);
        let before = match &target.home {
            Source::Registered(row) => Some(self.hosting.given(row).await?),
            Source::File | Source::Project(_) => None,
        };
        let entry = hosting::Entry::read(entry, before.as_ref()).map_err(hosting::Error::Unfit)?;
        conditions.permit(target.tag().as_deref())?;
        let id = target.id();
        let row = self.hosting.update(&id, entry).await?;
        self.settled(&id).await;
        let target = Target::from(row);
        let told = self.to_api(who, &target).await;
        Ok(answered(StatusCode::OK, target.tag(), told))
    }

    /// Declares a server of a project.
    pub(crate) async fn own(
        &self,
        Extension(who): &Who,
        project: ProjectId,
        name: ServerName,
        conditions: &Conditions,
        body: Value,
    ) -> Result<Response, Problem> {
        permit(who, Role::Manage, Some(&project))?;
        let store = self.projects.store();
        let _one_at_a_time = self.turn().await?;
        let row = match store.server_get(&project, &name).await {
            Ok(row) => Some(row),
            Err(store::Error::NotFound { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        let before = match &row {
            Some(row) => Some(self.whole(row).await?),
            None => None,
        };
        let entry = Entry::read(&project, &name, body, before.as_ref());
        let mut server = entry
            .map_err(|errors| unfit(&format!("the entry of server `{name}` is invalid"), errors))?
            .server;
        if !who.may(Role::Admin, Some(&project)) {
            if server.transport == TransportKind::Stdio {
                let why = "a server with a `command` needs an administrator's key; a project's key can only declare \
                           servers with a `url`";
                return Err(Problem::forbidden(why));
            }
            host_files(&server.config)?;
            members(&mut server.config).insert(REGISTERED_BY.to_owned(), BY_PROJECT.into());
        }
        let tag = row.as_ref().map(super::tag_of_row);
        conditions.permit(tag.as_deref())?;
        let sealing = self.sealing().await?;
        let old = row.as_ref().map(|row| &row.config);
        server.config = sealing.seal(Owner::Server(&project, &name), &server.config, old);
        let put = store.server_put(&project, &server).await?;
        self.projects.reload(&project).await?;
        let status = if put.created {
            StatusCode::CREATED
        } else {
            StatusCode::OK
        };
        let target = Target::from(put.row);
        self.taken_in(&target).await?;
        let told = self.with_product(who, &target).await?;
        Ok(answered(status, target.tag(), told))
    }

    /// Writes a server to the configuration file.
    pub(crate) async fn write(
        &self,
        Extension(who): &Who,
        name: ServerName,
        conditions: &Conditions,
        body: Value,
    ) -> Result<Response, Problem> {
        permit(who, Role::Admin, None)?;
        let entry = match body {
            Value::Object(members) => {
                let mut entry = input::entry(members)
                    .map_err(|wrong| Problem::field(422, &wrong.pointer, wrong.detail))?;
                entry.remove("name");
                entry.into()
            }
            other => other,
        };
        let replace = conditions.may_replace(self.server(&name).is_ok())?;
        let wanted = name.clone();
        let change = move |sources: &Sources, myself: &LoopDetection| {
            server_files::put(sources, myself, &wanted, &entry, replace)
        };
        let (edited, more): (Edited, _) = self.edit(change).await?;
        let status = if edited.created {
            StatusCode::CREATED
        } else {
            StatusCode::OK
        };
        let target = Target::of_file(name);
        let server = Server {
            file: Some(file(edited.file)),
            notices: edited.warnings.into_iter().chain(more).collect(),
            ..self.to_api(who, &target).await
        };
        Ok(answered(status, None, server))
    }
}

/// Adds the name and the project from the path to the body of a replacement, if they are missing.
pub(super) fn registration(target: &Target, mut body: Value) -> Value {
    if let Value::Object(members) = &mut body {
        let name = || target.key.name.as_str().into();
        members.entry("name").or_insert_with(name);
        let owner = || target.key.owner.as_ref().map(ProjectId::as_str).into();
        members.entry("project").or_insert_with(owner);
    }
    body
}

/// Rejects an entry that names a file of this host. Only administrators may do that.
fn host_files(entry: &Value) -> Result<(), Problem> {
    for place in ["/login", "/toolwharf/login"] {
        for key in ["assertionFile", "assertion_file"] {
            let pointer = format!("{place}/{key}");
            if entry.pointer(&pointer).is_some() {
                let why = "a server that reads a file of the gateway's host needs an administrator's key; with a \
                           project's key, put the text itself in `assertion`";
                let mut problem = Problem::forbidden(why);
                problem.errors = vec![Wrong::new(pointer, why)];
                return Err(problem);
            }
        }
    }
    Ok(())
}

fn members(config: &mut Value) -> &mut Map<String, Value> {
    if !config.is_object() {
        *config = json!({});
    }
    config.as_object_mut().expect("it is an object now")
}
