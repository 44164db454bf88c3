//! The server of a request: `{id}` and `?project=`.
//!
//! Invariants: a server that the caller cannot access and a missing one produce the same error. A name refers first to
//! a server that no project owns, then to a project's server.

use std::sync::Arc;

use axum::{extract::FromRequestParts, http::request::Parts};
use engine::{Fleet, Scope, server::Server};
use model::{Declared, ProjectId, ServerKey, ServerName};
use store::{RegistrationRow, ServerRow};

use crate::{
    Problem, Rest,
    access::admitted,
    answer::{found, shown},
};
use auth::Principal;
use backend::entries::hosted_by;

/// The place where a server is declared.
#[derive(Clone)]
pub(crate) enum Source {
    /// In the configuration file.
    File,
    /// In the database, as a server of a project.
    Project(ServerRow),
    Registered(RegistrationRow),
}

/// A declared server.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) key: ServerKey,
    pub(crate) home: Source,
}

impl<S: Sync> FromRequestParts<S> for Target {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        admitted(parts, "server")
    }
}

impl From<ServerRow> for Target {
    fn from(row: ServerRow) -> Self {
        let (owner, name) = (Some(row.project_id.clone()), row.name.clone());
        let key = ServerKey { owner, name };
        let home = Source::Project(row);
        Self { key, home }
    }
}

impl From<RegistrationRow> for Target {
    fn from(row: RegistrationRow) -> Self {
        let (owner, name) = (hosted_by(&row), row.name.clone());
        let key = ServerKey { owner, name };
        let home = Source::Registered(row);
        Self { key, home }
    }
}

impl Target {
    pub(super) fn of_file(name: ServerName) -> Self {
        let key = ServerKey { owner: None, name };
        let home = Source::File;
        Self { key, home }
    }

    pub(crate) fn id(&self) -> String {
        match &self.home {
            Source::File => self.key.name.to_string(),
            Source::Project(row) => row.id.clone(),
            Source::Registered(row) => row.id.clone(),
        }
    }

    /// Returns the sort key for lists: first servers that no project owns, then by project and name.
    pub(super) fn place(&self) -> String {
        let owner = self.key.owner.as_ref().map_or("", ProjectId::as_str);
        format!("{owner}/{}/{}", self.key.name, self.id())
    }

    /// The id of the product that installed the server.
    pub(crate) fn product(&self) -> Option<&String> {
        match &self.home {
            Source::Project(row) => row.product_id.as_ref(),
            Source::File | Source::Registered(_) => None,
        }
    }

    /// Returns the database key of the server's events.
    pub(super) fn events(&self) -> String {
        match &self.home {
            Source::Registered(row) => row.id.clone(),
            Source::File | Source::Project(_) => self.key.to_string(),
        }
    }

    /// Returns the running server. `None` if its project is disabled or its declaration is invalid.
    pub(crate) fn live(&self, fleet: &Fleet) -> Option<Arc<Server>> {
        let found = match &self.home {
            Source::Registered(row) => fleet.by_id(&row.id),
            Source::File | Source::Project(_) => fleet
                .get(&self.key)
                .filter(|server| server.spec.declared != Declared::Registered),
        };
        found.cloned()
    }
}

fn missing(id: &str) -> Problem {
    Problem::new(404, format!("there is no server `{}`", shown(id)))
}

impl Rest {
    /// Returns the server with this id, or with this name if it is unique. With a project, only servers of that project
    /// count. A project key always implies its project.
    ///
    /// # Errors
    /// 404 for missing servers, 409 for a name that servers of several projects have.
    pub(crate) async fn find(
        &self,
        project: Option<&ProjectId>,
        id: &str,
    ) -> Result<Target, Problem> {
        let name = ServerName::parse(id).ok();
        if let (None, Some(name)) = (project, &name)
            && self.server(name).is_ok()
        {
            return Ok(Target::of_file(name.clone()));
        }
        let store = self.projects.store();
        match store.registration_get(project, id).await {
            Ok(row) => return Ok(row.into()),
            Err(store::Error::NotFound { .. } | store::Error::Invalid { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        match store.server_get_by_id(project, id).await {
            Ok(row) => return Ok(row.into()),
            Err(store::Error::NotFound { .. } | store::Error::Invalid { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let name = name.ok_or_else(|| missing(id))?;
        if let Some(project) = project
            && let Some(row) = found(store.server_get(project, &name).await)?
        {
            return Ok(row.into());
        }
        let mut named = self.targets(project).await?;
        named.retain(|target| target.key.name == name);
        if let Some(at) = named.iter().position(|target| target.key.owner.is_none()) {
            return Ok(named.swap_remove(at));
        }
        match named.len() {
            // A file that has not taken effect may declare the server.
            0 if project.is_none() && self.live.has(&name).await => Ok(Target::of_file(name)),
            0 => Err(missing(id)),
            1 => Ok(named.remove(0)),
            _ => {
                let ids: Vec<String> = named.iter().map(Self::said).collect();
                let ids = ids.join(", ");
                let why = format!(
                    "several projects have a server `{name}`: choose one with `?project=` or by its id: {ids}"
                );
                Err(Problem::new(409, why))
            }
        }
    }

    fn said(target: &Target) -> String {
        let owner = target.key.owner.as_ref();
        let project = owner.map_or_else(String::new, |owner| format!(" ({owner})"));
        target.id() + &project
    }

    /// Returns all servers with a database row, of a project or of all projects.
    async fn targets(&self, project: Option<&ProjectId>) -> Result<Vec<Target>, Problem> {
        let store = self.projects.store();
        let mut registered = store.registration_list_all().await?;
        registered.retain(|row| project.is_none() || hosted_by(row).as_ref() == project);
        let declared = match project {
            Some(project) => store.server_list(project).await?,
            None => store.server_list_all().await?,
        };
        let registered = registered.into_iter().map(Target::from);
        Ok(registered
            .chain(declared.into_iter().map(Target::from))
            .collect())
    }

    /// Returns all servers, or those of one project.
    pub(crate) async fn all(&self, project: Option<&ProjectId>) -> Result<Vec<Target>, Problem> {
        let mut all = self.targets(project).await?;
        if project.is_none() {
            let of_file = self.gateway.servers();
            all.extend(
                of_file
                    .iter()
                    .map(|server| Target::of_file(server.name().clone())),
            );
        }
        Ok(all)
    }

    /// Returns the server of a call. Usually found without the database.
    pub(crate) async fn called(&self, who: &Principal, id: &str) -> Result<Arc<Server>, Problem> {
        let fleet = self.gateway.fleet();
        let own = ServerName::parse(id).ok().and_then(|name| {
            let owner = who.project().ok()?.cloned();
            fleet.get(&ServerKey { owner, name })
        });
        let found = own.or_else(|| fleet.by_id(id));
        match found {
            Some(server) if server.spec.enabled && who.reaches(server.spec.owner.as_ref()) => {
                Ok(server.clone())
            }
            // This case is rare. Its future is boxed, because the future that handles a call is moved into its
            // connection.
            _ => Box::pin(self.called_by_row(who, id)).await,
        }
    }

    async fn called_by_row(&self, who: &Principal, id: &str) -> Result<Arc<Server>, Problem> {
        let target = self.find(who.project()?, id).await?;
        self.enabled(&target).await
    }

    /// Returns a running server that is not disabled.
    pub(crate) async fn enabled(&self, target: &Target) -> Result<Arc<Server>, Problem> {
        self.taken_in(target).await?;
        let name = &target.key.name;
        match target.live(&self.gateway.fleet()) {
            Some(server) if server.spec.enabled => Ok(server),
            Some(_) => {
                let why = format!("server `{name}` is not enabled: run `toolwharf enable {name}`");
                Err(Problem::new(409, why))
            }
            None => {
                let why = format!(
                    "server `{name}` has an invalid entry, or its project is not enabled; see the gateway's log"
                );
                Err(Problem::new(409, why))
            }
        }
    }

    /// Ensures that the project of a server is loaded, if it is enabled.
    pub(crate) async fn taken_in(&self, target: &Target) -> Result<(), Problem> {
        let scope = Scope {
            project: target.key.owner.clone(),
            ..Scope::default()
        };
        if scope.project.is_some() {
            self.projects.admit(&scope).await?;
        }
        Ok(())
    }

    /// Returns the server of the configuration file with this name.
    pub(crate) fn server(&self, name: &ServerName) -> Result<Arc<Server>, Problem> {
        let servers = self.gateway.servers();
        let found = servers.iter().find(|server| server.name() == name);
        found.cloned().ok_or_else(|| missing(name.as_str()))
    }
}
